"""Is a call guilty, or does it carry what came in? Told by how much further its results are apart than its arguments.

An output is guilty if its distance is more than LIMIT times the largest of
  - the distance of what went in; what is known of a tensor from where it was made counts, too, halved at each call,
  - the rounding of the coarsest dtype among the call's tensors,
  - with a healthy second run: how far this output moved there, for each unit that the inputs moved.
A result that is far smaller than what it was made from is what is left of a cancellation: its distance is relative to
the larger. Of an op on lists, each result is judged by its own arguments.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from op_tools.compare_runs.calls import MEAN, Backward, Call, Distance, KeptSeen, Seen
from op_tools.compare_runs.distance import NONE, TF32_UNIT, distance, find_distances
from op_tools.compare_runs.natures import cancelled, nature_of, roughness

# set on one half of the models and faults of benchmarks/compare_runs.py, which tells how it does on the other
LIMIT = 5.0
_LIST_LIMIT = 2.0  # times as much for ops on lists: an optimizer divides rounding by rounding
_DECAY = 0.5
# products of later steps: an optimizer makes as large a step of a gradient that is all rounding, so weights differ in
# directions of which products can make more
_LATER_STEPS = 2.0
_SAME_SUM = 1e-3  # of how far they are apart: what is spread at random has a sum as large as that
_BEND = 0.5  # of the root of the share of elements that fall on the other side of a bend


@dataclass
class Event:
    """One forward or backward of a call that both runs have."""

    a: Call
    b: Call
    phase: str  # forward, recomputed, backward
    order: int  # in run A
    result: Seen | None  # the result that is furthest out, of run A
    distance: float  # of that result
    inputs: float  # the largest distance of what went in
    score: float  # how many times further apart than it may be; above the limit the call is guilty
    limit: float
    is_source: bool = False  # nothing went in that both runs have: data, random numbers, new tensors

    @property
    def is_guilty(self) -> bool:
        return self.score > self.limit and not self.is_source


@dataclass
class Moved:
    """How far one event's results and arguments moved in a healthy second run, by name."""

    outputs: dict[str, float]
    inputs: dict[str, float]


