"""The sketch of a whole tensor, from those of its shards; and how far apart tensors are told to be."""

from __future__ import annotations

import math

import pytest
import torch

from op_tools.compare_runs.calls import CHECKSUM, NORM, Kind, Seen
from op_tools.compare_runs.distance import distance, same_bits
from op_tools.compare_runs.shards import Shard, summed, whole
from op_tools.device import digest


def numbers(tensor):
    """As a file has them."""
    line = digest.lines(*digest.digested(tensor.double().reshape(1, -1), tensor.shape))[0]
    columns = line[4:].view(torch.float64).tolist()
    return (*line[:4].tolist(), *columns[:5], *(number / (columns[4] or 1.0) for number in columns[5:]))


def seen(tensor):
    kind = Kind({"part": "output", "place": "", "shape": tensor.shape, "dtype": "float32"})
    return Seen.of(kind, numbers(tensor))


def shards(tensor, dimension, starts):
    for begin, end in zip(starts, [*starts[1:], tensor.shape[dimension]]):
        part = tensor.narrow(dimension, begin, end - begin)
        start = tuple(begin if at == dimension else 0 for at in range(tensor.dim()))
        yield Shard(numbers(part), tuple(part.shape), start)


CUTS = [
    ((64, 96), 0, [0, 20]),
    ((64, 96), 1, [0, 48]),
    ((4, 32, 48), 1, [0, 5, 16]),
    ((4, 32, 48), 0, [0, 1, 2, 3]),
    ((3, 8, 10, 16), 1, [0, 1, 6]),
    ((1000,), 0, [0, 16, 512]),
]


@pytest.mark.parametrize(("shape", "dimension", "starts"), CUTS)
def test_shards_add_up(shape, dimension, starts):
    tensor = torch.randn(shape, dtype=torch.float64) + 0.3
    found, right = whole(list(shards(tensor, dimension, starts)), shape), numbers(tensor)
    known = [(one, other) for place, (one, other) in enumerate(zip(found, right)) if one == one and place != CHECKSUM]
    assert len(known) >= len(right) - 2, "but for the checksum, and the moment along rows of a cut in the middle"
    for one, other in known:
        assert one == pytest.approx(other, abs=1e-11)


def test_shards_of_the_last_dimension_that_begin_anywhere_are_known_in_part():
    tensor = torch.randn(64, 96, dtype=torch.float64)
    found = whole(list(shards(tensor, 1, [0, 41])), (64, 96))
    assert 0 < sum(math.isnan(number) for number in found) < len(found) - 12
    assert distance(Seen.of(seen(tensor).kind, found), seen(tensor)).told == pytest.approx(0, abs=1e-11)
    assert distance(Seen.of(seen(tensor).kind, found), seen(1.01 * tensor)).told == pytest.approx(0.01, rel=0.1)


def test_summands_add_up():
    parts = torch.randn(3, 16, 32, dtype=torch.float64).unbind()
    found = Seen.of(seen(parts[0]).kind, summed([numbers(part) for part in parts], (16, 32)))
    assert math.isnan(found.numbers[NORM])
    assert distance(found, seen(sum(parts))).told < 1e-12
    assert distance(found, seen(1.1 * sum(parts))).told > 0.03


@pytest.mark.parametrize("shape", [(8, 32), (64, 64), (300, 40), (2, 3, 500)])
def test_the_distance_is_about_the_true_one(shape):
    tensor = torch.randn(shape)
    changes = [tensor * (1 + 0.01 * torch.randn(shape)), tensor.roll(1, -1), tensor + 0.01, tensor.roll(1, 0)]
    changes += [tensor + 0.01 * torch.randn(shape[-1]), tensor + 0.01 * torch.randn(*shape[:-1], 1)]
    for changed in changes:
        true = float((changed - tensor).norm()) / max(float(tensor.norm()), float(changed.norm()))
        assert 0.15 * true < distance(seen(tensor), seen(changed)).told < 4.5 * true


def test_an_exchange_is_no_equality():
    tensor = torch.arange(64.0)
    changed = tensor.clone()
    changed[[3, 5, 40, 42]] = changed[[5, 3, 42, 40]]
    assert not same_bits(seen(tensor), seen(changed))
    signs = torch.ones(64, dtype=torch.float64)
    signs[[2, 4]] = -1
    assert not same_bits(seen(tensor.double() + 1), seen((tensor.double() + 1) * signs))
