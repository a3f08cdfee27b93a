// How a tensor is cut for its digest, and the weights of its places: see digest.cu. digests_cuda.py makes the layouts.
#pragma once
#include "kernel.cuh"

#define WARPS 8          // of a block
#define MAX_STRIPS 256   // of a block
#define FEW_ROWS 8       // below, the strips of a block are those of one row, where rows are cut
#define PERIOD 16        // places of the last dimension after which its weights repeat but for a turn
#define NUMBERS 4
#define PROFILES 2
#define SKETCH 18

struct Layout {
    uint64 length, columns, rows;
    uint64 width;         // of a strip
    uint64 cut;           // elements of one of the dimension that is cut, or 0
    uint64 cuts;          // strips of it
    uint64 cut_places;    // of it, in a strip
    uint64 cut_dimension; // counted from the last; 0: the last one is cut
    uint64 stride;        // elements of one outer place, were the tensor in order
    uint64 outer_count, outer_dimensions;  // places and dimensions before it
    uint64 is_quick;      // each strip is a part of one row, of whole vectors of 8: see digest_quick.cuh
    uint64 strips;        // of a block
    uint64 blocks, dimensions;
    uint64 sizes[1];      // as many as dimensions; then their strides, in elements
};

// ---- weights -------------------------------------------------------------------------------------------------------

struct Complex {
    double real, imaginary;
};

__device__ Complex times(Complex one, Complex other) {
    return {one.real * other.real - one.imaginary * other.imaginary, one.real * other.imaginary + one.imaginary * other.real};
}

__device__ void add_complex(Complex& to, Complex found) {
    to.real += found.real;
    to.imaginary += found.imaginary;
}

// In 2**-32 turns. Long, so it is there once.
__device__ __noinline__ Complex at_angle(uint32 angle) {
    Complex found;
    sincospi((double)angle / 2147483648.0, &found.imaginary, &found.real);
    return found;
}

__device__ uint32 hashed(uint32 place, uint32 seed) {
    uint32 hash = place * 0x9E3779B1u + seed * 0x85EBCA6Bu;
    hash = (hash ^ (hash >> 16)) * 0x7FEB352Du;
    hash = (hash ^ (hash >> 15)) * 0x846CA68Bu;
    return hash ^ (hash >> 16);
}

__device__ uint32 turn(int number, uint64 dimension) {
    const uint32 turns[NUMBERS] = {1332921573u, 471529187u, 160596103u, 56294617u};
    return turns[number] + (uint32)dimension * (turns[number] / 10);
}

// Short numbers take a tenth of the time.
__device__ uint64 quotient(uint64 number, uint64 by) {
    return (number | by) >> 32 ? number / by : (uint32)number / (uint32)by;
}

// Of a place in these dimensions, the last of which is counted first: the angle, and where it is in memory.
__device__ __noinline__ uint32 angle_of(const Layout* layout, int number, uint64 place, uint64 first, uint64 end, uint64& address) {
    uint32 angle = 0;
    const uint64* strides = layout->sizes + layout->dimensions;
    address = 0;
    for (uint64 at = end; at > first && place; at--) {
        const uint64 size = layout->sizes[at - 1], above = quotient(place, size), here = place - above * size;
        angle += (uint32)here * turn(number, layout->dimensions - at);
        address += here * strides[at - 1];
        place = above;
    }
    return angle;
}

// ---- strips --------------------------------------------------------------------------------------------------------

struct Strips {
    int count;
    bool cuts_last, is_one_row;                   // the strips are those of one row; else of one place in several rows
    uint64 starts[MAX_STRIPS];                    // in memory
    uint64 places[MAX_STRIPS];                    // in the tensor
    uint32 lengths[MAX_STRIPS];
    double weights[MAX_STRIPS][2 * NUMBERS + 1];  // and where they stand, for a moment
    Complex common[NUMBERS];                      // of the last dimension; if it is one row, of the others
    double common_ramp;
};

// So that the memory is at work while the weights are computed.
__device__ void fetch_ahead(uint64 address) {
#ifdef __CUDA_ARCH__
    asm volatile("prefetch.global.L2 [%0];" : : "l"(address));
#endif
}

#define FETCHED 128  // bytes at once

