"""Files as torch.save writes them, made from memory that is no tensor yet: a zip archive of a pickle and raw bytes.

torch.save takes some 200 µs for the smallest file and holds the GIL all the while, so that training would wait
for the thread that writes. Here the lock is held for the pickle alone; the bytes go from where they are to the system.
"""

from __future__ import annotations

import ctypes
import io
import pickle
import struct
import sys
import zlib
from collections import OrderedDict
from typing import Any, Callable

import torch
from torch._utils import _rebuild_parameter, _rebuild_tensor_v2

from op_tools.storage.files import Buffer
from op_tools.storage.snapshot import HostStorage, HostTensor

FOLDER = "op_capture"  # inside the archive; our own files are known by it
_ALIGNMENT = 64  # of a tensor's bytes in the file, as torch.save has it
_DATE = 33  # 1980-01-01: the same content makes the same file
_32_BITS = 2**32 - 1
_16_BITS = 2**16 - 1


class Archive:
    """The content of one file: `buffers`, to be written one after the other."""

    def __init__(self, value: Any) -> None:
        pickler = _Pickler()
        pickler.dump(value)
        self.pickle = pickler.file.getvalue()
        self.tensors, self.checksums = pickler.tensors, pickler.checksums
        file = _Zip()
        file.add("data.pkl", self.pickle, zlib.crc32(self.pickle))
        for name, text in (("byteorder", sys.byteorder.encode()), ("version", b"3\n")):
            file.add(name, text, zlib.crc32(text))
        # where in the file the bytes of each tensor are
        self.places = [
            file.add(f"data/{number}", data, checksum)
            for number, (data, checksum) in enumerate(zip(self.tensors, self.checksums))
        ]
        file.finish()
        self.buffers, self.length = file.buffers, file.length


# ---- the pickle ----------------------------------------------------------------------------------------------------

_STORAGE_CLASSES = {dtype: getattr(torch, name) for dtype, name in torch.storage._dtype_to_storage_type_map().items()}
_NO_HOOKS: OrderedDict[str, Any] = OrderedDict()


class _Pickler(pickle.Pickler):
    """As torch.save's: a storage is pickled as a number, and its bytes are kept apart."""

    def __init__(self) -> None:
        self.file = io.BytesIO()
        super().__init__(self.file, protocol=2)
        self.tensors: list[Buffer] = []
        self.checksums: list[int] = []
        self._numbers: dict[int, str] = {}

    def persistent_id(self, value: Any) -> Any:
        kind = type(value)
        if kind is HostStorage:
            storage_class = _STORAGE_CLASSES.get(value.dtype)
            if storage_class is None:  # float8 and other late comers: bytes
                return self._storage(id(value), torch.UntypedStorage, len(value.data), value.data, value.checksum)
            return self._storage(id(value), storage_class, value.length, value.data, value.checksum)
        # only in tensors of unusual layout, which torch takes apart itself
        if kind is torch.storage.TypedStorage:
            memory = value._untyped_storage
            data = bytes_at(memory.data_ptr(), memory.nbytes())
            return self._storage(memory.data_ptr(), _STORAGE_CLASSES[value.dtype], value._size(), data)
        if kind is torch.storage.UntypedStorage:
            data = bytes_at(value.data_ptr(), value.nbytes())
            return self._storage(value.data_ptr(), torch.UntypedStorage, value.nbytes(), data)
        return None

    def _storage(
        self, key: int, storage_class: type, length: int, data: Buffer, checksum: Callable[[], int] | None = None
    ) -> tuple[Any, ...]:
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = str(len(self.tensors))
            self.tensors.append(data)
            self.checksums.append(zlib.crc32(data) if checksum is None else checksum())
        return ("storage", storage_class, number, "cpu", length)

    def reducer_override(self, value: Any) -> Any:
        if type(value) is not HostTensor:
            return NotImplemented
        arguments = (value.storage, value.offset, value.shape, value.stored_stride)
        if value.dtype in _STORAGE_CLASSES:
            return _rebuild_tensor_v2, (*arguments, value.requires_grad, _NO_HOOKS)
        if value.requires_grad:  # a tensor of these dtypes cannot be made with it, but a parameter can
            return _rebuild_parameter, (value.without_gradient(), True, _NO_HOOKS)
        rebuild = getattr(torch._utils, "_rebuild_tensor_v3", None)
        if rebuild is None:
            raise TypeError(f"torch {torch.__version__} cannot store {value.dtype}")
        return rebuild, (*arguments, False, _NO_HOOKS, value.dtype)


def bytes_at(address: int, length: int) -> Buffer:
    """Memory of the host, without a copy; whoever owns it must live as long."""
    return memoryview((ctypes.c_char * length).from_address(address)).cast("B") if length else b""


# ---- the zip archive -----------------------------------------------------------------------------------------------


class _Zip:
    """An archive without compression, as a list of buffers to be written one after the other."""

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        self.length = 0
        self._directory: list[bytes] = []

    def add(self, name: str, data: Buffer, checksum: int) -> int:
        """Adds one file; returns where its bytes begin."""
        path = f"{FOLDER}/{name}".encode()
        size, place = len(data), self.length
        small_size, small_place = min(size, _32_BITS), min(place, _32_BITS)
        is_large = size >= _32_BITS
        sizes = struct.pack("<2H2Q", 1, 16, size, size) if is_large else b""
        common = (45 if is_large else 20, 0, 0, 0, _DATE, checksum, small_size, small_size, len(path))
        # room before the data, in a field that readers pass over
        room = -(place + 30 + len(path) + len(sizes) + 4) % _ALIGNMENT
        extra = sizes + struct.pack("<2sH", b"FB", room) + b"Z" * room
        header = struct.pack("<4s5H3L2H", b"PK\3\4", *common, len(extra)) + path + extra
        self._append(header)
        self._append(data)
        if is_large or place >= _32_BITS:
            numbers = ([size, size] if is_large else []) + ([place] if place >= _32_BITS else [])
            sizes = struct.pack(f"<2H{len(numbers)}Q", 1, 8 * len(numbers), *numbers)
        entry = struct.pack("<4sH5H3L5H2L", b"PK\1\2", 45, *common, len(sizes), 0, 0, 0, 0, small_place)
        self._directory.append(entry + path + sizes)
        return place + len(header)

    def finish(self) -> None:
        """Adds the directory of all files."""
        directory, count, place = b"".join(self._directory), len(self._directory), self.length
        self._append(directory)
        if place >= _32_BITS or count >= _16_BITS:
            end = self.length
            numbers = (count, count, len(directory), place)
            self._append(struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, *numbers))
            self._append(struct.pack("<4sLQL", b"PK\6\7", 0, end, 1))
        small_count = min(count, _16_BITS)
        sizes = (small_count, small_count, len(directory), min(place, _32_BITS))
        self._append(struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, *sizes, 0))

    def _append(self, data: Buffer) -> None:
        self.buffers.append(data)
        self.length += len(data)
