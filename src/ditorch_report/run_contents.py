"""All that the page shows of one run: figures for its pages, and the pieces that they load."""

from __future__ import annotations

from typing import Any

from ditorch_report import (
    call_table,
    captured,
    memory,
    modules,
    ranks,
    sources,
    spread,
    statistics,
    trace,
    watch,
    wrong_places,
)
from ditorch_report.run_folder import Row, RunFolder

_OF_MANIFEST = ("command", "folder", "git", "host", "platform", "python", "started", "ended", "status", "torch")
_OF_SUMMARY = ("tools", "usage", "modules", "elsewhere", "not_looked_at", "next", "processes")


def of(folder: RunFolder, summary: Row, name: str, pieces: dict[str, Any]) -> Row:
    table = call_table.read(folder)
    problem = statistics.add(folder, table)
    calls = table.ordered()
    columns = call_table.Columns(table)
    traces = _traces(folder, table)
    times = _own_times(traces, table)
    wrong = wrong_places.of(summary, table, columns)
    found: Row = {
        "name": folder.path.resolve().name,
        "path": str(folder.path),
        **{key: folder.manifest.get(key) for key in _OF_MANIFEST},
        **{key: summary.get(key, []) for key in _OF_SUMMARY},
        "variables": folder.manifest.get("variables", {}),
        "wrong": wrong,
        "ops": modules.by_op(calls, times),
        "table": [{"host": host, "rank": rank, "pid": pid} for host, rank, pid in table.processes],
        "ranks": ranks.of(calls, times, len(table.processes)),
        "calls": len(calls),
        "listed": len(columns.calls),
        "problems": [problem] if problem else [],
        "pieces": {},
    }
    flame, waits = _flame(calls, times), trace.Waits()
    for one in traces:
        waits.add(one)
    heat = modules.errors(calls, columns.index)
    parts: dict[str, Any] = {
        "calls": columns.main() if calls else None,
        "texts": columns.texts() if calls else None,
        "flame": flame if flame["time"] else None,
        "trace": trace.as_columns(traces, columns.index) if traces else None,
        "waits": {"span": waits.span / 1e3, "busy": waits.busy / 1e3, "rows": waits.rows()} if waits.span else None,
        "heat": heat if heat["cells"] else None,
        "spread": spread.read(folder, table, columns.index),
        "memory": memory.read(folder) or None,
        "captures": captured.read(folder, table, columns.index) or None,
        "sources": sources.contexts(dict.fromkeys([*(row["where"] for row in wrong), *(one.where for one in calls)])),
    }
    parts["watch"], by_module = watch.read(folder)
    found["alerts"] = parts["watch"]["alerts"] if parts["watch"] else []
    parts.update(by_module)
    details = list(columns.details()) if any(call.values or call.statistics for call in calls) else []
    parts.update({f"details{number}": piece for number, piece in enumerate(details)})
    for part, content in parts.items():
        if content is not None:
            found["pieces"][part] = f"{name}.{part}"
            pieces[f"{name}.{part}"] = content
    return found


def _traces(folder: RunFolder, table: call_table.CallTable) -> list[trace.Trace]:
    found = [trace.read(path) for path in folder.files("traces")]
    for one in found:
        process = table.process({"host": one.host, "rank": one.rank, "pid": one.pid})
        for track in one.tracks:
            track.process = process
    return [one for one in found if one.tracks]


def _own_times(traces: list[trace.Trace], table: call_table.CallTable) -> dict[tuple[int, int, int], float]:
    """By process, forward_id and phase, in µs."""
    found = {}
    for one in traces:
        process = one.tracks[0].process
        found.update({(process, *key): time for key, time in one.own_times().items()})
    return found


def _flame(calls: list[call_table.Call], own: dict[tuple[int, int, int], float]) -> Row:
    flame = modules.Flame()
    for call in calls:
        for phase, name, whole in ((0, "forward", call.forward), (1, "backward", call.backward)):
            if whole is not None:
                flame.add(call.op, call.module, name, own.get((call.process, call.id, phase), whole))
    return flame.as_tree()
