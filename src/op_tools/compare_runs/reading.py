"""Reads the statistics of a run, rank by rank and step by step: nothing is loaded whole."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from op_tools.compare_runs.calls import Call, Seen, Site
from op_tools.device.sketch import SKETCH_VERSION
from op_tools.errors import CaptureError
from op_tools.storage import blocks
from op_tools.storage.blocks import Lines

if TYPE_CHECKING:
    from op_tools.compare_runs.data import Index

_PATTERN = "op_capture_statistics_*.pack"
MANIFEST, MANIFEST_SCHEMA = "manifest.json", "ditorch.run/1"
PROCESSES = "processes"  # records of them, in the run's folder
Stream = tuple[int, int]  # the rank, and the number of the process where several had it one after the other


class Run:
    """The folder of a run, or one that OpCapture wrote, or one file of statistics.

    Where it has no statistics, they are computed from the tensors that it kept: only that needs torch.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.exists():
            raise CaptureError(f"{path} holds no run: there is no such file or folder")
        files = sorted(path.rglob(_PATTERN)) if path.is_dir() else [path]
        self._data = None if files else _data(path)
        self.heads = {file: blocks.head(file) for file in files}
        self._files = self._files_of_processes()
        self.streams: list[Stream] = list(self._files if self._data is None else self._data.streams)

    @property
    def has_data_only(self) -> bool:
        return self._data is not None

    @property
    def sketch(self) -> set[Any]:
        """The versions of the sketches in it."""
        return {SKETCH_VERSION} if self._data else {head.get("sketch", 1) for head in self.heads.values()}

    @property
    def tf32(self) -> set[str]:
        """What may have been computed in tf32."""
        return self._data.tf32 if self._data else {str(one) for head in self.heads.values() for one in _tf32(head)}

    @property
    def problems(self) -> list[str]:
        """A manifest of another release, files that end early, and of tensors those that could not be used, so far.

        Damaged statistics are a CaptureError where they are.
        """
        of_files = [blocks.cut_off(file) for file in self.heads if blocks.is_cut_off(file)]
        return [*self._of_manifest(), *(of_files if self._data is None else self._data.problems)]

    @property
    def is_incomplete(self) -> bool:
        """Whether files could not be read whole, so far."""
        is_cut_off = any(blocks.is_cut_off(file) for file in self.heads)
        return is_cut_off or bool(self._data and self._data.problems)

    def _of_manifest(self) -> Iterator[str]:
        path = self.path / MANIFEST
        if not path.is_file() or self.manifest():
            return
        schema = read_json(path).get("schema")
        why = f"is of another release ({schema})" if schema else "cannot be read"
        yield f"{path} {why}: what differs before the first op is not told"

    def _files_of_processes(self) -> dict[Stream, list[Path]]:
        """In the order in which they were written."""
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

    def finished_steps(self, rank: int) -> int | None:
        """How many training steps had ended when a process of this rank ended, by its record; None without one."""
        records = [read_json(file) for file in sorted((self.path / PROCESSES).glob("*.json"))]
        ended = [one.get("steps") for one in records if one.get("rank") == rank and one.get("ended") is not None]
        return max((steps for steps in ended if isinstance(steps, int) and steps >= 0), default=None)

    @property
    def ranks(self) -> list[int]:
        return sorted({rank for rank, _ in self.streams})

    def manifest(self) -> dict[str, Any]:
        """What `ditorch run` wrote about it; empty where there is nothing, or nothing that can be understood."""
        found = read_json(self.path / MANIFEST)
        return found if found.get("schema", MANIFEST_SCHEMA) == MANIFEST_SCHEMA else {}

    def steps(self, stream: Stream) -> Iterator[tuple[int, list[Call]]]:
        """The calls of each step, in the order in which they ran. A damaged file is a CaptureError where it is."""
        return _steps(self._files[stream]) if self._data is None else self._data.steps(stream)


def _data(path: Path) -> Index:
    if next(path.rglob("input.pth"), None) is None:
        raise CaptureError(
            f"{path} holds no statistics, and no captured tensors: "
            f"`ditorch run --capture=statistics --out {path} PROGRAM` makes them"
        )
    from op_tools.compare_runs.data import Index

    return Index(path)


def _tf32(head: dict[str, Any]) -> list[Any]:
    noted = head.get("tf32")
    return noted if isinstance(noted, list) else []


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
    waiting = sorted(last)
    gathered: dict[int, list[Lines]] = {}
    sites: list[Site] = []
    reader: _Reader | None = None
    for number, file, block in _numbered_blocks(files):
        if reader is None or reader.path is not file:
            reader = _Reader(file, sites)
        for step, lines in reader.lines(*block):
            gathered.setdefault(step, []).append(lines)
        while waiting and last[waiting[0]] <= number:
            step = waiting.pop(0)
            yield step, reader.calls(step, gathered.pop(step, []))


