"""Many tensors looked at together, later, on their device: nobody waits for the numbers.

A batch gathers what is to be looked at in one stream. When it is full it is launched: the device computes the batch's
numbers, behind the work that makes the tensors, and copies them to the host behind an event. They are read when they
have come, or when somebody must know. What is computed is up to the consumer: the first look of OpAutoCompare, the
largest values of OpOverflowCheck, the digests of OpCapture's statistics.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Callable, Generic, TypeVar

import torch
from torch import Tensor

from op_tools.device.events import queue_of

OUT_OF_MEMORY: type[BaseException] = getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)


@contextlib.contextmanager
def _modes_aside() -> Iterator[None]:
    with torch.inference_mode(False), torch.no_grad(), torch._C._DisableAutocast():
        yield


class Batch:
    """What is looked at together, in the stream that was current when the batch was made."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.is_launched = False
        self._queue = queue_of(device)
        self._stream = 0 if self._queue is None else self._queue.stream_number()
        self._enter_stream = contextlib.nullcontext if self._queue is None else self._queue.this_stream()
        self._event: Any = None
        self._numbers: Sequence[Tensor] | None = None

    def look(self) -> Sequence[Tensor]:
        """Has the device compute the numbers; nobody waits for it."""
        raise NotImplementedError

    def suits(self, device: torch.device) -> bool:
        """Whether what the current stream of `device` makes can be added."""
        return device == self.device and (self._queue is None or self._queue.stream_number() == self._stream)

    def launch(self) -> None:
        """Lets the device look. Where its memory does not suffice, there will be no numbers."""
        self.is_launched = True
        with self._enter_stream(), _modes_aside(), contextlib.suppress(OUT_OF_MEMORY):
            numbers = self.look()
            if self._queue is None:
                self._numbers = numbers  # without events, a copy that is on its way could be read too early
            else:
                copies = [one.to("cpu", non_blocking=True) for one in numbers]
                self._event = self._queue.record()
                self._numbers = copies

    def is_ready(self) -> bool:
        """Whether `numbers` need not wait. Where the device has no events to ask, nobody knows."""
        return self._event is None or bool(self._event.query())

    def numbers(self) -> Sequence[Tensor] | None:
        """What was found, once, waiting if need be; None where the device's memory did not suffice."""
        event, numbers = self._event, self._numbers
        self._event = self._numbers = None
        if event is not None and self._queue is not None:
            self._queue.wait(event)
            return numbers
        return None if numbers is None else [one.cpu() for one in numbers]


SomeBatch = TypeVar("SomeBatch", bound=Batch)


class Deferred(Generic[SomeBatch]):
    """One batch that is filled, and those whose numbers are on their way. Answers are given in their order.

    Any thread may add: backward has one of its own. `answer` is called without the lock: it may run a backward pass, in
    autograd's thread, which may be waiting to add something.
    """

    def __init__(self, answer: Callable[[SomeBatch], None], max_unread: int) -> None:
        self._answer = answer
        self._max_unread = max_unread  # batches; a device so far behind is waited for
        self.lock = threading.RLock()
        self.current: SomeBatch | None = None
        self.unread: deque[SomeBatch] = deque()

    def launch(self, batch: SomeBatch | None = None) -> None:
        """Lets the device look at the current batch, or at one beside it."""
        with self.lock:
            if batch is None:
                batch, self.current = self.current, None
            if batch is not None:
                self.unread.append(batch)
                batch.launch()

    def read(self, wait: bool) -> None:
        """Gives the answers that have come; `wait`: all of them."""
        while True:
            with self.lock:
                unread = self.unread
                if not unread or not (wait or len(unread) > self._max_unread or unread[0].is_ready()):
                    return
                batch = unread.popleft()
            self._answer(batch)
