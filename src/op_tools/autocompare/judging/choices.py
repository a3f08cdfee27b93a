"""Results that an op may choose freely: an unspecified order, which of several values stays at one place, which of
several is the most frequent, what becomes of a number that the dtype has no room for, and to which side of a whole
number one falls that is cut off.

torch's documentation promises neither the order of `topk(sorted=False)` and `unique(sorted=False)`, nor which value is
left where several were written to the same place, nor what -1.0 is as a byte. ties.py is about equal values.
"""

from __future__ import annotations

import math
from typing import Any, Callable

import torch
from torch import Tensor

from op_tools.autocompare.judging import attention
from op_tools.autocompare.judging.measures import dense, differing
from op_tools.autocompare.observed import ObservedCall, Value
from op_tools.autocompare.reference.runs import Reference
from op_tools.ops.names import normalized

_HALF_A_UNIT = 2.0**-24  # of float32: the gradient of a choice is a copy
_WITH_OTHERS = ("linalg.lstsq", "native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update")
_SORTED = {"topk": 4, "unique": 1, "_unique2": 1}  # where `sorted` stands among the arguments


def is_stable(call: ObservedCall) -> bool:
    """Whether equal values keep their order, because the program asked for it."""
    return bool(call.given.kwargs.get("stable", False))


def has_free_order(call: ObservedCall) -> bool:
    position = _SORTED.get(normalized(call.name).base)
    if position is None:
        return False
    args = call.given.args
    return not (args[position] if len(args) > position else call.given.kwargs.get("sorted", True))


def may_be_left_out(value: Value, name: str) -> bool:
    """What stands beside a result: whether it is there depends on the driver of lstsq; or on the kernel of a batch
    norm, which keeps it for its own backward pass."""
    is_beside = normalized(name).base in _WITH_OTHERS and value.part.role == "output" and value.part.places[0] > 0
    return is_beside and 0 in (value.got.numel(), value.expected.numel())


def is_allowed(value: Value, reference: Reference) -> bool:
    """Whether a value that is not the expected one is just as right."""
    call, base = reference.observed, normalized(reference.name).base
    try:
        if has_free_order(call) and value.part.role == "output":
            check = _is_top if base == "topk" else _is_unique
            return check(call, value, dense(value.expected))
        if base == "mode" and value.part.role == "output":
            return _is_as_frequent(call, value, dense(value.expected))
        if base == "mode" and value.part.role == "gradient":
            return _goes_to_as_frequent(call, dense(value.got), dense(value.expected))
        if base in _CUT_OFF:
            return _is_cut_off_nearby(base, call, dense(value.got))
        if base in _CONVERTS and _is_out_of_range(call, dense(value.got), dense(value.expected)):
            return True
        if base in _WRITTEN and value.part.role != "gradient":
            return _is_one_of_several(_WRITTEN[base], call, dense(value.got), dense(value.expected))
    except (RuntimeError, IndexError, TypeError, AttributeError):  # a call of another form
        return False
    return False


# ---- what has no result ----------------------------------------------------------------------------------------------


def settled(value: Value, reference: Reference) -> Value:
    """The value with the reference's numbers where an op may give any."""
    base, got = normalized(reference.name).base, value.got
    is_made = value.part.role in ("output", "gradient")
    if not is_made or not isinstance(got, Tensor) or got.shape != value.expected.shape:
        return value
    free: Tensor | None = None
    if base == "scaled_dot_product_attention":
        free = _to_nothing(value, reference.observed)
    elif base in _TRIANGULAR:
        free = _without_solution(reference.observed, _TRIANGULAR[base])
    elif base in _WITH_INFO and not (value.part.role == "output" and value.part.places[0]):
        free = _unfinished(reference)
    if free is None or torch.broadcast_shapes(free.shape, got.shape) != got.shape:
        return value
    expected = value.expected.detach().to(got.device, got.dtype)
    return value._replace(got=torch.where(free.to(got.device), expected, got.detach()))


def _to_nothing(value: Value, call: ObservedCall) -> Tensor | None:
    """Fully masked rows. Their output may be any number, or NaN; the gradient of their query any number, but not NaN:
    where a NaN output propagates to it, the gradients of keys and values are NaN as well."""
    is_gradient = value.part.role == "gradient"
    if value.part.places[0] and is_gradient:
        return None
    rows = attention.rows_without_keys(call.given)
    if rows is None or not is_gradient:
        return rows
    is_number: Tensor = ~value.got.detach().isnan().any(-1, keepdim=True)
    return rows.to(is_number.device) & is_number


