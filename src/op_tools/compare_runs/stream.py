"""Compares one process of each run: step by step, each call by its own arguments, in the order in which run A ran."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Callable, NamedTuple

from op_tools.compare_runs import outside
from op_tools.compare_runs.alignment import aligned
from op_tools.compare_runs.calls import Backward, Call
from op_tools.compare_runs.carried import Carried, Unpaired, unit
from op_tools.compare_runs.counting import Counting
from op_tools.compare_runs.distance import TF32_UNIT
from op_tools.compare_runs.findings import Before, Findings, ModuleRow, Place
from op_tools.compare_runs.joining import Layout, all_ranks, joined, replicas
from op_tools.compare_runs.judging import Event, Judge
from op_tools.compare_runs.reading import Run, Stream
from op_tools.errors import CaptureError
from op_tools.storage.blocks import MODEL

MAX_GUILTY = 100
MAX_WORST = 10
MAX_SUSPECTS = 12
_SUSPECT = 0.15  # of the limit
_MAX_NAMED = 3
_MAX_CHAIN = 12
_LATER = 4.0  # what comes after a guilty call has to be so much clearer: the fault hides what is healthy
Told = Callable[[int, int], None]  # progress: steps done, events so far


class _Task(NamedTuple):
    """A forward or backward of a call that both runs have, and the same of a healthy second run of A."""

    order: int
    a: Call
    b: Call
    backward: tuple[Backward, Backward] | None
    healthy: Call | None


class StreamComparison:
    """One process of each run."""

    def __init__(
        self, findings: Findings, judge: Judge, stream: Stream, told: Told | None, layout: Layout | None = None
    ) -> None:
        self._found = findings
        self._judge = judge
        self._stream, self._rank = stream, stream[0]
        self._told = told
        self._layout = layout  # of runs with another number of ranks
        self._modules: dict[str, ModuleRow] = {}
        self._worst: list[tuple[float, int, Place]] = []
        self._number = 0
        self._has_guilty = False
        self._is_first_step = True
        self._carried, self._unpaired = Carried(TF32_UNIT if judge.has_tf32 else 0.0), Unpaired()
        self._apart: Counter[str] = Counter()  # calls whose tensors on the ranks could not be put together
        self._outside = outside.Outside(self._rank)
        self._counting, self._only_in_a, self._only_in_b = Counting(), Counting(), Counting()

    def compare(self, a: Run, b: Run, healthy: Run | None) -> None:
        others = None if healthy is None or self._stream not in healthy.streams else healthy.steps(self._stream)
        third = _Follower(others)
        try:
            for step, calls, counterparts in self._steps(a, b):
                self._counting.add(step, calls, counterparts)
                self._step(calls, counterparts, third.at(step))
                self._found.steps += 1
                if self._told is not None:
                    self._told(self._found.steps, self._found.events)
        except CaptureError as error:
            self._found.not_comparable.append(f"from here on: {error}")
            self._found.is_cut_short = True
        self._count_steps(a, b)
        if self._unpaired.all:
            line = f"rank {self._rank}: calls that only one run has, such as {self._unpaired.named()}"
            self._found.not_comparable.append(line)
        if self._apart:
            line = f"the ranks' tensors do not add up to those of one process, such as of {_named(self._apart)}"
            self._found.not_comparable.append(line)

    def _steps(self, a: Run, b: Run) -> Iterator[tuple[int, list[Call], list[Call]]]:
        """Steps that both have."""
        other = _Follower(self._steps_of(b), self._only_in_b)
        for step, calls in self._steps_of(a):
            counterparts = other.at(step)
            if counterparts is None:
                self._only_in_a.add(step, calls)
            else:
                yield step, calls, counterparts
        other.pass_over_the_rest()

    def _count_steps(self, a: Run, b: Run) -> None:
        finished = {run: run.finished_steps(self._rank) for run in (a, b)}
        told = [count for count in finished.values() if count is not None]
        self._found.training = training = self._counting.training(min(told, default=None))
        self._found.steps = self._counting.steps(training)
        self._found.outside_steps = list(self._counting.outside(training, self._rank))
        for run, counting in ((a, self._only_in_a), (b, self._only_in_b)):
            lines = counting.only_here(str(run.path), finished[run])
            self._found.not_comparable += [f"rank {self._rank}: {line}" for line in lines]

    def _steps_of(self, run: Run) -> Iterator[tuple[int, list[Call]]]:
        if self._layout is None:
            return run.steps(self._stream)
        ranks = [run.steps((rank, 0)) for rank in run.ranks]
        return ranks[0] if len(ranks) == 1 else all_ranks(ranks)

    # -- one step -----------------------------------------------------------------------------------------------------

    def _step(self, a: list[Call], b: list[Call], healthy: list[Call] | None) -> None:
        (outside_a, a), (outside_b, b) = outside.split(a), outside.split(b)
        given = self._aligned(outside_a, outside_b)
        pairs = self._aligned(a, b)
        if given:
            pairs_of_step = [(outside_a[i], outside_b[j]) for i, j in given]
            calls = [(a[i], b[j]) for i, j in pairs]
            self._found.before += self._outside.of_step(pairs_of_step, calls, outside_a[0].step)
        self._count_unpaired(a, b, pairs)
        self._judge.begin_step((a[i], b[j]) for i, j in pairs)
        third = {}
        if healthy is not None:
            third = {i: healthy[k] for i, k in aligned([c.site.key for c in a], [c.site.key for c in healthy])}
        tasks = [task for i, j in pairs for task in _tasks(a[i], b[j], third.get(i))]
        tasks.sort(key=lambda task: task.order)
        if self._is_first_step and tasks:
            # after the first forward pass come gradients
            forward = itertools.takewhile(lambda task: task.backward is None, tasks)
            self._found.before += self._outside.of_forward((task.a, task.b) for task in forward)
        events = [self._event(task) for task in tasks]
        self._judge_events(events)
        self._found.calls += len(pairs)
        self._is_first_step = self._is_first_step and not tasks

    def _aligned(self, a: list[Call], b: list[Call]) -> list[tuple[int, int]]:
        """Which is which; what ranks share is put together."""
        pairs = aligned([call.site.key for call in a], [call.site.key for call in b])
        if self._layout is None:
            return pairs
        self._layout = self._learnt(self._layout, [(a[i], b[j]) for i, j in pairs])
        for i, j in pairs:
            a[i] = joined(b[j], a[i], self._layout) if a[i].parts else a[i]
            b[j] = joined(a[i], b[j], self._layout) if b[j].parts else b[j]
            if a[i].lacks_what(b[j]) or b[j].lacks_what(a[i]):
                self._apart[_words(a[i])] += 1
        return pairs

    def _learnt(self, layout: Layout, pairs: list[tuple[Call, Call]]) -> Layout:
        """With the number of replicas, once a model has told it; of several models, the one that is cut most."""
        if layout.replicas is None:
            models = [(a, b) for a, b in pairs if a.site.op == MODEL]
            told = [replicas(a, b) if b.parts else replicas(b, a) for a, b in models if a.parts or b.parts]
            layout = layout._replace(replicas=min((one for one in told if one is not None), default=None))
        self._found.replicas = layout.replicas or 1
        return layout

    def _event(self, task: _Task) -> Event:
        third = task.healthy
        if task.backward is None:
            moved = None if third is None else self._judge.moved(task.a, third)
            return self._judge.forward(task.a, task.b, moved)
        one, other = task.backward
        number = task.a.backwards.index(one)
        moved = None
        if third is not None and number < len(third.backwards):
            moved = self._judge.moved(task.a, third, one, third.backwards[number])
        return self._judge.backward(task.a, task.b, one, other, moved)

    def _judge_events(self, events: list[Event]) -> None:
        for number, event in enumerate(events):
            self._found.events += 1
            self._note(event)
            if event.distance == 0:
                self._found.same += 1
                continue
            if event.is_source and not self._is_first_step and event.phase == "forward":
                self._note_data(event)
            if event.is_guilty and (not self._has_guilty or event.score > _LATER * event.limit):
                self._blame(event, events, number)
            self._rank_by_distance(event)
            if event.score > _SUSPECT * event.limit and not event.is_source:
                self._suspect(event)
        self._look_for_carried(events)

    def _blame(self, event: Event, events: list[Event], number: int) -> None:
        self._has_guilty = True
        place = Place.of(event, self._rank, "guilty")
        if len(self._found.guilty) < MAX_GUILTY:
            self._found.guilty.append(place)
        first = self._found.first_divergence
        if first is None or (place.step, first.kind) < (first.step, "guilty"):
            self._found.first_divergence = place
            self._found.chain = [Place.of(one, self._rank, kind) for one, kind in _chain(events, number)]

    def _look_for_carried(self, events: list[Event]) -> None:
        """Where nothing is guilty, the first result that shows what came from elsewhere."""
        if self._found.first_divergence is not None:
            return
        is_from_outside = any(one.moves_numbers for one in self._found.before)
        carried = self._carried.first(events, is_from_outside, self._unpaired)
        if carried is not None:
            number, origin = carried
            self._found.first_divergence = Place.of(events[number], self._rank, "carried", origin)
            self._found.chain = [Place.of(one, self._rank, kind) for one, kind in _chain(events, number)]
            self._found.only_in_b = self._unpaired.of_run_b() if origin else None

    # -- what is kept -------------------------------------------------------------------------------------------------

    def _note(self, event: Event) -> None:
        row = self._modules.get(event.a.site.module)
        if row is None:
            row = self._modules[event.a.site.module] = ModuleRow(event.a.site.module)
            self._found.modules.append(row)
        row.events += 1
        row.same += event.distance == 0
        row.guilty += event.is_guilty
        if event.distance > row.distance:
            row.distance, row.op = event.distance, event.a.site.op

    def _rank_by_distance(self, event: Event) -> None:
        self._number += 1
        if len(self._worst) >= MAX_WORST and event.distance <= self._worst[0][0]:
            return
        place = Place.of(event, self._rank, "guilty" if event.is_guilty else "carried")
        heapq.heappush(self._worst, (event.distance, -self._number, place))
        if len(self._worst) > MAX_WORST:
            heapq.heappop(self._worst)
        self._found.worst = [place for *_, place in sorted(self._worst, key=lambda one: (-one[0], -one[1]))]

    def _suspect(self, event: Event) -> None:
        """The most suspect of each op, in its first step; once a call is guilty, what comes after may be its doing."""
        suspects = self._found.suspects
        place = Place.of(event, self._rank, "guilty" if event.is_guilty else "carried")
        known = next((one for one in suspects if (one.op, one.phase) == (place.op, place.phase)), None)
        if known is not None:
            if known.score >= place.score or self._has_guilty:
                return
            suspects.remove(known)
        suspects.append(place)
        suspects.sort(key=lambda one: -one.score)
        del suspects[MAX_SUSPECTS:]

    def _count_unpaired(self, a: list[Call], b: list[Call], pairs: list[tuple[int, int]]) -> None:
        in_a, in_b = {i for i, _ in pairs}, {j for _, j in pairs}
        self._found.only_a += len(a) - len(pairs)
        self._found.only_b += len(b) - len(pairs)
        left = [call for n, call in enumerate(a) if n not in in_a], [c for n, c in enumerate(b) if n not in in_b]
        self._unpaired.add((a or b)[0].step if a or b else 0, *left)

    def _note_data(self, event: Event) -> None:
        if event.distance > 2 * unit(event) and not any(one.what == "data" for one in self._found.before):
            where = f"{event.a.site.op} ({event.a.site.source})"
            self._found.before.append(Before("data", where, event.distance, "", event.a.step, self._rank))


class _Follower:
    """The steps of a run, one at a time, as another run asks for them."""

    def __init__(self, steps: Iterator[tuple[int, list[Call]]] | None, passed_over: Counting | None = None) -> None:
        self._steps = steps
        self._passed_over = passed_over or Counting()  # steps that the other run does not have
        self._next: tuple[int, list[Call]] | None = None

    def at(self, step: int) -> list[Call] | None:
        while self._steps is not None:
            if self._next is None:
                self._next = next(self._steps, None)
                if self._next is None:
                    self._steps = None
                    return None
            if self._next[0] > step:
                return None
            number, calls = self._next
            self._next = None
            if number == step:
                return calls
            self._passed_over.add(number, calls)
        return None

    def pass_over_the_rest(self) -> None:
        for number, calls in itertools.chain([self._next] if self._next else [], self._steps or ()):
            self._passed_over.add(number, calls)


def _words(call: Call) -> str:
    return f"{call.site.op} in {call.site.module or 'no module'}"


def _named(counts: Counter[str]) -> str:
    return ", ".join(f"{words} ({count})" for words, count in counts.most_common(_MAX_NAMED))


def _tasks(a: Call, b: Call, healthy: Call | None) -> Iterator[_Task]:
    if a.outputs:
        yield _Task(a.order, a, b, None, healthy)
    for one, other in zip(a.backwards, b.backwards):
        yield _Task(one.order, a, b, (one, other), healthy)


def _chain(events: list[Event], begin: int) -> list[tuple[Event, str]]:
    """From the call where it begins to the largest distance of the step, by the tensors that carry it."""
    made: dict[int, int] = {}
    for number, event in enumerate(events):
        results = event.a.outputs if event.phase != "backward" else {}
        for seen in results.values():
            made.setdefault(seen.key, number)
    after = [number for number in range(begin, len(events)) if events[number].phase == events[begin].phase]
    end = max(after, key=lambda number: events[number].distance, default=begin)
    way = [end]
    while way[-1] != begin and len(way) < _MAX_CHAIN:
        sources = [made.get(seen.key, -1) for seen in events[way[-1]].a.inputs.values()]
        sources = [number for number in sources if begin <= number < way[-1]]
        if not sources:
            break
        way.append(max(sources, key=lambda number: (events[number].distance, -number)))
    if way[-1] != begin:
        way.append(begin)
    return [
        (events[number], "guilty" if number == begin and events[number].is_guilty else "carried")
        for number in way[::-1]
    ]
