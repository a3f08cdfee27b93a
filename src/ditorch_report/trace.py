"""When each call ran, from the traces of OpTimeMeasure: own times, tracks of the time line, the device's idle time."""

from __future__ import annotations

import bisect
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ditorch_report.packing import Texts, differences, short
from ditorch_report.run_folder import Row, number, pid_of, whole
from ditorch_shared.collectives import is_collective

MAX_EVENTS = 150_000  # that the page draws
MIN_GAP = 10.0  # µs in which the device does nothing: less is what any launch costs
MAX_WAITS = 40
FORWARD, BACKWARD = 0, 1

Place = tuple[str, str]  # pid and tid, as the trace has them
Names = dict[tuple[str, Place], str]  # of processes and threads
_Tracks = list[tuple[list["Event"], list[float]]]  # events and their starts


@dataclass
class Event:
    """A stretch of time, in µs."""

    op: str
    phase: int
    start: float
    duration: float
    id: int
    module: str
    own: float = 0.0  # without the calls inside it

    @property
    def end(self) -> float:
        return self.start + self.duration


@dataclass
class Track:
    """A thread of the host, or a stream of a device."""

    process: int  # of the table of calls
    name: str
    is_device: bool
    events: list[Event] = field(default_factory=list)

    @property
    def has_collectives(self) -> bool:
        """What a device does together with those of other processes, beside its own streams."""
        return self.is_device and self.name.endswith(" collectives")


@dataclass
class Trace:
    """All tracks of one process."""

    path: Path
    host: str = ""
    rank: int = 0
    tracks: list[Track] = field(default_factory=list)
    wall_offset: float | None = None  # µs: the wall clock minus the trace's own

    @property
    def pid(self) -> int:
        return pid_of(self.path)

    def find_own_times(self) -> None:
        for track in self.tracks:
            track.events.sort(key=lambda event: (event.start, -event.duration))
            _find_own_times(track.events)

    def own_times(self) -> dict[tuple[int, int], float]:
        """By forward_id and phase: the device's where it has any."""
        found: dict[tuple[int, int], float] = {}
        for on_device in (True, False):
            known = set(found)
            for track in self.tracks:
                for event in track.events if track.is_device == on_device else ():
                    key = (event.id, event.phase)
                    if key not in known:
                        found[key] = found.get(key, 0.0) + event.own
        return found


def read(path: Path) -> Trace:
    """A killed process leaves a list without its end; a line that cannot be read is left out."""
    trace = Trace(path)
    tracks: dict[Place, Track] = {}
    names: Names = {}
    for event in _events(path):
        where: Place = (str(event.get("pid")), str(event.get("tid")))
        arguments = event["args"] if isinstance(event.get("args"), dict) else {}
        if event.get("ph") == "M":
            _take_note(trace, names, str(event.get("name")), where, arguments)
        elif event.get("ph") == "X":
            track = tracks.get(where)
            if track is None:
                is_device = names.get(("process", where), "host") != "host"
                owner = f"{names.get(('process', where), '')} " if is_device else ""
                track = tracks[where] = Track(0, f"{owner}{names.get(('thread', where), where[1])}", is_device)
            found = _event(event, arguments)
            if found is not None:
                track.events.append(found)
    found_tracks = [track for track in tracks.values() if track.events]
    trace.tracks = sorted(found_tracks, key=lambda track: (not track.is_device, track.name))
    trace.find_own_times()
    return trace


def _event(event: Row, arguments: Row) -> Event | None:
    start, duration = number(event.get("ts")), number(event.get("dur"))
    if start is None or duration is None or not math.isfinite(start + duration):
        return None
    phase = BACKWARD if event.get("cat") == "backward" else FORWARD
    place = (whole(arguments.get("forward_id")), str(arguments.get("module", "")))
    return Event(str(event.get("name", "")), phase, start, duration, *place)


def _events(path: Path) -> Iterator[Row]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                text = line.strip().rstrip(",")
                if len(text) > 2:
                    try:
                        event = json.loads(text)
                    except ValueError:
                        continue
                    if isinstance(event, dict):
                        yield event
    except OSError:
        return


def _take_note(trace: Trace, names: Names, kind: str, where: Place, arguments: Row) -> None:
    if kind == "process_labels":  # "rank 0, host"
        rank, _, trace.host = str(arguments.get("labels", "")).partition(", ")
        trace.rank = whole(rank.rpartition(" ")[2])
    elif kind == "wall_clock":
        trace.wall_offset = number(arguments.get("offset"))
    elif kind in ("process_name", "thread_name"):
        names[kind.partition("_")[0], where] = arguments.get("name", "")


