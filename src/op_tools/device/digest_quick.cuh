// The digest of 16-bit elements, near the speed of the memory: all but the smallest, the largest and the checksum are
// products of matrices, for which the device has units of its own.
//
// A warp goes over 16 strips at a time, and over the same 64 places of each: 16 strips x 16 places are one tile. Times the
// weights of the places, in three 16-bit parts, it is what the sketch needs of each strip; times 1 and the numbers of the
// places, its sum and its moment; times itself, its squares. Only then double precision begins. Which 16 of the places are
// a tile is free: they are chosen so that a lane loads vectors of 8 elements.
//
// Squares are single precision for a while, times a power of two that keeps them in its range. Where elements are too large or
// too small even so, or not finite, the block is gone over again, element by element.
#pragma once
#include "digest_layout.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define HAS_TILES false
#else
#define HAS_TILES true
#endif
#define TILES 4                        // of 16 places; a warp has as many
#define PARTS 3                        // of a weight
#define WEIGHTS (8 * TILES * PARTS * 32)  // of all warps: pairs of words
#define SCALE 1099511627776.0     // 2^40, of bfloat16
#define TOO_LARGE 1099511627776.0f  // 2^40: 64 squares of it, times SCALE, add up to less than infinity
#define TOO_SMALL 2.7105054e-20f    // 2^-65: what is lost of squares is 2^-20 of this one's at most

struct PairOfWeights {
    uint32 words[2];  // of four places
};

struct alignas(16) Vector8 {
    uint32 pairs[4];
};

// ---- two 16-bit elements in one word -------------------------------------------------------------------------------

template <int kind>
__device__ float element_of(uint32 bits) {
    return kind == BFLOAT16 ? __uint_as_float(bits << 16) : from_half(bits & 0xFFFFu);
}

#if __CUDA_ARCH__ >= 800
template <int kind>
__device__ void multiply_tile(float* sums, const uint32* strips, const uint32* places) {
    if (kind == BFLOAT16)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
            : "r"(strips[0]), "r"(strips[1]), "r"(strips[2]), "r"(strips[3]), "r"(places[0]), "r"(places[1]));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
            : "r"(strips[0]), "r"(strips[1]), "r"(strips[2]), "r"(strips[3]), "r"(places[0]), "r"(places[1]));
}

// NaN where one of them is.
template <int kind>
__device__ uint32 smaller(uint32 one, uint32 other) {
    uint32 found;
    if (kind == BFLOAT16) asm("min.NaN.bf16x2 %0, %1, %2;" : "=r"(found) : "r"(one), "r"(other));
    else asm("min.NaN.f16x2 %0, %1, %2;" : "=r"(found) : "r"(one), "r"(other));
    return found;
}

template <int kind>
__device__ uint32 larger(uint32 one, uint32 other) {
    uint32 found;
    if (kind == BFLOAT16) asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(found) : "r"(one), "r"(other));
    else asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(found) : "r"(one), "r"(other));
    return found;
}

__device__ Vector8 vector_at(uint64 address) {
    Vector8 found;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(found.pairs[0]), "=r"(found.pairs[1]), "=r"(found.pairs[2]), "=r"(found.pairs[3]) : "l"(address));
    return found;
}

// sum + the first half * the first byte of factors + the second half * the second byte
__device__ uint32 halves_times(uint32 halves, uint32 factors, uint32 sum) {
    uint32 found;
    asm("dp2a.lo.u32.u32 %0, %1, %2, %3;" : "=r"(found) : "r"(halves), "r"(factors), "r"(sum));
    return found;
}
#else
__device__ Vector8 vector_at(uint64 address) {
    return *(const Vector8*)address;
}

template <int kind>
__device__ void multiply_tile(float* sums, const uint32* strips, const uint32* places) {
    const int lane = threadIdx.x % 32;
    for (int from = 0; from < LANES; from++)
        for (int half = 0; half < 2; half++) {
            const uint32 upper = __shfl_sync(~0u, strips[2 * half], lane / LANES * LANES + from);
            const uint32 lower = __shfl_sync(~0u, strips[2 * half + 1], lane / LANES * LANES + from);
            for (int column = 0; column < 2; column++) {
                const uint32 factor = __shfl_sync(~0u, places[half], (lane % LANES * 2 + column) * LANES + from);
                for (int shift = 0; shift < 32; shift += 16) {
                    sums[column] += element_of<kind>(upper >> shift) * element_of<kind>(factor >> shift);
                    sums[2 + column] += element_of<kind>(lower >> shift) * element_of<kind>(factor >> shift);
                }
            }
        }
}

template <int kind>
__device__ bool is_first_smaller(uint32 one, uint32 other) {
    const float first = element_of<kind>(one), second = element_of<kind>(other);
    return first != first || first < second;
}

