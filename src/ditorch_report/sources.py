"""Lines of the program with those around them, from its files, where these are still as they were."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

AROUND = 4  # lines before and after
MAX_PLACES = 3000
MAX_FILE = 4 * 2**20
_WHERE = re.compile(r"(?P<file>.+\.py):(?P<line>\d+) (?P<function>[^:]*): ?(?P<text>.*)", re.DOTALL)


def contexts(places: Iterable[str]) -> dict[str, Any]:
    """By place, as the tools write it: the number of the first line, and the lines."""
    files: dict[str, list[str]] = {}
    found: dict[str, Any] = {}
    for place in places:
        match = _WHERE.fullmatch(place)
        if match is None or len(found) >= MAX_PLACES:
            continue
        lines = files.setdefault(match["file"], []) or _lines(match["file"])
        files[match["file"]] = lines
        number = int(match["line"])
        # a file that was edited since would show something else
        if 0 < number <= len(lines) and lines[number - 1].strip() == match["text"].strip():
            first = max(1, number - AROUND)
            found[place] = [first, lines[first - 1 : number + AROUND]]
    return found


def _lines(file: str) -> list[str]:
    path = Path(file)
    try:
        if not path.is_file() or path.stat().st_size > MAX_FILE:
            return []
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
