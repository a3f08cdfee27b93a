"""What an op means to do, as far as NaN and infinities are concerned: told by its name and its arguments.

An infinity that the user wrote down is intent. So is what comes in with data, and what
uninitialized memory happens to hold.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Callable, Union

from torch import Tensor

from ditorch_shared.collectives import is_collective
from op_tools.core.call import OpCall
from op_tools.ops.catalogue import MAY_BE_VIEW, Trait, has
from op_tools.ops.names import normalized, works_in_place
from op_tools.ops.silent_writes import REGISTERED, may_write_silently, silently_written
from op_tools.values import trees
from op_tools.values.tensors import tensors_in

Key = Union[int, str]  # an argument by position or by name


class Intent:
    """What is known of one op."""

    def __init__(self, name: str, func: Callable[..., Any]) -> None:
        self.is_view = has(name, MAY_BE_VIEW)
        self.is_reshape = has(name, Trait.RESHAPES)
        self.brings_data = has(name, Trait.BRINGS_DATA)
        # its first argument's values
        self.overwrites = has(name, Trait.OVERWRITES) or name.startswith("torch.nn.init.")
        self.reads_back = has(name, Trait.READS_BACK)
        # a collective writes to its result when the other processes are there, which may be later
        self.result_is_unknown = has(name, Trait.EMPTY) or is_collective(name)
        self._changed: set[Key] = {0} if works_in_place(normalized(name).form) else set()
        self._in_place = _position_of_in_place(func)
        self._writes_silently = may_write_silently(name, isinstance(func, REGISTERED))
        # what the functions of others change is learned when they do it
        is_of_torch = isinstance(func, REGISTERED) or name.startswith("torch.")
        self.is_strange = has(name, Trait.WRITES_AT_TIMES) or not is_of_torch
        self.is_plain = not (
            self._changed or self._in_place is not None or self._writes_silently or self.is_strange or self.reads_back
        )

    def targets(self, call: OpCall) -> tuple[list[Tensor], bool]:
        """The tensors that this call is going to change, as far as is known; and whether it does so uncounted."""
        keys = self._changed
        if "out" in call.kwargs:
            keys = {*keys, "out"}
        if self._in_place is not None and _given(call, self._in_place, "inplace"):
            keys = {*keys, 0}
        targets = tensors_in([_argument(call, key) for key in keys])
        if not self._writes_silently:
            return targets, False
        silent = list(trees.tensors(silently_written(call.name, call.func, call.args, call.kwargs)))
        known = set(map(id, targets))
        return targets + [one for one in silent if id(one) not in known], bool(silent)

    def learn(self, call: OpCall, changed: list[Tensor]) -> None:
        """Remembers which arguments a call has changed."""
        identities = set(map(id, changed))
        places: list[tuple[Key, Any]] = [*enumerate(call.args), *call.kwargs.items()]
        for key, value in places:
            if key != "out" and any(id(tensor) in identities for tensor in trees.tensors(value)):
                self._changed.add(key)


def written_down(values: Iterable[Any]) -> float:
    """NaN or infinity where the user gave one as a plain number, else 0."""
    found = 0.0
    for value in values:
        size = abs(value) if isinstance(value, (float, complex)) else 0.0  # numpy's float64 is one, too
        if math.isnan(size):
            return math.nan
        found = max(found, size if math.isinf(size) else 0.0)
    return found


def _position_of_in_place(func: Callable[..., Any]) -> int | None:
    """Many functions of torch.nn.functional work in place when asked to."""
    code = getattr(func, "__code__", None)
    if code is None:
        return None
    names: tuple[str, ...] = code.co_varnames[: code.co_argcount]
    return names.index("inplace") if "inplace" in names else None


def _given(call: OpCall, position: int, name: str) -> bool:
    return bool(call.args[position]) if position < len(call.args) else bool(call.kwargs.get(name))


def _argument(call: OpCall, key: Key) -> Any:
    if isinstance(key, str):
        return call.kwargs.get(key)
    if key < len(call.args):
        return call.args[key]
    return next(iter(call.kwargs.values()), None)  # given by name