_TRIANGULAR = {"linalg.solve_triangular": 0, "triangular_solve": 1}  # where the matrix stands among the arguments


def _without_solution(call: ObservedCall, place: int) -> Tensor | None:
    """Systems with a zero on their diagonal: torch asks for matrices without. As one number for each matrix."""
    args, kwargs = call.given.args, call.given.kwargs
    matrices = args[place] if len(args) > place else kwargs.get("A")
    if not isinstance(matrices, Tensor) or kwargs.get("unitriangular") or (len(args) > 4 and args[4]):
        return None
    is_without: Tensor = (matrices.detach().diagonal(dim1=-2, dim2=-1) == 0).any(-1)[..., None, None]
    return is_without


_WITH_INFO = ("linalg.cholesky_ex", "linalg.inv_ex", "linalg.solve_ex")  # which say last what they could not finish


def _unfinished(reference: Reference) -> Tensor | None:
    """Matrices of which the reference says as well that they have no factor or inverse. As one number for each."""
    info = reference.expected.results[-1]
    return (info != 0)[..., None, None] if isinstance(info, Tensor) else None


# ---- no room for a number --------------------------------------------------------------------------------------------

_CONVERTS = ("to", "type", "type_as", "_to_copy", "copy", "byte", "char", "short", "int", "long")


def _is_out_of_range(call: ObservedCall, got: Tensor, expected: Tensor) -> bool:
    """Whether whole numbers differ only where they come from others that their dtype cannot hold."""
    given = next((one.detach() for one in call.given.tensors if one.is_floating_point()), None)
    if given is None or got.is_floating_point() or got.dtype is torch.bool:
        return False
    info = torch.iinfo(got.dtype)
    numbers = given.double().expand(got.shape)
    fits = (numbers > info.min - 1.0) & (numbers < info.max + 1.0)  # NaN does not
    return not bool((differing(got, expected) & fits).any())


# ---- steps between whole numbers -------------------------------------------------------------------------------------

_CUT_OFF = {"linspace": 3, "logspace": 4}  # and how many arguments say which numbers
_OF_SPACE = ("start", "end", "steps", "base")
_EXACT_SIZE, _EXACT_PARTS = 2**13, 2**10  # of smaller numbers, such parts have room in float32
_ROUNDINGS = 8.0  # of float32, in which CUDA computes steps; the CPU takes float64


def _is_cut_off_nearby(base: str, call: ObservedCall, got: Tensor) -> bool:
    """Whether whole numbers are what numbers near the exact ones are cut off to."""
    if got.is_floating_point() or got.is_complex():
        return False
    args = call.given.args[: _CUT_OFF[base]]
    given: dict[str, Any] = {**dict(zip(_OF_SPACE, args)), **call.given.kwargs}
    start, end = (float(int(given[name])) for name in ("start", "end"))
    steps, size = int(given["steps"]), max(abs(start), abs(end), 1.0)
    exact = torch.linspace(start, end, steps, dtype=torch.float64)
    slack = torch.tensor(_ROUNDINGS * _HALF_A_UNIT * size)
    if size < _EXACT_SIZE and (_EXACT_PARTS * (end - start) / max(steps - 1, 1)).is_integer():
        slack = torch.zeros(())
    if base == "logspace":
        number = float(given.get("base", 10.0))
        rounding = torch.clamp(slack * abs(math.log(abs(number) or 1.0)), min=_ROUNDINGS * _HALF_A_UNIT)
        exact = number**exact
        slack = exact.abs() * rounding
    info, numbers = torch.iinfo(got.dtype), got.cpu().double()
    fits = (exact - slack > info.min - 1.0) & (exact + slack < info.max + 1.0)
    nearby = ((exact - slack).trunc() <= numbers) & (numbers <= (exact + slack).trunc())
    return bool((nearby | ~fits).all())


# ---- any order -------------------------------------------------------------------------------------------------------


def _is_top(call: ObservedCall, value: Value, expected: Tensor) -> bool:
    args, kwargs = call.given.args, call.given.kwargs
    dimension = args[2] if len(args) > 2 else kwargs.get("dim", -1)
    given = call.given.tensors[0].detach()
    values, places = (dense(one) for one in call.result)
    ordered = places.sort(dimension).values
    if bool((ordered.diff(dim=dimension) == 0).any()) or not torch.equal(given.gather(dimension, places), values):
        return False
    wanted = expected if value.part.places[0] == 0 else given.gather(dimension, expected)
    return torch.equal(values.sort(dimension).values, wanted.to(values.dtype).sort(dimension).values)


