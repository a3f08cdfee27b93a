"""Boxes of text: a table with a row of names, its cells in the middle of their columns. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

MIN_CELL = 12  # letters that a cell is not cut below


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], keep_empty: bool = False) -> str:
    """A box with every cell in the middle of its column, as the reference draws it."""
    rows = list(rows)
    cells = list(zip(*rows)) if rows else [()] * len(columns)
    kept = [index for index, _ in enumerate(columns) if keep_empty or not rows or any(cells[index])]
    widths = [max(map(len, (columns[index], *cells[index]))) for index in kept]
    border = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    lines = [border, _line([columns[index] for index in kept], widths), border]
    lines += [_line(row, widths) for row in zip(*(cells[index] for index in kept))]
    if rows:
        lines.append(border)
    return "\n".join(lines)


def fitted(columns: Sequence[str], rows: Iterable[Sequence[str]], width: int) -> str:
    """A box that is no wider than `width`: the longest cells are cut."""
    rows = [tuple(map(str, row)) for row in rows]
    kept = [index for index, _ in enumerate(columns) if any(row[index] for row in rows)]
    columns, rows = [columns[index] for index in kept], [[row[index] for index in kept] for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(columns, *rows)]
    while widths and sum(widths) + 3 * len(widths) + 1 > width and max(widths) > MIN_CELL:
        widths[widths.index(max(widths))] -= 1
    return table(columns, [[short(cell, room) for cell, room in zip(row, widths)] for row in rows])


def _line(row: Iterable[str], widths: Iterable[int]) -> str:
    return "| " + " | ".join(map(str.center, row, widths)) + " |"


def short(value: Any, longest: int = 60) -> str:
    """In one line of so many letters at most."""
    text = str(value).replace("\n", " ")
    return text if len(text) <= longest else text[: longest - 1] + "…"
