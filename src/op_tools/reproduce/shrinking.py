"""Makes a case as small and as simple as it can be while the device stays wrong.

Greedy and deterministic: smaller dimensions, no backward, no autocast, plain strides, arguments left out, then values
that are constants and small whole numbers. Each is tried on the device, and kept where the verdict stays.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Callable

import torch
from torch import Tensor

from op_tools.reproduce.case import Case, map_plain
from op_tools.values import trees

MAX_TRIES = 400
Told = Callable[[str], None]


class Shrinker:
    """`is_wrong` runs a case on the device. `tries` counts how often it was asked."""

    def __init__(self, is_wrong: Callable[[Case], bool], told: Told) -> None:
        self._is_wrong = is_wrong
        self._told = told
        self.tries = 0

    def shrink(self, case: Case) -> Case:
        passes = (_without_backward, _without_autocast, _smaller, _plain_strides, _fewer_arguments, _simpler_values)
        before = None
        while before is not case and self.tries < MAX_TRIES:
            before = case
            for candidates in passes:
                case = self._pass(case, candidates)
        return case

    def _pass(self, case: Case, candidates: Callable[[Case], Iterator[tuple[str, Case]]]) -> Case:
        """Takes each candidate that stays wrong, and begins anew from it."""
        is_going_on = True
        while is_going_on and self.tries < MAX_TRIES:
            is_going_on = False
            for label, candidate in candidates(case):
                if self.tries >= MAX_TRIES:
                    break
                self.tries += 1
                if self._stays_wrong(candidate):
                    self._told(label)
                    case, is_going_on = candidate, True
                    break
        return case

    def _stays_wrong(self, case: Case) -> bool:
        try:
            return self._is_wrong(case)
        except Exception:  # noqa: BLE001  the op refuses what was tried: no such candidate
            return False


def _without_backward(case: Case) -> Iterator[tuple[str, Case]]:
    if any(one is not None for one in case.gradients) or any(t.requires_grad for t in _tensors(case)):
        yield "no backward", replace(_mapped(case, lambda number, tensor: tensor.detach()), gradients=[])


def _without_autocast(case: Case) -> Iterator[tuple[str, Case]]:
    if case.autocast is not None:
        low = case.autocast
        plain = replace(case, autocast=None)
        yield "no autocast", _mapped(plain, lambda number, tensor: _cast(tensor, low))
        yield "no autocast", plain


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    if not tensor.is_floating_point():
        return tensor
    return tensor.detach().to(dtype).requires_grad_(tensor.requires_grad)


def _smaller(case: Case) -> Iterator[tuple[str, Case]]:
    """Each size that occurs, everywhere at once; then each dimension by itself."""
    sizes = sorted({size for tensor in _tensors(case) for size in tensor.shape if size > 1}, reverse=True)
    for size in sizes:
        for smaller in dict.fromkeys((1, 2, size // 2, size - 1)):
            if not 0 < smaller < size:
                continue
            cut = _mapped(case, lambda number, tensor: _cut(tensor, size, smaller))  # noqa: B023  used at once
            yield f"{size} to {smaller}", _with_gradients(_with_numbers(cut, size, smaller))
            yield f"{size} to {smaller}", _with_gradients(cut)
    for index, tensor in enumerate(_tensors(case)):
        for dimension, size in enumerate(tensor.shape):
            if size > 1:
                alone = _mapped(case, lambda n, t: _narrowed(t, dimension, size // 2) if n == index else t)  # noqa: B023
                yield f"tensor {index}, dimension {dimension}: {size} to {size // 2}", _with_gradients(alone)


def _cut(tensor: Tensor, size: int, smaller: int) -> Tensor:
    for dimension, own in enumerate(tensor.shape):
        if own == size:
            tensor = _narrowed(tensor, dimension, smaller)
    return tensor


def _narrowed(tensor: Tensor, dimension: int, length: int) -> Tensor:
    part = tensor.detach().narrow(dimension, 0, length)
    return part.clone(memory_format=torch.preserve_format).requires_grad_(tensor.requires_grad)


def _with_numbers(case: Case, size: int, smaller: int) -> Case:
    """Shapes among the arguments, too."""

    def changed(value: Any) -> Any:
        return smaller if type(value) is int and value == size else value

    return case.with_values(map_plain(changed, case.args), map_plain(changed, case.kwargs))


def _with_gradients(case: Case) -> Case:
    """The gradients, cut to the shapes of the results."""
    if not any(one is not None for one in case.gradients):
        return case
    try:
        shapes = [tensor.shape for name, tensor in replace(case, gradients=[]).run("cpu").items()]
    except Exception:  # noqa: BLE001  the op refuses these shapes, also when the candidate is tried
        return case
    cut = []
    for gradient, shape in zip(case.gradients, shapes):
        if gradient is not None and gradient.dim() == len(shape):
            for dimension, size in enumerate(shape):
                gradient = gradient.narrow(dimension, 0, min(size, gradient.shape[dimension]))
            gradient = gradient.clone()
        cut.append(gradient)
    return replace(case, gradients=cut)


def _plain_strides(case: Case) -> Iterator[tuple[str, Case]]:
    for index, tensor in enumerate(_tensors(case)):
        if tensor.layout is torch.strided and not tensor.is_contiguous():
            yield f"tensor {index} contiguous", _mapped(case, lambda n, t: _contiguous(t) if n == index else t)  # noqa: B023


def _contiguous(tensor: Tensor) -> Tensor:
    return tensor.detach().clone(memory_format=torch.contiguous_format).requires_grad_(tensor.requires_grad)


def _fewer_arguments(case: Case) -> Iterator[tuple[str, Case]]:
    for name in list(case.kwargs):
        rest = {key: value for key, value in case.kwargs.items() if key != name}
        yield f"without {name}", case.with_values(case.args, rest)
    if len(case.args) > 1:
        yield "without the last argument", case.with_values(case.args[:-1], case.kwargs)
    for position, default in _defaults(case.op).items():
        if 0 < position < len(case.args) and not _is_same(case.args[position], default):
            changed = (*case.args[:position], default, *case.args[position + 1 :])
            yield f"argument {position} to its default", case.with_values(changed, case.kwargs)
    for position in range(1, len(case.args)):
        if isinstance(case.args[position], Tensor):
            changed = (*case.args[:position], None, *case.args[position + 1 :])
            yield f"without argument {position}", case.with_values(changed, case.kwargs)


def _defaults(op: Callable[..., Any]) -> dict[int, Any]:
    """Of arguments by their position, as far as Python knows: functions written in C++ do not tell."""
    try:
        parameters = inspect.signature(op).parameters.values()
    except (TypeError, ValueError):
        return {}
    return {n: each.default for n, each in enumerate(parameters) if each.default is not each.empty}


def _is_same(value: Any, default: Any) -> bool:
    return value is default or (type(value) is type(default) and not isinstance(value, Tensor) and value == default)


def _simpler_values(case: Case) -> Iterator[tuple[str, Case]]:
    for index, tensor in enumerate(_tensors(case)):
        for label, values in _simpler(tensor):
            if not torch.equal(values, tensor.detach()):
                new = values.requires_grad_(tensor.requires_grad)
                yield f"tensor {index}: {label}", _mapped(case, lambda n, t: new if n == index else t)  # noqa: B023
    for number, gradient in enumerate(case.gradients):
        if gradient is not None and not torch.equal(gradient, torch.ones_like(gradient)):
            ones: list[Tensor | None] = list(case.gradients)
            ones[number] = torch.ones_like(gradient)
            yield f"gradient {number}: ones", replace(case, gradients=ones)


def _simpler(tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The simplest first; only ones that are simpler than the tensor is."""
    plain = tensor.detach()
    if plain.numel() == 0 or plain.dtype is torch.bool:
        return
    rank = _simplicity(plain if plain.is_complex() else plain.to(torch.float64))
    if not plain.is_floating_point() and not plain.is_complex():
        yield "zeros", torch.zeros_like(plain)
        return
    counted = torch.arange(plain.numel()).remainder(5).sub(2).to(plain.dtype).reshape(plain.shape)
    choices = (
        ("ones", torch.ones_like(plain)),
        ("zeros", torch.zeros_like(plain)),
        ("small whole numbers", counted),
        ("whole numbers", _rounded(plain, 1)),
        ("quarters", _rounded(plain, 4)),
    )
    for number, (label, values) in enumerate(choices):
        if number < rank:
            yield label, values


