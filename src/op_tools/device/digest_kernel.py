"""The digest of many tensors in one Triton kernel, which reads each element once. Importing this file needs Triton.

A program adds up some chunks of a strip of one tensor (digest.Walk), as float32; where that tells of NaN, infinities
or squares that do not fit, and for wider elements, in float64. What it finds is one row of `partials`. `combine` adds
up the rows of each tensor, later and always in the same order.
"""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202
# (Triton reads the source of these functions; to Python's type checker they are something else.)
import triton
import triton.language as tl

_LANES = tl.constexpr(1024)
_SAMPLES = tl.constexpr(256)
_COLUMNS = tl.constexpr(20)  # numbers of a program, as digests_triton.py puts them
_ROW = tl.constexpr(32)  # numbers of a row of partials: nan, inf, checksum, smallest, largest, total, square, sketch


@triton.jit
def _load(address, kind, at, inside, number_type: tl.constexpr, is_wide: tl.constexpr, is_aligned: tl.constexpr):
    """The elements as numbers, and their bits as the checksum takes them."""
    value = tl.zeros(at.shape, number_type)
    words = tl.zeros(at.shape, tl.int32)
    if kind == 0:
        float32 = tl.load(_pointer(address, tl.float32, is_aligned) + at, mask=inside, other=0.0)
        value, words = float32.to(number_type), float32.to(tl.int32, bitcast=True)
    elif kind == 1:
        bfloat16 = tl.load(_pointer(address, tl.bfloat16, is_aligned) + at, mask=inside, other=0.0)
        value, words = (
            bfloat16.to(tl.float32).to(number_type),
            bfloat16.to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF,
        )
    elif kind == 2:
        float16 = tl.load(_pointer(address, tl.float16, is_aligned) + at, mask=inside, other=0.0)
        value, words = float16.to(tl.float32).to(number_type), float16.to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
    if is_wide:
        if kind == 3:
            float64 = tl.load(address.to(tl.pointer_type(tl.float64)) + at, mask=inside, other=0.0)
            value, words = float64.to(number_type), _halves(float64.to(tl.int64, bitcast=True))
        elif kind == 4:
            int64 = tl.load(address.to(tl.pointer_type(tl.int64)) + at, mask=inside, other=0)
            value, words = int64.to(number_type), _halves(int64)
        elif kind == 5:
            int32 = tl.load(address.to(tl.pointer_type(tl.int32)) + at, mask=inside, other=0)
            value, words = int32.to(number_type), int32
        elif kind == 6:
            int16 = tl.load(address.to(tl.pointer_type(tl.int16)) + at, mask=inside, other=0)
            value, words = int16.to(number_type), int16.to(tl.int32) & 0xFFFF
        elif kind == 7:
            int8 = tl.load(address.to(tl.pointer_type(tl.int8)) + at, mask=inside, other=0)
            value, words = int8.to(number_type), int8.to(tl.int32) & 0xFF
        elif kind == 8:
            uint8 = tl.load(address.to(tl.pointer_type(tl.int8)) + at, mask=inside, other=0).to(tl.int32) & 0xFF
            value, words = uint8.to(number_type), uint8
    return value, words ^ ((words >> 15) & 0x1FFFF)


@triton.jit
def _pointer(address, dtype: tl.constexpr, is_aligned: tl.constexpr):
    pointer = address.to(tl.pointer_type(dtype))
    return tl.multiple_of(pointer, 16) if is_aligned else pointer


@triton.jit
def _halves(bits):
    return bits.to(tl.int32) + (bits >> 32).to(tl.int32) * -1640531535  # 0x9E3779B1


@triton.jit
def _turned(real, imaginary, by_real, by_imaginary):
    return real * by_real - imaginary * by_imaginary, real * by_imaginary + imaginary * by_real


