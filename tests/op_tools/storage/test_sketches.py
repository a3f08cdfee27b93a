"""Sketches: by their definition, over shards, and what distances they tell."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from op_tools.device import digest, sketch
from op_tools.errors import CaptureError
from op_tools.storage import pack
from op_tools.storage.sketches import distance, joined

OLD = Path(__file__).with_name("layout_1.pack")


def record(tensor):
    """As OpCapture writes it."""
    line = digest.line_of(tensor)
    numbers = line[len(digest.COUNTS) : -1].view(torch.float64).tolist()
    about = {"op": "", "part": "input", "place": "", "forward_id": 1, "step": 0, "order": 1, "source": "", "module": ""}
    about.update(device="cpu", requires_grad=False, note="")
    counts = dict(zip(("numel", "nan", "inf", "checksum"), line[: len(digest.COUNTS)].tolist()))
    plain = dict(zip(("min", "max", "mean", "std", "norm"), numbers))
    dtype = str(tensor.dtype).partition(".")[2]
    return pack.TensorRecord(
        **about, shape=tuple(tensor.shape), dtype=dtype, **counts, **plain, sketch=tuple(numbers[5:])
    )


# ---- the definition ------------------------------------------------------------------------------------------------

SHAPES = [(), (1,), (5,), (300,), (5000,), (3, 5000), (20, 3000), (7, 13), (64, 64), (2000, 3), (8, 16, 3, 3)]
SHAPES += [(5, 300, 7, 7), (2, 3, 40, 64), (2, 3, 4, 5, 6), (1, 1, 2000), (4096, 1, 2), (2, 1025), (9, 1025), (0, 4)]


def by_definition(tensor):
    """Element by element, as docs/formats.md has it."""
    n1, n2, n3, n4 = sketch.four_dimensions(tensor.shape)
    x = tensor.double().reshape(n4, n3, n2, n1)
    i4, i3, i2, i1 = torch.meshgrid(*map(torch.arange, (n4, n3, n2, n1)), indexing="ij")
    hashes = torch.tensor(sketch.HASHES)
    main, last, lead = [], [], []
    for k in range(4):
        turn = sketch.TURNS[k // 2]
        rows = turn[1] * i2 + turn[2] * i3 + turn[3] * i4
        columns = hashes[k][i1 % 16] + turn[0] * (i1 // 16)
        for phases, numbers in ((columns + rows, main), (columns, last), *([(rows, lead)] if k % 2 == 0 else [])):
            angle = (phases % 2**32).double() * (2 * math.pi / 2**32)
            numbers += [(x * angle.cos()).sum(), (x * angle.sin()).sum()]
    return torch.stack([*main, *last, *lead, (x * i1).sum(), (x * i2).sum()])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_is_what_it_is_defined_as(shape):
    torch.manual_seed(0)
    tensor = torch.randn(shape, dtype=torch.float64)
    size = float(tensor.norm()) * max([1, *shape])
    assert record(tensor).sketch == pytest.approx(by_definition(tensor).tolist(), abs=1e-12 * max(size, 1))


def test_the_numbers_never_change():
    """Records of different processes, devices and releases are compared: these numbers are for ever."""
    assert [hashes[:2] for hashes in sketch.HASHES] == HASHES
    assert sketch.TURNS == TURNS
    found = record(torch.arange(60, dtype=torch.float32).view(3, 20))
    assert found.checksum == CHECKSUM
    assert found.sketch[::4] == pytest.approx(NUMBERS, rel=1e-12)


def test_the_same_numbers_however_the_tensor_lies():
    torch.manual_seed(0)
    tensor = torch.randn(30, 70)
    wide = torch.randn(30, 140)
    wide[:, ::2] = tensor
    assert record(tensor) == record(tensor.t().contiguous().t()) == record(wide[:, ::2])


# ---- shards --------------------------------------------------------------------------------------------------------


def assert_alike(one, other):
    assert (one.shape, one.numel, one.nan, one.inf) == (other.shape, other.numel, other.nan, other.inf)
    assert one.checksum == other.checksum
    plain = ([getattr(record, name) for name in ("min", "max", "mean", "std", "norm")] for record in (one, other))
    assert next(plain) == pytest.approx(next(plain), rel=1e-9, abs=1e-7, nan_ok=True)
    size = 1 if math.isnan(other.norm) else other.norm * max([1, *other.shape])
    assert one.sketch == pytest.approx(other.sketch, rel=1e-9, abs=1e-12 * size)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_shards_add_up_to_the_whole(data):
    """Cut anywhere, in the last dimension at multiples of 16; also twice."""
    shape = data.draw(st.lists(st.integers(1, 6), max_size=2)) + data.draw(
        st.lists(st.integers(1, 70), min_size=1, max_size=2)
    )
    torch.manual_seed(data.draw(st.integers(0, 9)))
    tensor = torch.randn(shape, dtype=torch.float64)
    if data.draw(st.booleans()):
        tensor.view(-1)[0] = math.nan
    parts = [((0,) * len(shape), tensor)]
    for _ in range(2):
        dimension = data.draw(st.integers(0, len(shape) - 1))
        step = 16 if dimension == len(shape) - 1 else 1
        cut = data.draw(st.integers(0, shape[dimension] // step)) * step
        pieces = []
        for start, part in parts:
            middle = min(max(cut - start[dimension], 0), part.shape[dimension])
            for begin, size in ((0, middle), (middle, part.shape[dimension] - middle)):
                if size:
                    place = list(start)
                    place[dimension] += begin
                    pieces.append((tuple(place), part.narrow(dimension, begin, size)))
        parts = pieces
    assert_alike(joined((record(part), start) for start, part in parts), record(tensor))


def test_batches_sequences_heads_and_columns_add_up():
    torch.manual_seed(0)
    tensor = torch.randn(4, 6, 10, 32)
    for dimension, starts in ((0, (0, 1, 3)), (1, (0, 5)), (2, (0, 3, 7)), (3, (0, 16))):
        ends = [*starts[1:], tensor.shape[dimension]]
        parts = []
        for start, end in zip(starts, ends):
            place = [0, 0, 0, 0]
            place[dimension] = start
            parts.append((record(tensor.narrow(dimension, start, end - start)), place))
        assert_alike(joined(parts), record(tensor))


def test_complex_shards_add_up():
    tensor = torch.randn(6, 5, dtype=torch.complex128)
    assert_alike(joined([(record(tensor[:, :3]), (0, 0)), (record(tensor[:, 3:]), (0, 3))]), record(tensor))


def test_a_shard_that_cannot_be_moved_is_refused():
    tensor = torch.ones(2, 20)
    with pytest.raises(ValueError, match="cannot begin at 10 in the last dimension, which is no multiple of 16"):
        joined([(record(tensor[:, :10]), (0, 0)), (record(tensor[:, 10:]), (0, 10))])


# ---- distances -----------------------------------------------------------------------------------------------------


def changed(x, generator):
    """One change at a time."""
    rows, columns = x.shape
    random = lambda *shape: torch.randn(shape, generator=generator, dtype=torch.float64)  # noqa: E731
    places = lambda n: torch.arange(n, dtype=torch.float64) / n  # noqa: E731
    yield "noise", x * (1 + 0.01 * random(rows, columns))
    yield "factor", x * 1.001
    yield "rolled channels", x.roll(1, 1)
    yield "rolled rows", x.roll(1, 0)
    order = [*range(3), 5, 4, 3, *range(6, columns)]
    yield "swapped channels", x[:, order]
    stale = x.clone()
    stale[rows // 3] = x[rows // 3 - 1]
    yield "stale row", stale
    one = x.clone()
    one[rows // 2, columns // 2] += 1
    yield "one element", one
    yield "constant", x + 0.01
    yield "ramp over rows", x + 0.01 * places(rows)[:, None]
    yield "ramp over columns", x + 0.01 * places(columns)
    yield "lost bias", x + 0.01 * random(columns)
    yield "constant per row", x + 0.01 * random(rows, 1)
    yield "every 8th channel", x + 0.01 * (torch.arange(columns) % 8 == 3)
    yield "halves exchanged", x.view(rows, -1, 2, 4).flip(2).reshape(rows, columns)
    tail = x.clone()
    tail[rows - max(rows // 8, 1) :] = 0
    yield "tail of zeros", tail
    yield "signs", torch.where(random(rows, columns) > 2, -x, x)
    if rows == columns:
        yield "transposed", x.t()


@pytest.mark.parametrize("shape", [(8, 32), (64, 64), (512, 256), (4096, 64)], ids=str)
def test_distances_are_told(shape):
    """Told over true: the candidate that the study chose lies between 0.33 and 4.1."""
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(shape, generator=generator, dtype=torch.float64)
        before = record(x)
        for name, y in changed(x, generator):
            told = distance(before, record(y)) / float((x - y).norm())
            assert 0.15 < told < 4.2, (name, seed, told)


def test_equal_tensors_have_no_distance():
    assert distance(record(torch.ones(30, 4)), record(torch.ones(30, 4))) == 0
    assert distance(record(torch.ones(0, 4)), record(torch.ones(0, 4))) == 0
    with pytest.raises(ValueError, match=r"shapes \(3,\) and \(4,\) have no distance"):
        distance(record(torch.ones(3)), record(torch.ones(4)))


# ---- files of the old layout ---------------------------------------------------------------------------------------


def test_files_of_the_old_layout_are_read():
    """Made by the release that wrote them; with tensors whose numbers are those of others."""
    found = list(pack.read(OLD))
    assert len(found) == 29
    weight = found[1]
    assert (weight.op, weight.part, weight.place) == ("torch.nn.functional.linear", "input", "[1]")
    assert (weight.shape, weight.numel, weight.order, weight.checksum) == ((3, 4), 12, 0, 14274885346960568578)
    assert weight.norm == pytest.approx(0.80063, abs=1e-5)
    assert weight.sketch == pytest.approx((0.3208, 0.2535, -0.3803, -0.3596), abs=1e-4)
    repeated = found[-1]
    assert (repeated.op, repeated.place, repeated.forward_id) == ("torch._foreach_addcmul_", "[2][1]", 5)
    assert repeated.checksum == found[5].checksum


def test_their_sketches_are_not_compared_with_others():
    old = next(pack.read(OLD))
    with pytest.raises(CaptureError, match="statistics of an older release cannot be compared by their sketches"):
        distance(old, old)


HASHES = [(520022130, 3288117084), (3404583577, 3216959141), (1257243643, 1433315060), (3163619238, 4279427899)]
TURNS = ((1331439862, 1640531478, 1187099755, 1920767786), (85899346, 33071248, 52828098, 82033875))
CHECKSUM = 2699130128
NUMBERS = [
    88.03308878232752,
    -56.188215866144276,
    218.43525858226275,
    -1.8951260210933967,
    -158.49628227194023,
    18810.0,
]
