"""Values on their way to another process: tensors in one file of shared memory, all else through a pipe."""

from __future__ import annotations

import os
import pickle
import struct
import tempfile
from dataclasses import dataclass
from typing import IO, Any

import torch
from torch import Tensor

from op_tools.values import trees

_SHARED_MEMORY = "/dev/shm"  # noqa: S108  a folder of our own below it
_LENGTH = struct.Struct("<Q")


def make_folder() -> str:
    """For files that are memory, where the system has such."""
    return tempfile.mkdtemp(prefix="op_tools_", dir=_SHARED_MEMORY if os.path.isdir(_SHARED_MEMORY) else None)


@dataclass(frozen=True)
class _Packed:
    """Where a tensor's bytes are in the file."""

    start: int
    length: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    requires_grad: bool


def pack(value: Any, path: str) -> tuple[Any, int]:
    """Writes the tensors of nested values to a file; returns the values without them, and the bytes."""
    starts: dict[int, int] = {}
    made: dict[int, _Packed] = {}  # a tensor that is there twice is one tensor over there, too
    storages: list[tuple[int, torch.UntypedStorage]] = []
    total = 0

    def place(tensor: Tensor) -> Any:
        nonlocal total
        if id(tensor) in made:
            return made[id(tensor)]
        storage = tensor.untyped_storage()
        key = storage.data_ptr()
        if key not in starts:
            starts[key] = total
            storages.append((total, storage))
            total += -(-storage.nbytes() // 64) * 64
        packed = made[id(tensor)] = _Packed(
            starts[key],
            storage.nbytes(),
            tensor.dtype,
            tuple(tensor.shape),
            tensor.stride(),
            int(tensor.storage_offset()),
            tensor.requires_grad,
        )
        return packed

    packed = trees.map_tensors(place, value)
    if total:
        memory = torch.from_file(path, shared=True, size=total, dtype=torch.uint8)
        for start, storage in storages:
            bytes_of = torch.empty(0, dtype=torch.uint8).set_(storage)
            memory[start : start + storage.nbytes()].copy_(bytes_of)
    return packed, total


def unpack(value: Any, path: str, total: int) -> Any:
    """The counterpart; the file has no name after that, and lives as long as its tensors."""
    if not total:
        return value
    memory = torch.from_file(path, shared=True, size=total, dtype=torch.uint8)
    os.unlink(path)
    return _restored(value, memory, {})


def _restored(value: Any, memory: Tensor, made: dict[int, Tensor]) -> Any:
    if isinstance(value, _Packed):
        if id(value) not in made:
            made[id(value)] = _tensor(value, memory)
        return made[id(value)]
    if isinstance(value, dict):
        return {key: _restored(part, memory, made) for key, part in value.items()}
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return trees.rebuilt(value, [_restored(part, memory, made) for part in value])
    return value


def _tensor(packed: _Packed, memory: Tensor) -> Tensor:
    part = memory[packed.start : packed.start + packed.length].view(packed.dtype)
    offset = part.storage_offset() + packed.offset
    with torch.no_grad():
        return part.as_strided(packed.shape, packed.stride, offset).requires_grad_(packed.requires_grad)


def send(pipe: IO[bytes], message: Any) -> None:
    """Through a pipe, in one piece."""
    body = pickle.dumps(message)
    pipe.write(_LENGTH.pack(len(body)) + body)
    pipe.flush()


def receive(pipe: IO[bytes]) -> Any:
    """What was sent; None at the end."""
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    body = pipe.read(length)
    return pickle.loads(body) if len(body) == length else None  # noqa: S301  our own child, no file