@triton.jit
def _add(
    address,
    kind,
    whole,
    real,
    first,
    end,
    chunks,
    program,
    start,
    block: tl.constexpr,
    number_type: tl.constexpr,
    is_exact: tl.constexpr,
    is_aligned: tl.constexpr,
):
    """A row of partials, of the lanes from `start` on. `is_aligned`: elements can be loaded 16 bytes at a time."""
    lane = start + tl.arange(0, block)
    strip_offset, strip_count = tl.load(program + 10), tl.load(program + 11)
    is_down = tl.load(program + 13) != 0
    turned0, turned1 = tl.zeros((block,), number_type), tl.zeros((block,), number_type)
    turned2, turned3 = tl.zeros((block,), number_type), tl.zeros((block,), number_type)
    placed, sums, square = (
        tl.zeros((block,), number_type),
        tl.zeros((block,), number_type),
        tl.zeros((block,), number_type),
    )
    smallest = tl.full((block,), float("inf"), number_type)
    largest = tl.full((block,), float("-inf"), number_type)
    nan, inf = tl.zeros((block,), tl.int32), tl.zeros((block,), tl.int32)
    checksum = tl.zeros((block,), tl.int32)
    of_chunks = whole + _LANES
    weights = real + 14 * _LANES
    for chunk in range(first, end):
        offset = tl.load(of_chunks + chunk) + strip_offset
        count = tl.minimum(tl.load(of_chunks + chunks + chunk), strip_count)
        if is_aligned:
            offset, count = tl.multiple_of(offset, 16), tl.multiple_of(count, 16)
        inside = lane < count
        factor = tl.load(of_chunks + 2 * chunks + chunk).to(tl.int32)
        value, words = _load(address, kind, offset + lane, inside, number_type, is_exact, is_aligned)
        checksum += words * factor
        used = inside
        if is_exact:
            is_nan = value != value
            used = inside & (tl.abs(value) < float("inf"))
            nan += is_nan.to(tl.int32)
            inf += (inside & ~used & ~is_nan).to(tl.int32)
        smallest = tl.minimum(smallest, tl.where(used, value, float("inf")))
        largest = tl.maximum(largest, tl.where(used, value, float("-inf")))
        if is_exact:
            value = tl.where(used, value, 0.0)
        turned0 += value * tl.load(weights + chunk)
        turned1 += value * tl.load(weights + chunks + chunk)
        turned2 += value * tl.load(weights + 2 * chunks + chunk)
        turned3 += value * tl.load(weights + 3 * chunks + chunk)
        placed += value * tl.load(weights + 4 * chunks + chunk)
        sums += value
        square += value * value

    # the sketch, as digest._sketch has it
    place = tl.load(program + 18).to(tl.float64, bitcast=True)
    total = tl.sum(sums, 0).to(tl.float64)
    summed_places = tl.sum(placed, 0).to(tl.float64)
    i1 = tl.sum(sums * tl.load(real + 12 * _LANES + lane), 0).to(tl.float64)
    i2 = tl.sum(sums * tl.load(real + 13 * _LANES + lane), 0).to(tl.float64)
    factors = tl.load(whole + lane).to(tl.int32)
    number = tl.arange(0, _ROW)
    row = tl.where(number == 0, tl.sum(nan, 0).to(tl.float64), tl.zeros((_ROW,), tl.float64))
    row = tl.where(number == 1, tl.sum(inf, 0).to(tl.float64), row)
    summed = tl.sum(checksum * factors, 0) * tl.load(program + 12).to(tl.int32)
    row = tl.where(number == 2, (summed.to(tl.int64) & 0xFFFFFFFF).to(tl.float64), row)
    row = tl.where(number == 3, tl.min(smallest, 0).to(tl.float64), row)
    row = tl.where(number == 4, tl.max(largest, 0).to(tl.float64), row)
    row = tl.where(number == 5, total, row)
    row = tl.where(number == 6, tl.sum(square, 0).to(tl.float64), row)
    for turn in tl.static_range(2):
        strip_real = tl.load(program + 14 + 2 * turn).to(tl.float64, bitcast=True)
        strip_imaginary = tl.load(program + 15 + 2 * turn).to(tl.float64, bitcast=True)
        by_real = tl.load(real + (8 + 2 * turn) * _LANES + lane)
        by_imaginary = tl.load(real + (9 + 2 * turn) * _LANES + lane)
        if turn == 0:
            here_real, here_imaginary = _turned(turned0, turned1, by_real, by_imaginary)
        else:
            here_real, here_imaginary = _turned(turned2, turned3, by_real, by_imaginary)
        lead_real = tl.where(is_down, tl.sum(here_real, 0).to(tl.float64), strip_real * total)
        lead_imaginary = tl.where(is_down, tl.sum(here_imaginary, 0).to(tl.float64), strip_imaginary * total)
        row = tl.where(number == 23 + 2 * turn, lead_real, row)
        row = tl.where(number == 24 + 2 * turn, lead_imaginary, row)
        for one in tl.static_range(2):
            column = 2 * turn + one
            column_real = tl.load(real + 2 * column * _LANES + lane)
            column_imaginary = tl.load(real + (2 * column + 1) * _LANES + lane)
            main_real, main_imaginary = _turned(here_real, here_imaginary, column_real, column_imaginary)
            main_real, main_imaginary = tl.sum(main_real, 0).to(tl.float64), tl.sum(main_imaginary, 0).to(tl.float64)
            last_real = tl.sum(sums * column_real, 0).to(tl.float64)
            last_imaginary = tl.sum(sums * column_imaginary, 0).to(tl.float64)
            whole_real, whole_imaginary = _turned(main_real, main_imaginary, strip_real, strip_imaginary)
            last_real, last_imaginary = _turned(last_real, last_imaginary, strip_real, strip_imaginary)
            row = tl.where(number == 7 + 2 * column, whole_real, row)
            row = tl.where(number == 8 + 2 * column, whole_imaginary, row)
            row = tl.where(number == 15 + 2 * column, tl.where(is_down, last_real, main_real), row)
            row = tl.where(number == 16 + 2 * column, tl.where(is_down, last_imaginary, main_imaginary), row)
    row = tl.where(number == 27, tl.where(is_down, i1 + place * total, summed_places + i1), row)
    return tl.where(number == 28, tl.where(is_down, summed_places + i2, place * total), row)


