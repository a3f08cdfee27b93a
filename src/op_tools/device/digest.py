"""A few numbers that tell what a tensor holds, computed in the same walk by torch, a Triton kernel and in C++.

The walk goes over a tensor whose elements lie in order in chunks of up to 1024 of them, its lanes. A Walk has the
weights of sketch.py as products: of a lane, and of a chunk. So an element costs a few multiplications with its chunk's
weights, and those of the lanes are applied to the sums. It depends on the shape only, and is kept.
"""

from __future__ import annotations

import math
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from op_tools.device.sketch import FACTORS, HASHES, HIGH_WORD, MIX_SHIFT, PERIOD, SIZE, TURNS, four_dimensions
from op_tools.values.tensors import with_memory

LANES = 1024
_MIN_ROWS = 8  # of a tensor with longer rows than that, for which the walk goes down its columns
COUNTS = ("elements", "nan", "inf", "checksum")
COLUMNS = ("min", "max", "mean", "std", "norm", *(f"sketch{number}" for number in range(SIZE)))
LINE = len(COUNTS) + len(COLUMNS) + 1  # the last is a probe: a sum of a few elements' bits, see digests.py
ROW = 32  # numbers that are added up: nan, inf, checksum, smallest, largest, total, square, sketch, and some that are 0
_CHUNKS_AT_ONCE = 1024
_FEW_ELEMENTS = 2**17  # of a tensor whose tables are kept on its device
_BITS_32 = 2**32 - 1

# dtypes, by the number that the kernels know them by; the first ones are summed up in float32, the others in float64
FLOATS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
KINDS = {**FLOATS, torch.float64: 3, torch.int64: 4, torch.int32: 5, torch.int16: 6, torch.int8: 7, torch.uint8: 8}
# other dtypes, and what they are read as, without loss but for the largest of uint64; complex ones as pairs
_READ_AS = {torch.bool: torch.uint8, torch.complex64: torch.float32, torch.complex128: torch.float64}
_READ_AS.update((getattr(torch, name), torch.float32) for name in dir(torch) if name.startswith("float8_e"))
for _name, _dtype in (("complex32", torch.float16), ("uint16", torch.int32), ("uint32", torch.int64)):
    if hasattr(torch, _name):
        _READ_AS[getattr(torch, _name)] = _dtype
if hasattr(torch, "uint64"):
    _READ_AS[torch.uint64] = torch.float64


def has_digest(tensor: Tensor) -> bool:
    """False for sparse and quantized tensors."""
    return tensor.layout is torch.strided and (tensor.dtype in KINDS or tensor.dtype in _READ_AS)


def plain(tensor: Tensor) -> Tensor:
    """Real numbers of KINDS that lie in order."""
    dtype = _READ_AS.get(tensor.dtype, tensor.dtype)
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return with_memory(tensor).to(dtype).resolve_neg().contiguous()


# ---- the walk ------------------------------------------------------------------------------------------------------


