"""The book of times where the C++ helper keeps it (native/csrc/ledger.h): its files, and the thread that writes.

C++ writes the rows without the GIL, so training does not wait for it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable

import torch

from op_tools.core import graphs, route, where
from op_tools.core.call import OpCall, ids
from op_tools.core.steps import STEPS
from op_tools.device import failure, progress
from op_tools.device.progress import Asked, Line
from op_tools.output.writer import Writer
from op_tools.timing import ledger, signature
from op_tools.timing.collectives import TimedCollectives
from op_tools.timing.ledger import Book, Total


class NativeLedger(Book):
    """What ledger.Ledger is in Python."""

    def __init__(self, helper: Any, csv: Path, most_rows: int, most_events: int, collectives: TimedCollectives) -> None:
        super().__init__(csv, most_rows, most_events, collectives)
        self._reader = Writer("OpTimeMeasure", is_excused=failure.is_noticed)
        self._helper = helper
        self.timer = helper.Timer(
            self.trace,
            most_events,
            signature.of_call,
            signature.of,
            self._read_soon,
            ledger.READ_AT_ENTRIES // 3,
            ledger.MAX_UNREAD_ENTRIES,
        )

        progress.counted_elsewhere.append(self._progress)

    def _progress(self) -> tuple[list[Asked], list[Asked]]:
        """Calls that take the shortcut are known here only."""
        passed, unread = self.timer.progress()
        return _asked(passed), _asked(unread)

    def begin(self, call: OpCall) -> Any:
        module, line = call.where.module, call.where.line()
        return self.timer.begin(call.id, call.step, call.name, module, line, call.args, call.kwargs)

    def end(self, span: Any, call: OpCall) -> bool:
        will_flow: bool = span.finish(call.result, call.is_recorded)
        return will_flow

    def shortcut(self, name: str, report: Callable[[Exception], None], otherwise: object) -> Callable[..., Any]:
        """What takes a whole call of this op through C++ (native/csrc/shortcut.h)."""
        around = (*route.for_helper(), *where.for_helper(), ids, STEPS)
        way: Callable[..., Any] = self._helper.Shortcut(self.timer, name, report, otherwise, around).call
        return way

    def _read_soon(self) -> None:
        self._reader.add(self.read)

    def close(self) -> None:
        try:
            self._reader.close()
            super().close()
        finally:
            if self._progress in progress.counted_elsewhere:  # else we are a forked child
                progress.counted_elsewhere.remove(self._progress)

    def take(self, everything: bool) -> None:
        self.timer.read(everything, ledger.MAX_WAITING_CALLS)
        rows, row_count, lines, line_count = self.timer.fetch()
        self.rows.add_lines(rows, row_count)
        self.trace.add_lines(lines, line_count)

    def name_of(self, device: torch.device) -> str:
        """C++ knows the accelerator by its own name, also where ditorch calls it cuda."""
        is_redirected = device.type == "cuda" and not graphs.HAS_CUDA
        return f"{torch._C._get_privateuse1_backend_name()}:{device.index}" if is_redirected else str(device)

    def sum_up(self) -> None:
        self.totals = {name: Total(*sums) for name, sums in self.timer.totals().items()}


def _asked(calls: list[tuple[int, str, str]]) -> list[Asked]:
    return [(number, name, Line(line)) for number, name, line in calls]
