"""Statistics of every tensor (`ditorch run --capture=statistics`) as a part of the calls. Reading them needs torch."""

from __future__ import annotations

from ditorch_report.call_table import CallTable
from ditorch_report.packing import short
from ditorch_report.run_folder import RunFolder, pid_of

MAX_CALLS = 50_000  # with statistics
_NUMBERS = ("min", "max", "mean", "std", "norm")


def add(folder: RunFolder, table: CallTable) -> str:
    """Adds them to the calls of the table; says what could not be read."""
    files = folder.files("statistics")
    if not files:
        return ""
    from op_tools.errors import CaptureError
    from op_tools.storage import blocks, pack

    try:
        for path in files:
            about = blocks.head(path)
            identity = {"host": about.get("host", ""), "rank": about.get("rank", 0), "pid": pid_of(path)}
            identity["pid"] = about.get("pid", identity["pid"])
            for record in pack.read(path):
                if record.op in (blocks.MODEL, blocks.STEP):
                    continue  # no calls
                place = {"step": record.step, "module": record.module, "where": record.source}
                call = table.call({**identity, "forward_id": record.forward_id, **place}, record.op)
                if len(table.calls) <= MAX_CALLS:
                    name = f"{record.part} {record.place}".strip()
                    numbers = [short(getattr(record, one)) for one in _NUMBERS]
                    call.statistics.append([name, list(record.shape), record.dtype, record.nan, record.inf, *numbers])
    except CaptureError as error:
        return str(error)
    return ""
