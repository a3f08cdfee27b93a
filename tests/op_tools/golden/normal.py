"""Output without what differs from run to run: ids, times, addresses, process ids, dates, folders, the device."""

from __future__ import annotations

import csv
import io
import os
import re
from pathlib import Path

_TIMES = {"forward", "backward", "total", "mean", "share", "forward_elasped", "backward_elasped"}
_TIMES |= {"forward ms", "backward ms", "p90"}
_WHEN = r"\d{4}(?:-\d\d){5}"


class Normal:
    """Puts placeholders in. Calls are numbered from 1; `before` is the id of the last call before them."""

    def __init__(self, device: str, before: int) -> None:
        self._device = device
        self._before = before

    def text(self, text: str) -> str:
        parts = re.split(r"((?:^[+|].*\n)+)", text, flags=re.MULTILINE)
        return "".join(self._tables(part) if part[:1] in ("+", "|") else self._line(part) for part in parts)

    def rows(self, file: Path, columns: int) -> str:
        """A CSV file: its header, and so many columns of its rows, in the order of the calls."""
        header, *rows = csv.reader(io.StringIO(file.read_text(encoding="utf-8")))
        rows = [self._cells(header, row)[:columns] for row in rows]
        rows.sort(key=lambda row: int(row[header.index("forward_id")]))
        return "\n".join([",".join(header), *(" | ".join(row) for row in rows)]) + "\n"

    def tree(self, folder: Path) -> str:
        """All files below a folder."""
        names = [str(path) for path in folder.rglob("*") if path.is_file()]
        return "".join(f"{name}\n" for name in sorted(self.text(name) for name in names))

    def _line(self, text: str) -> str:
        text = re.sub(r"\S*/golden/program\.py", "program.py", text)
        text = re.sub(r"\bforward_id: (\d+)", lambda match: f"forward_id: {self._id(match[1])}", text)
        text = re.sub(
            rf"/\d+/(autocompare/)?(\d+)/{_WHEN}",
            lambda match: f"/PID/{match[1] or ''}{self._id(match[2])}/TIME",
            text,
        )
        text = re.sub(rf"pid\d+_{_WHEN}", "pidPID_TIME", text)
        text = re.sub(r"[\d.]+ [kM]?B in ", "SIZE in ", text)
        text = re.sub(r"(ditorch\.framework: \w+):\S+", r"\1:VERSION", text)
        return text.replace(f"{Path.cwd()}{os.sep}", "").replace(f"{self._device}:0", "DEVICE:0")

    def _id(self, text: str) -> str:
        return str(int(text) - self._before)

    def _tables(self, text: str) -> str:
        """One box or several, without a line between them."""
        boxes, lines = [], []
        for line in text.splitlines():
            lines.append(line)
            if line.startswith("+") and sum(one.startswith("+") for one in lines) == 3:
                boxes.append(lines)
                lines = []
        assert not lines, f"a box is not closed:\n{text}"
        return "".join(map(self._box, boxes))

    def _box(self, lines: list[str]) -> str:
        rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines if line.startswith("|")]
        text = "\n".join(lines) + "\n"
        assert _boxed(rows) == text, f"a box is not laid out as the reference does it:\n{text}"
        header, *rest = rows
        rest = [self._cells(header, row) for row in rest]
        if "share" in header:
            rest.sort()  # by time, which nobody knows
        elif "backward_elasped" in header and "forward_elasped" in header:
            rest.sort(key=lambda row: int(row[header.index("forward_id")]))
        return _boxed([header, *rest])

    def _cells(self, header: list[str], row: list[str]) -> list[str]:
        has_times = "unit" in header or "forward ms" in header
        cells = [self._cell(column, cell, has_times) for column, cell in zip(header, row)]
        # how OpAutoCompare's reference run gets its gradients is its own business
        if "requires_grad" in header and re.search(r" (in|out)puts\(cpu\)", cells[0]):
            cells[header.index("requires_grad")] = ""
        return cells

    def _cell(self, column: str, cell: str, has_times: bool) -> str:
        if not cell:
            return cell
        if column == "data_ptr":
            return "ADDRESS"
        if column == "forward_id":
            return self._id(cell)
        if has_times and column in _TIMES:
            assert re.fullmatch(r"\d+\.\d+%?", cell), f"{cell!r} is no time"
            return "TIME"
        return self._line(cell)


def _boxed(rows: list[list[str]]) -> str:
    """As the reference draws it: every cell in the middle of its column."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    border = "+" + "+".join("-" * (width + 2) for width in widths) + "+\n"
    lines = ["|" + "|".join(f" {cell.center(width)} " for cell, width in zip(row, widths)) + "|\n" for row in rows]
    return border + lines[0] + border + "".join(lines[1:]) + (border if rows[1:] else "")
