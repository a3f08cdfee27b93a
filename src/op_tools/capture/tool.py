"""OpCapture: saves the real inputs, outputs and gradients of every op call.

    OpCapture: 316 files of 79 calls, 820.4 MB in op_tools_results/op_capture_results

Files are written by threads of their own; training waits only where OP_CAPTURE_MEMORY is full of tensors that the
disk has not taken yet. `mode="statistics"` keeps a few numbers for each tensor instead, for long runs.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from ditorch_shared.collectives import is_collective
from op_tools import settings
from op_tools.capture.collectives import PendingCollectives, group_of
from op_tools.capture.copies import RecentCopies
from op_tools.capture.statistics import Statistics, running_backward
from op_tools.core.call import OpCall
from op_tools.core.gradients import Gradients
from op_tools.core.modes import with_modes_aside
from op_tools.core.tool import AnyTool, Tool
from op_tools.core.watcher import Kept, State
from op_tools.device import failure, tf32
from op_tools.device.host_memory import HostMemory
from op_tools.output import messages, paths, tables
from op_tools.output.results import Results
from op_tools.output.writer import Writer, spare_threads
from op_tools.storage import files
from op_tools.storage.snapshot import Taken, take
from op_tools.storage.store import Content, Files
from op_tools.values import trees


class Keeper(Protocol[State, Kept]):
    """What becomes of the calls, in one mode."""

    def before(self, call: OpCall) -> State | None: ...

    def after(self, call: OpCall, state: State) -> Kept: ...

    def flowed(self, call: OpCall, state: Kept, gradients: Gradients) -> None: ...

    def step_began(self) -> None: ...

    def close(self) -> str:
        """Writes what is left; returns the summary, which is empty where there was nothing."""
        ...

    def files(self) -> list[str]:
        """What was written: files, or the folder of many."""
        ...

    def facts(self) -> dict[str, Any]:
        """Other figures of the whole run."""
        ...


class OpCapture(Tool[object, object]):  # each mode has states of its own, which only its keeper looks into
    """Saves inputs, outputs, grad_inputs and grad_outputs of every op call, or statistics of them.

    `mode`: data or statistics (OP_CAPTURE_MODE); `memory`: bytes for tensors that are not written yet, a number or a
    text such as 512MB (OP_CAPTURE_MEMORY); `shards`: which modules' tensors ranks share, and how (OP_CAPTURE_SHARDS).
    """

    hook = "OpCaptureHook"
    prefix = "OP_CAPTURE"
    feature = "op_capture"
    watches_gradients = True

    def __init__(
        self, *, mode: str | None = None, memory: int | str | None = None, shards: str | None = None, **arguments: Any
    ) -> None:
        super().__init__(**arguments)
        self._shards = shards
        self._mode = mode
        self._memory = memory
        self._keeper: Keeper[Any, Any]
        self._collectives: PendingCollectives

    def started(self) -> None:
        mode = settings.argument("mode", self._mode, settings.CAPTURE_MODE)
        memory = settings.argument("memory", self._memory, settings.CAPTURE_MEMORY)
        self._calls: Counter[str] = Counter()
        self.sees_shards = mode == "statistics"
        cuts = settings.argument("shards", self._shards, settings.CAPTURE_SHARDS)
        self._keeper = Data(self, memory) if mode == "data" else Statistics(self, cuts)
        self._collectives = PendingCollectives()
        self._collectives.start()

    def collected(self) -> Results:
        """How many calls of each op were captured. `files`: the folder, or the files of statistics."""
        calls = self._calls.most_common()
        about = self._keeper.facts()
        return Results(
            "OpCapture", ("op", "calls"), calls, sum(self._calls.values()), files=self._keeper.files(), **about
        )

    def stopped(self) -> None:
        with_modes_aside(self._collectives.close)
        summary = with_modes_aside(self._keeper.close)
        if self.verbose >= 1 and summary:
            messages.say(summary)

    def abandon(self) -> None:
        super().abandon()
        self._collectives.leave()

    def step_began(self, step: int) -> None:
        with_modes_aside(self._keeper.step_began)

    def before(self, call: OpCall) -> object:
        return self._keeper.before(call)

    def after(self, call: OpCall, state: object) -> object:
        if state is None:
            return None
        self._calls[call.name] += 1
        if not is_collective(call.name):
            return self._keeper.after(call, state)
        self._collectives.returned(call, lambda completed: self._keeper.after(completed, state))
        return state

    def flowed(self, call: OpCall, state: object, gradients: Gradients) -> None:
        self._keeper.flowed(call, state, gradients)


class _Begun:
    """A call that is running. `inputs` until they are handed to the writer."""

    __slots__ = ("call", "described", "folder", "group", "inputs", "is_recomputed", "when")

    def __init__(self, call: OpCall, out: Path, inputs: Taken, described: tables.Described | None) -> None:
        self.call = call.without_tensors()
        self.when = paths.timestamp()
        self.folder = paths.OwnFolder(paths.capture_folder, out, call.name, call.id, self.when)
        self.inputs: Taken | None = inputs
        self.group = group_of(call) if is_collective(call.name) else {}
        self.described = described
        self.is_recomputed = running_backward() >= 0  # checkpointing computes it again


class Data:
    """Saves tensors."""

    def __init__(self, tool: AnyTool, memory: int) -> None:
        self._out = tool.out
        self._tells = tool.verbose == 2
        # one thread, where files are announced in order
        threads = 1 if self._tells else spare_threads()
        self._writer = Writer("OpCapture", threads, self._work_is_done, failure.is_noticed)
        self._memory = HostMemory(memory, self._writer.is_busy)
        self._copies = RecentCopies()
        self._files = Files()
        self._orders = itertools.count(1)  # in which parts of calls came, in backward, too

    def before(self, call: OpCall) -> _Begun | None:
        if self._writer.is_broken:
            return None
        described = tables.inputs(call) if self._tells else None
        begun = _Begun(call, self._out, take((call.args, call.kwargs), self._memory, self._copies, call), described)
        # at once: should the op end the program, its inputs are what one wants to see. A call without a tensor on a
        # device may turn out to be none of ours.
        if any(not tensor.is_cpu for tensor in trees.tensors((call.args, call.kwargs))):
            self._save_inputs(begun)
        return begun

    def after(self, call: OpCall, begun: _Begun) -> _Begun:
        self._save_inputs(begun)
        text = ""
        if begun.described is not None:
            text = f"{tables.heading(call)}\n{tables.arguments_table(call, begun.described)}\n\n\n\n"
            begun.described = None
        self._save(begun, {"output": take(((call.result,), {}), self._memory, self._copies, call)}, text)
        return begun

    def flowed(self, call: OpCall, begun: _Begun, gradients: Gradients) -> None:
        if self._writer.is_broken:
            return
        parts = {
            "grad_inputs": take((tuple(gradients.inputs), {}), self._memory),
            "grad_outputs": take((tuple(gradients.outputs), {}), self._memory),
        }
        text = ""
        if self._tells:
            table = tables.gradients_table(call.name, gradients.outputs, gradients.inputs)
            text = f"{tables.heading(call)}\n{table}\n\n\n\n"
        self._save(begun, parts, text)

    def step_began(self) -> None:
        """Nothing waits for it."""

    def close(self) -> str:
        self._writer.close()
        self._memory = HostMemory(0, self._writer.is_busy)
        if not self._files.count and not self._writer.dropped:
            return ""
        linked = f", {self._files.linked} of them links to equal ones" if self._files.linked else ""
        lost = f"; {self._writer.dropped} parts could not be written" if self._writer.dropped else ""
        written = f"{self._files.count} files of {self._files.calls} calls{linked}, {files.in_words(self._files.bytes)}"
        return f"OpCapture: {written} in {paths.shown(paths.capture_root(self._out))}{lost}"

    def files(self) -> list[str]:
        return [str(paths.capture_root(self._out))] if self._files.count else []

    def facts(self) -> dict[str, Any]:
        return {}

    def _save_inputs(self, begun: _Begun) -> None:
        if begun.inputs is not None:
            self._save(begun, {"input": begun.inputs}, "")
            begun.inputs = None

    def _save(self, begun: _Begun, parts: dict[str, Taken], text: str) -> None:
        self._writer.add(partial(self._write, begun, next(self._orders), parts, text))

    # -- in a writer's thread -----------------------------------------------------------------------------------------

    def _write(self, begun: _Begun, order: int, parts: dict[str, Taken], text: str) -> None:
        call, folder = begun.call, str(begun.folder.path())
        about: dict[str, Any] = {"recomputed": True} if begun.is_recomputed else {}
        if narrow := tf32.allowed():
            about["tf32"] = narrow
        details = {**call.details(), "order": order, **about, **begun.group}
        for part, taken in parts.items():
            identifier = f"{os.getpid()}/{call.id}/{begun.when}/{part}"
            path = self._files.write(folder, Content(part, call.name, identifier, taken, details))
            if self._tells:
                messages.say(f"{paths.shown(path)} saved")
        if text:
            messages.say(text)

    def _work_is_done(self) -> None:
        self._memory.look_again()
