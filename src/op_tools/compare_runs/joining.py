"""Runs of several ranks against a run of one: a call of all ranks, as the one process would have made it.

How a tensor lies on the ranks is told by itself where it was a DTensor, else by the table that recording was given
(capture/pieces.py), by the shapes on both sides, or by the user's table (module pattern → dimension): its parts are
shards along the dimension in which they are smaller, in the order of the ranks; or they are the same everywhere; or
summands, whose sum or mean over the ranks is what the one process has. Gradients of a loss that each rank averages over
its own part of the batch are as many times larger as there are ranks. Where there is a choice, what fits best is taken:
a fault fits none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from op_tools.compare_runs.alignment import aligned
from op_tools.compare_runs.calls import (
    CHECKSUM,
    MAX,
    MEAN,
    MIN,
    NORM,
    SKETCH,
    STD,
    UNITS,
    Backward,
    Call,
    Kind,
    Numbers,
    Seen,
)
from op_tools.compare_runs.distance import distance
from op_tools.compare_runs.shards import Shard, summed, whole

Table = Sequence[tuple[str, int]]  # a pattern of modules, and the dimension along which their tensors are cut


def all_ranks(ranks: Sequence[Iterator[tuple[int, list[Call]]]]) -> Iterator[tuple[int, list[Call]]]:
    """The steps of several ranks: calls that all of them make, as those of the first, with the others' as `parts`."""
    for together in zip(*ranks):
        step = together[0][0]
        if any(other != step for other, _ in together):
            return  # from here on they do not go together
        calls = together[0][1]
        partners: list[dict[int, Call]] = []
        for _, others in together[1:]:
            pairs = aligned([call.site.key for call in calls], [call.site.key for call in others])
            partners.append({i: others[j] for i, j in pairs})
        yield (
            step,
            [
                _joint([call, *(one[number] for one in partners)])
                for number, call in enumerate(calls)
                if all(number in one for one in partners)
            ],
        )


def _joint(parts: list[Call]) -> Call:
    """The first rank's call, with all ranks' as its parts."""
    first = parts[0]
    joint = Call(first.site, first.id, first.step)
    joint.order, joint.parts = first.order, parts
    joint.inputs, joint.outputs, joint.backwards = first.inputs, first.outputs, first.backwards
    return joint


def joined(like: Call, call: Call, table: Table = ()) -> Call:
    """What all ranks have of a call, put together to be compared with `like`."""
    parts = call.parts
    dimension = next((at for pattern, at in table if re.search(pattern, call.site.module)), None)
    found = Call(call.site, call.id, call.step)
    found.order = call.order
    found.inputs = _all(like.inputs, [part.inputs for part in parts], dimension, False)
    found.outputs = _all(like.outputs, [part.outputs for part in parts], dimension, False)
    count = min(len(part.backwards) for part in parts)
    for number, backward in enumerate(like.backwards[:count]):
        own = Backward(parts[0].backwards[number].order)
        own.inputs = _all(backward.inputs, [part.backwards[number].inputs for part in parts], dimension, True)
        own.outputs = _all(backward.outputs, [part.backwards[number].outputs for part in parts], dimension, True)
        found.backwards.append(own)
    return found


def _all(
    like: dict[str, Seen], parts: list[dict[str, Seen]], dimension: int | None, is_gradient: bool
) -> dict[str, Seen]:
    found = {}
    for name, seen in like.items():
        own = [part[name] for part in parts if name in part]
        one = _one(seen, own, dimension, is_gradient) if len(own) == len(parts) else None
        if one is not None:
            found[name] = one
    return found


def _one(like: Seen, parts: list[Seen], dimension: int | None, is_gradient: bool) -> Seen | None:
    if any(part.kind.whole is not None for part in parts):
        candidates = list(_as_placed(like, parts))
    else:
        cut = list(_ways(parts, like.kind.shape))
        certain = [pieces for pieces in cut if not pieces[0][0].kind.is_guessed]
        candidates = [_of_pieces(like, parts, pieces) for pieces in certain or cut]
        if not certain:
            candidates += _candidates(like, parts, dimension)
    if is_gradient:
        candidates += [_scaled(numbers, 1 / len(parts)) for numbers in candidates]
    kind = _kind(like.kind, parts[0].kind)
    best: tuple[float, Seen] | None = None
    for numbers in candidates:
        seen = Seen.of(kind, numbers)
        seen.key = parts[0].key
        apart = distance(like, seen)
        if apart is not None and (best is None or apart.told < best[0]):
            best = apart.told, seen
    return None if best is None else best[1]


