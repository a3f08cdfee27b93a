"""What a collective gave. It returns nothing, or a handle, and writes into its arguments once the others are there.

So its arguments are looked at again when it has completed: when it returns, or, where it was begun with async_op=True,
when the program has waited for it. The tool does not wait in the program's place: another process may first need
something else of this one.
"""

from __future__ import annotations

import inspect
import threading
from collections import OrderedDict
from typing import Any, Callable

import torch

from op_tools.core import dynamo
from op_tools.core.call import OpCall
from op_tools.core.modes import with_modes_aside
from op_tools.output import messages
from op_tools.values import trees

MAX_PENDING = 64  # collectives that the program has not waited for
MAX_PENDING_RESULTS = 8  # of functional ones, whose results are held meanwhile

Finish = Callable[[OpCall], None]  # takes a call whose `result` is what the collective gave
_is_available = torch.distributed.is_available()


def group_of(call: OpCall) -> dict[str, Any]:
    """The group of processes that take part, for the JSON."""
    distributed = torch.distributed
    if not _is_available or not distributed.is_initialized():
        return {}
    values = (*call.args, *call.kwargs.values())
    group = next((value for value in values if isinstance(value, distributed.ProcessGroup)), None)
    if group is None and is_functional(call.name):
        group = next(filter(None, (_group_named(value) for value in values if isinstance(value, str))), None)
    group = distributed.group.WORLD if group is None else group
    name = getattr(group, "group_desc", "") or getattr(group, "group_name", "")
    return {"group": str(name), "ranks": distributed.get_process_group_ranks(group)}


def _group_named(name: str) -> Any:
    resolve = getattr(torch.distributed.distributed_c10d, "_resolve_process_group", None)
    try:
        return None if resolve is None else resolve(name)
    except Exception:  # noqa: BLE001  a text that names no group, such as "sum"
        return None


def is_functional(name: str) -> bool:
    """Whether it returns a new tensor, which is there after `wait_tensor`."""
    return name.startswith(("_c10d_functional", "c10d_functional"))


class PendingCollectives:
    """Calls that have returned and not completed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._works: OrderedDict[int, tuple[Any, OpCall, Finish]] = OrderedDict()
        self._results: OrderedDict[int, tuple[OpCall, Finish]] = OrderedDict()

    def start(self) -> None:
        if _is_available:
            _waits.listen(self)

    def leave(self) -> None:
        """Hears nothing more."""
        if _is_available:
            _waits.leave(self)

    def returned(self, call: OpCall, finish: Finish) -> None:
        """When the call has returned: finishes it now, or when it has completed."""
        if is_functional(call.name):
            self._functional_returned(call, finish)
        elif call.result is None:
            finish(_gave(call))
        elif _is_available and isinstance(call.result, torch.distributed.Work):
            with self._lock:
                self._works[id(call.result)] = (call.result, _gave(call), finish)
                dropped = self._works.popitem(last=False) if len(self._works) > MAX_PENDING else None
            if dropped is not None:
                _say_dropped(dropped[1][1])
        else:
            finish(call)

    def waited(self, work: Any) -> None:
        """The program has waited for this one."""
        with self._lock:
            _, call, finish = self._works.pop(id(work), (None, None, None))
        if call is not None and finish is not None:
            with_modes_aside(finish, call)

    def close(self) -> None:
        """What is left is taken as it is, where it has completed."""
        self.leave()
        works, self._works = self._works, OrderedDict()
        for work, call, finish in works.values():
            if work.is_completed():
                finish(call)
            else:
                _say_dropped(call)
        while self._results:
            self._finish_oldest()

    def _functional_returned(self, call: OpCall, finish: Finish) -> None:
        if "wait_tensor" in call.name:
            for tensor in trees.tensors(call.args):
                with self._lock:
                    begun = self._results.pop(tensor.data_ptr(), None)
                if begun is not None:
                    begun[1](begun[0])
            finish(call)
            return
        first = next(trees.tensors(call.result), None)
        if first is None:
            finish(call)
            return
        kept = call.without_tensors()
        kept.result = call.result
        with self._lock:
            self._results[first.data_ptr()] = (kept, finish)
        if len(self._results) > MAX_PENDING_RESULTS:
            self._finish_oldest()

    def _finish_oldest(self) -> None:
        """The program has surely waited for it by now, in C++ or inside of a tensor subclass, where it is not seen."""
        with self._lock:
            _, (call, finish) = self._results.popitem(last=False)
        wait = getattr(torch.ops, call.name.partition(".")[0]).wait_tensor
        for tensor in trees.tensors(call.result):
            wait(tensor)
        finish(call)


def _gave(call: OpCall) -> OpCall:
    """The call with the arguments that it may have written into as its result, by their names."""
    try:
        named = dict(inspect.signature(call.func).bind(*call.args, **call.kwargs).arguments)
    except (TypeError, ValueError):
        named = {**{str(number): value for number, value in enumerate(call.args)}, **call.kwargs}
    kept = call.without_tensors()
    kept.result = {
        name: value
        for name, value in named.items()
        if not name.startswith("input") and next(trees.tensors(value), None) is not None
    }
    return kept


def _say_dropped(call: OpCall) -> None:
    messages.complain_once(
        "collective",
        call.name,
        text=f"OpCapture: the program has not waited for {call.name} ({call.where.line()}): what it gave is not saved",
    )


class _Waits:
    """Tells who listens when the program has waited for a collective."""

    def __init__(self) -> None:
        self._listeners: list[PendingCollectives] = []
        self._kind: Any = None
        self._original: Any = None

    def listen(self, listener: PendingCollectives) -> None:
        if not self._listeners:
            self._kind = torch.distributed.Work
            self._put(self._kind)
        self._listeners.append(listener)

    def leave(self, listener: PendingCollectives) -> None:
        if listener in self._listeners:
            self._listeners.remove(listener)
            if not self._listeners:
                self._kind.wait = self._original

    def _put(self, kind: Any) -> None:
        original = self._original = kind.__dict__["wait"]

        @dynamo.hidden
        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            answer = original(work, *args, **kwargs)
            for listener in list(self._listeners):
                try:
                    listener.waited(work)
                except Exception as error:  # noqa: BLE001  a tool's own failure never ends the user's run
                    messages.complain_once("waited", text=f"OpCapture could not save a collective: {error}")
            return answer

        kind.wait = wait


_waits = _Waits()
