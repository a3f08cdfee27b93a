"""Host memory for copies of tensors that wait to be written: used again and again, pinned where the device likes that.

Touching fresh memory costs more than the copy itself, and pinning it far more. So memory is kept in chunks; copies take
their room from one after the other, and a chunk is free again when all copies in it are gone.
"""

from __future__ import annotations

import ctypes
import functools
import threading
import time
from collections import deque
from typing import Callable

import torch
from torch import Tensor

_MAX_CHUNK_BYTES = 64 * 2**20
ALIGNMENT = 64
# Fresh memory costs so much that it is better to wait a little for some to be free again, once there is much in use.
_BYTES_IN_USE_TO_WAIT_AT = 256 * 2**20
_MAX_SECONDS_TO_WAIT = 0.1  # seconds


class Lease:
    """Room in a chunk, for as long as this object lives."""

    __slots__ = ("_chunk", "_returned", "bytes", "data", "is_pinned")

    def __init__(self, chunk: _Chunk, start: int, length: int, returned: deque[_Chunk]) -> None:
        self.bytes = chunk.memory[start : start + length]
        self.data = chunk.data[start : start + length]  # the same, for Python
        self.is_pinned = chunk.is_pinned
        self._chunk = chunk
        self._returned = returned

    def __del__(self) -> None:
        self._returned.append(self._chunk)  # without a lock: this may run anywhere, also in a forked child


class _Chunk:
    __slots__ = ("data", "is_pinned", "leases", "memory", "size", "used")

    def __init__(self, memory: Tensor, is_pinned: bool) -> None:
        self.memory = memory
        self.size = len(memory)
        self.is_pinned = is_pinned
        # there need not be a numpy
        self.data = memoryview((ctypes.c_char * len(memory)).from_address(memory.data_ptr())).cast("B")
        self.used = 0
        self.leases = 0


class HostMemory:
    """At most `limit` bytes; who wants more waits until something is written.

    `is_writing` says whether there is anything that will free memory; where not, the limit is exceeded.
    """

    def __init__(self, limit: int, is_writing: Callable[[], bool]) -> None:
        self._limit = limit
        self._is_writing = is_writing
        self._chunk_size = max(min(_MAX_CHUNK_BYTES, limit // 8), 2**16)
        self._chunks: list[_Chunk] = []
        self._current: _Chunk | None = None
        self._returned: deque[_Chunk] = deque()
        self._lock = threading.Lock()
        self._written = threading.Event()
        self._pins: bool | None = None

    def lease(self, length: int, for_device: bool) -> Lease:
        """Room for so many bytes, pinned if copies come `for_device` memory. Waits while there is none."""
        length = -(-max(length, 1) // ALIGNMENT) * ALIGNMENT
        with self._lock:
            # not before a device is in use: to ask is to initialize CUDA
            if for_device and self._pins is None:
                self._pins = _can_pin()
            pinned = for_device and bool(self._pins)
            chunk = self._current = self._room(length, pinned)
            start, chunk.used = chunk.used, chunk.used + length
            chunk.leases += 1
            return Lease(chunk, start, length, self._returned)

    def _room(self, length: int, pinned: bool) -> _Chunk:
        self._take_back()
        return self._with_room(length, pinned) or self._awaited(length, pinned)

    def _awaited(self, length: int, pinned: bool) -> _Chunk:
        """Room that the writer lets go of, or new memory."""
        until = time.monotonic() + _MAX_SECONDS_TO_WAIT
        while True:
            self._written.clear()
            waiting_helps = self._is_writing()
            self._take_back()
            chunk = self._with_room(length, pinned)
            is_patient = self._total() >= _BYTES_IN_USE_TO_WAIT_AT and time.monotonic() < until
            if chunk is None and not (waiting_helps and is_patient):
                chunk = self._grown(length, pinned, not waiting_helps)
            if chunk is not None:
                return chunk
            self._written.wait(_MAX_SECONDS_TO_WAIT)

    def look_again(self) -> None:
        """Told by who has just let go of something."""
        self._written.set()

    def _take_back(self) -> None:
        while self._returned:
            chunk = self._returned.popleft()
            chunk.leases -= 1
            if chunk.leases == 0:
                chunk.used = 0

    def _with_room(self, length: int, pinned: bool) -> _Chunk | None:
        current = self._current
        if current is not None and current.used + length <= current.size and current.is_pinned >= pinned:
            return current
        free = [
            chunk for chunk in self._chunks if chunk.leases == 0 and chunk.size >= length and chunk.is_pinned >= pinned
        ]
        return min(free, key=lambda chunk: chunk.size, default=None)

    def _grown(self, length: int, pinned: bool, at_any_price: bool) -> _Chunk | None:
        size = max(self._chunk_size, length)
        if self._total() + size > self._limit:
            self._chunks = [chunk for chunk in self._chunks if chunk.leases > 0]  # the free ones are too small
            self._current = None
        if self._total() + size > self._limit and not at_any_price:
            return None
        try:
            memory = torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=pinned)
        except RuntimeError:
            if not pinned:
                raise
            self._pins = pinned = False  # the system pins no more
            memory = torch.empty(size, dtype=torch.uint8, device="cpu")
        chunk = _Chunk(memory, pinned)
        self._chunks.append(chunk)
        return chunk

    def _total(self) -> int:
        return sum(chunk.size for chunk in self._chunks)


@functools.lru_cache(maxsize=16)
def can_pin_for(device: torch.device) -> bool:
    """Whether copies from and to this device are faster with pinned memory, which torch keeps to use it again."""
    return device.type == "cuda" and _can_pin()


def _can_pin() -> bool:
    try:
        return torch.empty(1, dtype=torch.uint8, device="cpu", pin_memory=True).is_pinned()
    except (RuntimeError, NotImplementedError):  # there is no device that wants it
        return False
