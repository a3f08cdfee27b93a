"""Reads the statistics of a run, rank by rank and step by step: nothing is loaded whole."""

from __future__ import annotations

import contextlib
import itertools
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from op_tools.compare_runs.calls import Call, Seen, Site
from op_tools.errors import CaptureError
from op_tools.storage import pack

_PATTERN = "op_capture_statistics_*.pack"
Stream = tuple[int, int]  # the rank, and the number of the process where several had it one after the other


class Run:
    """The folder of a run, or one that OpCapture wrote, or one file of statistics."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.exists():
            raise CaptureError(f"{path} holds no run: there is no such file or folder")
        files = sorted(path.rglob(_PATTERN)) if path.is_dir() else [path]
        if not files:
            raise CaptureError(
                f"{path} holds no statistics: `ditorch run --capture=statistics --out {path} PROGRAM` makes them"
            )
        self.heads = {file: pack.head(file) for file in files}
        self.streams = self._streams()

    @property
    def sketch(self) -> set[Any]:
        """The versions of the sketches in it."""
        return {head.get("sketch", 1) for head in self.heads.values()}

    @property
    def tf32(self) -> set[str]:
        """What may have been computed in tf32."""
        return {str(name) for head in self.heads.values() for name in head.get("tf32", ())}

    def _streams(self) -> dict[Stream, list[Path]]:
        """The files of each process, in the order in which they were written."""
        processes: dict[int, dict[Any, list[Path]]] = {}
        for file in sorted(self.heads, key=lambda file: (file.stat().st_mtime_ns, file.name)):
            head = self.heads[file]
            rank = head.get("rank", 0)
            process = (str(head.get("host")), str(head.get("pid")))
            processes.setdefault(rank if isinstance(rank, int) else 0, {}).setdefault(process, []).append(file)
        return {
            (rank, number): files
            for rank, of_rank in sorted(processes.items())
            for number, files in enumerate(of_rank.values())
        }

    @property
    def ranks(self) -> list[int]:
        return sorted({rank for rank, _ in self.streams})

    def manifest(self) -> dict[str, Any]:
        """What `ditorch run` wrote about it; empty where there is nothing."""
        return read_json(self.path / "manifest.json")

    def processes(self) -> list[dict[str, Any]]:
        """What `ditorch run` wrote about its processes, by rank."""
        found = [read_json(path) for path in sorted((self.path / "processes").glob("*.json"))]
        return sorted((one for one in found if one), key=lambda one: (one.get("rank", 0), one.get("pid", 0)))

    def steps(self, stream: Stream) -> Iterator[tuple[int, list[Call]]]:
        """The calls of each step, in the order in which they ran. A damaged file is a CaptureError where it is."""
        return _steps(self.streams[stream])


def read_json(path: Path) -> dict[str, Any]:
    """Empty where there is no such file, or something else in it."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _steps(files: list[Path]) -> Iterator[tuple[int, list[Call]]]:
    """Lines come as devices handed them over: a step is whole after the last block that has lines of it."""
    last = _last_blocks(files)
    waiting = sorted(last, key=lambda step: (last[step], step))
    gathered: dict[int, dict[int, Call]] = {}
    readers = {file: _Blocks(file) for file in files}
    for number, file, block in _numbered_blocks(files):
        for site, line in readers[file].lines(*block):
            _add(gathered.setdefault(line[2], {}), site, line)
        while waiting and last[waiting[0]] <= number:
            step = waiting.pop(0)
            yield step, _in_order(gathered.pop(step, {}))


def _numbered_blocks(files: list[Path]) -> Iterator[tuple[int, Path, tuple[int, bytes, bytes]]]:
    numbers = itertools.count()
    for file in files:
        for block in pack.blocks(file):
            yield next(numbers), file, block


def _last_blocks(files: list[Path]) -> dict[int, int]:
    """Of each step, the number of the last block with lines of it; up to where a file is damaged."""
    last: dict[int, int] = {}
    with contextlib.suppress(CaptureError):  # it is raised again when the file is read
        for number, _, (layout, kind, content) in _numbered_blocks(files):
            width = pack.line_width(kind, layout)
            if width and content and len(content) % (8 * width) == 0:
                table = torch.frombuffer(bytearray(content), dtype=torch.int64).view(-1, width)
                for step in table[:, 2].unique().tolist():
                    last[step] = number
    return last


class _Blocks:
    """The lines of one file, with what describes them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._sites: list[Site] = []
        self._known: dict[tuple[int, int, int], tuple[Any, ...]] = {}

    def lines(self, layout: int, kind: bytes, content: bytes) -> Iterator[tuple[Site, tuple[Any, ...]]]:
        """Of one block. What cannot be is a CaptureError."""
        try:
            if kind == pack.DESCRIPTION:
                self._sites.append(Site(json.loads(content)))
            elif kind == pack.TABLE:
                for line in pack.lines(content, layout):
                    self._known[line[0], line[1], line[4]] = line
                    yield self._sites[line[0]], line
            elif kind == pack.REPEATED:
                for *call, description, forward_id, number in pack.repeated_lines(content, layout):
                    line = (*call, *self._known[description, forward_id, number][5:])
                    yield self._sites[line[0]], line
                self._known.clear()
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, struct.error) as error:
            raise CaptureError(f"{self._path} cannot be used: a block of it makes no sense ({error!r})") from None


def _add(calls: dict[int, Call], site: Site, line: tuple[Any, ...]) -> None:
    _, id, step, order, number = line[:5]
    call = calls.get(id)
    if call is None:
        call = calls[id] = Call(site, id, step)
    kind = site.kinds[number]
    if not order:  # layout 1 has none: backward runs through the calls from the last to the first
        order = 2**40 - id if kind.part.startswith("grad") else id
    call.add(Seen(kind, line[5:]), order)


def _in_order(calls: dict[int, Call]) -> list[Call]:
    return sorted(calls.values(), key=lambda call: (call.order, call.id))