@triton.jit
def _joined(row, other):
    number = tl.arange(0, _ROW)
    ends = tl.where(number == 3, tl.minimum(row, other), tl.maximum(row, other))
    return tl.where((number == 3) | (number == 4), ends, row + other)


@triton.jit
def _none():
    number = tl.arange(0, _ROW)
    row = tl.where(number == 3, float("inf"), tl.zeros((_ROW,), tl.float64))
    return tl.where(number == 4, float("-inf"), row)


@triton.jit
def digest(call, programs, partials, probes, sources, first_line, first_partial, count):
    """`call`: the address of each of `count` tensors, then the line that knows it, or -1."""
    program = programs + tl.program_id(0).to(tl.int64) * _COLUMNS
    number, kind, numel = tl.load(program), tl.load(program + 1), tl.load(program + 2)
    whole = _pointer(tl.load(program + 3), tl.int64, True)
    narrow = _pointer(tl.load(program + 4), tl.float32, True)
    wide = _pointer(tl.load(program + 5), tl.float64, True)
    first, end, chunks, is_first = (
        tl.load(program + 6),
        tl.load(program + 7),
        tl.load(program + 8),
        tl.load(program + 9) != 0,
    )
    address, known = tl.load(call + number), tl.load(call + count + number)
    line = first_line + number
    is_same = False
    if is_first | (known >= 0):
        sample = tl.arange(0, _SAMPLES).to(tl.int64)
        many = tl.minimum(numel, _SAMPLES)
        at = sample * numel // tl.maximum(many, 1)
        _, words = _load(address, kind, at, sample < many, tl.float64, True, False)
        probe = tl.sum((words.to(tl.int64) + 1) * (2 * sample + 1), 0)
        source = line.to(tl.int64)
        if known >= 0:
            is_same = tl.load(probes + known) == probe
            source = tl.where(is_same, tl.load(sources + known), source)
        if is_first:
            tl.store(probes + line, probe)
            tl.store(sources + line, source)
    if not is_same:
        row = _none()
        is_easy = False
        if kind < 3:
            if (tl.load(program + 19) != 0) & (address % 16 == 0):
                row = _add(
                    address, kind, whole, narrow, first, end, chunks, program, 0, _LANES, tl.float32, False, True
                )
            else:
                row = _add(
                    address, kind, whole, narrow, first, end, chunks, program, 0, _LANES, tl.float32, False, False
                )
            position = tl.arange(0, _ROW)
            square = tl.sum(tl.where(position == 6, row, 0.0), 0)
            ends = tl.sum(tl.where((position == 3) | (position == 4), tl.abs(row), 0.0), 0)
            is_easy = ((square > 1e-32) & (square < 1e36)) | ((square == 0.0) & (ends == 0.0))
        if not is_easy:
            row = _none()
            for start in range(0, _LANES, _LANES // 4):
                row = _joined(
                    row,
                    _add(
                        address,
                        kind,
                        whole,
                        wide,
                        first,
                        end,
                        chunks,
                        program,
                        start,
                        _LANES // 4,
                        tl.float64,
                        True,
                        False,
                    ),
                )
        tl.store(partials + (first_partial + tl.program_id(0)).to(tl.int64) * _ROW + tl.arange(0, _ROW), row)


@triton.jit
def combine(spans, sources, partials, found):
    """Adds up the rows of each line: `spans` has where they begin and how many they are."""
    line = tl.program_id(0).to(tl.int64)
    source = tl.load(sources + line)
    begin, many = tl.load(spans + 2 * source), tl.load(spans + 2 * source + 1)
    row = _none()
    for number in range(begin, begin + many):
        row = _joined(row, tl.load(partials + number * _ROW + tl.arange(0, _ROW)))
    tl.store(found + line * _ROW + tl.arange(0, _ROW), row)
