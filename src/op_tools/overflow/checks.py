"""Looks at what op calls make: many tensors at once, on the device, answers read when they have come.

Calls are gathered in a window. When it is full, or an op is about to change something in place, the device looks at all
that they have made. A call that has made NaN or Inf is a suspect, unless it was given some that are known already: then
the device looks at its inputs, in the same way, and only then is it judged. So a healthy run costs one look at each
result, and calls are judged in the order in which they ran.

Until then the calls are held with their tensors, up to a limit of bytes.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from operator import is_
from typing import Any, Callable

import torch
from torch import Tensor

from op_tools.core.call import OpCall
from op_tools.overflow.finite import CHECKED, Batch, all_can_be_checked, can_be_checked, is_intact
from op_tools.overflow.intent import Intent, written_down
from op_tools.overflow.memory import MOST_REMEMBERED, Lists, Memory, Together
from op_tools.values import trees
from op_tools.values.tensors import FEW, size_of, state_of, tensors_in, version_of, versions_of

_MOST_UNREAD = 64  # windows; a device so far behind is waited for
_SHARE_OF_MEMORY = 1 / 100  # of the device's memory may be held until answers have come
_LEAST_BYTES = 64 * 2**20


def worse(one: float, other: float) -> float:
    """Of the largest absolute values of two tensors: NaN before infinity before numbers."""
    return one if math.isnan(one) else other if math.isnan(other) else max(one, other)


def is_made(made: float, given: float) -> bool:
    """NaN is made where there was none, an infinity where there were only numbers; else they are carried on."""
    return not math.isnan(given) if math.isnan(made) else math.isfinite(given)


class Flow:
    """What is kept of a call until its gradients flow."""

    __slots__ = ("inputs", "intent", "worst")

    def __init__(self, intent: Intent, inputs: Any) -> None:
        self.intent = intent
        self.inputs = inputs  # where they are to be saved
        self.worst = 0.0  # of what it made: NaN or infinity, when that is known


class Record:
    """One op call, forward or backward, that waits for what the device finds in its tensors."""

    # most calls have nothing of this
    changed: tuple[Any, ...] = ()  # inputs that it changed
    is_silent = False  # and nobody counted that
    gradients: tuple[list[Any], list[Any], list[Any]] | None = None  # of outputs, of inputs, and what is new of these
    flow: Flow | None = None
    inputs: Any = None  # as they were, with their versions, where they are to be saved
    versions: Sequence[int | None] = ()  # of its input tensors
    size = 0  # of these, in bytes
    together: Together | None = None  # what was known of a list that it changed
    _references: list[Any] | None = None
    start = stop = 0  # its tensors in a batch
    # when it is judged
    made = 0.0
    made_versions: list[int | None] = []  # noqa: RUF012  replaced, never changed
    given = 0.0
    is_fresh = False  # no call is known to have made what it was given

    def __init__(self, call: OpCall, intent: Intent) -> None:
        self.call = call
        self.intent = intent

    def results(self) -> list[Tensor | None]:
        """What it made, in the order of the batch; None for what is no longer there."""
        if self._references is not None:
            return [reference() for reference in self._references]
        made = self._made() if self.gradients is None else self.gradients[2]
        checked = [one for one in made if can_be_checked(one)]
        return [one for one in checked if one.device == checked[0].device]

    def _made(self) -> Sequence[Tensor]:
        return made_by(tensors_in((self.call.result,)), self.changed)

    def given_tensors(self) -> Iterator[tuple[Tensor, int | None]]:
        """What it was given, as far as it is there, with the versions that it had."""
        if self.gradients is not None:
            for one in self.gradients[0]:
                tensor = there(one)
                if tensor is not None:
                    yield tensor, version_of(tensor)
            return
        call = self.call
        without: set[int] = set()
        if self.intent.overwrites and call.args:
            without.update(id(there(one)) for _, one in trees.leaves(call.args[0]))
        if "out" in call.kwargs:
            without.update(id(there(one)) for _, one in trees.leaves(call.kwargs["out"]))
        versions = iter(self.versions)
        for _, value in trees.leaves([*call.args, call.kwargs]):
            if isinstance(value, (Tensor, weakref.ref)):
                tensor, version = there(value), next(versions, None)
                if tensor is not None and id(tensor) not in without:
                    yield tensor, version

    def let_go(self) -> None:
        """Holds no tensor on the device any longer. What somebody else holds can still be found."""
        self._references = [weakref.ref(one) for one in self.results() if one is not None]
        call, self.call = self.call, self.call.without_tensors()
        self.call.args = trees.map_tensors(_reference, call.args)
        self.call.kwargs = trees.map_tensors(_reference, call.kwargs)
        self.call.result = trees.map_tensors(_reference, call.result)
        self.changed = tuple(map(_reference, self.changed))
        self.gradients = trees.map_tensors(_reference, self.gradients)


def _reference(tensor: Tensor) -> Any:
    return tensor if tensor.is_cpu else weakref.ref(tensor)


def there(value: Any) -> Any:
    """A tensor that was let go, or None where it is gone; anything else as it is."""
    return value() if isinstance(value, weakref.ref) else value


def made_by(results: Sequence[Tensor], changed: tuple[Any, ...]) -> Sequence[Tensor]:
    """Results, and inputs that were changed and not returned. `changed` itself, where that is all."""
    if not results or (len(results) == len(changed) and all(map(is_, results, changed))):
        return changed
    returned = set(map(id, results))
    return [*results, *(one for one in changed if id(one) not in returned)]


class Window:
    """Calls whose tensors are looked at together."""

    def __init__(self, device: torch.device, backward: bool, is_second: bool = False) -> None:
        self.batch = Batch(device)
        self.backward = backward
        self.is_second = is_second  # a look at the inputs of suspects
        self.records: list[Record] = []
        self.before: list[tuple[int, weakref.ref[Tensor]]] = []  # inputs about to be changed, in the batch
        self.bytes = 0
        self.limit = _limit(device)
        self.holds = True

    def let_go(self) -> None:
        self.holds = False
        for record in self.records:
            record.let_go()


class Checks:
    """Not for several threads at once: the tool has a lock. `seen` is called for every call, where it is given."""

    def __init__(
        self, judge: Callable[[Record], None], seen: Callable[[Record], None] | None, most_calls: int, patient: bool
    ) -> None:
        self._judge = judge
        self._seen = seen
        self._most_calls = most_calls  # in a window
        self._patient = patient  # waits for each window's answers: nothing is gone or changed by then
        self._window: Window | None = None
        self._unread: deque[Window] = deque()
        self._bad = Memory()  # tensors that hold NaN or infinities
        self._written = Memory()  # tensors that were changed in place, and looked at since
        self._written_lists = Lists()
        self._written_silently: dict[int, int] = {}  # id of a tensor: the last call that did it

    # -- at each call -------------------------------------------------------------------------------------------------

    def add(self, record: Record, made: Sequence[Tensor], backward: bool = False) -> None:
        """A call that has run, and what it made."""
        window, size = None, record.size
        state = state_of(made)
        if state is None and len(made) > FEW and all_can_be_checked(made):
            state = versions_of(made), sum(map(size_of, made)), made[0].dtype
        if state is not None and state[2] in CHECKED:
            window = self._window_for(made[0].device, backward)
            record.start = len(window.batch.tensors)
            window.batch.add_all(made, state[0])
            size += state[1]
        else:
            for tensor in made:
                if not can_be_checked(tensor):
                    continue
                if window is None:
                    window = self._window_for(tensor.device, backward)
                    record.start = len(window.batch.tensors)
                elif tensor.device != window.batch.device:
                    continue
                window.batch.add(tensor)
                size += tensor.nbytes
        if window is None:
            if self._seen is not None:
                self._seen(record)
            return
        record.stop = len(window.batch.tensors)
        window.records.append(record)
        window.bytes += size
        if record.changed:
            versions = state[0] if state is not None and made is record.changed else versions_of(record.changed)
            self._has_changed(record, versions, window.batch)
        if len(window.records) >= self._most_calls or window.bytes > window.limit:
            self.flush()

    def will_change(self, targets: list[Tensor], matters: bool) -> Together | None:
        """Before a call changes tensors: what it could reach is looked at, and what they hold, if that `matters`.

        What is known of them together comes back.
        """
        state = state_of(targets)
        versions = versions_of(targets) if state is None else state[0]
        together = self._written_lists.get(targets, versions) if len(targets) > FEW else None
        if together is not None:
            if self._patient or together.can_be_reached():
                self.flush()
            return together
        reaches = self._patient  # an input of a call that is yet to be judged
        unknown = targets
        if not self._written.has_none_of(targets):
            unknown = []
            for tensor, version in zip(targets, versions):
                known = self._written.get(tensor, version)
                if known is None:
                    unknown.append(tensor)
                elif known.can_be_reached():
                    reaches = True
        if state is None or state[2] not in CHECKED:
            unknown = [tensor for tensor in unknown if can_be_checked(tensor)]
        if matters and unknown:
            self._look_before_change(unknown)
        if reaches or unknown:
            self.flush()
        return None

    def _look_before_change(self, tensors: list[Tensor]) -> None:
        """What was made in this window is looked at anyway."""
        made = set() if self._window is None else set(map(id, self._window.batch.tensors))
        for tensor in tensors:
            if id(tensor) not in made:
                window = self._window_for(tensor.device, False)
                window.before.append((len(window.batch.tensors), weakref.ref(tensor)))
                window.batch.add(tensor)

    def flush(self) -> None:
        """Sends what has been gathered to the device, and judges what has come back."""
        window, self._window = self._window, None
        if window is not None:
            self._send(window)
        self.read(wait=self._patient)

    def read(self, wait: bool) -> None:
        """Goes through the calls whose answers are there; `wait`: through all."""
        unread = self._unread
        while unread and (wait or len(unread) > _MOST_UNREAD or unread[0].batch.is_ready()):
            window = unread.popleft()
            is_finite = window.batch.read()
            if window.is_second:
                for record in window.records:
                    self._resolve(record, window.batch)
            elif not is_finite or self._seen is not None:
                self._go_through(window)
            elif self._bad:
                for record in window.records:
                    if record.is_silent:
                        self._is_good_again(record)

    def _has_changed(self, record: Record, versions: list[int | None], batch: Batch) -> None:
        if len(versions) > FEW and not record.is_silent:
            self._written_lists.put(record.changed, versions, batch, record.together)
            return
        for tensor, version in zip(record.changed, versions):
            self._written.put(tensor, version, batch)
            if record.is_silent:
                if len(self._written_silently) >= MOST_REMEMBERED:
                    self._written_silently.clear()
                self._written_silently[id(tensor)] = record.call.id

    def _window_for(self, device: torch.device, backward: bool) -> Window:
        window = self._window
        if window is not None:
            # gradients that are summed up in place next time must have been looked at by then
            if window.backward is backward and window.batch.suits(device):
                return window
            self.flush()
        window = self._window = Window(device, backward)
        return window

    def _send(self, window: Window) -> None:
        self._unread.append(window)
        window.batch.launch()
        held = sum(one.bytes for one in self._unread if one.holds)
        for one in self._unread:
            if held <= window.limit or self._patient:
                return
            if one.holds:
                held -= one.bytes
                one.let_go()

    # -- what has come back -------------------------------------------------------------------------------------------

    def _go_through(self, window: Window) -> None:
        batch = window.batch
        for index, reference in window.before:
            tensor = reference()
            if tensor is not None and not math.isfinite(batch.value(index)):
                self._bad.put(tensor, batch.versions[index], value=batch.value(index))
        suspects = []
        for record in window.records:
            if self._seen is not None:
                self._seen(record)
            if self._is_suspect(record, batch):
                suspects.append(record)
        if suspects:
            self._look_at_inputs(suspects, batch.device)

    def _is_suspect(self, record: Record, batch: Batch) -> bool:
        """True where a call has made NaN or Inf, and was given none that is known of."""
        values = [batch.value(index) for index in range(record.start, record.stop)]
        for value in values:
            record.made = worse(record.made, value)
        if math.isfinite(record.made):
            if record.is_silent:
                self._is_good_again(record)
            return False
        record.given = self._known_given(record)
        record.made_versions = batch.versions[record.start : record.stop]
        for tensor, value, version in zip(record.results(), values, record.made_versions):
            if tensor is not None and not math.isfinite(value):
                self._bad.put(tensor, version, value=value)
        if record.gradients is None and record.flow is not None:
            record.flow.worst = record.made
        return is_made(record.made, record.given)

    def _known_given(self, record: Record) -> float:
        if record.gradients is not None:
            return 0.0 if record.flow is None else record.flow.worst
        given = 0.0
        if not record.intent.brings_data:
            given = written_down(value for _, value in trees.arguments(record.call.args, record.call.kwargs))
        if self._bad:
            for tensor, version in record.given_tensors():
                known = self._bad.get(tensor, version)
                given = given if known is None else worse(given, known.value)
        return given

    def _look_at_inputs(self, suspects: list[Record], device: torch.device) -> None:
        window = Window(device, False, is_second=True)
        window.records = suspects
        for record in suspects:
            record.start = len(window.batch.tensors)
            for tensor, version in record.given_tensors():
                if can_be_checked(tensor) and tensor.device == device and self._is_as_given(tensor, version, record):
                    window.batch.add(tensor)
            record.stop = len(window.batch.tensors)
        self._send(window)

    def _is_as_given(self, tensor: Tensor, version: int | None, record: Record) -> bool:
        is_silent = self._written_silently.get(id(tensor), 0) >= record.call.id
        return not is_silent and is_intact(tensor, version)

    def _resolve(self, record: Record, batch: Batch) -> None:
        """Everything is known of a suspect now."""
        found = 0.0
        for index in range(record.start, record.stop):
            found = worse(found, batch.value(index))
        if not record.is_silent:
            record.given = worse(record.given, self._known_given(record))
        record.is_fresh = not math.isfinite(found) and is_made(found, record.given)
        record.given = worse(record.given, found)
        self._judge(record)

    def _is_good_again(self, record: Record) -> None:
        for one in record.changed:
            self._bad.forget(there(one))


_limits: dict[torch.device, int] = {}


def _limit(device: torch.device) -> int:
    """Bytes that may be held until answers have come."""
    limit = _limits.get(device)
    if limit is None:
        try:
            module: Any = getattr(torch, device.type)
            memory = int(module.get_device_properties(device).total_memory)
        except Exception:  # noqa: BLE001  a backend may not tell, and may say so in any way
            memory = 0
        limit = _limits[device] = max(int(memory * _SHARE_OF_MEMORY), _LEAST_BYTES)
    return limit
