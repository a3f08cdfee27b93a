"""A trace file that Chrome and Perfetto open: one track per thread of the host, one per stream of a device."""

from __future__ import annotations

import json
import os
import threading
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

from op_tools.output import messages, paths, process

EVENTS_PER_WRITE = 2000  # events before they are written out


@lru_cache(maxsize=10_000)
def _beginning(name: str, category: str, track: str) -> str:
    return f'{{"name":{json.dumps(name)},"cat":"{category}","ph":"X",{track},"ts":'


@lru_cache(maxsize=10_000)
def _quoted(text: str) -> str:
    return json.dumps(text)


class TraceFile:
    """Grows while the program runs. A killed process leaves a list without its end, which the viewers accept.

    After `most` events there is no more: the viewers could not open what would follow.
    """

    def __init__(self, path: Path, most: int) -> None:
        self.path = path
        self._most = most
        self._lines: list[str | bytes] = []
        self._more = 0  # events, where a line of `_lines` is several
        self._tracks: dict[Any, str] = {}
        self._devices: dict[str, int] = {}
        self._written = 0
        self.ended = most == 0
        self._failed = False

    @property
    def written(self) -> bool:
        """True where there is a file to point the user to."""
        return self._written > 0 and not self._failed

    def thread(self, identity: int) -> str:
        """The track of a thread."""
        track = self._tracks.get(identity)
        if track is None:
            number = len(self._tracks) + 1
            # autograd's threads are not Python's; one that asked for its own name there has got a dummy
            threads = [one for one in threading.enumerate() if not isinstance(one, threading._DummyThread)]
            names = {thread.ident: thread.name for thread in threads}
            name = names.get(identity, f"autograd {number}")
            track = self._new_track(identity, os.getpid(), "host", number, name)
        return track

    def stream(self, device: str, stream: int) -> str:
        """The track of a device's stream."""
        return self._of_device(device, f"stream {stream}")

    def collectives(self, device: str) -> str:
        """The track of what a device and those of other processes do together."""
        return self._of_device(device, "collectives")

    def _of_device(self, device: str, name: str) -> str:
        key = (device, name)
        track = self._tracks.get(key)
        if track is None:
            process_id = self._devices.setdefault(device, len(self._devices))
            track = self._new_track(key, process_id, device, len(self._tracks) + 1, name)
        return track

    @staticmethod
    def notes(forward_id: int, module: str) -> str:
        """What the viewer shows beside an event of this call."""
        return f',"args":{{"forward_id":{forward_id},"module":{_quoted(module)}}}}}'

    def add(self, name: str, category: str, track: str, start: float, duration: float, notes: str) -> None:
        """One stretch of time, in microseconds."""
        if not self.ended:
            self._lines.append(f'{_beginning(name, category, track)}{start:.3f},"dur":{duration:.3f}{notes}')
            if len(self._lines) >= EVENTS_PER_WRITE:
                self._write()

    def add_lines(self, lines: bytes, count: int) -> None:
        """Events that are serialized already, with commas between."""
        if count and not self.ended:
            self._lines.append(lines)
            self._more += count - 1
            if len(self._lines) + self._more >= EVENTS_PER_WRITE:
                self._write()

    def close(self) -> None:
        """Writes the rest, and the end of the list."""
        self._write()
        if self._written and not self._failed:
            self._append(b"\n]\n")

    def _new_track(self, key: Any, process_id: int, process_name: str, number: int, name: str) -> str:
        if not self._tracks:
            labels = f"rank {process.this_rank()}, {process.this_host()}"
            self._note("process_labels", process_id, number, labels=labels)
            # what makes the times of several processes, and of other files, comparable: µs
            self._note(
                "wall_clock", process_id, number, offset=f"{(time.time_ns() - time.perf_counter_ns()) / 1e3:.3f}"
            )
        self._note("process_name", process_id, number, name=process_name)
        self._note("thread_name", process_id, number, name=name)
        track = self._tracks[key] = f'"pid":{process_id},"tid":{number}'
        return track

    def _note(self, kind: str, process_id: int, number: int, **arguments: str) -> None:
        self._lines.append(json.dumps({"name": kind, "ph": "M", "pid": process_id, "tid": number, "args": arguments}))

    def _write(self) -> None:
        lines, self._lines = self._lines, []
        count, self._more = len(lines) + self._more, 0
        if not lines or self.ended:
            return
        in_bytes = (line.encode() if isinstance(line, str) else line for line in lines)
        self._append((b",\n" if self._written else b"[\n") + b",\n".join(in_bytes))
        self._written += count
        if self._written >= self._most and not self._failed:
            self.ended = True
            messages.complain(f"{self.path} holds {self._written} events and ends here (OP_TIME_MEASURE_TRACE_EVENTS)")

    def _append(self, text: bytes) -> None:
        try:
            if not self._written:
                descriptor, self.path = paths.create(self.path)
                os.close(descriptor)
            with open(self.path, "ab") as file:
                file.write(text)
        except OSError as error:
            self.ended = self._failed = True
            messages.complain(
                f"{self.path} cannot be written ({error.strerror}): its events are lost, training goes on"
            )
