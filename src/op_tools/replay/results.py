"""What came out of a replay: as data, as JSON, as a table of all calls on disk, and as text."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from op_tools.output import paths, process, tables
from op_tools.output.csv_files import CsvFile
from op_tools.replay.time_spread import TimeSpread
from op_tools.timing.ledger import Total

SCHEMA = "ditorch.replay/1"
MAX_ENTRIES = 6  # of calls that are wrong, and
MAX_ROWS = 12  # of the table; the file has all
# what can become of a call, the worst first; the first three make the exit code 1
FAILURES = ("wrong", "failed", "unusable")
STATUSES = (*FAILURES, "not compared", "left out", "right", "ran")
_INDENT = "    "  # of what belongs to an entry
_COLUMNS = ("folder", "name", "status", "reason", "values", "autocast", "source", "module")


@dataclass
class Wrong:
    """One value of a call that is wrong."""

    what: str  # output, grad[1]; "captured output" is what the other device had given
    reason: str
    severity: float


@dataclass
class CallResult:
    """What became of one captured call."""

    folder: str
    name: str
    status: str = "ran"
    reason: str = ""
    values: int = 0  # that were compared
    wrong: list[Wrong] = field(default_factory=list)
    autocast: str = ""
    source: str = ""
    module: str = ""

    @property
    def severity(self) -> float:
        return max((one.severity for one in self.wrong), default=0.0)

    def settle(self, is_compared: bool) -> None:
        """All that is known of it is in: its status."""
        if self.status != "ran" or not is_compared:
            return
        if self.wrong:
            worst = max(self.wrong, key=lambda one: one.severity)
            self.status, self.reason = "wrong", f"{worst.what}: {worst.reason}"
        else:
            self.status = "right" if self.values else "not compared"

    def entry(self, calls: int, width: int) -> str:
        """For the screen. `calls`: how many are like it."""
        what, _, reason = self.reason.partition(": ") if self.status == "wrong" else ("", "", self.reason)
        often = f" ({calls} calls)" if calls > 1 else ""
        module = f"in {self.module}:" if self.module else ""
        line = "" if self.source == self.folder else self.source
        together = f"{module} {line}".strip()
        place = [together] if len(together) <= width - len(_INDENT) else [module, line]
        wrapped = [
            textwrap.fill(text, width, initial_indent=_INDENT, subsequent_indent=_INDENT, break_long_words=False)
            for text in (reason, *place)
            if text
        ]
        head = f"{self.status}: {self.name}{f': {what}' if what else ''}{often}"
        folder = [] if self.folder in reason else [f"{_INDENT}{self.folder}"]  # in one piece, to be copied
        return "\n".join((head, *wrapped, *folder))


@dataclass
class ReplayResults:
    """Of all calls below a folder."""

    directory: str
    framework: str
    device: str
    run_times: int
    forward_only: bool
    is_compared: bool
    is_timed: bool
    calls: list[CallResult] = field(default_factory=list)
    times: dict[str, Total] = field(default_factory=dict)
    time_spreads: dict[str, TimeSpread] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)

    def count(self, *statuses: str) -> int:
        return sum(call.status in statuses for call in self.calls)

    @property
    def exit_code(self) -> int:
        return 1 if self.count(*FAILURES) else 0

    # -- on disk ------------------------------------------------------------------------------------------------------

    def save(self, out: Path) -> None:
        """A table with a row for each call."""
        name = f"op_replay_info_pid{os.getpid()}_{paths.timestamp()}.csv"
        csv = CsvFile(out / paths.REPLAYED / name, _COLUMNS, len(self.calls) + 1)
        for call in self.calls:
            csv.add([getattr(call, column) for column in _COLUMNS])
        csv.close()
        if csv.written:
            self.files.insert(0, str(csv.path))

    def as_json(self) -> dict[str, Any]:
        """docs/tools.md describes it."""
        times = [
            {
                "name": name,
                "runs": total.calls,
                "forward_ms": total.forward,
                "backward_ms": total.backward,
                **(self.time_spreads[name]._asdict() if name in self.time_spreads else {}),
            }
            for name, total in self.times.items()
        ]
        return {
            "schema": SCHEMA,
            "directory": self.directory,
            "framework": self.framework,
            "torch": torch.__version__,
            "device": self.device,
            **process.identity(),
            "run_times": self.run_times,
            "forward_only": self.forward_only,
            "compared": self.is_compared,
            "timed": self.is_timed,
            "exit_code": self.exit_code,
            "counts": {"found": len(self.calls), **{status: self.count(status) for status in STATUSES}},
            "calls": [asdict(call) for call in self.calls],
            "times": times,
            "files": self.files,
        }

    # -- as text -----------------------------------------------------------------------------------------------------

    def text(self, width: int) -> str:
        """What is wrong, one table, one line."""
        text = "\n".join(filter(None, (*self._failures(width), self._table(width), *self._files(), self._last_line())))
        # names come from files, and must not be able to steer the terminal
        return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in text)

    def _failures(self, width: int) -> Iterator[str]:
        """One entry for each op and place in the program, with the worst of its calls."""
        found = [call for call in self.calls if call.status in FAILURES]
        found.sort(key=lambda call: (FAILURES.index(call.status), -call.severity))
        entries: dict[tuple[str, ...], list[CallResult]] = {}
        for call in found:
            entries.setdefault((call.status, call.name, call.source or call.folder), []).append(call)
        for calls in list(entries.values())[:MAX_ENTRIES]:
            yield calls[0].entry(len(calls), width)
        if len(entries) > MAX_ENTRIES:
            yield f"… and {len(entries) - MAX_ENTRIES} more"

    def _table(self, width: int) -> str:
        by_op: dict[str, list[CallResult]] = {}
        for call in self.calls:
            by_op.setdefault(call.name, []).append(call)
        ranked = sorted(by_op.items(), key=_rank)
        times = ("forward ms", "p90", "backward ms", "p90") if self.is_timed else ()
        columns = ("name", "calls", *STATUSES, *times, "why")
        more = f"… and {len(ranked) - MAX_ROWS} more ops" if len(ranked) > MAX_ROWS else ""
        rows = [self._row(name, calls) for name, calls in ranked[:MAX_ROWS]]
        return tables.fitted(columns, rows, width) + (f"\n{more}" if more else "")

    def _row(self, name: str, calls: list[CallResult]) -> list[str]:
        counts = [sum(call.status == status for call in calls) for status in STATUSES]
        spread = self.time_spreads.get(name, TimeSpread(None, None, None, None))  # medians, and p90
        times = ["" if time is None else f"{time:.4f}" for time in spread] if self.is_timed else []
        why = next((call.reason for call in sorted(calls, key=_severity) if call.reason), "")
        return [name, str(len(calls)), *(str(count or "") for count in counts), *times, why]

    def _files(self) -> Iterator[str]:
        for file in self.files:
            yield f"{paths.shown(file)} saved"

    def _last_line(self) -> str:
        others = [status for status in FAILURES if status != "wrong" and self.count(status)]
        failures = ", ".join(f"{self.count(status)} {status}" for status in others)
        ran = len(self.calls) - self.count("failed", "unusable", "left out")
        compared = sum(call.values for call in self.calls)
        tail = f"; {compared:,} values compared, {self.count('wrong')} calls wrong" if self.is_compared else ""
        times = f"{self.run_times} time{'s' if self.run_times > 1 else ''} each"
        return f"{ran} of {len(self.calls)} captured calls ran, {times}{tail}{f' ({failures})' if failures else ''}"


def _severity(call: CallResult) -> tuple[int, float]:
    return STATUSES.index(call.status), -call.severity


def _rank(item: tuple[str, list[CallResult]]) -> tuple[Any, ...]:
    name, calls = item
    return (*min(map(_severity, calls)), name)
