"""The first NaN or Inf, and the calls that it went through: what OpOverflowCheck wrote of each of them."""

from __future__ import annotations

from ditorch_report import run_folder
from ditorch_report.call_table import CallTable
from ditorch_report.modules import HeatMap
from ditorch_report.run_folder import Row, RunFolder, whole

MAX_ROWS = 5_000
_TEXTS = ("name", "phase", "role", "what", "module", "where")


def read(folder: RunFolder, table: CallTable, index: dict[tuple[int, int], int]) -> Row | None:
    """Calls in the order in which it reached them, for each process; None where nothing was written."""
    rows: list[Row] = []
    reached, left_out = HeatMap(), 0
    for path in folder.files("overflow"):
        # who made it may turn out after others have carried it on
        ordered = sorted(run_folder.rows(path), key=lambda row: whole(row.get("order")))
        for order, row in enumerate(ordered):
            process = table.process(row)
            call = index.get((process, whole(row.get("forward_id"))), -1)
            # what came first is worst
            reached.add(row.get("module", ""), row.get("phase", "forward"), 1 / (order + 1), call)
            if len(rows) >= MAX_ROWS:
                left_out += 1
                continue
            texts = {name: row.get(name, "") for name in _TEXTS}
            numbers = {"step": whole(row.get("step")), "order": order + 1}
            rows.append({**texts, **numbers, "process": process, "call": call})
    return {"rows": rows, "left_out": left_out, "modules": reached.as_rows()} if rows else None