def _as_placed(like: Seen, parts: list[Seen]) -> Iterator[Numbers]:
    """Parts of DTensors, which tell themselves where they lie."""
    shape = like.kind.shape
    if any((part.kind.whole or part.kind.shape) != shape for part in parts):
        return
    if any(part.kind.is_summand for part in parts):
        if all(part.kind.shape == shape for part in parts):
            yield summed([part.numbers for part in parts], like.kind.real_shape)
        return
    by_start = {part.kind.start or (0,) * len(shape): part for part in parts if math.prod(part.kind.shape)}
    if sum(math.prod(part.kind.shape) for part in by_start.values()) != math.prod(shape):
        return
    if len(by_start) == 1:
        yield parts[0].numbers  # copies
        return
    placed = list(by_start.values())
    yield _of_pieces(like, placed, [part.pieces or [part] for part in placed])


def _ways(parts: list[Seen], shape: tuple[int, ...]) -> Iterator[list[Sequence[Seen]]]:
    """The pieces of each rank, for each way in which the table cuts a whole of this shape; if all are known."""
    for way in sorted({piece.kind.way for piece in parts[0].pieces if piece.kind.whole == shape}):
        found = [[piece for piece in part.pieces if piece.kind.way == way] for part in parts]
        if all(some and len(some) == some[0].kind.pieces for some in found):
            yield list(found)


def _of_pieces(like: Seen, parts: list[Seen], pieces: Sequence[Sequence[Seen]]) -> Numbers:
    sketched = [_shard(piece) for some in pieces for piece in some]
    return whole([_shard(part) for part in parts], like.kind.real_shape, sketched)


def _shard(part: Seen) -> Shard:
    extra = (0,) * (len(part.kind.real_shape) - len(part.kind.shape))
    start = part.kind.start or (0,) * len(part.kind.shape)
    return Shard(part.numbers, part.kind.real_shape, (*start, *extra))


def _candidates(like: Seen, parts: list[Seen], dimension: int | None) -> Iterator[Numbers]:
    shape, shapes = like.kind.shape, [part.kind.shape for part in parts]
    if all(one == shape for one in shapes):
        yield parts[0].numbers
        if any(part.numbers != parts[0].numbers for part in parts):
            total = summed([part.numbers for part in parts], like.kind.real_shape)
            yield total
            yield _scaled(total, 1 / len(parts))
        return
    for cut in range(len(shape)) if dimension is None else [dimension % max(len(shape), 1)]:
        if all(len(one) == len(shape) and _fits(one, shape, cut) for one in shapes) and shape[cut] == sum(
            one[cut] for one in shapes
        ):
            yield whole(list(_shards(parts, cut)), like.kind.real_shape)


def _fits(one: tuple[int, ...], shape: tuple[int, ...], cut: int) -> bool:
    return all(size == whole_size or at == cut for at, (size, whole_size) in enumerate(zip(one, shape)))


def _shards(parts: list[Seen], cut: int) -> Iterator[Shard]:
    start = 0
    for part in parts:
        shape = part.kind.real_shape
        yield Shard(part.numbers, shape, tuple(start if at == cut else 0 for at in range(len(shape))))
        start += shape[cut]


def _scaled(numbers: Numbers, factor: float) -> Numbers:
    changed = list(numbers)
    for place in (MIN, MAX, MEAN, STD, NORM):
        changed[place] *= factor
    if math.isnan(numbers[NORM]):  # the sketch is not relative to it
        changed[SKETCH] = [factor * number for number in numbers[SKETCH]]
    changed[CHECKSUM] = -1  # none is known
    return tuple(changed)


_kinds: dict[tuple[Kind, Kind], Kind] = {}


def _kind(like: Kind, part: Kind) -> Kind:
    """That of the whole, in the dtype of the parts."""
    found = _kinds.get((like, part))
    if found is None:
        described = {"part": part.part, "place": part.place, "shape": like.shape, "dtype": part.dtype}
        found = _kinds[like, part] = Kind({**described, "requires_grad": part.requires_grad})
        found.unit = max(found.unit, UNITS["float32"])  # no checksum tells that whole numbers are equal
    return found
