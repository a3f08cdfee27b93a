"""Statistics of many tensors in one file: what OpCapture(mode="statistics") writes, and how it is read.

    for record in op_tools.read_statistics("op_tools_results"):
        print(record.op, record.part, record.place, record.shape, record.mean, record.sketch)

The file grows by whole blocks, each with its length and checksum: after a crash, all but an unfinished last one can be
read. A block either describes a call site once (op, source line, shapes …), or holds a table of numbers: which
description a tensor belongs to, and its statistics.
"""

from __future__ import annotations

import json
import math
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from op_tools.device.sketch import SKETCH
from op_tools.errors import CaptureError
from op_tools.output import paths
from op_tools.storage.archive import bytes_at
from op_tools.storage.blocks import BLOCK, DESCRIPTION, MAGIC, PIECE, REPEATED, TABLE, blocks
from op_tools.storage.files import write_all

# description, forward_id, step, order, number of the tensor in the description; elements, NaN, infinities, checksum;
# min, max, mean, std, norm; then the sketch, relative to the norm
_LINE = struct.Struct(f"<9q5d{SKETCH}f")
_EXACT_NUMBERS = 14  # numbers of it of eight bytes each
# the first five again, and of an earlier line since the last such block: description, forward_id, number
_REPEATED_LINE = struct.Struct("<8q")
# layout 2 had another sketch, of four numbers; layout 1 had no order, either
_LINES = {3: _LINE, 2: struct.Struct("<9q9d"), 1: struct.Struct("<8q9d")}
_REPEATED_LINES = {3: _REPEATED_LINE, 2: _REPEATED_LINE, 1: struct.Struct("<7q")}


@dataclass(frozen=True)
class TensorRecord:
    """One tensor of one call. The numbers are those of its finite elements, NaN where there are none."""

    op: str
    part: str  # input, output, grad_inputs, grad_outputs
    place: str  # among the arguments or results, as the tables have it: [0], [1][2], weight
    forward_id: int
    step: int
    order: int  # in which inputs, outputs and gradients came in this process, in backward too; 0 in files of layout 1
    source: str
    module: str
    shape: tuple[int, ...]
    dtype: str
    device: str
    requires_grad: bool
    note: str  # why there are no numbers, where there are none
    numel: int  # a complex number counts as two
    nan: int
    inf: int
    checksum: int
    min: float
    max: float
    mean: float
    std: float
    norm: float
    sketch: tuple[float, ...]  # see device/digest.py; in files of layouts 1 and 2 four numbers of another kind


class Pack:
    """A file that grows."""

    def __init__(self, path: Path, head: dict[str, Any]) -> None:
        self.path = path
        self.length = 0
        self.records = 0
        self._head = head
        self._descriptor: int | None = None

    def describe(self, description: dict[str, Any]) -> None:
        """The next description; they are numbered from 0."""
        self._append(DESCRIPTION, json.dumps(description, ensure_ascii=False).encode(errors="backslashreplace"))

    def add(self, lines: Tensor) -> None:
        """Lines of nine integers, and of floating-point numbers whose bits are given as integers."""
        lines = _packed(lines)
        self._append(TABLE, bytes(bytes_at(lines.data_ptr(), lines.numel() * 8)))
        self.records += len(lines)

    def repeat(self, lines: Tensor) -> None:
        """Records that are equal to others since the last time, which need not be remembered any more."""
        self._append(REPEATED, bytes(bytes_at(lines.data_ptr(), lines.numel() * 8)))
        self.records += len(lines)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _append(self, kind: bytes, content: bytes) -> None:
        try:
            if self._descriptor is None:
                self._descriptor, self.path = paths.create(self.path)
                write_all(self._descriptor, [MAGIC + json.dumps(self._head).encode() + b"\n"])
            block = BLOCK.pack(kind, len(content), zlib.crc32(content)) + content
            write_all(self._descriptor, [block])
            self.length += len(block)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from None


