"""Which call of one run is which of the other."""

from __future__ import annotations

import random

import pytest

from op_tools.compare_runs import alignment
from op_tools.compare_runs.alignment import aligned


def test_equal_runs():
    assert aligned(["a", "b"], ["a", "b"]) == [(0, 0), (1, 1)]
    assert aligned([], []) == []


def test_extra_and_missing_calls_shift_nothing():
    a = ["load", "linear", "gelu", "linear", "gelu", "loss"]
    b = ["load", "linear", "contiguous", "gelu", "linear", "loss", "print"]
    assert aligned(a, b) == [(0, 0), (1, 1), (2, 3), (3, 4), (5, 5)]


def test_nothing_in_common():
    assert aligned(["a", "a"], ["b"]) == []


@pytest.mark.parametrize("most", [500, 3])
def test_pairs_are_equal_and_ascend(monkeypatch, most):
    """Also where too much differs for the shortest edit script."""
    monkeypatch.setattr(alignment, "_MAX_CHANGES", most)
    draw = random.Random(0)  # noqa: S311
    a = [draw.choice("abcdefgh") + str(draw.choice(range(40))) for _ in range(2000)]
    b = [key for key in a if draw.random() > 0.02]
    for _ in range(60):
        b.insert(draw.randrange(len(b)), "new")
    pairs = aligned(a, b)
    assert all(a[i] == b[j] for i, j in pairs)
    assert all(x < y and v < w for (x, v), (y, w) in zip(pairs, pairs[1:]))
    assert len(pairs) > (0.97 if most == 500 else 0.5) * len(b)
