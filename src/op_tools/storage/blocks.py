"""The blocks of a file of statistics (pack.py says what they hold), for those who read many. Needs no torch.

Imports numpy when a block of numbers is read.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from op_tools.device.sketch import SKETCH
from op_tools.errors import CaptureError
from op_tools.storage.files import check_regular

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAGIC = b"op_tools statistics 3\n"
_LAYOUTS = {MAGIC: 3, b"op_tools statistics 2\n": 2, b"op_tools statistics 1\n": 1}
_MAX_HEAD_BYTES = 100_000
BLOCK = struct.Struct("<cLL")  # kind, length, checksum
DESCRIPTION, TABLE, REPEATED = b"D", b"T", b"R"
# in place of an op: the model's parameters and buffers at the first step; what each step's first forward was given
MODEL, STEP = "(model)", "(step)"
PIECE = "piece"  # a part of one of the tensors described before it, for those who put ranks together
# of a line: whole numbers, numbers, the sketch and its type
_LINES = {3: (9, 5, SKETCH, "<f4"), 2: (9, 5, 4, "<f8"), 1: (8, 5, 4, "<f8")}
_REPEATED = {3: 8, 2: 8, 1: 7}
_COLUMN_OF_ORDER = 3  # where layout 1 has no number


def head(path: Path) -> dict[str, Any]:
    """What stands at the beginning of a file: the process that wrote it, its torch, the version of its sketches."""
    try:
        check_regular(path)
        with open(path, "rb") as file:
            _layout(path, file.readline(len(MAGIC)))
            found = json.loads(file.readline(_MAX_HEAD_BYTES))
    except (OSError, ValueError) as error:
        if isinstance(error, CaptureError):
            raise
        raise CaptureError(f"{path} cannot be used: its first lines cannot be read") from None
    if not isinstance(found, dict):
        raise CaptureError(f"{path} cannot be used: its first lines cannot be read")
    return found


def blocks(path: Path) -> Iterator[tuple[int, bytes, bytes]]:
    """The file's layout, and the kind and content of each block."""
    try:
        check_regular(path)
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            layout = _layout(path, file.readline(len(MAGIC)))
            file.readline()
            while True:
                place = file.tell()
                header = file.read(BLOCK.size)
                if len(header) < BLOCK.size:
                    return
                kind, length, checksum = BLOCK.unpack(header)
                content = file.read(length) if length <= size - file.tell() else b""
                if len(content) < length:
                    return  # the process ended here
                if zlib.crc32(content) != checksum:
                    raise CaptureError(f"{path} is damaged at byte {place}: what comes after it cannot be read")
                yield layout, kind, content
    except OSError as error:
        raise CaptureError(f"{path} cannot be used: {error.strerror}") from None


def is_cut_off(path: Path) -> bool:
    """Whether it ends in the middle of a block: its process was killed there, or it was not copied whole."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.readline(len(MAGIC))
        file.readline(_MAX_HEAD_BYTES)
        while header := file.read(BLOCK.size):
            if len(header) < BLOCK.size or BLOCK.unpack(header)[1] > size - file.tell():
                return True
            file.seek(BLOCK.unpack(header)[1], os.SEEK_CUR)
    return False


def cut_off(path: Path) -> str:
    """What to tell of such a file."""
    return f"{path} ends in the middle: its process ended there, or it was not copied whole. What is before is used."


def _layout(path: Path, magic: bytes) -> int:
    if magic in _LAYOUTS:
        return _LAYOUTS[magic]
    if magic.startswith(MAGIC[:-2]):
        raise CaptureError(f"{path} cannot be used: a later release of op_tools wrote it")
    raise CaptureError(f"{path} cannot be used: it holds no statistics that OpCapture wrote")


# ---- their numbers -------------------------------------------------------------------------------------------------


class Lines(NamedTuple):
    """Tensors, a line for each.

    `whole`: description, forward_id, step, order, number of the tensor in the description; elements, NaN, infinities,
    checksum. `numbers`: min, max, mean, std, norm. `sketch` is relative to the norm.
    """

    whole: NDArray[Any]
    numbers: NDArray[Any]
    sketch: NDArray[Any]

    def at(self, places: Any) -> Lines:
        return Lines(self.whole[places], self.numbers[places], self.sketch[places])


def joined(parts: list[Lines]) -> Lines:
    """One behind the other."""
    import numpy

    if len(parts) == 1:
        return parts[0]
    return Lines(*(numpy.concatenate(columns) for columns in zip(*parts)))


def lines(content: bytes, layout: int) -> Lines:
    """Those of a TABLE. A ValueError where it is none."""
    import numpy

    whole, numbers, sketch, kind = _LINES[layout]
    line = numpy.dtype([("whole", "<i8", (whole,)), ("numbers", "<f8", (numbers,)), ("sketch", kind, (sketch,))])
    found = numpy.frombuffer(content, line)
    if layout == 3:
        return Lines(found["whole"], found["numbers"], found["sketch"])
    norm = found["numbers"][:, -1:]
    scale = numpy.where((norm > 0) & (norm < numpy.inf), norm, 1.0)
    return Lines(_with_order(found["whole"], layout), found["numbers"], found["sketch"] / scale)


def repeated(content: bytes, layout: int) -> NDArray[Any]:
    """Those of a REPEATED: five numbers of a line, and description, forward_id, number of the line that it repeats."""
    import numpy

    return _with_order(numpy.frombuffer(content, "<i8").reshape(-1, _REPEATED[layout]), layout)


def _with_order(table: NDArray[Any], layout: int) -> NDArray[Any]:
    import numpy

    return numpy.insert(table, _COLUMN_OF_ORDER, 0, axis=1) if layout == 1 else table