class StatisticsFiles:
    """Records of files on disk, read each time that one goes over them: there may be more than memory holds."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.files = sorted(self.path.rglob("op_capture_statistics_*.pack")) if self.path.is_dir() else [self.path]
        if not self.files:
            raise CaptureError(
                f"{self.path} holds no statistics: there is no op_capture_statistics_*.pack below it. "
                'OpCapture(mode="statistics") makes them.'
            )

    def __iter__(self) -> Iterator[TensorRecord]:
        for file in self.files:
            yield from read(file)

    def to_pandas(self) -> Any:
        """All records as a DataFrame, a row for each; pandas has to be installed."""
        import pandas  # type: ignore[import-untyped,import-not-found,unused-ignore]

        names = [field.name for field in fields(TensorRecord)]
        return pandas.DataFrame([[getattr(record, name) for name in names] for record in self], columns=names)

    def __repr__(self) -> str:
        return f"<statistics in {len(self.files)} file{'s' if len(self.files) > 1 else ''} at {self.path}>"


def read_statistics(path: str | os.PathLike[str] = "op_tools_results") -> StatisticsFiles:
    """What OpCapture(mode="statistics") wrote: a file, or all files below a folder, in the order of their names.

    Iterate over it for records with the attributes of `TensorRecord`, or call `.to_pandas()`. A path that holds no
    statistics is a CaptureError.
    """
    if not Path(path).exists():
        raise CaptureError(f"{path} holds no statistics: there is no such file or folder")
    return StatisticsFiles(path)


def read(path: str | os.PathLike[str]) -> Iterator[TensorRecord]:
    """All records of a file, or of all files below a folder, in the order in which they were written."""
    path = Path(path)
    if path.is_dir():
        for file in sorted(path.rglob("op_capture_statistics_*.pack")):
            yield from read(file)
        return
    descriptions: list[dict[str, Any]] = []
    known: dict[tuple[int, int, int], tuple[Any, ...]] = {}
    for layout, kind, content in blocks(path):
        if kind == DESCRIPTION:
            descriptions.append(json.loads(content))
        elif kind == TABLE:
            for line in lines(content, layout):
                known[line[0], line[1], line[4]] = line
                if descriptions[line[0]]["tensors"][line[4]]["part"] != PIECE:
                    yield _record(descriptions, line)
        elif kind == REPEATED:
            for *call, description, forward_id, number in repeated_lines(content, layout):
                yield _record(descriptions, (*call, *known[description, forward_id, number][5:]))
            known.clear()


def _packed(lines: Tensor) -> Tensor:
    """With the sketch in single precision: relative to the norm, more of it would say no more."""
    norm = lines[:, _EXACT_NUMBERS - 1].view(torch.float64)
    scale = norm.where((norm > 0) & norm.isfinite(), 1.0)[:, None]
    sketch = (lines[:, _EXACT_NUMBERS:].view(torch.float64) / scale).float().contiguous().view(torch.int64)
    return torch.cat([lines[:, :_EXACT_NUMBERS], sketch], 1)


def lines(content: bytes, layout: int) -> Iterator[tuple[Any, ...]]:
    """The sketch is relative to the norm in all layouts."""
    if layout == 3:
        yield from _LINE.iter_unpack(content)
        return
    for line in _LINES[layout].iter_unpack(content):
        whole = (*line[:3], 0, *line[3:]) if layout == 1 else line
        scale = _scale(whole[_EXACT_NUMBERS - 1])
        yield (*whole[:_EXACT_NUMBERS], *(number / scale for number in whole[_EXACT_NUMBERS:]))


def repeated_lines(content: bytes, layout: int) -> Iterator[tuple[Any, ...]]:
    if layout > 1:
        yield from _REPEATED_LINE.iter_unpack(content)
        return
    for line in _REPEATED_LINES[1].iter_unpack(content):
        yield (*line[:3], 0, *line[3:])


def _scale(norm: float) -> float:
    return norm if 0 < norm < math.inf else 1.0


def _record(descriptions: list[dict[str, Any]], line: tuple[Any, ...]) -> TensorRecord:
    description, forward_id, step, order, number, numel, nan, infinite, checksum, *numbers = line
    call = descriptions[description]
    described = call["tensors"][number]
    tensor = {name: described[name] for name in ("part", "place", "dtype", "device", "requires_grad")}
    tensor.update(shape=tuple(described["shape"]), note=described.get("note", ""))
    place = {"op": call["op"], "source": call["source"], "module": call["module"]}
    counts = {"numel": numel, "nan": nan, "inf": infinite, "checksum": checksum % 2**64}
    scale = _scale(numbers[4])
    sketch = tuple(scale * number for number in numbers[5:])
    about_numbers = dict(zip(("min", "max", "mean", "std", "norm"), numbers), sketch=sketch)
    return TensorRecord(forward_id=forward_id, step=step, order=order, **place, **tensor, **counts, **about_numbers)
