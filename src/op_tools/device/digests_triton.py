"""Launches digest_kernel.py, which digests tensors on a GPU, where Triton is there.

Before it is used it must say the same as torch does about a few tensors; a device where it does not, or cannot be
built, does without it, which is said once.
"""

from __future__ import annotations

import math
import struct
from functools import cache
from typing import Any

import torch
from torch import Tensor

from op_tools.device import digest
from op_tools.device.digest import LANES, ROW, Walk
from op_tools.device.genuine import is_genuine
from op_tools.output import messages

_MAX_CHUNKS = 128  # of a program
_MAX_PARTIALS = 2**16
_CANNOT = "OpCapture takes torch's kernels for statistics, more slowly"


class _Memory:
    """What gathers on the device until it is fetched."""

    def __init__(self, lines: int, device: torch.device) -> None:
        self.partials = torch.empty(_MAX_PARTIALS, ROW, dtype=torch.float64, device=device)
        self.probes = torch.empty(lines, dtype=torch.int64, device=device)
        self.sources = torch.empty(lines, dtype=torch.int64, device=device)  # lines whose partials are to be taken
        self.used = 0  # partials
        self.spans: list[tuple[int, int]] = []  # of each line, among the partials
        self.numels: list[int] = []


class _Programs:
    """Of a group: what does not change from call to call."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self.dtypes = [digest.plain(tensor[:0] if tensor.dim() else tensor).dtype for tensor in tensors]
        self.numels = []
        self.counts = []  # of programs
        self._walks = []  # must be there as long as their addresses are used
        rows: list[bytes] = []
        for number, (tensor, dtype) in enumerate(zip(tensors, self.dtypes)):
            shape = (*tensor.shape, 2) if tensor.is_complex() else tuple(tensor.shape)
            before = len(rows)
            walk, tables = _tables(shape, tensor.device) if tensor.numel() else (digest.walk(shape), [])
            for strip in range(len(walk.strip_offsets)):
                for first in range(0, len(walk.chunk_offsets), _MAX_CHUNKS):
                    rows.append(_program(number, digest.KINDS[dtype], walk, tables, strip, first, len(rows) == before))
            self.numels.append(walk.numel)
            self.counts.append(len(rows) - before)
            self._walks.append(tables)
        packed = bytearray(b"".join(rows) or bytes(8))
        self.table = torch.frombuffer(packed, dtype=torch.int64).to(tensors[0].device)


@cache
def _tables(shape: tuple[int, ...], device: torch.device) -> tuple[Walk, list[Tensor]]:
    """On the device: whole numbers, and the others in float32 and in float64; those of lanes have room for all."""
    walk = digest.walk(shape)

    def wide(table: Tensor) -> Tensor:
        return torch.nn.functional.pad(table.reshape(-1, walk.lanes), (0, LANES - walk.lanes)).flatten()

    whole = torch.cat([wide(walk.lane_factors), walk.chunk_offsets, walk.chunk_counts, walk.chunk_factors])
    lanes = [wide(digest.parts(walk.columns)), wide(digest.parts(walk.lane_turns)), wide(walk.lane_places)]
    real = torch.cat([*lanes, digest.parts(walk.chunk_turns).flatten(), walk.chunk_places])
    return walk, [whole.to(device), real.float().to(device), real.to(device)]


def _program(number: int, kind: int, walk: Walk, tables: list[Tensor], strip: int, first: int, is_first: bool) -> bytes:
    chunks = len(walk.chunk_offsets)
    whole = [number, kind, walk.numel, *(table.data_ptr() for table in tables)]
    whole += [first, min(first + _MAX_CHUNKS, chunks), chunks, is_first]
    whole += [int(table[strip]) for table in (walk.strip_offsets, walk.strip_counts, walk.strip_factors)]
    turns = torch.view_as_real(walk.strip_turns[:, strip]).flatten().tolist()
    return struct.pack("=14q5dq", *whole, walk.is_down, *turns, float(walk.strip_places[strip]), walk.is_aligned)


class TritonDigests:
    """The kernel, for one stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._kernels = _kernels()

    @staticmethod
    def works_on(device: torch.device) -> bool:
        return is_genuine(device) and _is_right(device)

    def memory(self, lines: int) -> _Memory:
        return _Memory(lines, self._device)

    def has_room(self, memory: _Memory, group: Any) -> bool:
        return group.kept is None or memory.used + sum(group.kept.counts) <= _MAX_PARTIALS

    def write(
        self,
        tensors: list[Tensor],
        group: Any,
        addresses: bytes | None,
        memory: _Memory,
        first: int,
        known: list[int],
    ) -> None:
        if not group.is_whole:
            tensors = [tensors[number] for number in group.numbers]
        if group.kept is None:
            group.kept = _Programs(tensors)
        programs: _Programs = group.kept
        total = sum(programs.counts)
        if memory.used + total > len(memory.partials):
            more = memory.partials.new_empty(memory.used + 2 * total, ROW)
            more[: memory.used] = memory.partials[: memory.used]
            memory.partials = more
        copies: list[Tensor] = []  # that must be there until the launch
        call = [*_addresses(tensors, programs.dtypes, addresses if group.is_whole else None, copies), *known]
        table = torch.tensor(call, dtype=torch.int64, device="cpu").to(self._device, non_blocking=True)
        if total:
            self._kernels.digest[(total,)](
                table,
                programs.table,
                memory.partials,
                memory.probes,
                memory.sources,
                first,
                memory.used,
                len(tensors),
                num_warps=4,
            )
        for number, (count, numel) in enumerate(zip(programs.counts, programs.numels)):
            memory.spans.append((memory.used, count))
            memory.numels.append(numel)
            memory.used += count
            if not count:  # nobody has written where its digest is
                memory.sources[first + number] = first + number

    def finish(self, memory: _Memory, used: int) -> list[Tensor]:
        found = torch.empty(used, ROW, dtype=torch.float64, device=self._device)
        spans = torch.tensor(memory.spans, dtype=torch.int64, device="cpu").to(self._device, non_blocking=True)
        self._kernels.combine[(used,)](spans, memory.sources, memory.partials, found, num_warps=1)
        return [found, torch.tensor(memory.numels, dtype=torch.int64, device="cpu")]

    def lines(self, found: list[Tensor]) -> Tensor:
        return digest.lines_of(*found)


