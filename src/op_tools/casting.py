"""One op call in other dtypes: its arguments cast, its results cast back to what the op would have returned."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Callable

import torch
from torch import Tensor

from op_tools import autocasting, kinds, trees
from op_tools.dtypes import CastTable
from op_tools.elsewhere import StandIns

_COMPLEX = {torch.float16: torch.complex32, torch.float32: torch.complex64, torch.float64: torch.complex128}
_MANY = 8  # tensors of an optimizer's call, which are cast in one kernel
_copy_together: Callable[[list[Tensor], list[Tensor]], Any] | None = getattr(torch, "_foreach_copy_", None)


class Kind:
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
                pair = found[id(value)] = (value, self._stand_ins_for([value])[0])
            return pair[1]
        if isinstance(value, torch.dtype):
            self._key.append(value)
            return self._table.get(value, value)  # it says what to compute in; the results are cast to it in the end
        if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
            if len(value) > _MANY and all(isinstance(part, Tensor) for part in value):
                return self._cast_many(value, found)
            return trees.rebuilt(value, [self._cast(part, found) for part in value])
        if isinstance(value, dict):
            return {key: self._cast(part, found) for key, part in value.items()}
        self._key.append(value if value is None or isinstance(value, (bool, str)) else type(value))
        return value

    def _cast_many(self, values: Any, found: dict[int, tuple[Tensor, Tensor]]) -> list[Tensor]:
        """A list of tensors, as optimizers have it."""
        dtypes = [value.dtype for value in values]
        self._key.append(frozenset(dtypes))
        table = self._table
        wanted = [
            value
            for value, dtype in zip(values, dtypes)
            if table.get(dtype, dtype) is not dtype and id(value) not in found
        ]
        for value, copy in zip(wanted, self._stand_ins_for(wanted)):
            found[id(value)] = (value, copy)
        return [found[id(value)][1] if id(value) in found else value for value in values]

    def _stand_ins_for(self, tensors: list[Tensor]) -> list[Tensor]:
        dtypes = [self._table[tensor.dtype] for tensor in tensors]
        if torch.is_inference_mode_enabled():
            with torch.inference_mode(False), torch.no_grad():  # so that they count their versions
                return cast(tensors, dtypes)
        return cast(tensors, dtypes)

    def key(self) -> Any:
        """The kind of call that it is."""
        return tuple(self._key)

    def new_kind(self) -> Kind:
        """Nothing is known about it yet but what is cast."""
        pairs = zip(self.stand_ins.originals, self.stand_ins.stand_ins)
        return Kind(self._name, {(original.dtype, stand_in.dtype) for original, stand_in in pairs})

    def run(self, proceed: Callable[..., Any]) -> Any:
        """The op's own result, in the dtypes of the cast. Autocast would undo the cast, so it is off."""
        device_type = autocasting.active_device_type(*self._original)
        if device_type is None:
            return proceed(*self.args, **self.kwargs)
        with torch.autocast(device_type, enabled=False):
            return proceed(*self.args, **self.kwargs)

    def finish(self, result: Any, func: Callable[..., Any], kind: Kind) -> Any:
        """Writes back what the op wrote into its arguments, and casts its results back."""
        self.stand_ins.write_back(kinds.silently_written(self._name, func, *self._original))
        results = [result] if isinstance(result, Tensor) else list(trees.tensors(result))
        back = [self.stand_ins.original_of(tensor) for tensor in results]
        for number, tensor in enumerate(results):
            if back[number] is None and self._is_of_the_cast(tensor.dtype):
                if kind.results is None:
                    kind.results = self._native_dtypes(func)
                dtype = kind.results[min(number, len(kind.results) - 1)]
                if tensor.is_complex() and not dtype.is_complex:  # by rule, for an op that makes complex numbers
                    dtype = _COMPLEX.get(dtype, tensor.dtype)
                if dtype is not tensor.dtype:
                    self.outputs.append((number, tensor.dtype, dtype))
        for (number, _, _), copy in zip(self.outputs, self._cast_back(results)):
            back[number] = copy
        if isinstance(result, Tensor):
            return result if back[0] is None else back[0]
        remaining = iter(back)
        return trees.map_tensors(lambda tensor: _either(next(remaining), tensor), result)

    def _cast_back(self, results: list[Tensor]) -> list[Tensor]:
        return cast([results[number] for number, _, _ in self.outputs], [dtype for _, _, dtype in self.outputs])

    def _is_of_the_cast(self, dtype: torch.dtype) -> bool:
        return any(dtype is target or dtype is _COMPLEX.get(target) for target in self._table.values())

    def _native_dtypes(self, func: Callable[..., Any]) -> list[torch.dtype]:
        """What the op returns without a cast, tensor by tensor; the last one stands for all that follow."""
        if self._autocast_to is not None:
            return [self._autocast_to]
        on_meta = _dtypes_on_meta(func, *self._original) if kinds.short_name(self._name) else []
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


def cast_call(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], table: CastTable) -> Cast | None:
    """The call with its arguments cast; None where there is nothing to cast."""
    device_type = autocasting.active_device_type(args, kwargs)
    if device_type is not None and kwargs.get("out") is None:
        chosen = autocasting.chosen_dtype(kinds.short_name(name), device_type)
        if chosen is not None:
            # autocast would give the op this dtype, whatever its arguments are
            if chosen not in table:
                return None
            return Cast(name, args, kwargs, dict.fromkeys(autocasting.ELIGIBLE, table[chosen]), chosen)
    if _has_one_of(args, table) or (kwargs and _has_one_of(kwargs.values(), table)):
        return Cast(name, args, kwargs, table)
    return None


def _has_one_of(values: Iterable[Any], table: CastTable) -> bool:
    for value in values:
        if isinstance(value, Tensor):
            if value.dtype in table:
                return True
        elif isinstance(value, (list, tuple)) and _has_one_of(value, table):
            return True
    return False


def _either(copy: Tensor | None, tensor: Tensor) -> Tensor:
    return tensor if copy is None else copy


def cast(tensors: Sequence[Tensor], dtypes: Sequence[torch.dtype]) -> list[Tensor]:
    """The tensors in other dtypes; many at a time where no gradients are wanted."""
    if len(tensors) > _MANY and _copy_together is not None and not torch.is_grad_enabled():
        copies = [torch.empty_like(tensor, dtype=dtype) for tensor, dtype in zip(tensors, dtypes)]
        _copy_together(copies, list(tensors))
        return copies
    return [tensor.to(dtype) for tensor, dtype in zip(tensors, dtypes)]


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
