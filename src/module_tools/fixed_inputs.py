"""Gives each layer what it was given in the benchmark, so that the error of one is not the error of the next."""

from __future__ import annotations

from functools import lru_cache, partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, Callable

import torch
from torch import Tensor

from op_tools.output import messages
from op_tools.storage import encoding
from op_tools.values import trees


class FixedInputs:
    """The benchmark's inputs and gradients, by layer.

    `on_both_sides`: what a layer gives is replaced as well: what is computed between layers shows its own error.
    """

    def __init__(self, folder: Path, on_both_sides: bool = False) -> None:
        self._folder = folder
        self.on_both_sides = on_both_sides
        self._load = lru_cache(maxsize=2)(self._read)  # a layer asks before and after it ran

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
        given = list(self._gradients(name, "grad_input")) if any(each.requires_grad for each in actual) else []
        stand_ins = zip_longest(wanted, given[: len(wanted)])
        changed = trees.map_tensors(lambda tensor: _stand_in(tensor, *next(stand_ins)), (args, kwargs))
        return changed[0], changed[1]

    def output_instead_of(self, name: str, output: Any) -> Any:
        """What the layer gave in the benchmark; None where its own result is to go on."""
        recorded = self._load("forward", name) if self.on_both_sides else None
        wanted = [] if recorded is None else list(trees.tensors(recorded["output"]))
        if not wanted or [each.shape for each in wanted] != [each.shape for each in trees.tensors(output)]:
            return None
        stand_ins = iter(wanted)
        return trees.map_tensors(lambda tensor: _stand_in(tensor, next(stand_ins)), output)

    def _gradients(self, name: str, part: str) -> Any:
        recorded = self._load("backward", name) if self.on_both_sides else None
        return () if recorded is None else recorded[part]

    def replace_gradients(self, name: str, output: Any, heard: Callable[[int, Tensor], None]) -> None:
        """Lets the benchmark's gradients flow into the layer that gave `output`; `heard` is told what came instead."""
        if not any(tensor.grad_fn is not None for tensor in trees.tensors(output)):
            return
        recorded = self._load("backward", name)
        pairs = zip(trees.tensors(output), recorded["grad_output"] if recorded else ())
        for number, (tensor, gradient) in enumerate(pairs):
            if tensor.grad_fn is not None and gradient is not None and gradient.shape == tensor.shape:
                hook = _replacement(tensor.output_nr, gradient, partial(heard, number))
                tensor.grad_fn.register_prehook(hook)

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
    def forward(context: Any, actual: Tensor, recorded: Tensor, gradient: Tensor | None) -> Tensor:
        context.gradient = gradient
        return recorded

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        own, recorded = gradients[0], context.gradient
        if recorded is None or recorded.shape != own.shape:
            return own, None, None
        return recorded.to(own.device, own.dtype), None, None


def _stand_in(actual: Tensor, recorded: Tensor, gradient: Tensor | None = None) -> Tensor:
    """`gradient`: what flows on in backward in the place of the gradient that arrives."""
    moved = recorded.to(actual.device, actual.dtype, copy=True)
    if not actual.requires_grad or not torch.is_grad_enabled():
        return moved
    replaced: Tensor = _Instead.apply(actual, moved, gradient)  # type: ignore[no-untyped-call]
    return replaced


def _replacement(number: int, gradient: Tensor, heard: Callable[[Tensor], None]) -> Any:
    def replace(gradients: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
        there = gradients[number]
        if there is None:
            return gradients
        heard(there)
        return (*gradients[:number], gradient.to(there.device, there.dtype), *gradients[number + 1 :])

    return replace
