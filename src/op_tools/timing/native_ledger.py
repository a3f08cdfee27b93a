"""The book of times where the C++ helper keeps it (native/csrc/book.h): here are its files, and the thread that reads.

Reading takes a third of what measuring costs, and C++ needs no lock of Python's for it: so training does not wait.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from op_tools.call import OpCall
from op_tools.recording.writer import Writer
from op_tools.timing import ledger, signature
from op_tools.timing.ledger import Book, Total


class NativeLedger(Book):
    """What ledger.Ledger is in Python."""

    def __init__(self, helper: Any, csv: Path, most_rows: int, most_events: int) -> None:
        super().__init__(csv, most_rows, most_events)
        self.timer = helper.Timer(self.trace, most_events, signature.of_call, signature.of)
        self._reader = Writer("OpTimeMeasure")

    def begin(self, call: OpCall) -> Any:
        where = call.where
        return self.timer.begin(call.id, call.step, call.name, where.module, where.line(), call.args, call.kwargs)

    def end(self, span: Any, result: Any) -> bool:
        will_flow: bool = span.finish(result)
        self.call_ended()
        return will_flow

    def call_ended(self) -> None:
        self._until_read -= 1
        if self._until_read <= 0:
            self._until_read = ledger.READ_AT // 3
            self._reader.add(self.read)

    def close(self) -> None:
        self._reader.close()
        super().close()

    def take(self, everything: bool) -> int:
        self.timer.read(everything, ledger.MOST_UNREAD, ledger.MOST_WAITING)
        rows, row_count, lines, line_count = self.timer.fetch()
        self.rows.add_lines(rows, row_count)
        self.trace.add_lines(lines, line_count)
        return ledger.READ_AT // 3

    def sum_up(self) -> None:
        self.totals = {name: Total(*sums) for name, sums in self.timer.totals().items()}
