"""What OpCapture keeps in the mode "statistics": a few numbers for each tensor, in files that pack.read reads."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, Callable

import torch
from torch import Tensor

from op_tools.capture.descriptions import description
from op_tools.capture.notes import noter
from op_tools.capture.outside import Given, Outside
from op_tools.capture.pieces import Pieces, TensorPiece
from op_tools.capture.repeats import Repeats
from op_tools.core.call import OpCall
from op_tools.core.gradients import Gradients
from op_tools.core.tool import AnyTool
from op_tools.device import digest, digests, failure, sketch, staging, tf32
from op_tools.device.queues import stream_number
from op_tools.device.staging import Kind, Stage, staged_as
from op_tools.device.tensor_groups import grouped
from op_tools.output import messages, paths, process, tables
from op_tools.output.writer import Writer
from op_tools.settings import Cut
from op_tools.storage import files
from op_tools.storage.pack import Pack

_MAX_FILE_BYTES = 256 * 2**20
_MAX_SITES = 100_000  # places in the program; shapes that change at every step would fill the memory
_MAX_UNSETTLED_RECORDS = 50_000  # records, so many at most that a reader must remember
_MAX_SECONDS_UNWRITTEN = 0.25  # seconds that a step's records wait to be written
_NOTHING: dict[str, Any] = {}
running_backward: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", lambda: -1)  # -1: there is none


class _Site:
    """Tensors as they come at one place in the program: their description, and how they are digested."""

    __slots__ = ("fused", "left_out", "number", "pieces", "staged")

    def __init__(self, number: int, tensors: list[Tensor], known: Collection[int], pieces: list[TensorPiece]) -> None:
        self.number = number  # of the description in the file
        self.pieces = pieces  # of the tensors, digested like tensors behind them
        tensors = self.with_pieces(tensors)
        self.left_out = [number for number, tensor in enumerate(tensors) if staged_as(tensor) is None]
        wanted = [number for number in range(len(tensors)) if number not in known and number not in self.left_out]
        at_once = [number for number in wanted if digests.can_digest(tensors[number].device)]
        self.fused = list(grouped(tensors, at_once))
        self.staged = list(staging.grouped(tensors, [number for number in wanted if number not in at_once]))

    def with_pieces(self, tensors: list[Tensor]) -> list[Tensor]:
        return [*tensors, *(piece.cut_from(tensors) for piece in self.pieces)] if self.pieces else tensors


_Label = tuple[int, int, int, int]  # description, forward_id, step, order


class Statistics:
    """Digests tensors on their device, and writes what is then known about them.

    A tensor is digested each time that it is seen, but for those that are surely unchanged (repeats.py).
    """

    def __init__(self, tool: AnyTool, cuts: Sequence[Cut] = ()) -> None:
        self._out = tool.out
        self._pieces = Pieces(cuts)
        self._tells = tool.verbose == 2
        self._sees_cpu = tool.sees_cpu
        self._writer = Writer("OpCapture", is_excused=failure.is_noticed)
        self._lock = threading.Lock()
        self._note = noter()
        self._stages: dict[tuple[Kind, int], Stage] = {}  # and by stream
        self._fused_stages: dict[tuple[torch.device, int], digests.DigestStage] = {}
        self._sites: dict[Any, _Site] = {}
        self._repeats = Repeats()
        self._outside = Outside(self._add)
        self._repeated: list[tuple[_Label, bytes]] = []  # records whose numbers are those of others
        self._unsettled = 0  # records since the repeated ones were written
        self._calls = 0
        self._order = 0
        self._flushed = time.monotonic()
        # in the writer's thread
        self._pack: Pack | None = None
        self._files: list[str] = []
        self._records = 0
        self._bytes = 0
        self._is_full = False

    def before(self, call: OpCall) -> tables.Described | bool | None:
        if self._writer.is_broken:
            return None
        outside, module = self._outside, call.where.module
        is_new = call.step != outside.step or (outside.is_first_step and module not in outside.modules)
        if module and is_new and running_backward() < 0:
            outside.look(call)
        self._add(call, "input", call.args, call.kwargs)
        return tables.inputs(call) if self._tells else True

    def after(self, call: OpCall, state: tables.Described | bool) -> bool:
        self._calls += 1
        self._add(call, "output", (call.result,), _NOTHING)
        if not isinstance(state, bool):
            messages.say(f"{tables.heading(call)}\n{tables.arguments_table(call, state)}\n\n\n\n")
        return True

    def flowed(self, call: OpCall, state: bool, gradients: Gradients) -> None:
        if self._writer.is_broken:
            return
        self._add(call, "gradients", (gradients.inputs, gradients.outputs), _NOTHING)
        if self._tells:
            table = tables.gradients_table(call.name, gradients.outputs, gradients.inputs)
            messages.say(f"{tables.heading(call)}\n{table}\n\n\n\n")

    def step_began(self) -> None:
        if time.monotonic() - self._flushed > _MAX_SECONDS_UNWRITTEN:
            with self._lock:
                self._flush()

    def close(self) -> str:
        with failure.tolerated(), self._lock:
            self._flush()
            self._stages.clear()
            self._fused_stages.clear()
        self._writer.close()
        self._end_file()
        if not self._records and not self._writer.dropped:
            return ""
        lost = "; some could not be written" if self._writer.dropped else ""
        number = "1 file" if len(self._files) == 1 else f"{len(self._files)} files"
        written = f"statistics of {self._records} tensors in {self._calls} calls, {files.in_words(self._bytes)}"
        return f"OpCapture: {written} in {number} in {paths.shown(paths.capture_root(self._out))}{lost}"

    def files(self) -> list[str]:
        return self._files

    def facts(self) -> dict[str, Any]:
        return self._outside.facts()

    # -- at the call --------------------------------------------------------------------------------------------------

    def _add(self, call: OpCall | Given, part: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        key, tensors, addresses = self._note(args, kwargs)
        # without a tensor on a device among its arguments, this may turn out to be no call of ours
        is_doubtful = part not in ("output", "gradients") and tensors and tensors[0].is_cpu and not self._sees_cpu
        if not tensors or (is_doubtful and all(tensor.is_cpu for tensor in tensors)):
            return
        with self._lock:
            if self._is_full or len(self._sites) >= _MAX_SITES:
                self._begin_next_file()
            if self._unsettled >= _MAX_UNSETTLED_RECORDS:
                self._flush()
            self._unsettled += len(tensors)
            found = self._repeats.find(call, tensors)
            known = () if found is None else found[0]
            in_backward = part != "gradients" and running_backward() >= 0  # checkpointing computes it again
            place = (call.name, part, call.where.line(), call.where.module, known, key, in_backward)
            site = self._sites.get(place)
            if site is None:
                described = description(call, part, args, kwargs, in_backward)
                pieces = self._pieces.added_to(described)
                site = self._sites[place] = _Site(len(self._sites), tensors, known, pieces)
                self._writer.add(partial(self._describe, site.number, described))
            self._order += 1
            label = (site.number, call.id, call.step, self._order)
            if site.pieces:
                self._digest(site, site.with_pieces(tensors), None, label)
            else:
                self._digest(site, tensors, addresses, label)
            self._repeats.remember(call, tensors, found, site.number)
            if found is not None:
                self._repeated.append((label, found[1]))

    def _digest(self, site: _Site, tensors: list[Tensor], addresses: bytes | None, label: _Label) -> None:
        for group in site.fused:
            key = (group.device, stream_number(group.device))
            stage = self._fused_stages.get(key)
            if stage is None:
                stage = digests.DigestStage(group.device, self._writer, self._write)
                self._fused_stages[key] = stage
            stage.add(tensors, group, label, addresses)
        for staged in site.staged:
            self._stage(staged.kind).add(tensors, staged, label)
        if site.left_out:
            numels = [tensors[number].numel() for number in site.left_out]
            self._writer.add(partial(self._write_without_numbers, label, site.left_out, numels))

    def _stage(self, kind: Kind) -> Stage:
        key = (kind, stream_number(kind[0]))
        stage = self._stages.get(key)
        if stage is None:
            try:
                stage = Stage(kind, self._writer, self._write)
            except (TypeError, NotImplementedError, RuntimeError):  # a device without double precision
                stage = Stage((torch.device("cpu"), kind[1]), self._writer, self._write)
            self._stages[key] = stage
        return stage

    def _flush(self) -> None:
        """Has everything written that was seen until now."""
        self._flushed = time.monotonic()
        stages: list[Stage | digests.DigestStage] = [*self._stages.values(), *self._fused_stages.values()]
        for stage in stages:
            try:
                stage.flush()
            except Exception as error:  # noqa: BLE001  the device may be out of memory, and training goes on
                reason = str(error).partition("\n")[0]
                messages.complain_once("digests", text=f"OpCapture lost some statistics: {reason}; training goes on")

        if self._repeated or self._unsettled >= _MAX_UNSETTLED_RECORDS:
            self._writer.add(partial(self._write_repeated, self._repeated))
            self._repeated = []
            self._unsettled = 0
            self._repeats.forget()

    def _begin_next_file(self) -> None:
        self._flush()
        self._repeats.forget()  # a file refers to records of its own only
        self._sites.clear()
        self._is_full = False
        self._writer.add(self._end_file)

    # -- in the writer's thread ---------------------------------------------------------------------------------------

    def _file(self) -> Pack:
        if self._pack is None:
            about = {"torch": torch.__version__, "sketch": sketch.SKETCH_VERSION, "tf32": tf32.allowed()}
            head = {**process.identity(), **about}
            path = paths.capture_statistics(self._out)
            self._pack = Pack(path, head)
            self._files.append(str(path))
        return self._pack

    def _end_file(self) -> None:
        if self._pack is not None:
            self._pack.close()
            self._records += self._pack.records
            self._bytes += self._pack.length
            self._pack = None

    def _describe(self, number: int, description: dict[str, Any]) -> None:
        self._file().describe(description)
        self._outside.described(number, description)

    def _write(self, labels: list[tuple[_Label, list[int]]], digests: Tensor) -> None:
        numbers = [number for _, numbers in labels for number in numbers]
        lines = _spread([label for label, _ in labels], [len(numbers) for _, numbers in labels])
        self._write_lines(lines, numbers, digests)

    def _write_without_numbers(self, label: _Label, numbers: list[int], numels: list[int]) -> None:
        labels = torch.tensor([label], dtype=torch.int64, device="cpu").expand(len(numbers), -1)
        digests = torch.full((len(numels), digest.LINE), math.nan, dtype=torch.float64, device="cpu")
        digests = digests.view(torch.int64)
        digests[:, :4] = 0
        digests[:, 0] = torch.tensor(numels, dtype=torch.int64, device="cpu")
        self._write_lines(labels, numbers, digests)

    def _write_repeated(self, repeated: list[tuple[_Label, bytes]]) -> None:
        """Also where there are none: a reader may then forget what came before."""
        lines = torch.empty(0, 8, dtype=torch.int64, device="cpu")
        if repeated:
            origins = torch.frombuffer(bytearray().join(found for _, found in repeated), dtype=torch.int64)
            labels = _spread([label for label, _ in repeated], [len(found) // 32 for _, found in repeated])
            lines = torch.cat([labels, origins.view(-1, 4)], 1)
        if self._pack is not None:
            self._pack.repeat(lines)

    def _write_lines(self, labels: Tensor, numbers: list[int], digests: Tensor) -> None:
        self._outside.digested(labels, numbers, digests)
        pack = self._file()
        places = torch.tensor(numbers, dtype=torch.int64, device="cpu")[:, None]
        pack.add(torch.cat([labels, places, digests], 1))
        self._is_full = self._is_full or pack.length >= _MAX_FILE_BYTES


def _spread(labels: list[_Label], times: list[int]) -> Tensor:
    """Each label so many times."""
    lines = torch.tensor(labels, dtype=torch.int64, device="cpu")
    return lines.repeat_interleave(torch.tensor(times, dtype=torch.int64, device="cpu"), 0)
