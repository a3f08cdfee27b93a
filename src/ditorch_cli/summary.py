"""The summary of a run: what the tools of all its processes found, as one dictionary. docs/run.md describes it.

It is summary.json in the run's folder; screen.py puts it into words.
"""

from __future__ import annotations

import json
import os
import shlex
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ditorch_cli.manifest import FILE as MANIFEST
from ditorch_cli.manifest import write_whole
from ditorch_shared.collectives import is_collective

SCHEMA = "ditorch.summary/1"
OUTSIDE = ("model", "first_inputs")
PROCESS_SCHEMA = "ditorch.process/1"  # as op_tools/run/record.py writes it
Row = dict[str, Any]


def records(folder: Path, most: int | None = None) -> list[Row]:
    """What the processes of a run have written, by rank. One that cannot be read is told by `unreadable`."""
    found = [record for record in map(_record, _files(folder)[:most]) if record is not None]
    return sorted(found, key=lambda record: (record["rank"], record["started"]))


def unreadable(folder: Path) -> list[str]:
    """The names of records that are damaged, or of another release."""
    return [path.name for path in _files(folder) if _record(path) is None]


def _files(folder: Path) -> list[Path]:
    return sorted((folder / "processes").glob("*.json"))


def _record(path: Path) -> Row | None:
    try:
        record: Row = json.loads(path.read_text(encoding="utf-8"))
        return record if record["schema"] == PROCESS_SCHEMA else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def is_running(record: Row) -> bool:
    """Whether a process of this machine goes on."""
    if record["ended"] is not None or record["host"] != socket.gethostname():
        return False
    try:
        os.kill(record["pid"], 0)
    except OSError:
        return False
    return True


def of(folder: Path, status: int | None) -> Row:
    """`status`: how the program ended, as subprocess has it; None while it runs."""
    manifest: Row = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    processes = records(folder)
    found = {
        "schema": SCHEMA,
        "run": str(folder),
        "command": manifest["command"],
        "ranks": manifest.get("variables", {}).get("OP_TOOLS_RANKS"),
        "chosen": _chosen(manifest.get("variables", {})),
        "status": status,
        "processes": [_without_lists(record) for record in processes],
        "tools": _totals(processes),
        "wrong": _wrong(processes),
        "alerts": _alerts(processes),
        "slow": _slow(processes),
        "usage": list(_rows(processes, ("ProcessMonitor",))),
        "modules": sorted(_rows(processes, ("Lockstep",)), key=lambda row: bool(row["allclose"])),
        "elsewhere": _merged(processes, ("OpFallback", "OpDtypeCast"), ("tool", "op", "because", "casts")),
        "not_looked_at": _left_out(folder, processes, manifest, is_over=status is not None),
    }
    _add_shares(found)
    found["next"] = list(_next_commands(found, manifest))
    return found


def _chosen(variables: dict[str, str]) -> dict[str, str]:
    """What narrowed the tools down to some ops or steps, which may not have come at all."""
    ops = (name for name in variables if name.startswith("OP_") and name.endswith("_LIST"))
    return {name: variables[name] for name in ("OP_TOOLS_STEPS", *ops) if name in variables}


def write(folder: Path, summary: Row, text: str) -> None:
    write_whole(folder / "summary.json", json.dumps(summary, indent=1, ensure_ascii=False) + "\n")
    write_whole(folder / "summary.txt", text)


def _without_lists(record: Row) -> Row:
    return {key: value for key, value in record.items() if key not in ("tools", *OUTSIDE)}


def model(folder: Path) -> Row:
    """Of the first rank that tells: parameters and buffers at the first step, and the steps' first inputs."""
    told = next((record for record in records(folder) if "model" in record), {})
    return {key: told[key] for key in OUTSIDE if key in told}


def _rows(processes: Iterable[Row], tools: Iterable[str]) -> Iterator[Row]:
    """Rows of these tools, with the rank and the tool in them."""
    for record in processes:
        for tool in record["tools"]:
            if tool["tool"] in tools:
                for row in tool["rows"]:
                    yield {**row, "tool": tool["tool"], "ranks": [record["rank"]]}


def _totals(processes: Iterable[Row]) -> Row:
    """For each tool: its calls and figures in all processes together, and its files."""
    found: Row = {}
    for record in processes:
        for tool in record["tools"]:
            total = found.setdefault(tool["tool"], {"calls": 0, "files": []})
            for key, value in tool.items():
                if isinstance(value, int) and key != "left_out":
                    total[key] = total.get(key, 0) + value
                elif key == "coverage" and value and not value.startswith("coverage: all"):
                    total[key] = value  # of a rank that has not compared everything
                elif key == "coverage" and value:
                    total.setdefault(key, value)
            total["files"] += [one for one in tool["files"] if one not in total["files"]]
    return found


def _merged(processes: Iterable[Row], tools: Iterable[str], key: tuple[str, ...]) -> list[Row]:
    """Rows with equal values under `key` are one: its calls are summed up, its ranks listed."""
    found: dict[tuple[Any, ...], Row] = {}
    for row in _rows(processes, tools):
        values = tuple(row.get(name) for name in key)
        known = found.get(values)
        if known is None:
            found[values] = row
        else:
            known["calls"] += row["calls"]
            known["ranks"] = sorted({*known["ranks"], *row["ranks"]})
    return list(found.values())


def _wrong(processes: list[Row]) -> list[Row]:
    """NaN first, in the order in which it arose: what comes after it is what became of it. Then the worst first."""
    overflow = _merged(processes, ("OpOverflowCheck",), ("op", "phase", "what"))
    overflow.sort(key=lambda row: (row["step"], row["forward_id"] if row["phase"] == "forward" else float("inf")))
    compared = _merged(processes, ("OpAutoCompare",), ("op", "what", "where"))
    compared.sort(key=lambda row: -float(row["severity"]))
    return [*overflow, *compared]