// What one block looks at, by its threads together. `size`: bytes of an element.
__device__ void find(Strips& strips, const Layout* layout, uint32 block, uint64 pointer, uint32 size) {
    const bool cuts_last = layout->cut && layout->cut_dimension == 0, is_one_row = cuts_last && layout->outer_count < FEW_ROWS;
    const uint64 cuts = layout->cuts, rows = layout->outer_count, columns = layout->columns;
    const uint64 in_one = is_one_row ? cuts : cuts_last ? rows : rows * cuts, of_block = layout->strips;
    const uint64 blocks_of_one = quotient(in_one + of_block - 1, of_block), before = quotient(block, blocks_of_one);
    const uint64 outside = cuts_last ? before : 0, first = (block - before * blocks_of_one) * of_block;
    const int count = (int)(in_one - first < of_block ? in_one - first : of_block);
    uint64 address;
    if (threadIdx.x == 0) {
        strips.count = count;
        strips.cuts_last = cuts_last;
        strips.is_one_row = is_one_row;
        strips.common_ramp = is_one_row ? ((double)outside - 0.5 * ((double)layout->rows - 1)) / (double)layout->rows
            : cuts_last ? ((double)(outside * layout->cut_places) - 0.5 * ((double)columns - 1)) / (double)columns : 0;
    }
    if (threadIdx.x < NUMBERS) {
        const int number = threadIdx.x;
        const uint32 angle = is_one_row ? angle_of(layout, number, outside, 0, layout->outer_dimensions, address)
            : cuts_last ? (uint32)(outside * (layout->cut_places / PERIOD)) * turn(number, 0) : 0;
        strips.common[number] = at_angle(angle);
    }
    for (int at = threadIdx.x; at < count * NUMBERS; at += THREADS) {
        const int strip = at / NUMBERS, number = at % NUMBERS;
        const uint64 here = first + strip, above = cuts_last ? 0 : quotient(here, cuts);
        const uint64 row = is_one_row ? outside : cuts_last ? here : above;
        const uint64 part = is_one_row ? here : cuts_last ? outside : here - above * cuts;
        const uint64 offset = part * layout->width, place = row * layout->stride + offset;
        const uint64 left = layout->cut ? layout->cut - offset : layout->width, length = left < layout->width ? left : layout->width;
        uint32 angle = angle_of(layout, number, row, 0, layout->outer_dimensions, address);
        for (uint32 byte = number * FETCHED; byte < length * size; byte += NUMBERS * FETCHED)
            fetch_ahead(pointer + (address + offset) * size + byte);
        if (is_one_row) angle = 0;
        if (layout->cut && (is_one_row || !cuts_last))
            angle += (uint32)(part * (cuts_last ? layout->cut_places / PERIOD : layout->cut_places)) * turn(number, layout->cut_dimension);
        const Complex weight = at_angle(angle);
        strips.weights[strip][2 * number] = weight.real;
        strips.weights[strip][2 * number + 1] = weight.imaginary;
        if (number == 0) {
            strips.starts[strip] = address + offset;
            strips.places[strip] = place;
            strips.lengths[strip] = (uint32)length;
            strips.weights[strip][2 * NUMBERS] = is_one_row
                ? ((double)offset - 0.5 * ((double)columns - 1)) / (double)columns
                : ((double)quotient(place, columns) - 0.5 * ((double)layout->rows - 1)) / (double)layout->rows;
        }
    }
}

#define PLACES_OF_WARP 64

// What a warp does of a block: 64 places, which it shares with others where strips are short, and of the strips each n-th.
struct Share {
    int chunk, turn, turns;

    __device__ explicit Share(const Layout* layout) {
        const int warp = threadIdx.x / 32, chunks = ((int)layout->width + PLACES_OF_WARP - 1) / PLACES_OF_WARP;
        turns = WARPS / chunks;
        chunk = warp % chunks;
        turn = warp / chunks;
    }

    // Of strips that are gone over so many at a time: where it begins. Some warps may have nothing to do.
    __device__ int begin(const Strips& strips, int at_once) const {
        return turn < turns ? turn * at_once : strips.count;
    }
};

// ---- what a warp finds ---------------------------------------------------------------------------------------------

#define LANES 4  // of a warp that have the same places: one for each of the four numbers

// A digest while it is summed up; each word of it on its own.
struct Digest {
    double sum, square, sketch[SKETCH], smallest, largest;
    uint64 nan, infinite, bits, bits_by_place;
};

#define WORDS (8 + SKETCH)
#define SMALLEST (2 + SKETCH)
#define LARGEST (3 + SKETCH)

// What a lane has found, with all weights.
struct Found {
    Complex all, of_last, of_others;         // of number lane % LANES
    double sum, along_columns, along_rows;   // the same in all LANES
    double square, smallest, largest;
    uint64 nan, infinite, bits, bits_by_place;
};

// Of the lanes whose numbers differ in these bits, for all of them.
__device__ double sum_of_lanes(double value, int first, int end) {
    for (int bit = first; bit < end; bit *= 2) value += __shfl_xor_sync(~0u, value, bit);
    return value;
}

__device__ uint64 count_of_lanes(uint64 value) {
    for (int bit = 1; bit < 32; bit *= 2) value += __shfl_xor_sync(~0u, value, bit);
    return value;
}

// What all lanes of a warp have found.
__device__ void add_up(const Found& found, Digest& digest) {
    const int lane = threadIdx.x % 32, number = lane % LANES;
    double* sketch = digest.sketch;
    const double parts[] = {found.all.real,          found.all.imaginary,    found.of_last.real,
                            found.of_last.imaginary, found.of_others.real,   found.of_others.imaginary};
#pragma unroll
    for (int part = 0; part < 6; part++) {
        const double together = sum_of_lanes(parts[part], LANES, 32);
        const int kind = part / 2, before = kind == 0 ? 0 : kind == 1 ? 2 * NUMBERS : 2 * NUMBERS + 2 * PROFILES;
        if (lane < (kind ? PROFILES : NUMBERS)) sketch[before + 2 * number + part % 2] = together;
    }
    const double along_columns = sum_of_lanes(found.along_columns, LANES, 32);
    const double along_rows = sum_of_lanes(found.along_rows, LANES, 32);
    const double sum = sum_of_lanes(found.sum, LANES, 32), square = sum_of_lanes(found.square, 1, 32);
    double smallest = found.smallest, largest = found.largest;
    for (int bit = 1; bit < 32; bit *= 2) {
        smallest = fmin(smallest, __shfl_xor_sync(~0u, smallest, bit));
        largest = fmax(largest, __shfl_xor_sync(~0u, largest, bit));
    }
    const uint64 nan = count_of_lanes(found.nan), infinite = count_of_lanes(found.infinite);
    const uint64 bits = count_of_lanes(found.bits), bits_by_place = count_of_lanes(found.bits_by_place);
    if (lane) return;
    sketch[SKETCH - 2] = along_columns;
    sketch[SKETCH - 1] = along_rows;
    digest.sum = sum;
    digest.square = square;
    digest.smallest = smallest;
    digest.largest = largest;
    digest.nan = nan;
    digest.infinite = infinite;
    digest.bits = bits;
    digest.bits_by_place = bits_by_place;
}
