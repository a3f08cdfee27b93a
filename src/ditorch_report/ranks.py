"""Ranks side by side: calls, errors and times of each process."""

from __future__ import annotations

from ditorch_report import call_table
from ditorch_report.packing import short
from ditorch_report.run_folder import Row
from ditorch_shared.collectives import is_collective

_MAX_OPS = 30


def of(calls: list[call_table.Call], own: dict[tuple[int, int, int], float], count: int) -> list[Row]:
    """For each process: calls, wrong ones, times in ms by phase and by op; None for collectives where it made none."""
    found: list[Row] = [
        {"calls": 0, "wrong": 0, "forward": 0.0, "backward": 0.0, "collectives": None, "ops": {}} for _ in range(count)
    ]
    for call in calls:
        row = found[call.process]
        row["calls"] += 1
        row["wrong"] += call.verdict == call_table.WRONG
        for phase, name, whole in ((0, "forward", call.forward), (1, "backward", call.backward)):
            if whole is not None:
                time = own.get((call.process, call.id, phase), whole) / 1e3
                if is_collective(call.op):  # it waits for the other ranks: no op in which this one is slow
                    row["collectives"] = (row["collectives"] or 0.0) + time
                else:
                    row[name] += time
                    row["ops"][call.op] = row["ops"].get(call.op, 0.0) + time
    for row in found:
        ranked = sorted(row["ops"].items(), key=lambda item: -item[1])[:_MAX_OPS]
        row["ops"] = {op: short(time) for op, time in ranked}
        times = ("forward", "backward", "collectives")
        row.update({name: short(row[name]) for name in times if row[name] is not None})
    return found
