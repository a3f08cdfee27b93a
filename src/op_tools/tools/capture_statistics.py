"""What OpCapture keeps in the mode "statistics": a few numbers for each tensor, in files that pack.read reads."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Collection, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from op_tools import messages, paths, show, trees
from op_tools.call import OpCall
from op_tools.gradients import Gradients
from op_tools.recording import digest, files, staging
from op_tools.recording.digest import Sums, Weights
from op_tools.recording.marks import marker_of
from op_tools.recording.pack import Pack
from op_tools.recording.repeats import Repeats
from op_tools.recording.staging import Kind, Stage, staged_as
from op_tools.recording.writer import Writer
from op_tools.tool import Tool, this_rank

_LARGEST_FILE = 256 * 2**20
_MOST_SITES = 100_000  # places in the program; shapes that change at every step would fill the memory
_MOST_UNSETTLED = 50_000  # records, so many at most that a reader must remember
_NOTHING: dict[str, Any] = {}


class _Site:
    """Tensors as they come at one place in the program: their description, and how they are staged."""

    __slots__ = ("chunks", "left_out", "number")

    def __init__(self, number: int, tensors: list[Tensor], known: Collection[int]) -> None:
        self.number = number  # of the description in the file
        self.chunks = list(staging.chunks(tensors, known))
        self.left_out = [number for number, tensor in enumerate(tensors) if staged_as(tensor) is None]


_Label = tuple[int, int, int]  # description, forward_id, step


class Statistics:
    """Digests tensors on their device, and writes what is then known about them.

    A tensor is digested each time that it is seen, but for those that are surely unchanged (repeats.py).
    """

    def __init__(self, tool: Tool) -> None:
        self._out = tool.out
        self._tells = tool.verbose == 2
        self._writer = Writer("OpCapture")
        self._weights = Weights()
        self._lock = threading.Lock()
        self._stages: dict[tuple[Kind, int], Stage] = {}  # and by stream
        self._sites: dict[Any, _Site] = {}
        self._repeats = Repeats()
        self._repeated: list[tuple[int, ...]] = []  # records whose numbers are those of others
        self._unsettled = 0  # records since the repeated ones were written
        self._calls = 0
        # in the writer's thread
        self._pack: Pack | None = None
        self._files = 0
        self._records = 0
        self._bytes = 0
        self._is_full = False

    def before(self, call: OpCall) -> Any:
        if self._writer.is_broken:
            return None
        # without a tensor on a device, this may turn out to be no call of ours
        if any(not tensor.is_cpu for tensor in trees.tensors((call.args, call.kwargs))):
            self._add(call, "input", call.args, call.kwargs)
        return show.inputs(call) if self._tells else True

    def after(self, call: OpCall, state: Any) -> bool:
        self._calls += 1
        self._add(call, "output", (call.result,), _NOTHING)
        if self._tells:
            messages.say(f"{show.heading(call)}\n{show.arguments_table(call, state)}\n\n\n\n")
        return True

    def flowed(self, call: OpCall, state: bool, gradients: Gradients) -> None:
        if self._writer.is_broken:
            return
        self._add(call, "gradients", (gradients.inputs, gradients.outputs), _NOTHING)
        if self._tells:
            table = show.gradients_table(call.name, gradients.outputs, gradients.inputs)
            messages.say(f"{show.heading(call)}\n{table}\n\n\n\n")

    def step_began(self) -> None:
        with self._lock:
            self._flush()

    def close(self) -> str:
        with self._lock:
            self._flush()
            self._stages.clear()
        self._writer.close()
        self._end_file()
        if not self._records and not self._writer.dropped:
            return ""
        lost = "; some could not be written" if self._writer.dropped else ""
        number = "1 file" if self._files == 1 else f"{self._files} files"
        written = f"statistics of {self._records} tensors in {self._calls} calls, {files.in_words(self._bytes)}"
        return f"OpCapture: {written} in {number} in {paths.capture_root(self._out)}{lost}"

    # -- at the call --------------------------------------------------------------------------------------------------

    def _add(self, call: OpCall, part: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tensors: list[Tensor] = []
        key: list[Any] = [call.name, part, call.where.line(), call.where.module]
        _note(args, tensors, key)
        if kwargs:
            _note((kwargs,), tensors, key)
        if not tensors:
            return
        with_gradients = torch.is_grad_enabled()
        with self._lock:
            torch._C._set_grad_enabled(False)  # as torch.no_grad does, at a third of the price
            try:
                if self._is_full or len(self._sites) >= _MOST_SITES:
                    self._begin_next_file()
                if self._unsettled >= _MOST_UNSETTLED:
                    self._flush()
                self._unsettled += len(tensors)
                origins = self._repeats.find(call.name, tensors)
                if origins:
                    key.append(tuple(origins))
                site = self._sites.get(tuple(key))
                if site is None:
                    site = self._sites[tuple(key)] = _Site(len(self._sites), tensors, origins)
                    self._writer.add(partial(self._describe, _description(call, part, args, kwargs)))
                label = (site.number, call.id, call.step)
                self._stage(site, tensors, label)
                self._repeats.remember(call.name, tensors, origins, site.number, call.id)
                self._repeated += [(*label, number, *origin) for number, origin in origins.items()]
            finally:
                torch._C._set_grad_enabled(with_gradients)

    def _stage(self, site: _Site, tensors: list[Tensor], label: _Label) -> None:
        for chunk in site.chunks:
            self._stage_of(chunk.kind).add(tensors, chunk, label)
        if site.left_out:
            numels = [tensors[number].numel() for number in site.left_out]
            self._writer.add(partial(self._write_without_numbers, label, site.left_out, numels))

    def _stage_of(self, kind: Kind) -> Stage:
        marker = marker_of(kind[0])
        key = (kind, 0 if marker is None else marker.stream())
        stage = self._stages.get(key)
        if stage is None:
            try:
                stage = Stage(kind, self._writer, self._weights, self._write)
            except (TypeError, NotImplementedError, RuntimeError):  # a device without double precision
                stage = Stage((torch.device("cpu"), *kind[1:]), self._writer, self._weights, self._write)
            self._stages[key] = stage
        return stage

    def _flush(self) -> None:
        """Has everything written that was seen until now."""
        for stage in self._stages.values():
            try:
                stage.flush(to_the_end=True)
            except Exception as error:  # noqa: BLE001  the device may be out of memory, and training goes on
                reason = str(error).partition("\n")[0]
                messages.complain_once("digests", text=f"OpCapture lost some statistics: {reason}; training goes on")

        if self._repeated or self._unsettled >= _MOST_UNSETTLED:
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
            head = {"pid": os.getpid(), "rank": this_rank(), "torch": torch.__version__}
            self._pack = Pack(paths.capture_statistics(self._out), head)
            self._files += 1
        return self._pack

    def _end_file(self) -> None:
        if self._pack is not None:
            self._pack.close()
            self._records += self._pack.records
            self._bytes += self._pack.length
            self._pack = None

    def _describe(self, description: dict[str, Any]) -> None:
        self._file().describe(description)

    def _write(self, labels: list[tuple[_Label, list[int]]], sums: Sums) -> None:
        numbers = [number for _, numbers in labels for number in numbers]
        lines = torch.tensor([label for label, _ in labels], dtype=torch.int64, device="cpu")
        lines = lines.repeat_interleave(torch.tensor([len(numbers) for _, numbers in labels], device="cpu"), 0)
        self._write_lines(lines, numbers, sums.counts, digest.finished(sums))

    def _write_without_numbers(self, label: _Label, numbers: list[int], numels: list[int]) -> None:
        labels = torch.tensor([label], dtype=torch.int64, device="cpu").expand(len(numbers), -1)
        counts = torch.zeros(len(numels), 4, dtype=torch.int64, device="cpu")
        counts[:, 0] = torch.tensor(numels, dtype=torch.int64, device="cpu")
        nothing = torch.full((len(numels), len(digest.COLUMNS)), math.nan, dtype=torch.float64, device="cpu")
        self._write_lines(labels, numbers, counts, nothing)

    def _write_repeated(self, lines: list[tuple[int, ...]]) -> None:
        if self._pack is not None:
            self._pack.repeat(torch.tensor(lines, dtype=torch.int64, device="cpu"))

    def _write_lines(self, labels: Tensor, numbers: list[int], counts: Tensor, statistics: Tensor) -> None:
        pack = self._file()
        places = torch.tensor(numbers, dtype=torch.int64, device="cpu")[:, None]
        pack.add(torch.cat([labels, places, counts, statistics.view(torch.int64)], 1))
        self._is_full = self._is_full or pack.length >= _LARGEST_FILE


def _note(values: Iterable[Any], tensors: list[Tensor], key: list[Any]) -> None:
    """Notes the tensors among the arguments, and in `key` all that their description tells."""
    for value in values:
        if isinstance(value, Tensor):
            tensors.append(value)
            key.append((value.dtype, value.shape, value.device, value.requires_grad))
        elif isinstance(value, (list, tuple)):
            key.append(len(value))
            _note(value, tensors, key)
        elif isinstance(value, dict):
            key.append(tuple(value))
            _note(value.values(), tensors, key)
        else:
            key.append(None)


def _description(call: OpCall, part: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    if part == "gradients":
        inputs, outputs = args
        tensors = _described("grad_inputs", trees.arguments(tuple(inputs), {}))
        tensors += _described("grad_outputs", trees.arguments(tuple(outputs), {}))
    else:
        tensors = _described(part, trees.results(args[0]) if part == "output" else trees.arguments(args, kwargs))
    return {"op": call.name, "source": call.where.line(), "module": call.where.module, "tensors": tensors}


def _described(part: str, places: Iterable[tuple[str, Any]]) -> list[dict[str, Any]]:
    tensors = [(place, value) for place, value in places if isinstance(value, Tensor)]
    return [_tensor_described(part, place.strip(), tensor) for place, tensor in tensors]


def _tensor_described(part: str, place: str, tensor: Tensor) -> dict[str, Any]:
    described = {
        "part": part,
        "place": place,
        "shape": list(tensor.shape),
        "dtype": str(tensor.dtype).partition(".")[2],
        "device": str(tensor.device),
        "requires_grad": tensor.requires_grad,
    }
    if staged_as(tensor) is None:
        described["note"] = f"there are no statistics of {tensor.layout} tensors of {tensor.dtype}"
    return described
