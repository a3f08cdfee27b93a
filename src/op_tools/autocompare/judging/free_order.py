"""Calls that write numbers where they also read: PyTorch does not define what comes first.

Many ops refuse such tensors; where these lie too irregularly to tell at once, none does, and `copy_` hardly ever. What
comes out depends on which element a device begins with. The reference has each tensor in memory of its own, which tells
what a call changes: if nothing that it changes is read in another tensor, any order gives the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from op_tools.autocompare.judging.measures import differing, same_bits
from op_tools.autocompare.observed import ObservedCall
from op_tools.autocompare.reference.runs import Reference, run
from op_tools.autocompare.shared_memory import Region


def is_free(call: ObservedCall, reference: Reference) -> bool:
    """Whether the call changes numbers that lie in another one of its tensors as well."""
    regions = call.shared
    changed = [place for place in regions if place in reference.changed]
    if not changed:
        return False
    before, after = call.given.leaves, reference.expected.arguments.leaves
    written: list[tuple[Region, Tensor]] = []
    known: set[int] = set()  # a tensor that is there twice is one
    for place in changed:
        if id(before[place]) not in known:
            known.add(id(before[place]))
            written.append((regions[place], _changed(before[place], after[place], regions[place], reference)))
    twins = call.twins(reference.changed)
    if twins and _differs_with_one_tensor(call, reference, twins.items()):
        return True
    read = [region for place, region in regions.items() if place not in reference.changed and place not in twins]
    return _meet(written, []) or _meet(written[::-1], read)


def _changed(before: Tensor, after: Tensor, region: Region, reference: Reference) -> Tensor:
    """Which elements, on the host; all of a tensor that has another shape now."""
    if not before.shape == after.shape == region.shape:
        return torch.ones((), dtype=torch.bool)
    if before.is_floating_point() or before.is_complex():
        before = reference.expected.way.convert(before.detach()).to(after.dtype)
    return differing(after.detach(), before.detach()).cpu()


def _meet(written: Sequence[tuple[Region, Tensor]], read: Sequence[Region]) -> bool:
    """Whether a byte that is changed in one tensor lies in a later one of those that are written, or in one that is
    read."""
    regions = [*(region for region, _ in written), *read]
    start, end = min(region.start for region in regions), max(region.end for region in regions)
    memory = torch.zeros(end - start, dtype=torch.bool)  # of these bytes: which are changed
    for region, changed in written:
        place = region.within(memory, start)
        if bool(place.any()):
            return True
        place.logical_or_(changed.unsqueeze(-1))
    return any(bool(region.within(memory, start).any()) for region in read)


def _differs_with_one_tensor(call: ObservedCall, reference: Reference, twins: Iterable[tuple[int, int]]) -> bool:
    """Whether one tensor by two names gives something else than two equal ones: not where elements stand alone."""
    leaves, one_of = call.given.leaves, {}
    for place, changed in twins:
        one_of[id(leaves[place])] = leaves[changed]
    given = call.given.with_tensors([one_of.get(id(tensor), tensor) for tensor in call.given.tensors])
    with contextlib.suppress(Exception), torch.no_grad():  # the op may refuse it: then it says nothing
        again = run(call.function, given, reference.expected.way, changes_inputs=True).arguments.leaves
        expected = reference.expected.arguments.leaves
        return not all(same_bits(again[place].detach(), expected[place].detach()) for place in reference.changed)
    return True
