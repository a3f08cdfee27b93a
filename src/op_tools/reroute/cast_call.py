"""One op call in other dtypes: its arguments cast, its results cast back to what the op would have returned."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Container, Iterable, Sequence
from typing import Any, Callable

import torch
from torch import Tensor

from op_tools.ops import autocast_policy
from op_tools.ops.cast_tables import CastTable
from op_tools.ops.names import normalized
from op_tools.ops.silent_writes import silently_written
from op_tools.reroute.stand_ins import StandIns, copy_together, write_together
from op_tools.values import trees

# half as long on the way through Python as `tensor.to(dtype)`
_METHODS: dict[torch.dtype, Callable[[Tensor], Tensor]] = {
    torch.float32: Tensor.float,
    torch.float64: Tensor.double,
    torch.float16: Tensor.half,
    torch.bfloat16: Tensor.bfloat16,
}
_COMPLEX = {torch.float16: torch.complex32, torch.float32: torch.complex64, torch.float64: torch.complex128}


class CastKind:
    """What is known about calls of one kind: the same op, with arguments of the same dtypes."""

    __slots__ = ("calls", "casts", "name", "results")

    def __init__(self, name: str, casts: set[tuple[torch.dtype, torch.dtype]]) -> None:
        self.name = name
        self.calls = 0
        self.casts = casts
        self.results: list[torch.dtype] | None = None  # without a cast; not known yet


class Cast:
    """One call with its arguments cast. `outputs` says what was cast back: which result, from, to."""

    __slots__ = ("_autocast_to", "_key", "_name", "_original", "_table", "args", "kwargs", "outputs", "stand_ins")

    def __init__(
        self,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        table: CastTable,
        autocast_to: torch.dtype | None = None,
    ) -> None:
        self._name = name
        self._original = args, kwargs
        self._table = table
        self._autocast_to = autocast_to
        self._key: list[Any] = [name, autocast_to]
        self.outputs: list[tuple[int, torch.dtype, torch.dtype]] = []
        found: dict[int, tuple[Tensor, Tensor]] = {}
        self.args: tuple[Any, ...] = tuple([self._cast(value, found) for value in args])
        self.kwargs = {key: self._cast(value, found) for key, value in kwargs.items()} if kwargs else kwargs
        pairs = found.values()
        self.stand_ins = StandIns([original for original, _ in pairs], [stand_in for _, stand_in in pairs])

    def _cast(self, value: Any, found: dict[int, tuple[Tensor, Tensor]]) -> Any:
        """The argument in the other dtype. `_key` learns what may decide the dtypes of the results."""
        if isinstance(value, Tensor):
            dtype = value.dtype
            self._key.append(dtype if value.dim() else (dtype,))  # one without dimensions counts less than others
            if self._table.get(dtype, dtype) is dtype:
                return value
            pair = found.get(id(value))
            if pair is None:
                pair = found[id(value)] = (value, self._stand_in_for(value))
            return pair[1]
        if isinstance(value, torch.dtype):
            self._key.append(value)
            return self._table.get(value, value)  # it says what to compute in; the results are cast to it in the end
        if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
            return trees.rebuilt(value, [self._cast(part, found) for part in value])
        if isinstance(value, dict):
            return {key: self._cast(part, found) for key, part in value.items()}
        self._key.append(value if value is None or isinstance(value, (bool, str)) else type(value))
        return value

    def _stand_in_for(self, tensor: Tensor) -> Tensor:
        target = self._table[tensor.dtype]
        if torch.is_inference_mode_enabled():
            with torch.inference_mode(False), torch.no_grad():  # so that it counts its versions
                return _convert(tensor, target)
        return _convert(tensor, target)

    def key(self) -> Any:
        """The kind of call that it is."""
        return tuple(self._key)

    def new_kind(self) -> CastKind:
        """Nothing is known about it yet but what is cast."""
        if self._autocast_to is not None:
            return CastKind(self._name, {(self._autocast_to, self._table[self._autocast_to])})
        pairs = zip(self.stand_ins.originals, self.stand_ins.stand_ins)
        return CastKind(self._name, {(original.dtype, stand_in.dtype) for original, stand_in in pairs})

    def run(self, proceed: Callable[..., Any]) -> Any:
        """The op's own result, in the dtypes of the cast. Autocast would undo the cast, so it is off."""
        device_type = autocast_policy.active_device_type(*self._original)
        if device_type is None:
            return proceed(*self.args, **self.kwargs)
        with autocast_policy.autocast(device_type, enabled=False):
            return proceed(*self.args, **self.kwargs)

    def finish(self, result: Any, func: Callable[..., Any], kind: CastKind) -> Any:
        """Writes back what the op wrote into its arguments, and casts its results back."""
        self.stand_ins.write_back(silently_written(self._name, func, *self._original))
        if isinstance(result, Tensor):
            return self._back(result, 0, func, kind)
        for cast, original in zip(self.args, self._original[0]):
            if result is cast:  # a list of tensors that the op has changed
                return original
        numbers = itertools.count()
        return trees.map_tensors(lambda tensor: self._back(tensor, next(numbers), func, kind), result)

    def _back(self, result: Tensor, number: int, func: Callable[..., Any], kind: CastKind) -> Tensor:
        original = self.stand_ins.original_of(result)
        if original is not None:
            return original
        if not self._is_of_the_cast(result.dtype):
            return result
        if kind.results is None:
            kind.results = self._native_dtypes(func)
        dtype = kind.results[min(number, len(kind.results) - 1)]
        if result.is_complex() and not dtype.is_complex:  # by rule, for an op that makes complex numbers
            dtype = _COMPLEX.get(dtype, result.dtype)
        if dtype is result.dtype:
            return result
        self.outputs.append((number, result.dtype, dtype))
        return _convert(result, dtype)

    def _is_of_the_cast(self, dtype: torch.dtype) -> bool:
        return any(dtype is target or dtype is _COMPLEX.get(target) for target in self._table.values())

    def _native_dtypes(self, func: Callable[..., Any]) -> list[torch.dtype]:
        """What the op returns without a cast, tensor by tensor; the last one stands for all that follow."""
        if self._autocast_to is not None:
            return [self._autocast_to]
        on_meta = _dtypes_on_meta(func, *self._original) if normalized(self._name).form else []
        return on_meta or [self._dtype_by_rule()]

    def _dtype_by_rule(self) -> torch.dtype:
        """The dtype that the arguments name, or else that of all of them together."""
        common = self.stand_ins.originals[0].dtype
        for _, value in trees.arguments(*self._original):
            if isinstance(value, torch.dtype):
                return value
            if isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex()):
                common = torch.promote_types(common, value.dtype)
        return common


