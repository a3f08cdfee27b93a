"""Curves and alerts of `ditorch run --watch`: of the whole, and by module, thinned so that the page stays small."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ditorch_report.packing import short
from ditorch_report.run_folder import Row, RunFolder, number, whole

MAX_STEPS = 4_000  # of the curves of the whole
MAX_VALUES = 1_200_000  # of those by module, of all processes together
FEWEST_STEPS = 40
_CURVES = ("loss", "gradient_norm", "scale")
_FIGURES = ("rms", "absmax", "mean", "zeros", "nonfinite")


def read(folder: RunFolder) -> tuple[Row | None, dict[str, Row]]:
    """The curves of the whole, and by the name of a piece those by module."""
    processes = [one for one in map(_process, folder.files("watch")) if one["step"]]
    alerts = [row for path in folder.files("alerts") for row in _lines(path) if row.get("rule")]
    if not processes:
        return None, {}
    all_kinds: list[_Kind] = [kind for one in processes for kind in one["kinds"].values()]
    values = sum(len(kind.rows) * len(kind.modules) * len(_FIGURES) for kind in all_kinds)
    most = max(FEWEST_STEPS, int(MAX_VALUES / max(values, 1) * max(len(one["step"]) for one in processes)))
    pieces: dict[str, Row] = {}
    for place, one in enumerate(processes):
        kinds: dict[str, _Kind] = one["kinds"]
        one["kinds"] = {}
        for name, kind in kinds.items():
            piece = f"watch{place}.{name}"
            pieces[piece] = kind.thinned(most)
            one["kinds"][name] = piece
    alerts.sort(key=lambda row: (whole(row.get("step")), whole(row.get("rank"))))
    return {"processes": [_thinned(one) for one in processes], "alerts": [_alert(row) for row in alerts]}, pieces


class _Kind:
    """The figures of one kind of tensors: a row for each step that has some."""

    def __init__(self) -> None:
        self.modules: dict[str, int] = {}  # all that ever were, with their places
        self.counts: dict[str, int] = {}
        self._now: list[str] = []
        self.rows: list[tuple[int, dict[str, list[Any]], list[str]]] = []

    def name(self, line: Row) -> None:
        if isinstance(line.get("modules"), list):
            self._now = [str(one) for one in line["modules"]]
            for module in self._now:
                self.modules.setdefault(module, len(self.modules))
        if isinstance(line.get("count"), list):
            self.counts.update(zip(self._now, map(whole, line["count"])))

    def add(self, step: int, figures: Row) -> None:
        self.rows.append((step, figures, self._now))

    def thinned(self, most: int) -> Row:
        rows = self.rows[:: len(self.rows) // most + 1]
        found: Row = {"step": [step for step, _, _ in rows], "modules": list(self.modules)}
        found["count"] = [self.counts.get(module, 0) for module in self.modules]
        for figure in _FIGURES:
            curves: list[list[Any]] = [[None] * len(rows) for _ in self.modules]
            for place, (_, figures, modules) in enumerate(rows):
                values = figures.get(figure)
                for module, value in zip(modules, values if isinstance(values, list) else ()):
                    curves[self.modules[module]][place] = short(_number(value))
            found[figure] = curves
        return found


def _process(path: Path) -> Row:
    found: Row = {"host": "", "rank": 0, "pid": 0, "sharded": False, "step": [], "time": [], "kinds": {}}
    found.update({name: [] for name in _CURVES})
    for line in _lines(path):
        if "schema" in line:
            found.update(host=str(line.get("host", "")), rank=whole(line.get("rank")), pid=whole(line.get("pid")))
            found["sharded"] = bool(line.get("sharded"))
        elif "kind" in line:
            found["kinds"].setdefault(str(line["kind"]), _Kind()).name(line)
        elif "step" in line:
            step = whole(line["step"])
            found["step"].append(step)
            found["time"].append(number(line.get("time")))
            for name in _CURVES:
                found[name].append(short(_number(line.get(name)), 6))
            for name, kind in found["kinds"].items():
                if isinstance(line.get(name), dict):
                    kind.add(step, line[name])
    return found


def _thinned(one: Row) -> Row:
    every = len(one["step"]) // MAX_STEPS + 1
    return {name: value[::every] if isinstance(value, list) else value for name, value in one.items()}


def _alert(row: Row) -> Row:
    texts = {name: str(row.get(name) or "") for name in ("rule", "kind", "module", "text")}
    return {"step": whole(row.get("step")), "rank": whole(row.get("rank")), **texts}


def _number(value: Any) -> float | None:
    """NaN is drawn as a gap."""
    return None if value is None or isinstance(value, (list, dict)) else number(value)


def _lines(path: Path) -> Iterator[Row]:
    """The last line of a process that was killed may be cut."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                try:
                    found = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(found, dict):
                    yield found
    except OSError:
        return
