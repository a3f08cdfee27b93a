"""What OpCapture keeps in the mode "statistics": a few numbers for each tensor, in files that pack.read reads."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from op_tools.capture.notes import noter
from op_tools.core.call import OpCall
from op_tools.core.gradients import Gradients
from op_tools.core.tool import AnyTool
from op_tools.device import digest, failure
from op_tools.device.digests import Stage, grouped
from op_tools.device.queues import stream_number
from op_tools.output import messages, paths, process, tables
from op_tools.output.writer import Writer
from op_tools.storage import files
from op_tools.storage.pack import Pack
from op_tools.values import trees

_LARGEST_FILE = 256 * 2**20
_MOST_SITES = 100_000  # places in the program; shapes that change at every step would fill the memory
_LONGEST = 0.25  # seconds that a step's records wait to be written
_NOTHING: dict[str, Any] = {}


class _Site:
    """Tensors as they come at one place in the program: their description, and how they are digested."""

    __slots__ = ("groups", "left_out", "number")

    def __init__(self, number: int, tensors: list[Tensor]) -> None:
        self.number = number  # of the description in the file
        self.left_out = [number for number, tensor in enumerate(tensors) if not digest.has_digest(tensor)]
        self.groups = list(grouped(tensors))


_Label = tuple[int, int, int, int]  # description, forward_id, step, order


class Statistics:
    """Digests tensors on their device, and writes what is then known about them."""

    def __init__(self, tool: AnyTool) -> None:
        self._out = tool.out
        self._tells = tool.verbose == 2
        self._writer = Writer("OpCapture", is_excused=failure.is_noticed)
        self._lock = threading.Lock()
        self._note = noter()
        self._stages: dict[tuple[torch.device, int], Stage] = {}  # by stream
        self._sites: dict[Any, _Site] = {}
        self._calls = 0
        self._order = 0  # in which inputs, outputs and gradients were seen
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
        if time.monotonic() - self._flushed > _LONGEST:
            with self._lock:
                self._flush()

    def close(self) -> str:
        with failure.tolerated(), self._lock:
            self._flush()
            self._stages.clear()
        self._writer.close()
        self._end_file()
        if not self._records and not self._writer.dropped:
            return ""
        lost = "; some could not be written" if self._writer.dropped else ""
        number = "1 file" if len(self._files) == 1 else f"{len(self._files)} files"
        written = f"statistics of {self._records} tensors in {self._calls} calls, {files.in_words(self._bytes)}"
        return f"OpCapture: {written} in {number} in {paths.capture_root(self._out)}{lost}"

    def files(self) -> list[str]:
        return self._files

    # -- at the call --------------------------------------------------------------------------------------------------

    def _add(self, call: OpCall, part: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        key, tensors, addresses = self._note(args, kwargs)
        # without a tensor on a device among its arguments, this may turn out to be no call of ours
        if not tensors or (part == "input" and tensors[0].is_cpu and all(tensor.is_cpu for tensor in tensors)):
            return
        with_gradients = torch.is_grad_enabled()
        with self._lock:
            torch._C._set_grad_enabled(False)  # as torch.no_grad does, at a third of the price
            try:
                if self._is_full or len(self._sites) >= _MOST_SITES:
                    self._begin_next_file()
                place = (call.name, part, call.where.line(), call.where.module, key)
                site = self._sites.get(place)
                if site is None:
                    site = self._sites[place] = _Site(len(self._sites), tensors)
                    self._writer.add(partial(self._describe, _description(call, part, args, kwargs)))
                self._order += 1
                self._digest(site, tensors, addresses, (site.number, call.id, call.step, self._order))
            finally:
                torch._C._set_grad_enabled(with_gradients)

    def _digest(self, site: _Site, tensors: list[Tensor], addresses: bytes | None, label: _Label) -> None:
        for group in site.groups:
            key = (group.device, stream_number(group.device))
            stage = self._stages.get(key)
            if stage is None:
                stage = self._stages[key] = Stage(group.device, self._writer, self._write)
            stage.add(tensors, group, label, addresses)
        if site.left_out:
            numels = [tensors[number].numel() for number in site.left_out]
            self._writer.add(partial(self._write_without_numbers, label, site.left_out, numels))

    def _flush(self) -> None:
        """Has everything written that was seen until now."""
        self._flushed = time.monotonic()
        for stage in self._stages.values():
            try:
                stage.flush()
            except Exception as error:  # noqa: BLE001  the device may be out of memory, and training goes on
                reason = str(error).partition("\n")[0]
                messages.complain_once("digests", text=f"OpCapture lost some statistics: {reason}; training goes on")

    def _begin_next_file(self) -> None:
        self._flush()
        self._sites.clear()
        self._is_full = False
        self._writer.add(self._end_file)

    # -- in the writer's thread ---------------------------------------------------------------------------------------

    def _file(self) -> Pack:
        if self._pack is None:
            head = {**process.identity(), "torch": torch.__version__}
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

    def _describe(self, description: dict[str, Any]) -> None:
        self._file().describe(description)

    def _write(self, labels: list[tuple[_Label, list[int]]], lines: Tensor) -> None:
        numbers = [number for _, numbers in labels for number in numbers]
        times = torch.tensor([len(numbers) for _, numbers in labels], dtype=torch.int64, device="cpu")
        spread = torch.tensor([label for label, _ in labels], dtype=torch.int64, device="cpu").repeat_interleave(
            times, 0
        )
        self._write_lines(spread, numbers, lines)

    def _write_without_numbers(self, label: _Label, numbers: list[int], numels: list[int]) -> None:
        labels = torch.tensor([label], dtype=torch.int64, device="cpu").expand(len(numbers), -1)
        lines = torch.full((len(numels), digest.LINE), math.nan, dtype=torch.float64, device="cpu").view(torch.int64)
        lines[:, :4] = 0
        lines[:, 0] = torch.tensor(numels, dtype=torch.int64, device="cpu")
        self._write_lines(labels, numbers, lines)

    def _write_lines(self, labels: Tensor, numbers: list[int], lines: Tensor) -> None:
        pack = self._file()
        places = torch.tensor(numbers, dtype=torch.int64, device="cpu")[:, None]
        pack.add(torch.cat([labels, places, lines[:, :-1]], 1))  # without the probe
        self._is_full = self._is_full or pack.length >= _LARGEST_FILE


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
    if not digest.has_digest(tensor):
        described["note"] = f"there are no statistics of {tensor.layout} tensors of {tensor.dtype}"
    return described
