"""Where the program is wrong: as the summary of a run has it, or from the calls of a folder without one."""

from __future__ import annotations

from ditorch_report import call_table
from ditorch_report.packing import HUGE, short
from ditorch_report.run_folder import Row, number

_MAX_WRONG = 500
_WRONG: Row = {
    "tool": "", "op": "", "what": "", "reason": "", "phase": "", "calls": 0, "step": 0, "forward_id": 0, "module": "",
    "where": "", "ranks": [], "capture": "", "severity": None, "call": -1,
}  # fmt: skip


def of(summary: Row, table: call_table.CallTable, columns: call_table.Columns) -> list[Row]:
    """Each with `call`, its place in the list of calls; -1 where it is not in there."""
    return _summed_up(summary, table, columns.index) if summary else _from_calls(columns)


def _summed_up(summary: Row, table: call_table.CallTable, index: dict[tuple[int, int], int]) -> list[Row]:
    """As the summary has them, each with its place in the list of calls."""
    by_rank: dict[int, list[int]] = {}
    for number_, (_, rank, _pid) in enumerate(table.processes):
        by_rank.setdefault(rank, []).append(number_)
    found = []
    for row in summary.get("wrong", [])[:_MAX_WRONG]:
        severity = short(number(row.get("severity")))
        row = {**_WRONG, **{key: value for key, value in row.items() if type(value) is type(_WRONG.get(key))}}
        row["severity"] = severity
        processes = [one for rank in row["ranks"] for one in by_rank.get(rank, [])]
        places = [index.get((process, row["forward_id"]), -1) for process in processes]
        found.append({**row, "call": max(places, default=-1)})
    return found


def _from_calls(columns: call_table.Columns) -> list[Row]:
    """Of a folder without a summary: from the calls, by op and place, the worst first."""
    found: dict[tuple[str, str], Row] = {}
    for place, call in enumerate(columns.calls):
        if call.verdict != call_table.WRONG:
            continue
        known = found.get((call.op, call.where))
        if known is None or call.severity > (known["severity"] or HUGE):
            worst = max((value for value in call.values if value[1] == call_table.WRONG), key=lambda value: value[2])
            details = {"reason": worst[-1]["reason"], "what": columns.what(worst), "severity": short(call.severity)}
            where = {"module": call.module, "where": call.where, "step": call.step, "forward_id": call.id}
            times = 0 if known is None else known["calls"]
            whose = {"tool": "OpAutoCompare", "op": call.op, "calls": times, "call": place}
            known = {**_WRONG, **whose, **details, **where}
            found[call.op, call.where] = known
        known["calls"] += 1
    return sorted(found.values(), key=lambda row: -(row["severity"] or 0))[:_MAX_WRONG]
