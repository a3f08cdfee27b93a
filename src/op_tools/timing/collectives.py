"""Times of collectives, taken where PyTorch dispatches them: DDP, FSDP and DTensor call theirs out of the tools' sight.

Whoever calls a collective, it becomes an op of the namespace c10d (c10d::allreduce_, …). While a tool listens, a kernel
of ours stands before each of these at a dispatch key where none has anything to do (ADInplaceOrView). It notes when the
collective begins, hands it on as it is, and has its future tell when it has ended.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from time import perf_counter_ns
from typing import Any, Callable

import torch

from op_tools.core import dynamo, graphs, where
from op_tools.core.call import OpCall
from op_tools.core.modes import with_modes_aside
from op_tools.core.steps import STEPS
from op_tools.device.queues import clock_of
from op_tools.output import messages
from op_tools.timing import signature
from op_tools.values import trees

MAX_PENDING = 4096  # collectives that have not ended; a program that never lets them end must not fill the memory

Wanted = Callable[[str], bool]  # whether calls of the op with this name are measured, now


class Collective:
    """One collective, from its call until it has ended."""

    __slots__ = ("began", "call", "clock", "device", "end", "ended", "host", "inputs", "start", "stream", "thread")

    def __init__(self, call: OpCall, inputs: str, device: torch.device) -> None:
        self.call = call
        self.inputs = inputs
        self.device = device
        clock = self.clock = clock_of(device)
        self.thread = get_ident()
        self.stream = 0 if clock is None else clock.stream_number()
        self.start = None if clock is None else clock.record()
        self.end: Any = None
        self.host = 0.0  # ms that the call itself took
        self.ended = 0
        self.began = perf_counter_ns()

    def note_end(self, _future: Any = None) -> None:
        """Called when the future is done.

        NCCL and its like are done once the device has been asked, and call from a stream that waits for the collective.
        gloo and its like are done when the data is there, and call from a thread of their own.
        """
        if self.clock is not None and get_ident() == self.thread and self.clock.stream_number() != self.stream:
            self.end = self.clock.record()
        self.ended = perf_counter_ns()

    def has_ended(self) -> bool:
        return self.ended > 0 and (self.end is None or bool(self.end.query()))

    def read(self) -> tuple[float, float]:
        """When it began and ended, in µs of the host's clock."""
        began, clock = self.began / 1e3, self.clock
        if clock is not None and self.end is not None:
            elapsed, moment = clock.read(self.start, self.end, began)
            return moment, moment + elapsed * 1e3
        if clock is not None:
            clock.give_back(self.start)
        return began, self.ended / 1e3


class TimedCollectives:
    """Those that one tool measures. Any thread may call one; one at a time takes what has ended."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._pending: deque[Collective] = deque()
        self._calls = threading.local()  # `.now`: the op of the program's that the tool is timing in this thread
        self._dropped = 0

    def start(self) -> None:
        _kernels.add(self)

    def stop(self) -> None:
        _kernels.remove(self)

    def enter(self, call: OpCall, is_shown: bool) -> None:
        """The program calls a collective by a Python function: what it becomes is measured in this call's name.

        `is_shown`: at once, so it is not measured until it has ended.
        """
        self._calls.now = [None if is_shown else call, False]

    def leave(self) -> bool:
        """Whether one was measured since."""
        now, self._calls.now = self._calls.now, None
        return bool(now[1])

    def not_seen(self) -> list[tuple[str, int, str]]:
        """What was not measured, for the tool's results."""
        found = []
        if self._dropped:
            found.append(("collectives", self._dropped, "they had not ended when the tool stopped"))
        if not _kernels.can_be_put and torch.distributed.is_available() and torch.distributed.is_initialized():
            found.append(("collectives that are called in C++, as DDP's are", 0, "it takes torch 2.4 or newer"))
        return found

    def begin(self, name: str, args: tuple[Any, ...]) -> Collective | None:
        """None for one that is not measured."""
        tensor = next(trees.tensors(args), None)
        if tensor is None or tensor.is_cpu or tensor.is_meta:
            return None
        now = getattr(self._calls, "now", None)
        if now is None:
            if not self._wanted(name):
                return None
            call = OpCall(name, _nothing, (), {}, where.here(), STEPS.current)
        elif now[0] is None:
            return None
        else:
            call = now[0].without_tensors()
        return Collective(call, signature.of_call(args, {}), tensor.device)

    def returned(self, collective: Collective, future: Any) -> None:
        collective.host = (perf_counter_ns() - collective.began) / 1e6
        now = getattr(self._calls, "now", None)
        if now is not None:
            now[1] = True
        future.add_done_callback(collective.note_end)
        self._pending.append(collective)
        if len(self._pending) > MAX_PENDING:
            self._pending.popleft()
            self._dropped += 1

    def take(self, everything: bool) -> Iterator[Collective]:
        """Those that have ended; everything: waits for the device, not for other processes."""
        pending = self._pending
        for _ in range(len(pending)):
            collective = pending[0]
            if everything and collective.end is not None:
                collective.end.synchronize()
            if not collective.has_ended():
                if not everything:
                    return
                self._dropped += 1
            pending.popleft()
            if collective.ended:
                yield collective