class Judge:
    """Judges the events of one step, in their order: what was told of a tensor where it was made is remembered."""

    def __init__(self, tf32: Iterable[str] = (), with_sketch: bool = True, limit: float = LIMIT) -> None:
        self._tf32 = set(tf32)
        self._with_sketch = with_sketch
        self._limit = limit
        self._levels: dict[int, float] = {}  # by the checksum of run A's tensor
        self._views: dict[int, float] = {}  # by the same: the largest distance that views of it tell
        self._steps = 0

    @property
    def has_tf32(self) -> bool:
        """Whether something may have been computed in it."""
        return bool(self._tf32)

    def begin_step(self, calls: Iterable[tuple[Call, Call]] = ()) -> None:
        """Views have the numbers of what they are views of, in another order: each is another look at the same."""
        self._levels.clear()
        self._views.clear()
        self._steps += 1
        calls = list(calls)
        if self._with_sketch:
            pairs = list(_tensors_of(calls))
            find_distances(pairs)
            if pairs and all(isinstance(seen, KeptSeen) for seen in pairs[0]):
                from op_tools.compare_runs import data  # needs torch, which statistics do not

                data.find_distances(pairs)
        for a, b in calls:
            if nature_of(a.site.op).is_view:
                self._look_through(a.inputs, a.outputs, b.inputs, b.outputs)
                for one, other in zip(a.backwards, b.backwards):
                    self._look_through(one.outputs, one.inputs, other.outputs, other.inputs)

    def _look_through(self, *seen: dict[str, Seen]) -> None:
        first, second, other_first, other_second = (list(one.values())[:1] for one in seen)
        if not (first and second and other_first and other_second):
            return
        if first[0].kind.numel != second[0].kind.numel:
            return  # a part of it, or one that repeats it
        pairs = ((first[0], other_first[0]), (second[0], other_second[0]))
        found = [self._distance(one, other) for one, other in pairs]
        told = max((one.told for one in found if one is not None and one.told < math.inf), default=0.0)
        for seen_one in (first[0], second[0]):
            key = seen_one.key
            self._views[key] = max(told, self._views.get(key, 0.0))

    def forward(self, a: Call, b: Call, moved: Moved | None = None) -> Event:
        phase = "recomputed" if a.site.is_recomputed else "forward"
        return self._judge(a, b, phase, a.order, (a.inputs, b.inputs), (a.outputs, b.outputs), (), moved)

    def backward(self, a: Call, b: Call, one: Backward, other: Backward, moved: Moved | None = None) -> Event:
        inputs = ({**a.inputs, **a.outputs, **one.outputs}, {**b.inputs, **b.outputs, **other.outputs})
        flowing = tuple(one.outputs.values())
        return self._judge(a, b, "backward", one.order, inputs, (one.inputs, other.inputs), flowing, moved)

    def moved(self, a: Call, healthy: Call, one: Backward | None = None, other: Backward | None = None) -> Moved:
        """The same for a healthy second run of A."""
        if one is None or other is None:
            inputs, outputs = (a.inputs, healthy.inputs), (a.outputs, healthy.outputs)
        else:
            given = ({**a.inputs, **a.outputs, **one.outputs}, {**healthy.inputs, **healthy.outputs, **other.outputs})
            inputs, outputs = given, (one.inputs, other.inputs)
        told_in, told_out = self._distances(*inputs, with_views=False), self._distances(*outputs, with_views=False)
        return Moved(
            {name: found.told for name, found in told_out.items()},
            {name: self._came_in(inputs[0], told_in, seen, a.site.is_list)[0] for name, seen in outputs[0].items()},
        )

    def _distance(self, a: Seen, b: Seen) -> Distance | None:
        return a.apart if a.other is b else distance(a, b, self._with_sketch)

    def _distances(self, a: dict[str, Seen], b: dict[str, Seen], with_views: bool = True) -> dict[str, Distance]:
        found = {}
        for name, seen in a.items():
            other = b.get(name)
            told = None if other is None else self._distance(seen, other)
            if told is not None:
                viewed = self._views.get(seen.key, 0.0) if told.told and with_views else 0.0
                found[name] = told if viewed <= told.told else Distance(viewed, max(viewed, told.at_most))
        return found

    def _judge(
        self,
        a: Call,
        b: Call,
        phase: str,
        order: int,
        inputs: tuple[dict[str, Seen], dict[str, Seen]],
        outputs: tuple[dict[str, Seen], dict[str, Seen]],
        flowing: tuple[Seen, ...],
        moved: Moved | None,
    ) -> Event:
        limit = self._limit * (_LIST_LIMIT if a.site.is_list else 1)
        is_source = inputs[0].keys().isdisjoint(inputs[1])
        event = Event(a, b, phase, order, None, 0.0, 0.0, 0.0, limit, is_source)
        told_in, told_out = self._distances(*inputs), self._distances(*outputs)
        unit = self._unit(a, b, inputs, outputs)
        event.inputs = max((found.told for found in told_in.values()), default=0.0)
        inputs_same = len(told_in) == len(inputs[0]) and all(found is NONE for found in told_in.values())
        nature, is_backward = nature_of(a.site.op), phase == "backward"
        bends = nature.bends_always or (is_backward and nature.bends_backward)
        for name, found in told_out.items():
            seen = outputs[0][name]
            came_in, level = self._came_in(inputs[0], told_in, seen, a.site.is_list)
            # what was cast from a coarse dtype is known no better than that, however little four numbers tell
            self._remember(seen, max(found.told, _DECAY * level, unit if unit > seen.kind.unit > 0 else 0.0))
            if nature.is_no_function and not is_backward:
                if nature.is_random and found.told > event.distance:  # told, and not judged
                    event.result, event.distance = seen, found.told
                continue
            if found.told == 0:
                continue
            allowed = max(came_in, level, unit, 1e-300)
            if nature.jumps:  # a small share of the elements falls on the other side
                allowed = max(allowed, math.sqrt(allowed))
            elif bends:  # the same, where what went in differs: nothing is computed before
                allowed = max(allowed, _BEND * math.sqrt(max(came_in, level)))
            allowed *= cancelled(nature, seen, is_backward, inputs[0], flowing) * roughness(nature, seen, flowing)
            if self._steps > 1 and nature.is_product and came_in > unit:
                allowed *= _LATER_STEPS
            if moved is not None:
                allowed = max(allowed, _as_moved(moved, name, came_in, unit))
            if not seen.kind.is_float and not inputs_same:
                allowed = math.inf  # a choice, such as argmax, turns on the last digit
            score = found.told / allowed if allowed < math.inf else 0.0
            if (
                score > limit
                and is_backward
                and nature.orders
                and _goes_elsewhere(seen, outputs[1][name], found.told, self._limit * max(came_in, unit))
            ):
                score = limit  # data has the last word
            if score > event.score or (score == event.score and found.told > event.distance):
                event.result, event.distance, event.score = seen, found.told, score
        return event

    def _came_in(
        self, inputs: dict[str, Seen], told: dict[str, Distance], output: Seen, is_list: bool
    ) -> tuple[float, float]:
        """The largest distance of the arguments that this result is made from: as told, and as is known from before."""
        own, known = 0.0, 0.0
        for name, found in told.items():
            seen = inputs[name]
            if is_list and seen.kind.group != output.kind.group and output.kind.group >= 0:
                continue
            own = max(own, found.at_most)
            known = max(known, self._levels.get(seen.key, 0.0))
        return own, known

    def _remember(self, seen: Seen, level: float) -> None:
        if level < math.inf:
            key = seen.key
            self._levels[key] = max(level, self._levels.get(key, 0.0))

    def _unit(
        self,
        a: Call,
        b: Call,
        inputs: tuple[dict[str, Seen], dict[str, Seen]],
        outputs: tuple[dict[str, Seen], dict[str, Seen]],
    ) -> float:
        """The rounding of the coarsest dtype that takes part."""
        unit = 0.0
        for pair in (inputs, outputs):
            for one in pair:
                for seen in one.values():
                    if seen.kind.unit > unit:
                        unit = seen.kind.unit
        return max(unit, TF32_UNIT) if self._tf32 & nature_of(a.site.op).in_tf32 else unit