class Walk:
    """How a tensor of one shape is gone over. Tables are on the CPU, in float64 and int64.

    A strip is a run of chunks in which either the leading dimensions change (`is_down`) or the last one does. Its own
    weights are those of what stays the same.
    """

    def __init__(self, shape: tuple[int, ...], most_lanes: int) -> None:
        sizes = four_dimensions(shape)
        self.numel = math.prod(sizes)
        inner, whole = 1, 0  # the product of the dimensions that a chunk has as a whole, and how many these are
        while whole < 4 and inner * sizes[whole] <= most_lanes:
            inner *= sizes[whole]
            whole += 1
        taken = most_lanes // max(inner, 1)  # of the next dimension, where there is one
        self.is_down = whole > 0 or math.prod(sizes[1:]) >= _MIN_ROWS
        self.lanes = inner if whole == 4 else min(inner * taken, self.numel)
        self._lane_index = _lane_index(self.lanes, sizes, whole)
        # the first elements of strips and chunks, as i1, i2, i3, i4
        ends = sizes if self.numel else (0, 0, 0, 0)
        runs = [range(0, end, taken if d == whole else 1) for d, end in enumerate(ends)]
        runs[:whole] = [range(min(1, self.numel))] * whole
        none = [range(1)] * 4
        in_strips = [*runs[:1], *none[1:]] if self.is_down else [*none[:1], *runs[1:]]
        in_chunks = [*none[:1], *runs[1:]] if self.is_down else [*runs[:1], *none[1:]]
        self._strip_index, self._chunk_index = _indices(in_strips), _indices(in_chunks)
        strides = torch.tensor([math.prod(sizes[:d]) for d in range(4)], device="cpu")
        self.strip_offsets, self.chunk_offsets = self._strip_index @ strides, self._chunk_index @ strides
        # elements of a chunk: the lesser of what its strip and itself have
        self.strip_counts, self.chunk_counts = (
            (((*sizes, 1)[whole] - (index[:, whole] if whole < 4 else 0 * index[:, 0])) * inner).clamp(max=self.lanes)
            for index in (self._strip_index, self._chunk_index)
        )

    @cached_property
    def is_aligned(self) -> bool:
        """Whether all chunks begin and end at multiples of 16 elements."""
        whole = (self.strip_offsets, self.strip_counts, self.chunk_offsets, self.chunk_counts)
        return not any(bool((table % PERIOD).any()) for table in whole)

    # of lanes
    @cached_property
    def columns(self) -> Tensor:
        """Four complex weights by i1."""
        i1 = self._lane_index[:, 0]
        hashes = torch.tensor(HASHES, device="cpu")[:, i1 % PERIOD]
        return _units(hashes + torch.tensor(TURNS, device="cpu")[[0, 0, 1, 1], :1] * (i1 // PERIOD))

    @cached_property
    def lane_turns(self) -> Tensor:
        """Two complex weights by i2, i3, i4."""
        return _units(_phases(self._lane_index, lead=True))

    @cached_property
    def lane_places(self) -> Tensor:
        """i1 and i2."""
        return self._lane_index[:, :2].T.double().contiguous()

    @cached_property
    def lane_factors(self) -> Tensor:
        return _factors(self._lane_index)

    # of chunks and strips: two complex weights, the place that the moment of what changes is about, and factors
    @cached_property
    def chunk_turns(self) -> Tensor:
        return _units(_phases(self._chunk_index, lead=self.is_down))

    @cached_property
    def chunk_places(self) -> Tensor:
        return self._chunk_index[:, 1 if self.is_down else 0].double()

    @cached_property
    def chunk_factors(self) -> Tensor:
        return _factors(self._chunk_index)

    @cached_property
    def strip_turns(self) -> Tensor:
        return _units(_phases(self._strip_index, lead=not self.is_down))

    @cached_property
    def strip_places(self) -> Tensor:
        return self._strip_index[:, 0 if self.is_down else 1].double()

    @cached_property
    def strip_factors(self) -> Tensor:
        return _factors(self._strip_index)

    @cached_property
    def packed(self) -> Tensor:
        """Everything, one behind the other, as int64 and as the bits of float64: what native/csrc/digest.h reads."""
        head = [self.numel, self.lanes, len(self.chunk_offsets), len(self.strip_offsets), int(self.is_down)]
        whole = [self.lane_factors, self.chunk_offsets, self.chunk_counts, self.chunk_factors]
        whole += [self.strip_offsets, self.strip_counts, self.strip_factors]
        real = [self.columns, self.lane_turns, self.lane_places, self.chunk_turns, self.chunk_places]
        real += [self.strip_turns, self.strip_places]
        numbers = [parts(one) if one.is_complex() else one for one in real]
        tables = [torch.tensor(head, device="cpu"), *whole, *(one.contiguous().view(torch.int64) for one in numbers)]
        return torch.cat([table.reshape(-1) for table in tables])


@lru_cache(maxsize=512)
def walk(shape: tuple[int, ...], most_lanes: int = LANES) -> Walk:
    """The one for this shape, as `plain` has it. `most_lanes`: a multiple of 16."""
    return Walk(shape, most_lanes)


def _lane_index(lanes: int, sizes: tuple[int, ...], whole: int) -> Tensor:
    """i1, i2, i3, i4 of each lane within its chunk."""
    left = torch.arange(lanes, device="cpu")
    index = torch.zeros(lanes, 4, dtype=torch.int64, device="cpu")
    for dimension, size in enumerate(sizes[:whole]):
        index[:, dimension] = left % max(size, 1)
        left = left // max(size, 1)
    if whole < 4:
        index[:, whole] = left
    return index


def _indices(ranges: list[range]) -> Tensor:
    """Every combination, the first dimension changing fastest."""
    places = [torch.tensor(one, dtype=torch.int64, device="cpu") for one in reversed(ranges)]
    return torch.stack([one.flatten() for one in torch.meshgrid(*places, indexing="ij")][::-1], 1)


def _phases(index: Tensor, lead: bool) -> Tensor:
    """By the leading dimensions, or by the last one."""
    turns = torch.tensor(TURNS, device="cpu")
    return turns[:, 1:] @ index[:, 1:].T if lead else turns[:, :1] * (index[:, 0] // PERIOD)


def _units(phases: Tensor) -> Tensor:
    angles = (phases & _BITS_32).double() * (2 * math.pi / 2**32)
    return torch.complex(angles.cos(), angles.sin())


def _factors(index: Tensor) -> Tensor:
    """Powers of FACTORS."""
    result = torch.ones(len(index), dtype=torch.int64, device="cpu")
    for factor, places in zip(FACTORS, index.T):
        power = factor
        for bit in range(int(places.max()).bit_length() if len(places) else 0):
            result = torch.where(places >> bit & 1 > 0, result * power & _BITS_32, result)
            power = power * power & _BITS_32
    return result


# ---- a tensor by torch's own kernels -------------------------------------------------------------------------------


def line_of(tensor: Tensor) -> Tensor:
    """LINE int64 numbers: COUNTS, the bits of COLUMNS, and no probe. Works on every device that has float64."""
    values = plain(tensor)
    shape, at = tuple(values.shape), values.device
    made, row = walk(shape), _no_row(at)
    tables = _tables if made.numel <= _FEW_ELEMENTS else _tables.__wrapped__
    for strip in range(len(made.strip_offsets)):
        for begin in range(0, len(made.chunk_offsets), _CHUNKS_AT_ONCE):
            other = _part(values.reshape(-1), *tables(shape, strip, begin, at))
            ends = torch.stack([torch.minimum(row[3], other[3]), torch.maximum(row[4], other[4])])
            row = torch.cat([row[:3] + other[:3], ends, row[5:] + other[5:]])
    return lines_of(row[None], torch.tensor([made.numel], device=at))[0]


def _no_row(device: torch.device) -> Tensor:
    row = torch.zeros(ROW, dtype=torch.float64, device="cpu")
    row[3], row[4] = math.inf, -math.inf
    return row.to(device)


def lines_of(rows: Tensor, numels: Tensor) -> Tensor:
    """From rows of sums (ROW numbers each) and numbers of elements."""
    nan, inf, checksum, smallest, largest, total, square = rows[:, :7].unbind(1)
    finite = numels - nan - inf
    mean = total / finite
    deviation = torch.where(smallest == largest, 0, (square / finite - mean * mean).clamp(min=0).sqrt())
    numbers = torch.stack([smallest, largest, mean, deviation, square.sqrt()], 1)
    numbers = torch.cat([torch.where(finite[:, None] > 0, numbers, math.nan), rows[:, 7 : 7 + SIZE]], 1)
    counts = torch.stack([numels, nan.long(), inf.long(), checksum.long() & _BITS_32], 1)
    return torch.cat([counts, numbers.contiguous().view(torch.int64), numels.new_zeros(len(numels), 1)], 1)


def _part(flat: Tensor, index: Tensor, inside: Tensor, factors: Tensor, weights: Tensor, to_sketch: Tensor) -> Tensor:
    """A row, of some chunks of a strip."""
    raw = flat[index]
    values = raw.double()
    finite, nan = values.isfinite() & inside, values.isnan() & inside
    ends = [torch.where(finite, values, math.inf).amin(), torch.where(finite, values, -math.inf).amax()]
    values = torch.where(finite, values, 0)
    checksum = (torch.where(inside, _words(raw), 0) * factors).sum() & _BITS_32
    counts = [nan.sum(), (inside & ~finite & ~nan).sum(), checksum]
    sums = (weights @ values).flatten()
    scalars = [*(one.double() for one in counts), *ends, values.sum(), values.square().sum()]
    return torch.cat([torch.stack(scalars), to_sketch @ sums, sums.new_zeros(ROW - 7 - SIZE)])


@lru_cache(maxsize=64)
def _tables(shape: tuple[int, ...], strip: int, begin: int, device: torch.device) -> tuple[Tensor, ...]:
    """For `_part`: where elements are, and whether; factors of the checksum; weights of chunks; what makes a sketch."""
    made, chunks = walk(shape), slice(begin, begin + _CHUNKS_AT_ONCE)
    lanes = torch.arange(made.lanes, device="cpu")
    inside = lanes < torch.minimum(made.strip_counts[strip], made.chunk_counts[chunks])[:, None]
    index = torch.where(inside, made.chunk_offsets[chunks, None] + made.strip_offsets[strip] + lanes, 0)
    factors = made.chunk_factors[chunks, None] * made.strip_factors[strip] & _BITS_32
    factors = factors * made.lane_factors & _BITS_32
    places = made.chunk_places[None, chunks]
    weights = torch.cat([parts(made.chunk_turns[:, chunks]), places, torch.ones_like(places)])
    return tuple(table.to(device) for table in (index, inside, factors, weights, _to_sketch(made, strip)))


def parts(table: Tensor) -> Tensor:
    """Real and imaginary parts one below the other."""
    return torch.view_as_real(table).movedim(-1, 1).flatten(0, 1)


def _words(raw: Tensor) -> Tensor:
    """The bits of the elements as the checksum takes them."""
    size = raw.element_size()
    if size < 8:
        dtype = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[size]
        words = raw.view(dtype).long() & (2 ** (8 * size) - 1)
    else:
        bits = raw.view(torch.int64)
        words = bits + (bits >> 32) * HIGH_WORD & _BITS_32
    mixed: Tensor = words ^ words >> MIX_SHIFT
    return mixed


def _to_sketch(made: Walk, strip: int) -> Tensor:
    """A matrix that makes a sketch of sums by lanes: with the weights of chunks (4 numbers and places), and plain."""
    turns, place = made.strip_turns[:, strip, None], made.strip_places[strip]
    i1, i2 = made.lane_places.unbind()
    matrix = torch.zeros(SIZE, 6, made.lanes, dtype=torch.float64, device="cpu")
    for k in range(4):
        m = k // 2
        main = made.columns[k] * made.lane_turns[m]
        _put_complex(matrix[2 * k : 2 * k + 2, 2 * m : 2 * m + 2], main * turns[m])
        if made.is_down:
            matrix[8 + 2 * k : 10 + 2 * k, 5] = parts((made.columns[k] * turns[m])[None])
        else:
            _put_complex(matrix[8 + 2 * k : 10 + 2 * k, 2 * m : 2 * m + 2], main)
    for m in range(2):
        if made.is_down:
            _put_complex(matrix[16 + 2 * m : 18 + 2 * m, 2 * m : 2 * m + 2], made.lane_turns[m])
        else:
            matrix[16 + 2 * m : 18 + 2 * m, 5] = parts(turns[m].expand(1, made.lanes))
    changing, fixed = (21, 20) if made.is_down else (20, 21)
    matrix[changing, 4] = 1
    matrix[changing, 5] = i2 if made.is_down else i1
    matrix[fixed, 5] = place + (i1 if made.is_down else 0)
    return matrix.view(SIZE, -1)


def _put_complex(place: Tensor, weight: Tensor) -> None:
    """A product with a complex weight, as a matrix of four real ones."""
    place[0, 0], place[0, 1], place[1, 0], place[1, 1] = weight.real, -weight.imag, weight.imag, weight.real