def _nothing() -> None:
    """Stands for a function that is C++."""


# -- the kernels -------------------------------------------------------------------------------------------------------

_KEY = "ADInplaceOrView"


class _Kernels:
    """Stand before all collectives while a tool listens."""

    def __init__(self) -> None:
        self._listeners: list[TimedCollectives] = []
        self._library: Any = None
        self._lock = threading.Lock()

    def add(self, listener: TimedCollectives) -> None:
        with self._lock:
            self._listeners.append(listener)
            if self._library is None and torch.distributed.is_available() and self.can_be_put:
                self._put()

    def remove(self, listener: TimedCollectives) -> None:
        with self._lock:
            if listener in self._listeners:
                self._listeners.remove(listener)
            if not self._listeners and self._library is not None:
                self._library._destroy()
                self._library = None

    @property
    def can_be_put(self) -> bool:
        return hasattr(torch._C, "_after_ADInplaceOrView_keyset") and hasattr(torch.distributed.Work, "unbox")

    def _put(self) -> None:
        below, work = torch._C._after_ADInplaceOrView_keyset, torch.distributed.Work.unbox
        self._library = torch.library.Library("c10d", "IMPL")
        for name in torch._C._dispatch_get_all_op_names():
            if name.startswith("c10d::") and torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU"):
                op = getattr(torch.ops.c10d, name[6:]).default
                self._library.impl(
                    name[6:], self._kernel(op, name.replace("::", "."), below, work), _KEY, with_keyset=True
                )

    def _kernel(self, op: Any, name: str, below: Any, unbox: Callable[[Any], Any]) -> Callable[..., Any]:
        listeners = self._listeners

        @dynamo.hidden
        def measured(keyset: Any, *args: Any) -> Any:
            begun = []
            if not graphs.is_capturing():
                for listener in list(listeners):
                    with _harmless():
                        collective = with_modes_aside(listener.begin, name, args)
                        if collective is not None:
                            begun.append((listener, collective))
            result = op.redispatch(keyset & below, *args)
            if begun:
                with _harmless():
                    work = result[-1] if isinstance(result, (tuple, list)) else result
                    future = _future(unbox(work))
                    for listener, collective in begun if future is not None else ():
                        listener.returned(collective, future)
            return result

        return measured


def _future(work: Any) -> Any:
    """None where the backend has none for this collective (gloo's send, for one)."""
    try:
        return work.get_future()
    except RuntimeError:
        return None


@contextmanager
def _harmless() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # noqa: BLE001  a tool's own failure never ends the user's run
        messages.complain_once("collectives", text=f"OpTimeMeasure could not measure a collective: {error!r}")


_kernels = _Kernels()