template <int kind>
__device__ uint32 smaller(uint32 one, uint32 other) {
    const uint32 low = is_first_smaller<kind>(one, other) ? one : other;
    const uint32 high = is_first_smaller<kind>(one >> 16, other >> 16) ? one : other;
    return (low & 0xFFFFu) | (high & 0xFFFF0000u);
}

template <int kind>
__device__ uint32 larger(uint32 one, uint32 other) {
    return smaller<kind>(one ^ 0x80008000u, other ^ 0x80008000u) ^ 0x80008000u;
}

__device__ uint32 halves_times(uint32 halves, uint32 factors, uint32 sum) {
    return sum + (halves & 0xFFFFu) * (factors & 0xFFu) + (halves >> 16) * (factors >> 8 & 0xFFu);
}
#endif

// The bits of both as a float has them, without the zeros at their ends; added up, and by their places.
template <int kind>
__device__ void add_bits(uint32 pair, uint32 place, uint32& bits, uint32& by_place) {
    if (kind == BFLOAT16) {
        bits = halves_times(pair, 0x0101u, bits);
        by_place = halves_times(pair, (place + 1) << 8 | place, by_place);
    } else {
        const uint32 low = __float_as_uint(from_half(pair & 0xFFFFu)) >> 13, high = __float_as_uint(from_half(pair >> 16)) >> 13;
        bits += low + high;
        by_place += low * place + high * (place + 1);
    }
}

// ---- tiles ---------------------------------------------------------------------------------------------------------

// Of a lane: of strips lane / LANES and 8 further, the places from 8 * (lane % LANES) on, and those 32 further.
struct Tiles {
    Vector8 vectors[2][2];
    bool are_there[2][2];
};

__device__ void load_tiles(const Strips& strips, uint64 pointer, int group, int first, Tiles& tiles) {
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const int strip = group + threadIdx.x % 32 / LANES + 8 * row;
        const int left = strip < strips.count ? (int)strips.lengths[strip] - first : 0;
        const uint64 address = pointer + 2 * ((left > 0 ? strips.starts[strip] : 0) + first);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint64 from = address + 64 * half;
            tiles.are_there[row][half] = left > 32 * half;
            tiles.vectors[row][half] = {{0, 0, 0, 0}};
            if (left > 32 * half) tiles.vectors[row][half] = vector_at(from);
        }
    }
}

// The factors of a lane for the sum (even columns) and for the moment (odd ones: the numbers of the places in the warp).
template <int kind>
__device__ uint32 as_pair(int first) {
    const uint32 one = kind == BFLOAT16 ? 0x3F80u : 0x3C00u;
    if (threadIdx.x % 32 / LANES % 2 == 0) return one | one << 16;
    uint32 pair = 0;
#pragma unroll
    for (int at = 0; at < 2; at++) {
        const uint32 bits = __float_as_uint((float)(first + at));  // at most 63, which both dtypes can hold
        pair |= (kind == BFLOAT16 ? bits >> 16 : first + at ? (bits - 0x38000000u) >> 13 : 0u) << 16 * at;
    }
    return pair;
}

// False where the block must be gone over element by element. `weights`: of the places, as digests_cuda.py has put them.
template <int kind>
__device__ bool go_over_quickly(const Strips& strips, const Layout* layout, uint64 pointer, const PairOfWeights* weights, Found& found) {
    const Share share(layout);
    const int lane = threadIdx.x % 32, row = lane / LANES, number = lane % LANES;
    const int chunk = share.chunk, first = chunk * PLACES_OF_WARP + 8 * number, step = 16 * share.turns;
    uint32 of_places[TILES][PARTS][2], ones[TILES][2];
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            const PairOfWeights loaded = weights[((chunk * TILES + tile) * PARTS + part) * 32 + lane];
            of_places[tile][part][0] = loaded.words[0];
            of_places[tile][part][1] = loaded.words[1];
        }
        const int place = tile / 2 * 32 + tile % 2 * 4 + 8 * number;
        ones[tile][0] = as_pair<kind>(place);
        ones[tile][1] = as_pair<kind>(place + 2);
    }
    const uint32 scale = kind == BFLOAT16 ? 0x14001400u : 0;
    const uint32 infinity = kind == BFLOAT16 ? 0x7F807F80u : 0x7C007C00u;
    uint32 smallest = infinity, largest = infinity | 0x80008000u;
    uint32 bits[2] = {0, 0}, by_place = 0;  // less than 2^30, of MAX_STRIPS
    uint64 by_strip = 0;
    Complex weighted = {0, 0}, plain = {0, 0}, of_strips = {0, 0};
    double ramp = 0, moment = 0, sum = 0, square = 0;
    Tiles next;
    const int begin = share.begin(strips, 16);
    load_tiles(strips, pointer, begin, first, next);
    for (int group = begin; group < strips.count; group += step) {
        const Tiles tiles = next;
        load_tiles(strips, pointer, group + step, first, next);
        __syncwarp();  // tiles are multiplied by all lanes at once
        float of_weights[4] = {0, 0, 0, 0}, of_ones[4] = {0, 0, 0, 0}, upper[4] = {0, 0, 0, 0}, lower[4] = {0, 0, 0, 0};
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            const Vector8 &one = tiles.vectors[0][tile / 2], &other = tiles.vectors[1][tile / 2];
            const int pair = tile % 2 * 2;
            const uint32 own[4] = {one.pairs[pair], other.pairs[pair], one.pairs[pair + 1], other.pairs[pair + 1]};
            // times SCALE: 40 more in the exponent. Of zero that makes something, which is multiplied by zero
            const uint32 first_eight[2] = {own[0] + scale, own[2] + scale}, last_eight[2] = {own[1] + scale, own[3] + scale};
#pragma unroll
            for (int part = 0; part < PARTS; part++) multiply_tile<kind>(of_weights, own, of_places[tile][part]);
            multiply_tile<kind>(of_ones, own, ones[tile]);
            multiply_tile<kind>(upper, own, first_eight);
            multiply_tile<kind>(lower, own, last_eight);
        }
