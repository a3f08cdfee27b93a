"""Digests of tensors where they lie, by kernels of our own that read each tensor once.

A kernel runs at the call, on the stream of the call: so it sees the tensors as they are then, and nothing of them is
kept. The digests gather on the device and are fetched now and then, finished. There is one kernel for CUDA, and one for
devices that keep their tensors in the host's memory.
"""

from __future__ import annotations

import math
import time
from functools import cache, partial
from typing import Protocol

import torch
from torch import Tensor

from op_tools.device import digest, digests_host
from op_tools.device.compiled import expect, is_cuda, is_right
from op_tools.device.digests_cuda import CudaDigests
from op_tools.device.queues import Batch
from op_tools.device.staging import Label, Receiver, received, staged_as
from op_tools.device.tensor_groups import KINDS, TensorGroup, grouped, plain
from op_tools.output.writer import Writer

_MAX_LINES = 4096  # that gather on the device
_MAX_SECONDS_UNFETCHED = 0.25  # until they are fetched, so that little is lost when the program dies


class _Kernel(Protocol):
    def write(
        self, tensors: list[Tensor], group: TensorGroup, addresses: bytes | None, lines: Tensor, first: int
    ) -> None:
        """Puts the digests of the group's tensors into lines, from the first on."""


def _kernel(device: torch.device) -> _Kernel:
    return CudaDigests(device) if is_cuda(device) else digests_host.HostDigests()


class _Lines(Batch):
    """Digests that gather on the device."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        with torch.inference_mode(False):
            self.lines = torch.empty(_MAX_LINES, digest.LINE, dtype=torch.int64, device=device)
        self.used = 0
        self.labels: list[tuple[Label, list[int]]] = []
        self.due = time.monotonic() + _MAX_SECONDS_UNFETCHED

    def look(self) -> list[Tensor]:
        return [self.lines[: self.used]]


class DigestStage:
    """Digests tensors of one device as they come in one stream."""

    def __init__(self, device: torch.device, writer: Writer, receive: Receiver) -> None:
        self._writer = writer
        self._receive = receive
        self._device = device
        self._kernel = _kernel(device)
        self._batch: _Lines | None = None

    def add(self, tensors: list[Tensor], group: TensorGroup, label: Label, addresses: bytes | None = None) -> None:
        """Digests the group's tensors as they are now. `addresses`: of all tensors, where that is known."""
        count, batch = len(group.numbers), self._batch
        if batch is not None and (batch.used + count > _MAX_LINES or time.monotonic() > batch.due):
            self.flush()
            batch = None
        if batch is None:
            batch = self._batch = _Lines(self._device)
        self._kernel.write(tensors, group, addresses, batch.lines, batch.used)
        batch.used += count
        batch.labels.append((label, group.numbers))

    def flush(self) -> None:
        """Has all digests fetched and handed over."""
        batch, self._batch = self._batch, None
        if batch is not None:
            batch.launch()
            self._writer.add(partial(self._read, batch))

    def _read(self, batch: _Lines) -> None:
        """In the writer's thread."""
        for lines in received(batch):
            self._receive(batch.labels, lines)


# ---- whether it can be used ----------------------------------------------------------------------------------------


def can_digest(device: torch.device) -> bool:
    """Whether there is a kernel for this device, and it agrees with torch on a few tensors."""
    return (is_cuda(device) or digests_host.reaches(device)) and _is_right(device)


@cache
def _is_right(device: torch.device) -> bool:
    return is_right(device, _try_out, "OpCapture takes torch's kernels for statistics, more slowly")


def _try_out(device: torch.device) -> None:
    samples = _samples()
    placed = [sample.to(device) for sample in samples]
    found: list[Tensor] = []
    writer = Writer("OpCapture")
    stage = DigestStage(device, writer, lambda labels, lines: found.append(lines))
    with torch.no_grad():
        for group in grouped(placed, range(len(placed))):
            stage.add(placed, group, None)
    stage.flush()
    writer.close()
    for sample, line in zip(samples, torch.cat(found)):
        right = _expected(sample)
        numbers, others = line[4:].view(torch.float64), right[4:].view(torch.float64)
        allowed = 1e-5 * max(1.0, float(others[4].nan_to_num()))  # of the norm
        is_close = torch.allclose(numbers, others, rtol=1e-5, atol=allowed, equal_nan=True)
        expect(torch.equal(line[:4], right[:4]) and is_close, str(sample.dtype))


def _samples() -> list[Tensor]:
    """One of each dtype, with short ends, NaN and infinities in them; made without random numbers."""
    places = torch.arange(40_000, dtype=torch.float64, device="cpu")
    waves = places.sin() * 100
    bad = waves.float()
    bad[[3, 700, 39_999]] = torch.tensor([math.nan, math.inf, -math.inf], device="cpu")
    dtypes = [dtype for dtype in KINDS if dtype not in (torch.uint8, torch.bool)]
    some = [waves[:1300].to(dtype) for dtype in dtypes]
    some += [waves[:1300].abs().to(torch.uint8), waves[:1300] > 0, waves[:0], waves[:600].to(torch.complex64)]
    some += [1 + waves[:7].float().abs(), -1 - waves[:700].float().abs()]  # no zero must come in
    some += [waves[:7].float(), waves[0], waves[:39_900].view(3, 7, 1900), waves[:39_999].float().view(201, 199)]
    some += [waves[:36_000].float().view(40, 5, 60, 3), waves[:8192].bfloat16().view(2, 2, 2, 2, 512)]
    return [*some, bad, bad.half(), bad.bfloat16(), waves[:33_000], waves.float().repeat(2), waves[:500].float()[::2]]


def _expected(tensor: Tensor) -> Tensor:
    """A line, as torch has it on the CPU."""
    dtype = staged_as(tensor)
    assert dtype is not None
    read = plain(tensor, dtype)
    return digest.lines(*digest.digested(read.reshape(1, -1), read.shape))[0]
