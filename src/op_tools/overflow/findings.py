"""What OpOverflowCheck has found: which call, what it made and out of what; and how that is shown."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from op_tools.output import tables
from op_tools.overflow.calls import CheckedCall, there
from op_tools.overflow.statistics import TensorStatistics, statistics
from op_tools.values import trees
from op_tools.values.tensors import version_of

_MAX_ROWS = 20  # of the summary
_ABOUT_TENSOR = ("name", "shape", "stride", "dtype", "device", "value")
_ABOUT_NUMBERS = ("min", "max", "mean", "std", "norm", "nan", "inf", "first_bad")
_SUMMARY = ("name", "phase", "what", "calls", "step", "forward_id", "module", "where")
COLUMNS = ("op", *_SUMMARY[1:])


@dataclass(frozen=True)
class Finding:
    """A call that made NaN or Inf; or one that was given some which no op had made."""

    name: str
    phase: str  # forward or backward
    what: str  # such as `made NaN out of finite inputs`
    forward_id: int
    step: int
    module: str
    where: str  # the user's source line

    def __str__(self) -> str:
        place = f"{self.module}, {self.where}" if self.module else self.where
        return f"{self.name} {self.what}, {self.phase}, step {self.step}, forward_id {self.forward_id}, {place}"


def finding(checked: CheckedCall, what: str) -> Finding:
    """What is told of a call: its tensors may be freed."""
    call, phase = checked.call, "forward" if checked.gradients is None else "backward"
    return Finding(call.name, phase, what, call.id, call.step, call.where.module, call.where.line())


class FindingCounts:
    """All that was found in a run: the first of each kind, and how many are like it."""

    def __init__(self) -> None:
        self.first: dict[tuple[str, str, str], Finding] = {}
        self.calls: dict[tuple[str, str, str], int] = {}

    def add(self, one: Finding) -> None:
        kind = (one.name, one.phase, one.what)
        self.first.setdefault(kind, one)
        self.calls[kind] = self.calls.get(kind, 0) + 1

    def rows(self) -> list[tuple[Any, ...]]:
        """In the order in which they first occurred."""
        return [
            (one.name, one.phase, one.what, self.calls[kind], one.step, one.forward_id, one.module, one.where)
            for kind, one in self.first.items()
        ]

    def table(self) -> str:
        rows = [(*map(str, row[:-1]), row[-1].partition(": ")[0]) for row in self.rows()[:_MAX_ROWS]]
        left = len(self.first) - len(rows)
        return tables.table(_SUMMARY, rows) + (f"\n… and {left} more kinds" if left else "")


class Tensors:
    """The tensors of one call with their statistics, as far as they are still there, and as they were at the call."""

    def __init__(self, checked: CheckedCall) -> None:
        self._name = checked.call.name
        self._rows: list[tuple[str, ...]] = []
        if checked.gradients is None:
            self._add("inputs", _inputs(checked))
            self._add("outputs", _outputs(checked))
            self._add("inputs", _changed(checked))
        else:
            self._add("grad_outputs", _gradients(checked.gradients[0]))
            self._add("grad_inputs", _gradients(checked.gradients[1]))

    def table(self) -> str:
        return tables.table((*_ABOUT_TENSOR, *_ABOUT_NUMBERS), self._rows)

    def _add(self, role: str, items: Iterable[tuple[str, Any, int | None]]) -> None:
        for place, value, version in items:
            value, remark = _as_it_was(value, version)
            found = None if remark else _numbers(value)
            row = dict(zip(tables.ARGUMENT_COLUMNS, tables.argument_rows(self._name, role, [(place, value)])[0]))
            about = [row[column] for column in _ABOUT_TENSOR[:-1]] + [remark or row["value"]]
            self._rows.append((*about, *_cells(found)))


# -- places, values, and the versions that the values had; None where that is not known --------------------------------


def _inputs(checked: CheckedCall) -> Iterator[tuple[str, Any, int | None]]:
    call = checked.call
    args, kwargs, versions = checked.inputs or (call.args, call.kwargs, checked.versions)
    left = iter(versions)
    for place, value in trees.arguments(args, kwargs):
        yield place, value, next(left, None) if isinstance(value, (Tensor, weakref.ref)) else None


def _outputs(checked: CheckedCall) -> Iterator[tuple[str, Any, int | None]]:
    versions = _made_versions(checked)
    for place, value in trees.results(checked.call.result):
        yield place, value, versions.get(id(there(value)))


def _changed(checked: CheckedCall) -> Iterator[tuple[str, Any, int | None]]:
    """Inputs that the call changed and did not return."""
    returned = {id(there(value)) for _, value in trees.results(checked.call.result)}
    changed = {id(there(one)) for one in checked.changed} - returned
    versions = _made_versions(checked)
    for place, value in trees.arguments(checked.call.args, checked.call.kwargs) if changed else ():
        if id(there(value)) in changed:
            yield f"{place} afterwards", value, versions.get(id(there(value)))


def _gradients(gradients: list[Any]) -> Iterator[tuple[str, Any, int | None]]:
    for place, value in trees.arguments(tuple(gradients), {}):
        yield place, value, None


def _made_versions(checked: CheckedCall) -> dict[int, int | None]:
    return {id(one): version for one, version in zip(checked.results(), checked.made_versions)}


def _as_it_was(value: Any, version: int | None) -> tuple[Any, str]:
    """The value, and a remark where it is not what it was."""
    if isinstance(value, weakref.ref):
        value = there(value)
        if value is None:
            return None, "freed since"
    if isinstance(value, Tensor):
        if version is not None and version_of(value) != version:
            return value, "changed since"
        if value.layout is torch.strided and not value.untyped_storage().nbytes() and value.numel():
            return None, "freed since"
    return value, ""


def _numbers(value: Any) -> TensorStatistics | None:
    if not isinstance(value, Tensor) or value.layout is not torch.strided or value.is_quantized or value.is_meta:
        return None
    return statistics(value)


def _cells(found: TensorStatistics | None) -> tuple[str, ...]:
    if found is None:
        return ("",) * len(_ABOUT_NUMBERS)
    numbers = (found.min, found.max, found.mean, found.std, found.norm)
    first_bad = "" if found.first_bad is None else str(list(found.first_bad))
    return (
        *("" if number is None else f"{number:.6g}" for number in numbers),
        str(found.nan),
        str(found.inf),
        first_bad,
    )
