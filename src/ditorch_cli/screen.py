"""The end of a run in words, on one screen: what is wrong, what is slow, what was not looked at, what to type next."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ditorch_cli import monitor
from ditorch_shared.shares import percent

Row = dict[str, Any]
_MAX_WRONG = 8
_MAX_VALUES = 4  # of one list that are named one by one
_IN_A_LIST = re.compile(r"([\w ]+)\[(\d+)\]")
_MAX_SLOW = 6
_MIN_SHARE = 0.01  # of the time, to be slow
_MAX_OTHERS = 5
_MAX_USAGE = 16
_MAX_ALERTS = 12


def show(summary: Row) -> None:
    """On stderr: what the program prints is its own."""
    console = Console(stderr=True)
    try:
        _print(console, summary)
    except UnicodeEncodeError:
        encoding = sys.stderr.encoding or "ascii"
        sys.stderr.write(text(summary, console.width).encode(encoding, "replace").decode(encoding))


def text(summary: Row, width: int) -> str:
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        _print(console, summary)
    return captured.get()


def _print(console: Console, summary: Row) -> None:
    console.print()
    for line in _headline(summary):
        console.print(line, soft_wrap=os.sep in line.plain)  # a path in one piece, to be copied
    _print_wrong(console, summary["wrong"])
    for title, table in (
        ("Alerts, the first ones first", _alerts(summary["alerts"])),
        ("Slow: the time of ops", _slow(summary["slow"])),
        ("Memory and CPU: the most that was used, and how busy", _usage(summary["usage"])),
        ("Modules, each given the other run's inputs: its own error", _own_errors(summary["modules"])),
        ("Ran elsewhere", _elsewhere(summary["elsewhere"])),
        ("Not looked at", _not_looked_at(summary["not_looked_at"])),
    ):
        if table is not None:
            console.print(Text(f"\n{title}", style="bold"), table)
    if summary["next"]:
        console.print(Text("\nNext", style="bold"))
        for command in summary["next"]:
            console.print(Text(f"  {command}"), soft_wrap=True)  # in one piece, to be copied


def _headline(summary: Row) -> list[Text]:
    processes = summary["processes"]
    lines = [f"ditorch run: {_ended(summary['status'])}; results in", f"  {summary['run']}"]
    if not processes and summary["status"] < 0:
        lines.append("Nothing is known of it: it was killed before the end of its first training step.")
        return [Text(line, style="bold") for line in lines]
    if not processes:
        of = f" by ranks {summary['ranks']}" if summary["ranks"] else ""
        chosen = ", ".join(f"{name}={text}" for name, text in summary["chosen"].items())
        why = f"either none is in {chosen}, or the program uses none" if chosen else "did the program use one?"
        lines.append(f"No op call on an accelerator was seen{of}: {why}")
        return [Text(line, style="bold") for line in lines]
    of = {1: "1 process"}.get(len(processes), f"{len(processes)} processes")
    steps = max(record["steps"] for record in processes)
    named = _devices([record["device"] for record in processes])
    lines.append(
        f"{of} with torch {processes[0]['torch']}, {steps} training step{'' if steps == 1 else 's'}, on {named}"
    )
    lines += [
        f"{tool}: {_verdict(tool, total)}" for tool, total in summary["tools"].items() if tool != "ProcessMonitor"
    ]
    return [Text(line) for line in lines]


def _devices(devices: list[Row]) -> str:
    """What the processes ran on: one name, for the line must not be long."""
    first, *others = dict.fromkeys(one.get("name") or one.get("backend") or "an accelerator" for one in devices)
    return f"{first} and {len(others)} more" if others else str(first)


def _ended(status: int) -> str:
    if status < 0:
        return f"ended by {signal.Signals(-status).name}"
    return f"ended with exit code {status}"


def _verdict(tool: str, total: Row) -> str:
    calls = f"{total['calls']:,} calls"
    if tool == "OpAutoCompare":
        if total["wrong_calls"]:
            return f"{total['wrong_calls']:,} calls wrong in {calls}, {total['values']:,} values compared"
        if not total["calls"] and not total.get("all_calls"):
            return "nothing to compare: no op that was asked for had a tensor on an accelerator"
        said, whole = [f"nothing wrong in {calls}, {total['values']:,} values compared"], total.get("all_calls")
        is_covered = total.get("coverage", "").startswith("coverage: all")  # else it is told as not looked at
        if is_covered:
            said.append(total["coverage"])
        if whole and not (is_covered and total["compared_calls"] == whole):
            said.append(f"{percent(total['compared_calls'] / whole)} of all calls were compared")
        return "; ".join(said)
    if tool == "OpCapture":
        return f"{calls} saved: {_files(total, 2)}"
    if tool == "Lockstep":
        return f"{total['calls']:,} values of modules: {_files(total)}"
    if tool == "TrainingWatch":
        alerts = {1: "1 alert"}.get(total["alerts"], f"{total['alerts'] or 'no'} alerts")
        return f"{alerts} in {total['calls']:,} steps: {_files(total)}"
    if tool == "LossLog":
        return f"{total['calls']:,} losses: {_files(total)}"
    words = {
        "OpTimeMeasure": "timed",
        "OpOverflowCheck": "looked at for NaN and Inf",
        "OpFallback": "on the CPU",
        "OpDtypeCast": "cast",
    }
    why = (
        ": none of these ops ran in a dtype that is to be cast" if tool == "OpDtypeCast" and not total["calls"] else ""
    )
    return f"{calls} {words.get(tool, 'seen')}{why}"


def _files(total: Row, most: int = 1) -> str:
    return ", ".join(map(_short_path, total["files"][:most]))


def _table(columns: Iterable[tuple[str, str]], rows: Iterable[Sequence[str]], left: int) -> Table:
    """`columns` with how they are aligned; `left`: how many more rows there are in summary.json."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, caption_justify="left")
    for name, justify in columns:
        table.add_column(name, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    if left > 0:
        table.caption = f"… and {left} more in summary.json"
    return table


def _print_wrong(console: Console, rows: list[Row]) -> None:
    """One entry for each op and place in the program: the worst of its values in words, the others by name."""
    entries: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        entries.setdefault((row["tool"], row["op"], row["where"]), []).append(row)
    if entries:
        console.print(Text("\nWrong, the worst first", style="bold"))
    for number, found in enumerate(list(entries.values())[:_MAX_WRONG], 1):
        worst = found[0]
        name = Text(worst["op"], style="bold red")
        head = Text.assemble(f"{number}. ", name, f": {_what(worst, found[1:])} ({_often(worst)})")
        lines = head.wrap(console, console.width - 3)
        console.print(lines[0])
        details = (Text(worst.get("reason", "")), *(Text(one, style="dim") for one in _place(worst, console.width - 3)))
        for line in (*lines[1:], *(line for text in details if text for line in text.wrap(console, console.width - 3))):
            console.print(Text.assemble("   ", line))
    if len(entries) > _MAX_WRONG:
        console.print(f"… and {len(entries) - _MAX_WRONG} more places in summary.json")


def _what(worst: Row, others: list[Row]) -> str:
    if worst["tool"] != "OpAutoCompare":
        return f"{worst['what']}, {worst['phase']}"
    return _values([row["what"] for row in (worst, *others)])


def _values(names: list[str]) -> str:
    """The worst first; the tensors of a long list by their numbers: input[0-67]."""
    lists: dict[str, list[int]] = {}
    for name in names:
        found = _IN_A_LIST.fullmatch(name)
        if found:
            lists.setdefault(found[1], []).append(int(found[2]))
    long = {name: f"{name}[{_ranges(numbers)}]" for name, numbers in lists.items() if len(numbers) > _MAX_VALUES}
    return ", ".join(dict.fromkeys(long.get(name.partition("[")[0], name) for name in names))


def _often(row: Row) -> str:
    calls = "1 call" if row["calls"] == 1 else f"{row['calls']:,} calls"
    return f"{calls}, step {row['step']}" + (f", ranks {_ranges(row['ranks'])}" if row["ranks"] != [0] else "")


def _ranges(numbers: list[int]) -> str:
    """0-3,7: as --ranks takes them."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1] = [ranges[-1][0], number]
        else:
            ranges.append([number])
    return ",".join("-".join(map(str, part)) for part in ranges)


def _place(row: Row, width: int) -> list[str]:
    """The module and the line of the program: in one line, where there is room."""
    module, line = f"in {row['module']}:" if row["module"] else "", _short_path(row["where"])
    together = f"{module} {line}".strip()
    return [together] if len(together) <= width else [module, line]


def _short_path(where: str) -> str:
    """Without the working directory."""
    here = os.getcwd() + os.sep
    return where[len(here) :] if where.startswith(here) else where


def _alerts(rows: list[Row]) -> Table | None:
    if not rows:
        return None
    shown = rows[:_MAX_ALERTS]
    cells = [(str(row["step"]), row["rule"], row["text"], _ranges(row["ranks"])) for row in shown]
    columns = (("step", "right"), ("rule", "left"), ("what", "left"), ("ranks", "left"))
    return _table(columns, cells, len(rows) - len(shown))


def _slow(rows: list[Row]) -> Table | None:
    if not rows:
        return None
    shown = [rows[0], *(row for row in rows[1:_MAX_SLOW] if row["share"] >= _MIN_SHARE)]
    cells = [
        (row["op"], f"{row['calls']:,}", f"{row['forward']:.1f}", f"{row['backward']:.1f}", f"{row['share']:.1%}")
        for row in shown
    ]
    columns = (
        ("op", "left"),
        ("calls", "right"),
        ("forward ms", "right"),
        ("backward ms", "right"),
        ("share", "right"),
    )
    return _table(columns, cells, len(rows) - len(shown))


def _usage(rows: list[Row]) -> Table | None:
    return monitor.table(rows[:_MAX_USAGE]) if rows else None


def _own_errors(rows: list[Row]) -> Table | None:
    """The worst first; where all are close, the few that are furthest."""
    if not rows:
        return None
    shown = rows[:_MAX_OTHERS]
    has_ranks = len({rank for row in rows for rank in row["ranks"]}) > 1
    cells = []
    for row in shown:
        verdict = "" if row["allclose"] else "not close"
        rank = f"rank {row['ranks'][0]}" if has_ranks else ""
        cells.append((row["layer"], row["what"], _number(row["relative_error"]), f"{verdict} {rank}".strip()))
    columns = (("module", "left"), ("what", "left"), ("own error", "right"), ("", "left"))
    return _table(columns, cells, len(rows) - len(shown))


def _number(value: Any) -> str:
    return f"{value:.2g}" if isinstance(value, float) else str(value)


def _elsewhere(rows: list[Row]) -> Table | None:
    if not rows:
        return None
    how = {"OpFallback": "on the CPU"}
    cells = [
        (row["op"], f"{row['calls']:,}", how.get(row["tool"]) or row["casts"], row.get("because") or "as asked for")
        for row in rows[:_MAX_OTHERS]
    ]
    columns = (("op", "left"), ("calls", "right"), ("how", "left"), ("because", "left"))
    return _table(columns, cells, len(rows) - _MAX_OTHERS)


def _not_looked_at(rows: list[Row]) -> Table | None:
    if not rows:
        return None
    rows, more = rows[:_MAX_OTHERS], len(rows) - _MAX_OTHERS
    columns = [("what", "left"), ("calls", "right"), ("because", "left"), ("tool", "left")]
    cells = [[row["what"], f"{row['calls']:,}" if row["calls"] else "", row["reason"], row["tool"]] for row in rows]
    shares = (("time_share", "of the time"), ("share", "of all"))
    for key, title in (one for one in shares if any(row.get(one[0]) for row in rows)):
        columns.insert(2, (title, "right"))
        for row, line in zip(rows, cells):
            line.insert(2, percent(row[key]) if row.get(key) else "")
    return _table(columns, cells, more)
