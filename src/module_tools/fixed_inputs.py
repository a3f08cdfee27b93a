"""Gives each layer what it was given in the benchmark, so that the error of one is not the error of the next."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from op_tools.output import messages
from op_tools.storage import encoding
from op_tools.values import trees


class FixedInputs:
    """The benchmark's inputs and gradients, by layer."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._load = lru_cache(maxsize=1)(self._read)  # a layer asks before and after it ran

    def instead_of(self, name: str, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments with the benchmark's tensors in them; gradients flow on as they would."""
        recorded = self._load("forward", name)
        if recorded is None:
            return args, kwargs
        wanted = list(trees.tensors((recorded["input"], recorded.get("kwargs", {}))))
        actual = list(trees.tensors((args, kwargs)))
        if [each.shape for each in wanted] != [each.shape for each in actual]:
            self._complain(name, "was given tensors of other shapes there")
            return args, kwargs
        stand_ins = iter(wanted)
        changed = trees.map_tensors(lambda tensor: _stand_in(tensor, next(stand_ins)), (args, kwargs))
        return changed[0], changed[1]

    def replace_gradients(self, name: str, output: Any) -> None:
        """Lets the benchmark's gradients flow into the layer that gave `output`."""
        if not any(tensor.grad_fn is not None for tensor in trees.tensors(output)):
            return
        recorded = self._load("backward", name)
        for tensor, gradient in zip(trees.tensors(output), recorded["grad_output"] if recorded else ()):
            if tensor.grad_fn is not None and gradient is not None and gradient.shape == tensor.shape:
                tensor.grad_fn.register_prehook(_replacement(tensor.output_nr, gradient))

    def _read(self, direction: str, name: str) -> Any:
        path = self._folder / direction / f"{name}.pt"
        try:
            return encoding.decode(torch.load(path, map_location="cpu", weights_only=True))
        except FileNotFoundError:
            self._complain(name, "is not in it")
        except Exception as error:  # noqa: BLE001  a damaged file can make torch.load raise anything
            self._complain(name, f"cannot be read: {messages.in_short(error)}")
        return None

    def _complain(self, name: str, why: str) -> None:
        text = f"CompLayerAcc leaves the inputs of {name} as they are: of the benchmark in {self._folder}, it {why}"
        messages.complain_once("module_tools", name, text=text)


class _Instead(torch.autograd.Function):
    """Another tensor in the place of one in the graph."""

    @staticmethod
    def forward(context: Any, actual: Tensor, recorded: Tensor) -> Tensor:
        return recorded

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def _stand_in(actual: Tensor, recorded: Tensor) -> Tensor:
    moved = recorded.to(actual.device, actual.dtype, copy=True)
    if not actual.requires_grad or not torch.is_grad_enabled():
        return moved
    replaced: Tensor = _Instead.apply(actual, moved)  # type: ignore[no-untyped-call]
    return replaced


def _replacement(number: int, gradient: Tensor) -> Any:
    def replace(gradients: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
        there = gradients[number]
        if there is None:
            return gradients
        return (*gradients[:number], gradient.to(there.device, there.dtype), *gradients[number + 1 :])

    return replace