class ForeachCast:
    """An optimizer's call on lists of tensors, such as torch._foreach_add_, with the lists cast as a whole.

    Such an op writes into its first list, if at all, and some devices do not count that.
    """

    __slots__ = ("_args", "_name", "_table", "args", "dtypes", "kwargs")

    def __init__(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], table: CastTable) -> None:
        self._name = name
        self._args = args
        self._table = table
        lists = {id(value): value for value in args if _is_tensor_list(value)}
        self.dtypes = [value[0].dtype for value in lists.values()]
        copies = {
            key: _convert_list(value, table[dtype])
            for (key, value), dtype in zip(lists.items(), self.dtypes)
            if dtype in table
        }
        self.args = tuple([copies.get(id(value), value) for value in args])
        self.kwargs = kwargs

    def key(self) -> Any:
        """The kind of call that it is."""
        return self._name, *self.dtypes

    def new_kind(self) -> CastKind:
        """Nothing is known about it yet but what is cast."""
        return CastKind(self._name, {(dtype, self._table[dtype]) for dtype in self.dtypes if dtype in self._table})

    def run(self, proceed: Callable[..., Any]) -> Any:
        """The op's own result, in the dtypes of the cast."""
        return proceed(*self.args, **self.kwargs)

    def finish(self, result: Any, func: Callable[..., Any], kind: CastKind) -> Any:
        """Writes back what the op wrote into its first list, or casts its results back."""
        first, copies = self._args[0], self.args[0]
        if self._name.endswith("_"):
            if copies is not first:
                write_together(first, copies)
            return first if result is copies else result
        native = functools.reduce(torch.promote_types, self.dtypes)
        return tuple(_convert_list(result, native)) if result[0].dtype in self._table.values() else result


def _convert(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    method = _METHODS.get(dtype)
    return tensor.to(dtype) if method is None else method(tensor)


def _convert_list(tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    if copy_together is None or tensors[0].dtype is dtype:
        return [tensor.to(dtype) for tensor in tensors]
    copies = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
    copy_together(copies, list(tensors))
    return copies


def _is_tensor_list(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) > 0 and isinstance(value[0], Tensor)


def _can_cast_lists(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether there are no gradients, and no dtype is asked for; with each list of one dtype, and no tensor twice."""
    if torch.is_grad_enabled() or torch.is_inference_mode_enabled() or kwargs.get("dtype") is not None:
        return False
    return all(
        len({tensor.dtype for tensor in value}) == 1 and len({id(tensor) for tensor in value}) == len(value)
        for value in args
        if _is_tensor_list(value)
    )


def cast_call(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], table: CastTable, lists_whole: bool
) -> Cast | ForeachCast | None:
    """The call with its arguments cast; None where there is nothing to cast."""
    device_type = autocast_policy.active_device_type(args, kwargs)
    if device_type is not None and kwargs.get("out") is None:
        chosen = autocast_policy.chosen_dtype(name, device_type)
        if chosen is not None and _has_one_of((args, list(kwargs.values())), autocast_policy.ELIGIBLE):
            # autocast would give the op this dtype, whatever its arguments are
            if chosen not in table:
                return None
            return Cast(name, args, kwargs, dict.fromkeys(autocast_policy.ELIGIBLE, table[chosen]), chosen)
    if not _has_one_of(args, table) and not (kwargs and _has_one_of(kwargs.values(), table)):
        return None
    if "._foreach_" in name and lists_whole and _can_cast_lists(args, kwargs):
        return ForeachCast(name, args, kwargs, table)
    return Cast(name, args, kwargs, table)


def _has_one_of(values: Iterable[Any], dtypes: Container[torch.dtype]) -> bool:
    for value in values:
        if isinstance(value, Tensor):
            if value.dtype in dtypes:
                return True
        elif isinstance(value, (list, tuple)) and _has_one_of(value, dtypes):
            return True
    return False


def _dtypes_on_meta(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.dtype]:
    """The dtypes of the results, where torch can tell them without data."""
    try:
        with torch.no_grad():
            result = func(*trees.map_tensors(on_meta, args), **trees.map_tensors(on_meta, kwargs))
    except Exception:  # noqa: BLE001  the meta device does not have everything
        return []
    return [tensor.dtype for tensor in trees.tensors(result)]


def on_meta(tensor: Tensor) -> Tensor:
    """A tensor like this one that has no data."""
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")
