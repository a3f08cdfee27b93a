"""Sums by module: the flame graph of times, and the heat map of errors along the depth of the model."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from ditorch_report.call_table import Call
from ditorch_report.packing import short
from ditorch_shared.collectives import is_collective

Row = dict[str, Any]
_LAYER = re.compile(r"(?<=\.)(\d+)(?=\.|$)")


class Flame:
    """Times in ms, by phase, module and op."""

    def __init__(self) -> None:
        self._root: Row = {"name": "", "time": 0.0, "calls": 0, "inner": {}}

    def add(self, op: str, module: str, phase: str, time: float) -> None:
        """`time` without that of calls inside, in µs."""
        group = "collectives" if is_collective(op) else phase
        path = [group, *(module.split(".") if module else ["—"]), op]
        node = self._root
        node["time"] += time
        for name in path:
            node = node["inner"].setdefault(name, {"name": name, "time": 0.0, "calls": 0, "inner": {}})
            node["time"] += time
            node["calls"] += 1

    def as_tree(self) -> Row:
        return _plain(self._root)


def _plain(node: Row) -> Row:
    inner = sorted(node["inner"].values(), key=lambda one: -one["time"])
    found: Row = {"name": node["name"], "time": short(node["time"] / 1e3), "calls": node["calls"]}
    return {**found, "inner": [_plain(one) for one in inner]} if inner else found


@lru_cache(maxsize=10_000)
def pattern_of(module: str) -> tuple[str, int]:
    """`blocks.3.attention.qkv` is `blocks.*.attention.qkv` in layer 3; -1 where it is in no layer."""
    found = _LAYER.search(module)
    if found is None:
        return module, -1
    return f"{module[: found.start()]}*{module[found.end() :]}", int(found[1])


class HeatMap:
    """The worst of some figure for each module, layer and phase."""

    def __init__(self) -> None:
        self._cells: dict[tuple[str, int, str], tuple[float, int, int]] = {}
        self._patterns: dict[str, int] = {}  # in the order in which they ran

    def add(self, module: str, phase: str, value: float, call: int) -> None:
        pattern, layer = pattern_of(module)
        self._patterns.setdefault(pattern, len(self._patterns))
        known = self._cells.get((pattern, layer, phase))
        count = 1 if known is None else known[2] + 1
        if known is None or value > known[0]:
            known = (value, call, count)
        self._cells[pattern, layer, phase] = (known[0], known[1], count)

    def as_rows(self) -> Row:
        cells = [
            [self._patterns[pattern], layer, phase, short(value, 3), call, count]
            for (pattern, layer, phase), (value, call, count) in self._cells.items()
        ]
        return {"patterns": list(self._patterns), "cells": cells}


def errors(calls: Iterable[Call], index: dict[tuple[int, int], int]) -> Row:
    """How far off each module is, in allowances."""
    found = HeatMap()
    for call in calls:
        place = index.get((call.process, call.id), -1)
        for phase, severity in (("forward", call.forward_severity), ("backward", call.backward_severity)):
            if severity is not None:
                found.add(call.module, phase, severity, place)
    return found.as_rows()


def by_op(calls: Iterable[Call], own: dict[tuple[int, int, int], float]) -> list[Row]:
    """For each op: calls, times in ms, how many are wrong and how far off."""
    found: dict[str, Row] = {}
    for call in calls:
        row = found.setdefault(
            call.op,
            {"op": call.op, "calls": 0, "forward": 0.0, "backward": 0.0, "compared": 0, "wrong": 0, "severity": 0.0},
        )
        if is_collective(call.op):
            row["collective"] = True
        row["calls"] += 1
        row["forward"] += own.get((call.process, call.id, 0), call.forward or 0.0) / 1e3
        row["backward"] += own.get((call.process, call.id, 1), call.backward or 0.0) / 1e3
        row["compared"] += call.verdict > 0
        row["wrong"] += call.verdict > 1
        row["severity"] = max(row["severity"], call.severity)
    ranked = sorted(found.values(), key=lambda row: -(row["forward"] + row["backward"]))
    times = ("forward", "backward", "severity")
    return [{**row, **{name: short(row[name]) for name in times}} for row in ranked]
