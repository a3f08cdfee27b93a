"""Samples of torch's own op_db on the device, each with fresh tensors."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

# Their samples or results are no plain tensors, differ from call to call, or need what the machine may lack.
_LEFT_OUT = ("to_sparse", "sparse", "nested", "jiterator")


def ops() -> list[Any]:
    from torch.testing._internal.common_methods_invocations import op_db

    return [op for op in op_db if not op.name.startswith(_LEFT_OUT)]


def chunks(count: int) -> list[Any]:
    """The parts of a test of every op: one in eight always runs, the others with the slow tests."""
    return [number if number % 8 == 1 else pytest.param(number, marks=pytest.mark.slow) for number in range(count)]


def full_name(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


class Sample:
    """One call of one op: `arguments()` makes the same arguments anew each time."""

    def __init__(self, op: Any, device: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.op = op
        self._device = device
        self._arguments = (args, kwargs)

    def on(self, device: str) -> Sample:
        """The same call on another device."""
        return Sample(self.op, device, *self._arguments)

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return pytree.tree_map(self._fresh, self._arguments)

    def _fresh(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if value.layout is not torch.strided:
                raise NotImplementedError("only strided tensors")
            # tensor_split wants its indices on the CPU, whatever the device
            stays = self.op.name == "tensor_split" and not value.is_floating_point()
            moved = value.detach().clone() if stays else value.detach().to(self._device, copy=True)
            return moved.requires_grad_(value.requires_grad)
        if isinstance(value, torch.device) or value == "cpu":
            return torch.device(self._device)
        if isinstance(value, torch.Generator):
            return torch.Generator(self._device).manual_seed(0)
        return value


def samples(op: Any, device: str, dtype: torch.dtype, most: int = 2) -> Iterator[Sample]:
    if not op.supports_dtype(dtype, "cpu"):
        return
    gradient = op.supports_autograd and dtype.is_floating_point and dtype in op.supported_backward_dtypes("cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=gradient), most)
        for sample in found:
            yield Sample(op, device, (sample.input, *sample.args), sample.kwargs)


def tensors_in(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def bits(tensor: torch.Tensor | None) -> Any:
    """Equal for equal bits, also of NaN."""
    if tensor is None:
        return None
    flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return flat.dtype, flat.shape, flat.view(-1).view(torch.uint8).numpy().tobytes() if flat.numel() else b""