def _addresses(
    tensors: list[Tensor], dtypes: list[torch.dtype], known: bytes | None, copies: list[Tensor]
) -> list[int]:
    """Where the elements lie in order; of tensors that are not so, copies are made. `known`: see capture/notes.py."""
    found = [0] * len(tensors) if known is None else memoryview(known).cast("Q").tolist()
    for number, (tensor, dtype) in enumerate(zip(tensors, dtypes)):
        if not found[number] or tensor.dtype is not dtype:
            copy = digest.plain(tensor)
            copies.append(copy)
            found[number] = copy.data_ptr()
    return found


# ---- whether it can be used ----------------------------------------------------------------------------------------


def _kernels() -> Any:
    from op_tools.device import digest_kernel

    return digest_kernel


@cache
def _is_right(device: torch.device) -> bool:
    try:
        _kernels()
    except ImportError:
        return False  # torch alone
    try:
        with torch.no_grad():
            check(device)
    except Exception as error:  # noqa: BLE001  a compiler may fail in any way
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
        messages.complain_once("kernel", _CANNOT, text=f"{_CANNOT}: {reason}")
        return False
    return True


def check(device: torch.device) -> None:
    """Compares the kernel with torch on the CPU; raises where they differ."""
    tensors = samples()
    placed = [tensor.to(device) for tensor in tensors]
    for sample, line in zip(tensors, digests_of(placed)):
        right = digest.line_of(sample)
        numbers, expected = line[4:-1].view(torch.float64), right[4:-1].view(torch.float64)
        size = 1e-5 * max(1.0, sample.numel()) * float(expected[:5].nan_to_num(0).abs().max())
        if not torch.equal(line[:4], right[:4]) or not torch.allclose(numbers, expected, 1e-5, size, equal_nan=True):
            raise ArithmeticError(f"ours gives other numbers for {sample.dtype}")


def digests_of(tensors: list[Tensor]) -> Tensor:
    """Lines of tensors of one device, on the host."""
    kernel = TritonDigests(tensors[0].device)
    group = type("Group", (), {"kept": None, "is_whole": True})()
    memory = kernel.memory(len(tensors))
    kernel.write(tensors, group, None, memory, 0, [-1] * len(tensors))
    return kernel.lines([one.cpu() for one in kernel.finish(memory, len(tensors))])


def samples() -> list[Tensor]:
    """One of each dtype, with NaN and infinities in some; made without random numbers."""
    places = torch.arange(20_000, dtype=torch.float64, device="cpu")
    waves = places.sin() * 100
    bad = waves.float()
    bad[[3, 700, 19_999]] = torch.tensor([math.nan, math.inf, -math.inf], device="cpu")
    some = [waves[:300].abs().to(dtype) for dtype in digest.KINDS]
    some += [waves[:300] > 0, waves[:0], waves[:600].to(torch.complex64), bad.bfloat16(), bad.view(20, 1000)]
    return [
        *some,
        waves.float().view(10, 2000),
        waves[:5000].half(),
        waves[:500].float()[::2],
        waves[:900].view(3, 4, 75),
    ]
