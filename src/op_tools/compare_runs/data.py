"""Reads a run that kept its tensors (`ditorch run --capture=data`) as if it had kept statistics: one file at a time.

Their statistics are computed here, so such a run can be compared with one that has nothing else. Of two such runs, how
far tensors are apart is computed from the tensors themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from op_tools.compare_runs.calls import INF, NAN, Call, Distance, KeptSeen, Kind, Numbers, Seen, Site
from op_tools.device import digest, digests_host
from op_tools.device.staging import staged_as
from op_tools.device.tensor_groups import KINDS, TensorGroup, plain
from op_tools.errors import CaptureError
from op_tools.replay.runner import call_name
from op_tools.storage import store
from op_tools.values import trees

_AT_ONCE = 2**18  # elements whose difference is computed: a processor's cache holds them
_AUTOCOMPARE = "autocompare"  # in the path of calls that OpAutoCompare has saved


class _Captured(NamedTuple):
    """The folder of one call, and what stands beside its inputs."""

    folder: Path
    note: dict[str, Any]
    id: int
    step: int


class Index:
    """Which process made which calls in which step."""

    def __init__(self, path: Path) -> None:
        self.tf32: set[str] = set()
        self.problems: list[str] = []  # files that cannot be used
        self._processes: dict[int, dict[tuple[str, str], list[_Captured]]] = {}
        for folder in store.find_captures(path):
            if _AUTOCOMPARE not in folder.relative_to(path).parts:
                self._add(folder, store.load_note(folder))

    def _add(self, folder: Path, note: dict[str, Any]) -> None:
        named = note.get("forward_id", folder.parent.name)  # as the layout has it
        id, step, rank = (_whole(value) for value in (named, note.get("step"), note.get("rank")))
        process = str(note.get("host")), str(note.get("pid"))
        calls = self._processes.setdefault(rank, {}).setdefault(process, [])
        calls.append(_Captured(folder, note, id, step))
        narrow = note.get("tf32")
        self.tf32.update(map(str, narrow) if isinstance(narrow, list) else ())

    @property
    def streams(self) -> dict[tuple[int, int], list[_Captured]]:
        """The calls of each process, by its rank and number."""
        return {
            (rank, number): calls
            for rank, processes in sorted(self._processes.items())
            for number, calls in enumerate(processes.values())
        }

    def steps(self, stream: tuple[int, int]) -> Iterator[tuple[int, list[Call]]]:
        """The calls of each step, in the order in which they ran."""
        by_step: dict[int, list[_Captured]] = {}
        for captured in self.streams[stream]:
            by_step.setdefault(captured.step, []).append(captured)
        for step, captures in sorted(by_step.items()):
            calls = [self._call(captured) for captured in captures]
            yield step, sorted(calls, key=lambda call: (call.order, call.id))

    def _call(self, captured: _Captured) -> Call:
        folder, note = captured.folder, captured.note
        op = str(note.get("name") or call_name(folder))
        place = str(note.get("source", "")), str(note.get("module", "")), bool(note.get("recomputed", False))
        call = Call(_site(op, *place), captured.id, captured.step)
        for part in store.PARTS:
            file = folder / f"{part}.pth"
            if not file.exists():
                continue
            try:
                for seen in _tensors_in(file, part):
                    call.add(seen, _order(file, part, captured.id))
            except CaptureError as error:
                self.problems.append(str(error))
        return call


def _whole(value: Any) -> int:
    return int(value) if str(value).isdecimal() else 0


def _order(file: Path, part: str, id: int) -> int:
    """As noted; else backward runs through the calls from the last to the first."""
    noted = store.load_note(file.parent, part).get("order")
    if isinstance(noted, int) and noted > 0:
        return noted
    return 2**40 - id if part.startswith("grad") else id


@lru_cache(10_000)
def _site(op: str, source: str, module: str, is_recomputed: bool) -> Site:
    return Site({"op": op, "source": source, "module": module, "recomputed": is_recomputed, "tensors": ()})


@lru_cache(10_000)
def _kind(part: str, place: str, shape: tuple[int, ...], dtype: str, requires_grad: bool) -> Kind:
    described = {"part": part, "place": place, "shape": shape, "dtype": dtype, "requires_grad": requires_grad}
    return Kind(described)


def _tensors_in(file: Path, part: str) -> Iterator[Seen]:
    tensors = list(_stored(file, part))
    numbers = _statistics([tensor for _, tensor in tensors])
    for number, ((place, tensor), found) in enumerate(zip(tensors, numbers)):
        dtype = str(tensor.dtype).partition(".")[2]
        kind = _kind(part, place.strip(), tuple(tensor.shape), dtype, tensor.requires_grad)
        yield KeptSeen(kind, found, str(file), number)


def _stored(file: Path, part: str, is_checked: bool = True) -> Iterator[tuple[str, Tensor]]:
    """The tensors in a file of this part, with their places as statistics have them."""
    saved = store.load_part(file, is_checked)
    is_result = part == "output" and len(saved.args) == 1
    places = trees.results(saved.args[0]) if is_result else trees.arguments(saved.args, saved.kwargs)
    return ((place, value) for place, value in places if isinstance(value, Tensor))


# ---- their statistics ----------------------------------------------------------------------------------------------


def _statistics(tensors: list[Tensor]) -> Iterator[Numbers]:
    """Of each; the sketch relative to the norm."""
    for tensor in tensors:
        line = None if staged_as(tensor) is None else _line(tensor.detach())
        if line is None:  # sparse or quantized: there is nothing that could be compared
            yield (tensor.numel(), 0, 0, 0, *[math.nan] * (digest.LINE - 4))
            continue
        whole, numbers = line[:4].tolist(), line[4:].view(torch.float64).tolist()
        scale = numbers[4] if 0 < numbers[4] < math.inf else 1.0
        yield (*whole, *numbers[:5], *(number / scale for number in numbers[5:]))


def _line(tensor: Tensor) -> Tensor:
    dtype = tensor.dtype if tensor.dtype in KINDS else staged_as(tensor)
    assert dtype is not None
    read = plain(tensor, dtype)
    if not digests_host.reaches(read.device):
        staged = plain(tensor, staged_as(tensor) or dtype)
        return digest.lines(*digest.digested(staged.reshape(1, -1), staged.shape))[0]
    lines = torch.empty(1, digest.LINE, dtype=torch.int64, device="cpu")
    group = TensorGroup(read.device, [(0, tuple(read.shape), dtype)], is_direct=True)
    digests_host.HostDigests().write([read], group, None, lines, 0)
    return lines[0]


# ---- how far they are apart ----------------------------------------------------------------------------------------


def find_distances(pairs: Sequence[tuple[Seen, Seen]]) -> None:
    """Of tensors that both runs kept, and that differ; kept with them (`apart`)."""
    for a, b in pairs:
        if not isinstance(a, KeptSeen) or not isinstance(b, KeptSeen):
            continue
        if a.kind.shape != b.kind.shape or a.checksum == b.checksum or not (a.kind.is_float or b.kind.is_float):
            continue
        try:
            x, y = (_loaded(one.file, one.kind.part)[one.number] for one in (a, b))
        except (CaptureError, IndexError):  # it has changed since; its statistics are known
            continue
        norm = max(a.norm, b.norm)
        if 0 < norm < math.inf and a.numbers[NAN : INF + 1] == b.numbers[NAN : INF + 1]:
            told = _norm_of_difference(x, y, has_all_finite=not any(a.numbers[NAN : INF + 1])) / norm
            a.other, a.apart = b, Distance(told, told)


@lru_cache(2)
def _loaded(file: str, part: str) -> list[Tensor]:
    """Those of the last file of each run: tensors of one part follow each other."""
    return [tensor.detach() for _, tensor in _stored(Path(file), part, is_checked=False)]


def _norm_of_difference(a: Tensor, b: Tensor, has_all_finite: bool) -> float:
    """Infinite where others of them are NaN or infinite."""
    a, b = (_as_real(one) if one.is_complex() else plain(one, one.dtype).flatten() for one in (a, b))
    dtype = torch.float64 if torch.float64 in (a.dtype, b.dtype) else torch.float32
    total = 0.0
    for start in range(0, a.numel(), _AT_ONCE):
        x, y = (one[start : start + _AT_ONCE].to(dtype) for one in (a, b))
        if not has_all_finite:
            if not torch.equal(x.isnan(), y.isnan()) or not torch.equal(x.isinf(), y.isinf()):
                return math.inf
            x, y = (torch.nan_to_num(one, 0.0, 0.0, 0.0) for one in (x, y))
        total += _square(x - y)
    return math.sqrt(total)


def _square(part: Tensor) -> float:
    """The sum of squares; in double precision where single would not hold it."""
    found = float(part.dot(part))
    return found if 1e-30 < found < 1e30 else float(part.double().square().sum())


def _as_real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor.resolve_conj()).flatten()
