"""Streams and events for a device without streams: all its work runs in the order of the program."""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

import torch

from ditorch.redirect.cuda.target import Target


class InOrderStream:
    """One of many names for the device's only queue: there is nothing to wait for between two of them."""

    def __init__(self, device: torch.device, index: int, stream_id: int, priority: int, event: type, wait: Any) -> None:
        self.device = device
        self.device_index = index
        self.stream_id = stream_id
        self.priority = priority
        self._event = event
        self._wait = wait

    @staticmethod
    def priority_range() -> tuple[int, int]:
        return (0, 0)

    @property
    def cuda_stream(self) -> int:
        """The number that stands for it outside PyTorch; 0 is the default stream's, as on CUDA."""
        return self.stream_id

    def wait_event(self, event: Any) -> None:
        pass

    def wait_stream(self, stream: Any) -> None:
        pass

    def record_event(self, event: Any = None) -> Any:
        event = self._event() if event is None else event
        event.record(self)
        return event

    def query(self) -> bool:
        return bool(self.record_event().query())

    def synchronize(self) -> None:
        self._wait()

    def __enter__(self) -> InOrderStream:
        self._context = torch.cuda.stream(self)  # type: ignore[arg-type]
        self._context.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._context.__exit__(*error)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, InOrderStream) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} stream_id={self.stream_id}>"

    def _key(self) -> tuple[int, int]:
        return self.device_index, self.stream_id


class Streams:
    """The streams of one device type, and which are current, for each thread."""

    def __init__(self, target: Target, event: type) -> None:
        self._target = target
        self._event = event
        self._numbers = itertools.count(1)
        self._chosen = threading.local()
        streams = self

        class Stream(InOrderStream):
            """A stream: on this device, another name for its only queue."""

            def __init__(self, device: Any = None, priority: int = 0, **others: Any) -> None:
                index = target.index(device)
                number = others.get("stream_id")
                number = next(streams._numbers) if number is None else number
                super().__init__(target.device(index), index, number, priority, event, streams.wait)

        self.kind = Stream

    def wait(self) -> None:
        torch.cuda.synchronize()

    def made(self, index: int, stream_id: int) -> InOrderStream:
        return self.kind(index, stream_id=stream_id)

    def default(self, index: int) -> InOrderStream:
        return self.made(index, 0)

    def current(self, index: int) -> InOrderStream:
        chosen: InOrderStream = vars(self._chosen).get(str(index)) or self.default(index)
        return chosen

    def choose(self, stream: InOrderStream) -> None:
        setattr(self._chosen, str(stream.device_index), stream)
        self._target.set(stream.device_index)


def host_event() -> type:
    """Events of a device that is done with its work when a call returns: they take the host's time."""

    class Event:
        """A moment of the host's clock."""

        def __init__(
            self,
            enable_timing: bool = False,
            blocking: bool = False,
            interprocess: bool = False,
            external: bool = False,
        ) -> None:
            self._timed = enable_timing
            self._recorded: int | None = None

        @property
        def cuda_event(self) -> int:
            """The number that stands for it outside PyTorch; 0 until it is recorded, as on CUDA."""
            return 0 if self._recorded is None else id(self)

        def record(self, stream: Any = None) -> None:
            self._recorded = time.perf_counter_ns()

        def wait(self, stream: Any = None) -> None:
            pass

        def query(self) -> bool:
            return True

        def synchronize(self) -> None:
            pass

        def elapsed_time(self, end_event: Event) -> float:
            if not (self._timed and end_event._timed):
                raise ValueError("Both events must be created with argument 'enable_timing=True'.")
            if self._recorded is None or end_event._recorded is None:
                raise ValueError("Both events must be recorded before calculating elapsed time.")
            return (end_event._recorded - self._recorded) / 1e6

    return Event


def queue_event(base: Any) -> type:
    """The device's own events, on its only queue: which stream is meant does not matter."""

    class Event(base):  # type: ignore[misc]
        def __init__(
            self,
            enable_timing: bool = False,
            blocking: bool = False,
            interprocess: bool = False,
            external: bool = False,
        ) -> None:
            super().__init__(enable_timing)

        def record(self, stream: Any = None) -> None:
            super().record()

        def wait(self, stream: Any = None) -> None:
            super().wait()

    return Event
