"""The smallest set of ops with which a check passes, found with few trials.

All candidates together pass, none at all does not. So among the sets of the first 0, 1, 2 … candidates there is a first
one that passes, found by halving; its last op is needed. With that op in the set, the same again among those before
it, until what was found passes alone: about log2(candidates) trials for each op. That no op can be taken out again is
tried at the end, so the set is minimal also where passing does not grow with the set.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Callable

Passes = Callable[[Sequence[str]], bool]


def smallest(candidates: Sequence[str], passes: Passes, suspects: int = 0) -> list[str]:
    """`suspects`: so many candidates at the front are likely, and are tried first."""
    found: list[str] = []
    pool = list(candidates)
    while not passes(found):
        last = _first_that_passes(found, pool, passes, suspects)
        found.append(pool[last - 1])
        pool = pool[: last - 1]
    return _without_needless(found, passes)


def _first_that_passes(found: list[str], pool: list[str], passes: Passes, suspects: int) -> int:
    """How many of the pool are needed beside what was found. None is too few, all are enough."""
    fails, enough = 0, len(pool)
    probe = 1
    while probe < min(enough, 2 * suspects):  # the likely ones first: one, two, four …
        if passes([*found, *pool[:probe]]):
            enough = probe
            break
        fails, probe = probe, 2 * probe
    while enough - fails > 1:
        middle = (fails + enough) // 2
        if passes([*found, *pool[:middle]]):
            enough = middle
        else:
            fails = middle
    return enough


def _without_needless(found: list[str], passes: Passes) -> list[str]:
    kept = sorted(found)
    for op in sorted(found):
        rest = [one for one in kept if one != op]
        if rest and passes(rest):
            kept = rest
    return kept
