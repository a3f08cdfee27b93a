"""What a new driver, a new torch or another chip gained and lost: two tables of results, case by case."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ditorch_conformance.causes import without_numbers
from ditorch_conformance.results import FAILING, PASSING, Case, Result, dtype_of, is_of_device, portable
from ditorch_conformance.tables import Table


@dataclass(frozen=True)
class Change:
    """One case that is not what it was."""

    case: Case
    before: Result
    after: Result


@dataclass(frozen=True)
class Difference:
    """`gained` pass now and did not before, `lost` the other way round, `other`: one failure or skip became another."""

    gained: list[Change]
    lost: list[Change]
    other: list[Change]
    only_before: list[Case]
    only_after: list[Case]
    same: int

    def as_dictionary(self) -> dict[str, Any]:
        """Schema ditorch.conformance.diff/1."""
        return {
            "schema": "ditorch.conformance.diff/1",
            "same": self.same,
            "gained": [_plain(change) for change in self.gained],
            "lost": [_plain(change) for change in self.lost],
            "other": [_plain(change) for change in self.other],
            "only_before": [str(case) for case in self.only_before],
            "only_after": [str(case) for case in self.only_after],
        }

    @staticmethod
    def by_dtype(changes: Sequence[Change]) -> dict[str, int]:
        return dict(Counter(dtype_of(change.case) or "(none)" for change in changes).most_common())


def compare(before: Table, after: Table) -> Difference:
    """Cases are matched without their device's name, so that two chips can be compared."""
    has_files = all(result.case.file for table in (before, after) for result in table.results)
    one, other = _by_portable(before, has_files), _by_portable(after, has_files)
    common = [Change(case, one[case], other[case]) for case in one if case in other]
    kinds: dict[str, list[Change]] = {"gained": [], "lost": [], "other": [], "same": []}
    for change in common:
        kinds[_kind(change)].append(change)
    return Difference(
        kinds["gained"],
        kinds["lost"],
        kinds["other"],
        [case for case in one if case not in other],
        [case for case in other if case not in one],
        len(kinds["same"]),
    )


def _by_portable(table: Table, has_files: bool) -> dict[Case, Result]:
    """A class for the CPU that is in the same table does not stand for the device's."""
    found: dict[Case, Result] = {}
    has_devices = any(is_of_device(result.case) and not _is_of_cpu(result.case) for result in table.results)
    for result in table.results:
        if has_devices and _is_of_cpu(result.case):
            continue
        case = portable(result.case)
        found[case if has_files else case._replace(file="")] = result
    return found


def _is_of_cpu(case: Case) -> bool:
    return is_of_device(case) and case.classname.endswith("CPU")


def _kind(change: Change) -> str:
    if _state(change.before) == _state(change.after):
        return "same"
    if change.after.status in PASSING:
        return "gained"
    return "lost" if change.before.status in PASSING and change.after.status in FAILING else "other"


def _state(result: Result) -> str:
    return "failing" if result.is_failing else "passing" if result.status in PASSING else result.status


def _plain(change: Change) -> dict[str, str]:
    shown = change.after if change.after.is_failing else change.before
    why = without_numbers(shown) if shown.is_failing else shown.message
    return {"case": str(change.case), "before": change.before.status, "after": change.after.status, "why": why}
