"""The second pass: whose data would settle what statistics leave in doubt, and the command that captures it.

`ditorch diagnose` takes it by itself. What is captured below run B's own folder, a later `ditorch compare` finds there.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from op_tools.compare_runs.findings import Findings, SecondPass

FOLDER = "second_pass"
_MAX_OPS = 6


def wanted(found: Findings, run: Path, command: str) -> SecondPass | None:
    """Of the first divergence and the suspects, in its step. `command`: what run B ran; empty where unknown."""
    if found.only_in_b is not None and found.first_divergence is not None:  # what it came from may be among them
        return _captures(run, found.only_in_b[1], found.only_in_b[0], found.first_divergence.rank, command)
    places = [place for place in (found.first_divergence, *found.guilty, *found.suspects) if place is not None]
    if not places:
        return None
    # where nothing diverges for certain, the first step that has a suspect: later ones carry what it did
    first = found.first_divergence or min(places, key=lambda place: place.step)
    return _captures(run, list(dict.fromkeys(place.op for place in places))[:_MAX_OPS], first.step, first.rank, command)


def _captures(run: Path, ops: list[str], step: int, rank: int, command: str) -> SecondPass:
    options = ["--capture=data", "--ops", ",".join(ops), "--steps", str(step), "--ranks", str(rank)]
    folder = run / FOLDER if run.is_dir() else run.parent / FOLDER
    words = ["ditorch", "run", *options, "--out", str(folder), "--"]
    return SecondPass(ops, step, rank, f"{shlex.join(words)} {command or 'PROGRAM'}")
