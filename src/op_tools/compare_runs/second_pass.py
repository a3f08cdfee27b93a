"""The second pass: whose data would settle what statistics leave in doubt, and the command that captures it.

`ditorch diagnose` takes it by itself. What is captured below run B's own folder, a later `ditorch compare` finds there.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from op_tools.compare_runs.findings import Findings, SecondPass

FOLDER = "second_pass"
_MAX_OPS = 6


def wanted(found: Findings, run: Path, manifest: dict[str, Any]) -> SecondPass | None:
    """Of the first divergence and the suspects, in its step. `manifest`: of run B, with what it ran, and where."""
    first = found.first_divergence
    if first is not None and found.only_in_b is not None:  # what it came from may be among them
        step, ops = found.only_in_b
    else:
        places = [place for place in (first, *found.guilty, *found.suspects) if place is not None]
        if not places:
            return None
        # where nothing diverges for certain, the first step that has a suspect: later ones carry what it did
        first = first or min(places, key=lambda place: place.step)
        step, ops = first.step, list(dict.fromkeys(place.op for place in places))[:_MAX_OPS]
    return SecondPass(ops, step, first.rank, _command(ops, step, first.rank, run, manifest))


def _command(ops: list[str], step: int, rank: int, run: Path, manifest: dict[str, Any]) -> str:
    """As it can be typed here: the program's files are named as seen from where it ran."""
    options = ["--capture=data", "--ops", ",".join(ops), "--steps", str(step), "--ranks", str(rank)]
    out = (run if run.is_dir() else run.parent) / FOLDER
    there = Path(str(manifest.get("folder") or "."))
    is_elsewhere = there.is_dir() and there.resolve() != Path.cwd()
    words = ["ditorch", "run", *options, "--out", str(out.absolute() if is_elsewhere else out), "--"]
    typed = f"{shlex.join(words)} {manifest.get('command') or 'PROGRAM'}"
    return f"(cd {shlex.quote(str(there))} && {typed})" if is_elsewhere else typed