def _find_own_times(events: Iterable[Event]) -> None:
    """Of events in the order of their starts: one that lies within another is inside that call."""
    stack: list[Event] = []
    for event in events:
        event.own = event.duration
        while stack and stack[-1].end <= event.start:
            stack.pop()
        if stack and event.end <= stack[-1].end + 1e-3:
            stack[-1].own = max(stack[-1].own - event.duration, 0.0)
        stack.append(event)


# -- what the device waited for ----------------------------------------------------------------------------------------


@dataclass
class Waits:
    """How long devices did nothing between two calls, and for what they waited. In µs."""

    span: float = 0.0
    busy: float = 0.0
    found: dict[tuple[str, str, str, str], list[float]] = field(default_factory=dict)

    def add(self, trace: Trace) -> None:
        threads = [track.events for track in trace.tracks if not track.is_device]
        began = {(event.id, event.phase): event.start for events in threads for event in events}
        hosts = _with_starts(threads)
        collectives = _with_starts([track.events for track in trace.tracks if track.has_collectives])
        for track in trace.tracks:
            if track.is_device and not track.has_collectives and track.events:
                self._add_track(track.events, began, hosts, collectives)

    def _add_track(
        self, events: list[Event], began: dict[tuple[int, int], float], hosts: _Tracks, collectives: _Tracks
    ) -> None:
        reached = events[0].start
        self.span += max(event.end for event in events) - reached
        for event in events:
            gap = event.start - reached
            if gap >= MIN_GAP:
                cause, during = "collective", _running(collectives, reached, event)
                if not during:
                    is_late = began.get((event.id, event.phase), event.start) >= reached
                    cause, during = ("host", _running(hosts, reached, event)) if is_late else ("queue", "")
                total = self.found.setdefault((event.op, event.module, cause, during), [0.0, 0])
                total[0] += gap
                total[1] += 1
            self.busy += max(event.end - max(reached, event.start), 0.0)
            reached = max(reached, event.end)

    def rows(self) -> list[Row]:
        """The longest first, in ms."""
        ranked = sorted(self.found.items(), key=lambda item: -item[1][0])[:MAX_WAITS]
        columns = ("op", "module", "cause", "during")
        return [
            {**dict(zip(columns, key)), "time": short(time / 1e3), "times": int(times)} for key, (time, times) in ranked
        ]


def _with_starts(tracks: list[list[Event]]) -> _Tracks:
    return [(events, [event.start for event in events]) for events in tracks]


def _running(tracks: _Tracks, start: float, until: Event) -> str:
    """The op that ran for most of the time before the next one began; "" where none did."""
    longest, name = (until.start - start) / 2, ""
    for events, starts in tracks:
        place = bisect.bisect_right(starts, until.start)
        for event in events[max(0, place - 8) : place]:
            within = min(event.end, until.start) - max(event.start, start)
            if within > longest and event.id != until.id:
                longest, name = within, event.op
    return name


# -- as the page wants it ----------------------------------------------------------------------------------------------


def as_columns(traces: list[Trace], index: dict[tuple[int, int], int]) -> Row:
    """Events of all tracks; `call` is the place in the list of calls, -1 where it is not in there."""
    ops, tracks = Texts(), [track for trace in traces for track in trace.tracks if track.events]
    zero = min((track.events[0].start + _offset(trace) for trace in traces for track in trace.tracks), default=0.0)
    offsets = {id(track): _offset(trace) - zero for trace in traces for track in trace.tracks}
    each = MAX_EVENTS // max(len(tracks), 1)
    found = []
    for track in tracks:
        events = track.events[:each]
        found.append(
            {
                "name": track.name,
                "process": track.process,
                "device": track.is_device,
                "left_out": len(track.events) - len(events),
                "start": differences([round((event.start + offsets[id(track)]) * 10) for event in events]),
                "duration": [round(event.duration * 10) for event in events],
                "op": [ops.number(event.op) for event in events],
                "phase": [event.phase for event in events],
                "call": [index.get((track.process, event.id), -1) for event in events],
            }
        )
    is_wall = bool(traces) and all(trace.wall_offset is not None for trace in traces)
    collectives = [place for place, op in enumerate(ops.all) if is_collective(op)]
    clock = zero / 1e6 if is_wall else None
    return {"tracks": found, "ops": ops.all, "collectives": collectives, "unit": 0.1, "wall_zero": clock}


def _offset(trace: Trace) -> float:
    """Puts the processes of one run on one clock. Without one, each begins at 0."""
    if trace.wall_offset is not None:
        return trace.wall_offset
    return -min((track.events[0].start for track in trace.tracks if track.events), default=0.0)