def _tensors_of(calls: list[tuple[Call, Call]]) -> Iterator[tuple[Seen, Seen]]:
    """All that both runs have."""
    for a, b in calls:
        groups = [(a.inputs, b.inputs), (a.outputs, b.outputs)]
        for one, other in zip(a.backwards, b.backwards):
            groups += [(one.inputs, other.inputs), (one.outputs, other.outputs)]
        for own, others in groups:
            for name, seen in own.items():
                if name in others:
                    yield seen, others[name]


def _as_moved(moved: Moved, name: str, came_in: float, unit: float) -> float:
    """As far as in the healthy run, for each unit of the inputs' distance."""
    far = moved.outputs.get(name, 0.0)
    if not 0 < far < math.inf:
        return 0.0
    return far * max(1.0, came_in / max(moved.inputs.get(name, 0.0), unit, 1e-300))


def _goes_elsewhere(a: Seen, b: Seen, told: float, rounding: float) -> bool:
    """Whether a gradient may have gone to another one among equals, as of zeros in a pooling window after relu.

    Then its sum stays what it was, and its norm changes by no more than the share that went elsewhere.
    """
    x, y, norm = a.numbers, b.numbers, max(a.norm, b.norm)
    sums = math.sqrt(a.kind.numel) * abs(x[MEAN] - y[MEAN])
    return bool(sums <= max(_SAME_SUM * told, rounding) * norm and abs(a.norm - b.norm) <= told * told * norm)
