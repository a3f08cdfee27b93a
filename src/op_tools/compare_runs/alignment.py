"""Which call of one run is which of the other: patience anchors, and Myers' shortest edit script between them.

Anchors are calls that each run has once, in the longest order in which both have them. A join on the how-manieth call
of its kind would shift everything after the first call that is missing.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterator, Sequence

Pair = tuple[int, int]
_MAX_CHANGES = 500  # in a gap: what it costs grows with their square


def aligned(a: Sequence[str], b: Sequence[str]) -> list[Pair]:
    """The numbers of calls that are the same, by their keys; both ascending."""
    if a == b:
        return [(number, number) for number in range(len(a))]
    pairs: list[Pair] = []
    begin_a = begin_b = 0
    for end_a, end_b in [*_anchors(a, b), (len(a), len(b))]:
        gap = _in_gap(a[begin_a:end_a], b[begin_b:end_b])
        pairs += [(begin_a + i, begin_b + j) for i, j in gap]
        if end_a < len(a):
            pairs.append((end_a, end_b))
        begin_a, begin_b = end_a + 1, end_b + 1
    return pairs


def _anchors(a: Sequence[str], b: Sequence[str]) -> list[Pair]:
    counts_a, counts_b = Counter(a), Counter(b)
    places = {key: place for place, key in enumerate(b) if counts_b[key] == 1}
    common = [(i, places[key]) for i, key in enumerate(a) if counts_a[key] == 1 and key in places]
    return _longest_ascending(common)


def _longest_ascending(pairs: list[Pair]) -> list[Pair]:
    """Of pairs that ascend in their first number: the most that ascend in the second, too."""
    tops: list[int] = []
    ends: list[int] = []
    before: list[int] = []
    for number, (_, j) in enumerate(pairs):
        place = bisect.bisect_left(tops, j)
        tops[place : place + 1], ends[place : place + 1] = [j], [number]
        before.append(ends[place - 1] if place else -1)
    found: list[Pair] = []
    number = ends[-1] if ends else -1
    while number >= 0:
        found.append(pairs[number])
        number = before[number]
    return found[::-1]


def _in_gap(a: Sequence[str], b: Sequence[str]) -> list[Pair]:
    if not a or not b:
        return []
    found = _myers(a, b)
    return list(_by_occurrence(a, b)) if found is None else found


def _by_occurrence(a: Sequence[str], b: Sequence[str]) -> Iterator[Pair]:
    """Where too much differs: the first of a kind with the first, in one direction only."""
    places: dict[str, list[int]] = {}
    for place, key in enumerate(b):
        places.setdefault(key, []).append(place)
    common = [(i, places[key].pop(0)) for i, key in enumerate(a) if places.get(key)]
    yield from _longest_ascending(common)


def _myers(a: Sequence[str], b: Sequence[str]) -> list[Pair] | None:
    """None where more than _MAX_CHANGES calls are new or gone."""
    furthest = {1: 0}
    trace: list[dict[int, int]] = []
    for changes in range(min(len(a) + len(b), _MAX_CHANGES) + 1):
        trace.append(dict(furthest))
        for k in range(-changes, changes + 1, 2):
            is_down = k == -changes or (k != changes and furthest[k - 1] < furthest[k + 1])
            x = furthest[k + 1] if is_down else furthest[k - 1] + 1
            y = x - k
            while x < len(a) and y < len(b) and a[x] == b[y]:
                x, y = x + 1, y + 1
            furthest[k] = x
            if x >= len(a) and y >= len(b):
                return _way_back(len(a), len(b), trace)
    return None


def _way_back(x: int, y: int, trace: list[dict[int, int]]) -> list[Pair]:
    pairs: list[Pair] = []
    for changes in range(len(trace) - 1, -1, -1):
        furthest, k = trace[changes], x - y
        is_down = k == -changes or (k != changes and furthest[k - 1] < furthest[k + 1])
        before = k + 1 if is_down else k - 1
        start_x = furthest[before]
        start_y = start_x - before
        while x > start_x and y > start_y and x > 0 and y > 0:
            x, y = x - 1, y - 1
            pairs.append((x, y))
        x, y = start_x, start_y
    return pairs[::-1]