def _alerts(processes: list[Row]) -> list[Row]:
    """By step. What several ranks tell of one step is one."""
    found: dict[tuple[Any, ...], Row] = {}
    for row in _rows(processes, ("TrainingWatch",)):
        known = found.setdefault((row["step"], row["rule"], row["kind"], row["module"]), row)
        known["ranks"] = sorted({*known["ranks"], *row["ranks"]})
    return sorted(found.values(), key=lambda row: row["step"])


def _slow(processes: list[Row]) -> list[Row]:
    """Ops by the time that they took in all processes together, in ms."""
    found: dict[str, Row] = {}
    for row in _rows(processes, ("OpTimeMeasure",)):
        total = found.setdefault(
            row["op"], {"op": row["op"], "calls": 0, "forward": 0.0, "backward": 0.0, "total": 0.0}
        )
        for key in ("calls", "forward", "backward", "total"):
            total[key] += row[key]
    everything = sum(row["total"] for row in found.values()) or 1.0
    ranked = sorted(found.values(), key=lambda row: -row["total"])
    return [{**row, "share": row["total"] / everything} for row in ranked]


def _unread(folder: Path) -> list[Row]:
    reason = "its record cannot be read: it is damaged, or of another release"
    return [{"tool": "", "what": f"processes/{name}", "calls": 0, "reason": reason} for name in unreadable(folder)]


def _left_out(folder: Path, processes: list[Row], manifest: Row, is_over: bool) -> list[Row]:
    """While a run goes on, a process without an end is none that was killed."""
    missed = _missed(processes, manifest) if is_over else []
    return [*_unread(folder), *missed, *_not_looked_at(processes, is_over)]


def _missed(processes: list[Row], manifest: Row) -> list[Row]:
    """Ranks of which there is no record, unless only some were asked for."""
    if manifest.get("variables", {}).get("OP_TOOLS_RANKS"):
        return []
    ranks = range(max((record["world_size"] for record in processes), default=0))
    missing = sorted(set(ranks) - {record["rank"] for record in processes})
    reason = "it left no record: it was killed in its first step, or another machine has it"
    return [{"tool": "", "what": f"rank {rank}", "calls": 0, "reason": reason} for rank in missing]


def _not_looked_at(processes: list[Row], is_over: bool) -> list[Row]:
    found: dict[tuple[str, str, str], Row] = {}
    for record in processes:
        for tool in record["tools"]:
            for row in tool["not_looked_at"]:
                key = (tool["tool"], row["what"], row["reason"])
                total = found.setdefault(key, {"tool": tool["tool"], **row, "calls": 0})
                total["calls"] += row["calls"]
        for text in record["not_seen"]:
            found["", text, ""] = {"tool": "", "what": text, "calls": 0, "reason": ""}
        if record["ended"] is None and is_over:
            what = f"rank {record['rank']} (pid {record['pid']} on {record['host']}) after step {record['steps']}"
            found["", what, ""] = {"tool": "", "what": what, "calls": 0, "reason": "the process was killed"}
    return sorted(found.values(), key=lambda row: -row["calls"])


def _add_shares(found: Row) -> None:
    """To what was not looked at: its share of its tool's calls, and of the time of all ops where that was measured."""
    slow = {row["op"]: row for row in found["slow"]}
    for row in found["not_looked_at"]:
        whole = found["tools"].get(row["tool"], {}).get("all_calls")
        row["share"] = row["calls"] / whole if whole and row["calls"] else None
        timed = slow.get(row["what"])
        if timed is not None and timed["calls"]:
            row["time_share"] = timed["share"] * min(1.0, row["calls"] / timed["calls"])


def _next_commands(found: Row, manifest: Row) -> Iterator[str]:
    """What to type next, most useful first."""
    program = _program(manifest["command"])
    for row in found["wrong"][:1]:
        op, step = shlex.quote(row["op"]), row["step"]
        if row["tool"] == "OpAutoCompare":
            if row["capture"]:
                yield f"ditorch replay {shlex.quote(_from_here(row['capture']) + '/device')} --acc_check"
            yield f"ditorch run --fallback {op} {program}"
        else:
            yield f"ditorch run --autocompare --steps {step}:{step + 1} {program}"
            yield f"ditorch run --capture --ops {op} --steps {step}:{step + 1} {program}"
    for row in [row for row in found["alerts"] if row["rule"] == "nan" and not found["wrong"]][:1]:
        yield f"ditorch run --overflow --steps {max(0, row['step'] - 1)}:{row['step'] + 1} {program}"
    slow = [] if found["wrong"] else found["slow"]
    if found["wrong"] or slow or found["alerts"]:
        yield f"ditorch report {shlex.quote(_from_here(found['run']))} --open"
    for row in [row for row in slow if not is_collective(row["op"])][:1]:
        yield f"ditorch run --capture --ops {shlex.quote(row['op'])} --steps 2:3 {program}"
    capture = found["tools"].get("OpCapture", {}).get("files", [])
    if capture and not capture[0].endswith(".pack"):
        yield f"ditorch replay {shlex.quote(_from_here(capture[0]))} --acc_check"


def _from_here(path: str) -> str:
    """Relative to the working directory, if it is below it."""
    relative = os.path.relpath(path)
    return path if relative.startswith(os.pardir) else relative


def _program(command: str) -> str:
    """What followed the options of `ditorch run`."""
    words = shlex.split(command)
    while len(words) > 1 and (os.path.basename(words[0]).startswith("python") or words[0] in ("-u", "-O", "-B")):
        words = words[1:]
    return shlex.join(words)
