"""The smallest set of ops is found, whatever the set, with few trials."""

from __future__ import annotations

import itertools
import math
import random
import re

import pytest
from torch.overrides import get_testing_overrides, resolve_name

from ditorch_diagnosis import trial
from ditorch_diagnosis.search import smallest
from op_tools.ops import catalogue
from op_tools.ops.catalogue import Trait

OPS = [f"op{number:02}" for number in range(40)]


def searched(needed, candidates=OPS, suspects=0):
    """What was found, and with how many trials."""
    asked = set()

    def passes(ops):
        asked.add(frozenset(ops))
        return set(needed) <= set(ops)

    return smallest(candidates, passes, suspects), len(asked)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_every_guilty_op_is_found_with_few_trials(count):
    draw = random.Random(count)  # noqa: S311  no secret
    for _ in range(50):
        needed = sorted(draw.sample(OPS, count))
        found, trials = searched(needed)
        assert found == needed
        assert trials <= count * (math.ceil(math.log2(len(OPS))) + 2)


def test_of_two_ways_to_pass_one_is_found_and_nothing_needless():
    for one, other in itertools.combinations(OPS[:12], 2):

        def passes(ops):
            return one in ops or {other, OPS[20]} <= set(ops)  # noqa: B023  used at once

        found = smallest(OPS, passes)
        assert found in ([one], [other, OPS[20]])


def test_what_passes_with_few_and_fails_with_more_ends_with_a_set_that_passes():
    """A second op, put elsewhere, spoils it again."""

    def passes(ops):
        return "op07" in ops and ("op03" not in ops or len(ops) == len(OPS))

    found = smallest(OPS, passes)
    assert passes(found)
    assert not any(passes([op for op in found if op != left]) for left in found)


def test_suspects_come_first():
    assert searched(["op30"], ["op30", *OPS[:30]], suspects=1) == (["op30"], 2)
    assert searched(["op02"], ["op30", *OPS[:30]], suspects=1)[0] == ["op02"]


def test_random_ops_are_told_from_others_without_torch():
    names = {resolve_name(function) for function in get_testing_overrides()} - {None}
    are_random = {name for name in names if catalogue.has(name, Trait.RANDOM)}
    chosen = {name for name in names if re.fullmatch(trial.ALL_BUT_RANDOM, name)}
    left_out = names - chosen
    assert are_random <= left_out
    assert {name for name in left_out - are_random if "fractional_max_pool" not in name} == set()
    assert not re.fullmatch(trial.ALL_BUT_RANDOM, "torch.randn_like")