def _numbered_blocks(files: list[Path]) -> Iterator[tuple[int, Path, tuple[int, bytes, bytes]]]:
    numbers = itertools.count()
    for file in files:
        for block in blocks.blocks(file):
            yield next(numbers), file, block


def _last_blocks(files: list[Path]) -> dict[int, int]:
    """Of each step, the number of the last block with lines of it; up to where a file is damaged."""
    import numpy

    last: dict[int, int] = {}
    with contextlib.suppress(CaptureError, ValueError):  # it is raised again when the file is read
        for number, _, (layout, kind, content) in _numbered_blocks(files):
            if kind != blocks.DESCRIPTION:
                whole = _whole_numbers(kind, content, layout)
                for step in numpy.unique(whole[:, _STEP]).tolist():
                    last[step] = number
    return last


_DESCRIPTION, _ID, _STEP, _ORDER, _NUMBER, _CHECKSUM = 0, 1, 2, 3, 4, 8
_NORM = -1
_KEY = [_DESCRIPTION, _ID, _NUMBER]


def _whole_numbers(kind: bytes, content: bytes, layout: int) -> Any:
    return blocks.lines(content, layout).whole if kind == blocks.TABLE else blocks.repeated(content, layout)


class _Reader:
    """The lines of one file. `sites`: what describes them, of all files of a process."""

    def __init__(self, path: Path, sites: list[Site]) -> None:
        self.path = path
        self._sites = sites
        self._first = len(sites)  # of this file
        self._since: list[Lines] = []  # since the last block that repeats some

    def lines(self, layout: int, kind: bytes, content: bytes) -> Iterator[tuple[int, Lines]]:
        """Of one block, by steps. What cannot be is a CaptureError."""
        try:
            if kind == blocks.DESCRIPTION:
                self._sites.append(Site(json.loads(content)))
            elif kind == blocks.TABLE:
                found = self._described(blocks.lines(content, layout))
                self._since.append(found)
                yield from _by_step(found)
            elif kind == blocks.REPEATED:
                repeated = blocks.repeated(content, layout)
                if len(repeated):
                    yield from _by_step(self._repeated(repeated))
                self._since.clear()
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise self._senseless(error) from None

    def _senseless(self, error: Exception) -> CaptureError:
        return CaptureError(f"{self.path} cannot be used: a block of it makes no sense ({error!r})")

    def _described(self, lines: Lines) -> Lines:
        """With descriptions by their places in `sites`."""
        whole = lines.whole.copy()
        whole[:, _DESCRIPTION] += self._first
        described = whole[:, _DESCRIPTION]
        if len(whole) and not self._first <= described.min() <= described.max() < len(self._sites):
            raise ValueError("no such description")
        if len(whole) and whole[:, _NUMBER].min() < 0:
            raise ValueError("no such tensor")
        return Lines(whole, lines.numbers, lines.sketch)

    def _repeated(self, repeated: Any) -> Lines:
        """Lines with the numbers of earlier ones."""
        earlier = blocks.joined(self._since)
        keys = zip(*earlier.whole[:, _KEY].T.tolist())
        known = {key: place for place, key in enumerate(keys)}
        origins = repeated[:, 5:8].copy()
        origins[:, 0] += self._first
        found = earlier.at([known[key] for key in zip(*origins.T.tolist())])
        whole = found.whole.copy()
        whole[:, :5] = repeated[:, :5]
        return self._described(Lines(whole, found.numbers, found.sketch))

    def calls(self, step: int, parts: list[Lines]) -> list[Call]:
        """Those of a step, in the order in which they ran."""
        try:
            return _calls(step, blocks.joined(parts), self._sites) if parts else []
        except (IndexError, TypeError, ValueError) as error:
            raise self._senseless(error) from None


def _by_step(lines: Lines) -> Iterator[tuple[int, Lines]]:
    import numpy

    steps = lines.whole[:, _STEP]
    found = numpy.unique(steps).tolist()
    for step in found:
        yield step, lines if len(found) == 1 else lines.at(steps == step)


def _calls(step: int, lines: Lines, sites: list[Site]) -> list[Call]:
    calls: dict[int, Call] = {}
    whole = lines.whole[:, [_DESCRIPTION, _ID, _ORDER, _NUMBER, _CHECKSUM]].T.tolist()
    norms = lines.numbers[:, _NORM].tolist()
    pieces = []
    for row, (description, id, order, number, checksum, norm) in enumerate(zip(*whole, norms)):
        site = sites[description]
        call = calls.get(id)
        if call is None:
            call = calls[id] = Call(site, id, step)
        kind = site.kinds[number]
        if kind.of >= 0:
            pieces.append((call, Seen(kind, lines, row, checksum, norm), site.kinds[kind.of], order))
            continue
        if not order:  # layout 1 has none: backward runs through the calls from the last to the first
            order = 2**40 - id if kind.part.startswith("grad") else id
        call.add(Seen(kind, lines, row, checksum, norm), order)
    for call, *piece in pieces:
        call.add_piece(*piece)
    return sorted(calls.values(), key=lambda call: (call.order, call.id))
