"""Runs of several ranks against a run of one: a call of all ranks, as the one process would have made it.

How a tensor lies on the ranks is told by itself where it was a DTensor, else by the table that recording was given
(capture/pieces.py), by the shapes on both sides, or by the user's table (module pattern → dimension): its parts are
shards along the dimension in which they are smaller, in the order of the ranks; or they are the same everywhere; or
summands, whose sum or mean over the ranks is what the one process has. Gradients of a loss that each rank averages over
its own part of the batch are as many times larger as there are ranks. Where there is a choice, what fits best is taken:
a fault fits none.

Ranks may be a grid: replicas of the model, each with its part of the batch, on ranks that follow each other and share
its layers. What the ranks of a replica have is then put together first, and the replicas afterwards.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

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


class Layout(NamedTuple):
    """How the ranks of a run share its work."""

    table: Table = ()
    replicas: int | None = None  # of the model; None: as its parameters tell


_ONE_WAY = Layout()


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


def replicas(like: Call, call: Call) -> int | None:
    """How many of the model there are on the ranks, by how much smaller their parameters are; None without any.

    Of a tensor that is not cut evenly the first rank has the largest part. DTensors do not tell: FSDP cuts them, too.
    """
    cuts = [1]
    for name, seen in call.parts[0].inputs.items():
        other = like.inputs.get(name)
        is_plain = seen.kind.part == "parameter" and seen.kind.whole is None
        if is_plain and other is not None and len(seen.kind.shape) == len(other.kind.shape):
            cuts.append(round(other.kind.numel / seen.kind.numel))
    ranks = len(call.parts)
    return None if len(cuts) == 1 else ranks // max(cuts) if ranks % max(cuts) == 0 else 1


def joined(like: Call, call: Call, layout: Layout = _ONE_WAY) -> Call:
    """What all ranks have of a call, put together to be compared with `like`."""
    parts = call.parts
    dimensions = [at for pattern, at in layout.table if re.search(pattern, call.site.module)]
    sharing = _Sharing(dimensions, layout.replicas or 1)
    found = Call(call.site, call.id, call.step)
    found.order = call.order
    found.inputs = _all(like.inputs, [part.inputs for part in parts], sharing, False)
    found.outputs = _all(like.outputs, [part.outputs for part in parts], sharing, False)
    count = min(len(part.backwards) for part in parts)
    for number, backward in enumerate(like.backwards[:count]):
        own = Backward(parts[0].backwards[number].order)
        own.inputs = _all(backward.inputs, [part.backwards[number].inputs for part in parts], sharing, True)
        own.outputs = _all(backward.outputs, [part.backwards[number].outputs for part in parts], sharing, True)
        found.backwards.append(own)
    return found


class _Sharing(NamedTuple):
    """How the tensors of a call lie on the ranks."""

    dimensions: Sequence[int]  # along which they may be cut, where the table tells
    replicas: int


def _all(like: dict[str, Seen], parts: list[dict[str, Seen]], sharing: _Sharing, is_gradient: bool) -> dict[str, Seen]:
    found = {}
    for name, seen in like.items():
        own = [part[name] for part in parts if name in part]
        one = _one(seen, own, sharing, is_gradient) if len(own) == len(parts) else None
        if one is not None:
            found[name] = one
    return found


def _one(like: Seen, parts: list[Seen], sharing: _Sharing, is_gradient: bool) -> Seen | None:
    is_grid = 1 < sharing.replicas < len(parts)
    if any(part.kind.whole is not None for part in parts):
        candidates = list(_as_placed(like, parts))
    else:
        cut = list(_ways(parts, like.kind.shape))
        certain = [pieces for pieces in cut if not pieces[0][0].kind.is_guessed]
        candidates = [_of_pieces(like, parts, pieces) for pieces in certain or cut]
        if not certain:
            own = [_Part(part.numbers, part.kind.shape, part.kind.real_shape[len(part.kind.shape) :]) for part in parts]
            candidates += _of_grid(like, own, sharing) if is_grid else _candidates(like, own, sharing.dimensions)
    if is_gradient:
        shares = sharing.replicas if is_grid else len(parts)  # of the batch
        candidates += [_scaled(numbers, 1 / shares) for numbers in candidates]
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


class _Part(NamedTuple):
    """What a rank has of a tensor, or what several have together."""

    numbers: Numbers
    shape: tuple[int, ...]
    extra: tuple[int, ...]  # dimensions of its numbers beyond those: 2 of complex ones


def _of_grid(like: Seen, parts: list[_Part], sharing: _Sharing) -> Iterator[Numbers]:
    """What the ranks of each replica have is put together in one way, and the replicas in another."""
    each = len(parts) // sharing.replicas
    groups = [parts[begin : begin + each] for begin in range(0, len(parts), each)]
    for way in zip(*(_of_replica(like, group, sharing.dimensions) for group in groups)):
        wholes = [replica for replica in way if replica is not None]
        if len(wholes) == sharing.replicas:
            yield from _candidates(like, wholes, ())


def _of_replica(like: Seen, parts: list[_Part], dimensions: Sequence[int]) -> Iterator[_Part | None]:
    """As copies, as summands, and along each dimension in turn: None where they cannot be. Always as many."""
    first, shape = parts[0], like.kind.shape
    are_alike = all(part.shape == first.shape for part in parts)
    yield first if are_alike else None
    are_copies = are_alike and all(part.numbers == first.numbers for part in parts)
    yield first._replace(numbers=_sum_of(parts)) if are_alike and not are_copies else None
    for cut in _cuts(shape, dimensions):
        size = shape[cut]
        whole_shape = (*first.shape[:cut], size, *first.shape[cut + 1 :])
        if len(first.shape) == len(shape) and first.shape[cut] < size and _can_be_cut(parts, whole_shape, cut):
            yield first._replace(numbers=_along(parts, whole_shape, cut), shape=whole_shape)
        else:
            yield None


def _candidates(like: Seen, parts: list[_Part], dimensions: Sequence[int]) -> Iterator[Numbers]:
    shape = like.kind.shape
    if all(part.shape == shape for part in parts):
        yield parts[0].numbers
        if any(part.numbers != parts[0].numbers for part in parts):
            total = _sum_of(parts)
            yield total
            yield _scaled(total, 1 / len(parts))
        return
    for cut in _cuts(shape, dimensions):
        if _can_be_cut(parts, shape, cut):
            yield _along(parts, shape, cut)


def _cuts(shape: tuple[int, ...], dimensions: Sequence[int]) -> Sequence[int]:
    """The dimensions along which it may be cut."""
    return sorted({at % len(shape) for at in dimensions}) if dimensions and shape else range(len(shape))


def _can_be_cut(parts: list[_Part], shape: tuple[int, ...], cut: int) -> bool:
    return all(len(part.shape) == len(shape) and _fits(part.shape, shape, cut) for part in parts) and shape[cut] == sum(
        part.shape[cut] for part in parts
    )


def _fits(one: tuple[int, ...], shape: tuple[int, ...], cut: int) -> bool:
    return all(size == whole_size or at == cut for at, (size, whole_size) in enumerate(zip(one, shape)))


def _sum_of(parts: list[_Part]) -> Numbers:
    return summed([part.numbers for part in parts], (*parts[0].shape, *parts[0].extra))


def _along(parts: list[_Part], shape: tuple[int, ...], cut: int) -> Numbers:
    return whole(list(_shards(parts, cut)), (*shape, *parts[0].extra))


def _shards(parts: list[_Part], cut: int) -> Iterator[Shard]:
    start = 0
    for part in parts:
        shape = (*part.shape, *part.extra)
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
