"""The book of times where the C++ helper keeps it (native/csrc/book.h): here are its files."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from op_tools import rows
from op_tools.call import OpCall
from op_tools.timing import ledger, signature
from op_tools.timing.ledger import COLUMNS, Total
from op_tools.timing.trace import TraceFile


class NativeLedger:
    """What op_tools.timing.ledger.Ledger is in Python."""

    def __init__(self, helper: Any, csv: Path, most_rows: int, most_events: int) -> None:
        self.rows = rows.CsvFile(csv, COLUMNS, most_rows)
        self.trace = TraceFile(csv.with_suffix(".json"), most_events)
        self.totals: dict[str, Total] = {}
        self.timer = helper.Timer(self.trace, most_events, signature.of_call, signature.of)
        self._until_read = ledger.READ_AT // 3
        self._reading = threading.Lock()

    def begin(self, call: OpCall) -> Any:
        """Right before the op."""
        where = call.where
        return self.timer.begin(call.id, call.step, call.name, where.module, where.line(), call.args, call.kwargs)

    def end(self, span: Any, result: Any) -> bool:
        """Right after the op. Will gradients flow?"""
        will_flow: bool = span.finish(result)
        self._until_read -= 1
        if self._until_read <= 0:
            self.read()
        return will_flow

    def close(self) -> None:
        """Waits for the device and writes everything."""
        self.timer.close()
        self.read(everything=True)
        self.totals = {name: Total(*sums) for name, sums in self.timer.totals().items()}
        self.rows.close()
        self.trace.close()

    def read(self, everything: bool = False) -> None:
        """Takes in what the device has passed: the older half, which costs no waiting, or everything."""
        if not self._reading.acquire(blocking=everything):
            return
        try:
            self._until_read = ledger.READ_AT // 3  # a call makes about three entries
            self.timer.read(everything, ledger.MOST_UNREAD, ledger.MOST_WAITING)
            rows_in_words, row_count, lines, line_count = self.timer.fetch()
            self.rows.add_lines(rows_in_words, row_count)
            self.trace.add_lines(lines, line_count)
        finally:
            self._reading.release()