def _simplicity(tensor: Tensor) -> int:
    """The number of the kind among the choices above that it is of already."""
    if bool((tensor == 1).all()):
        return 0
    if bool((tensor == 0).all()):
        return 1
    whole = bool((tensor == _rounded(tensor, 1)).all())
    if whole and bool((tensor.abs() <= 2).all()):
        return 2
    return 3 if whole else 4 if bool((tensor == _rounded(tensor, 4)).all()) else 5


def _rounded(tensor: Tensor, parts: int) -> Tensor:
    """To whole parts of 1."""
    if tensor.is_complex():
        return torch.view_as_complex(_rounded(torch.view_as_real(tensor.resolve_conj()), parts).contiguous())
    return tensor.to(torch.float64).mul(parts).round().div(parts).to(tensor.dtype)


# ---- tensors of a case, by their number ----------------------------------------------------------------------------


def _tensors(case: Case) -> list[Tensor]:
    """Each once, in order."""
    return list({id(tensor): tensor for tensor in trees.tensors((case.args, case.kwargs))}.values())


def _mapped(case: Case, function: Callable[[int, Tensor], Tensor]) -> Case:
    """One that is given twice stays one; those that share their memory with others are left alone."""
    tensors = _tensors(case)
    owners = Counter(tensor.untyped_storage().data_ptr() for tensor in tensors if tensor.layout is torch.strided)
    changed: dict[int, Tensor] = {}
    for number, tensor in enumerate(tensors):
        is_shared = tensor.layout is not torch.strided or owners[tensor.untyped_storage().data_ptr()] > 1
        changed[id(tensor)] = tensor if is_shared and tensor.numel() else function(number, tensor)
    args, kwargs = trees.map_tensors(lambda tensor: changed[id(tensor)], (case.args, case.kwargs))
    return case.with_values(args, kwargs)