#pragma unroll
        for (int at = 0; at < 2; at++) {
            const int strip = group + row + 8 * at < strips.count ? group + row + 8 * at : group;  // of one that is not there all is 0
            uint32 of_strip = 0;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                uint32 own = 0;
#pragma unroll
                for (int pair = 0; pair < 4; pair++) {
                    const uint32 two = tiles.vectors[at][half].pairs[pair];
                    if (tiles.are_there[at][half]) {
                        smallest = smaller<kind>(smallest, two);
                        largest = larger<kind>(largest, two);
                    }
                    add_bits<kind>(two, 2 * pair, own, by_place);
                }
                bits[half] += own;
                of_strip += own;
            }
            by_strip += of_strip * strips.places[strip];
            const double* weight = strips.weights[strip];
            const Complex projected = {(double)of_weights[2 * at], (double)of_weights[2 * at + 1]};
            const Complex own = {weight[2 * number], weight[2 * number + 1]};
            const double total = (double)of_ones[2 * at];
            add_complex(weighted, times(projected, own));
            add_complex(plain, projected);
            add_complex(of_strips, {total * own.real, total * own.imaginary});
            ramp += total * weight[2 * NUMBERS];
            sum += total;
        }
        moment += (double)(of_ones[1] + of_ones[3]);
        if (row / 2 == number) square += (double)(row % 2 ? upper[1] + lower[3] : upper[0] + lower[2]);
    }
    const float low = fmin(element_of<kind>(smallest), element_of<kind>(smallest >> 16));
    const float high = fmax(element_of<kind>(largest), element_of<kind>(largest >> 16));
    const bool is_number = (smallest & 0x7FFFu) <= (infinity & 0xFFFFu) && (smallest >> 16 & 0x7FFFu) <= (infinity & 0xFFFFu);
    float peak = low > high ? 0 : fmax(-low, high);  // there may be no elements
    for (int bit = 1; bit < 32; bit *= 2) peak = fmax(peak, __shfl_xor_sync(~0u, peak, bit));
    const Complex common = strips.common[number];
    const int shift = kind == BFLOAT16 ? 16 : 13;
    const double columns = (double)layout->columns, of_chunk = chunk * PLACES_OF_WARP - (strips.cuts_last ? 0 : 0.5 * (columns - 1));
    found.all = times(weighted, common);
    found.of_last = strips.is_one_row ? weighted : times(plain, common);
    found.of_others = strips.is_one_row ? Complex{sum * common.real, sum * common.imaginary} : of_strips;
    found.along_columns = (moment + of_chunk * sum) / columns + (strips.is_one_row ? ramp : strips.common_ramp * sum);
    found.along_rows = strips.is_one_row ? strips.common_ramp * sum : ramp;
    found.sum = sum;
    found.square = kind == BFLOAT16 ? square / SCALE : square;
    found.smallest = low;
    found.largest = high;
    found.nan = found.infinite = 0;
    found.bits = (uint64)(bits[0] + bits[1]) << shift;
    found.bits_by_place = (by_strip + by_place + (uint64)bits[0] * first + (uint64)bits[1] * (first + 32)) << shift;
    return is_number && (peak == 0 || (peak > TOO_SMALL && peak < TOO_LARGE));
}