def _is_unique(call: ObservedCall, value: Value, expected: Tensor) -> bool:
    """All values there are, each once; then what goes with them: where they were, how often they were."""
    given = call.given.tensors[0].detach()
    results = [call.result] if isinstance(call.result, Tensor) else [dense(one) for one in call.result]
    values = results[0]
    wanted = given.unique()
    if not torch.equal(values.sort().values, wanted):
        return False
    place = value.part.places[0]
    if place == 0:
        return True
    if dense(value.got).shape == given.shape:
        return torch.equal(values[results[place]], given)
    return torch.equal(results[place], torch.stack([(given == one).sum() for one in values]))


# ---- equally frequent ------------------------------------------------------------------------------------------------


def _is_as_frequent(call: ObservedCall, value: Value, expected: Tensor) -> bool:
    """Whether `mode` has chosen another value that comes as often, and its place."""
    given, dimension = _given_and_dimension(call)
    values, places, expected = (
        one if one.dim() == given.dim() else one.unsqueeze(dimension)
        for one in (*(dense(part) for part in call.result), expected)
    )
    if value.part.places[0] == 1:
        expected = given.gather(dimension, expected)
    times, most = ((given == one).sum(dimension) for one in (values, expected.to(given.dtype)))
    return torch.equal(given.gather(dimension, places), values) and torch.equal(times, most)


def _goes_to_as_frequent(call: ObservedCall, got: Tensor, expected: Tensor) -> bool:
    """Whether the gradient of `mode` is the expected one, at the places of values that come as often."""
    given, dimension = _given_and_dimension(call)
    lines = given.movedim(dimension, -1)
    times = (lines.unsqueeze(-1) == lines.unsqueeze(-2)).sum(-1).movedim(-1, dimension)
    here, there = (times.where(one != 0, 0).amax(dimension) for one in (got, expected))
    left, right = (one.double().sum(dimension) for one in (got, expected))
    return torch.equal(here, there) and torch.allclose(left, right, rtol=_HALF_A_UNIT, atol=0)


def _given_and_dimension(call: ObservedCall) -> tuple[Tensor, int]:
    args, kwargs = call.given.args, call.given.kwargs
    return call.given.tensors[0].detach(), args[1] if len(args) > 1 else kwargs.get("dim", -1)


# ---- several values for one place ------------------------------------------------------------------------------------

# for a call's arguments and the numbers of its elements: which of them are written, and what to each
_Written = Callable[[Tensor, "tuple[Any, ...]", "dict[str, Any]"], "tuple[Tensor, Tensor]"]


def _by_scatter(numbers: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor]:
    _, dimension, index, source = (*args, *(kwargs[key] for key in ("dim", "index", "src") if key in kwargs))
    return numbers.gather(dimension, index), source[tuple(slice(size) for size in index.shape)]


def _by_index_copy(numbers: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor]:
    _, dimension, index, source = (*args, *(kwargs[key] for key in ("dim", "index", "source") if key in kwargs))
    return numbers.index_select(dimension, index), source


def _by_index_put(numbers: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor]:
    indices, values = (*args[1:], *(kwargs[key] for key in ("indices", "values") if key in kwargs))[:2]
    chosen = numbers[tuple(slice(None) if one is None else one for one in indices)]
    return chosen, values.expand(chosen.shape)


def _by_item(numbers: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor]:
    chosen = numbers[args[1]]
    return chosen, args[2].expand(chosen.shape)


_WRITTEN: dict[str, _Written] = {
    "scatter": _by_scatter,
    "index_copy": _by_index_copy,
    "index_put": _by_index_put,
    "__setitem__": _by_item,
}


def _is_one_of_several(written: _Written, call: ObservedCall, got: Tensor, expected: Tensor) -> bool:
    given = call.given
    numbers = torch.arange(got.numel(), device=got.device).view(got.shape)
    places, values = written(numbers, given.args, given.kwargs)
    places, values = places.reshape(-1), values.detach().reshape(-1).to(got.dtype)
    writes = torch.zeros(got.numel(), dtype=torch.int64, device=got.device)
    writes.scatter_add_(0, places, torch.ones_like(places))
    differs = differing(got, expected).reshape(-1)
    if bool((differs & (writes < 2)).any()):
        return False
    is_this = ~differing(got.reshape(-1)[places], values)
    found = torch.zeros_like(writes).scatter_reduce_(0, places, is_this.to(writes.dtype), "amax")
    return not bool((differs & (found == 0)).any())
