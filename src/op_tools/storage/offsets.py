"""Where in the file of a captured call the elements of its tensors lie, for those who read them without torch.

    numpy.memmap(file, dtype, "r", offset, shape)        of a tensor that lies in order

Nothing in the file is called, and no element is read.
"""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

from op_tools.storage import encoding
from op_tools.values import trees

_LOCAL_HEADER = struct.Struct("<26x2H")  # lengths of the name and of the field before the data


class _Storage(NamedTuple):
    """A file of the archive, by its number, and the bytes of one element."""

    number: str
    width: int


class _Stored:
    """Stands for a tensor: its storage, and the number of its first element there."""

    def __init__(self, storage: Any, first: Any) -> None:
        self.storage = storage
        self.first = first


class _Nothing:
    """Stands for all that a pickle may name: it can be called and filled, and does nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __setstate__(self, state: Any) -> None: ...


def _rebuilt(storage: Any, first: Any = 0, *rest: Any) -> Any:
    return _Stored(storage, first) if isinstance(storage, _Storage) else _Nothing()


def _parameter(tensor: Any, *rest: Any) -> Any:
    return tensor


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, named: Any) -> Any:
        kind, number = named[1:3]
        return _Storage(str(number), _WIDTHS.get(getattr(kind, "name", ""), 1))

    def find_class(self, module: str, name: str) -> Any:
        if name.startswith("_rebuild_tensor"):
            return _rebuilt
        if name.startswith("_rebuild_parameter"):
            return _parameter
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        return type(name, (_Nothing,), {"name": name})


_WIDTHS = dict.fromkeys(("DoubleStorage", "LongStorage", "ComplexFloatStorage"), 8)
_WIDTHS.update(dict.fromkeys(("FloatStorage", "IntStorage"), 4), ComplexDoubleStorage=16)
_WIDTHS.update(dict.fromkeys(("HalfStorage", "BFloat16Storage", "ShortStorage"), 2))


def of(path: Path, part: str) -> dict[str, int]:
    """In bytes, by the place among the arguments or results; empty where the file cannot be used."""
    try:
        with zipfile.ZipFile(path) as archive, open(path, "rb") as file:
            names = {entry.filename.partition("/")[2]: entry for entry in archive.infolist()}
            value = _Unpickler(io.BytesIO(archive.read(names["data.pkl"]))).load()
            begins = {name: _begin(file, entry) for name, entry in names.items() if name.startswith("data/")}
        args, kwargs = encoding.decode(tuple(value["args"])), encoding.decode(value["kwargs"])
        is_result = part == "output" and len(args) == 1
        places = trees.results(args[0]) if is_result else trees.arguments(args, kwargs)
        stored = [(place.strip(), one) for place, one in places if isinstance(one, _Stored)]
        return {place: begins[f"data/{one.storage.number}"] + one.first * one.storage.width for place, one in stored}
    except Exception:  # noqa: BLE001  a damaged pickle can raise anything
        return {}


def _begin(file: Any, entry: zipfile.ZipInfo) -> int:
    """Of the bytes themselves, behind the header that stands before them."""
    file.seek(entry.header_offset)
    name, extra = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
    return entry.header_offset + _LOCAL_HEADER.size + int(name) + int(extra)
