// The digests of many tensors in one pass over each of them: what device/digest.py computes in several, by the same
// rules. Compiled when it is first needed (compiled.py), so it includes nothing.
//
// A block digests one piece of one tensor. The block that is the last to finish one of a tensor puts its pieces
// together, always in the same order: so a tensor has the same digest wherever it stands in the table.

typedef unsigned int uint32;
typedef unsigned long long uint64;

#define THREADS 256
#define PIECE 16384    // elements of a block
#define SEGMENT 512    // elements that a warp goes over at once: no row begins inside of one
#define SKETCH 4
#define MAX_TENSORS 160       // tensors of one launch

struct Item {
    uint64 length;       // elements
    uint32 first_block;  // of those that work on it
    uint32 kind;         // its dtype below, and WIDE
};

struct Table {
    uint64 lines;         // where the digests go, one line of 13 for each tensor
    uint64 pieces;        // for a Digest of each block
    uint64 finished;      // for each tensor, how many of its blocks have finished; zeros at first, and at the end
    uint64 weights;       // of the places in a row, as float: NARROW of them, then WIDE
    uint64 wide_weights;  // the same as double
    uint64 count;         // of tensors
    uint64 pointers[MAX_TENSORS];
    Item items[MAX_TENSORS];
};

enum { FLOAT32, BFLOAT16, FLOAT16, FLOAT64, INT64, INT32, INT16, INT8, UINT8 };
#define WIDE 256
#define NARROW_ROW 512
#define WIDE_ROW 4096

struct Digest {
    double sum, square, smallest, largest;
    double sketch[SKETCH];
    uint64 nan, infinite, bits;
};

__device__ void clear(Digest& digest) {
    digest.sum = digest.square = 0;
    digest.smallest = __longlong_as_double(0x7FF0000000000000LL);
    digest.largest = -digest.smallest;
    for (int number = 0; number < SKETCH; number++) digest.sketch[number] = 0;
    digest.nan = digest.infinite = digest.bits = 0;
}

__device__ void add(Digest& digest, const Digest& other) {
    digest.sum += other.sum;
    digest.square += other.square;
    digest.smallest = fmin(digest.smallest, other.smallest);
    digest.largest = fmax(digest.largest, other.largest);
    for (int number = 0; number < SKETCH; number++) digest.sketch[number] += other.sketch[number];
    digest.nan += other.nan;
    digest.infinite += other.infinite;
    digest.bits += other.bits;
}

// ---- one element -----------------------------------------------------------------------------------------------

__device__ float from_half(unsigned short bits) {
    // of a NaN the instruction keeps nothing, but the processor does, and so shall we
    if ((bits & 0x7FFF) > 0x7C00) return __uint_as_float((bits & 0x8000u) << 16 | 0x7FC00000u | (bits & 0x3FFu) << 13);
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

// The element as the rows of staging.py have it: a float, whose bits are 32, or a double.
template <int kind>
struct Element;

#define AS_FLOAT(KIND, TYPE, CONVERTED)                                                          \
    template <>                                                                                  \
    struct Element<KIND> {                                                                       \
        typedef TYPE Raw;                                                                        \
        typedef float Value;                                                                     \
        static __device__ float value(TYPE raw) { return CONVERTED; }                            \
        static __device__ uint64 bits(TYPE raw, float value) { return __float_as_uint(value); }  \
        static const int shift = 32; /* of every second element */                               \
    };

#define AS_DOUBLE(KIND, TYPE, BITS)                                                              \
    template <>                                                                                  \
    struct Element<KIND> {                                                                       \
        typedef TYPE Raw;                                                                        \
        typedef double Value;                                                                    \
        static __device__ double value(TYPE raw) { return (double)raw; }                         \
        static __device__ uint64 bits(TYPE raw, double value) { return (uint64)(BITS); }         \
        static const int shift = 0;                                                              \
    };

AS_FLOAT(FLOAT32, float, raw)
AS_FLOAT(BFLOAT16, unsigned short, __uint_as_float((uint32)raw << 16))
AS_FLOAT(FLOAT16, unsigned short, from_half(raw))
AS_FLOAT(INT16, short, (float)raw)
AS_FLOAT(INT8, signed char, (float)raw)
AS_FLOAT(UINT8, unsigned char, (float)raw)
AS_DOUBLE(FLOAT64, double, __double_as_longlong(raw))
AS_DOUBLE(INT64, long long, raw)
AS_DOUBLE(INT32, int, __double_as_longlong(value))

__device__ uint32 hashed(uint32 place, uint32 seed) {
    uint32 hash = place * 0x9E3779B1u + seed * 0x85EBCA6Bu;
    hash = (hash ^ (hash >> 16)) * 0x7FEB352Du;
    hash = (hash ^ (hash >> 15)) * 0x846CA68Bu;
    return hash ^ (hash >> 16);
}

__device__ double row_weight(uint32 row, int number) {
    return ((hashed(row, 1 + number) + 0.5) / 2147483648.0 - 1) * 1.7320508075688772;
}

// ---- a piece of a tensor -----------------------------------------------------------------------------------------

// Each thread has every 32nd element of a segment. All is loaded before anything is computed, and nothing branches: so the
// memory is not waited for again and again.
template <int kind>
__device__ void segment(uint64 pointer, uint64 start, uint64 end, const typename Element<kind>::Value* weights,
                        Digest& digest, double& projection, uint64& bits_of_row) {
    typedef Element<kind> Of;
    const int each = SEGMENT / 32, lane = threadIdx.x & 31;
    const int left = (int)(end - start < SEGMENT ? end - start : SEGMENT) - lane;
    const typename Of::Raw* elements = (const typename Of::Raw*)pointer + start + lane;
    typename Of::Value smallest = (typename Of::Value)digest.smallest, largest = (typename Of::Value)digest.largest;
    typename Of::Raw raw[each];
#pragma unroll
    for (int number = 0; number < each; number++)
        raw[number] = 32 * number < left ? elements[32 * number] : (typename Of::Raw)0;
    uint64 bits = 0;
    uint32 nan = 0, infinite = 0;
#pragma unroll
    for (int number = 0; number < each; number++) {
        const bool is_inside = 32 * number < left;
        const typename Of::Value value = Of::value(raw[number]);
        const bool is_nan = value != value, is_finite = value - value == 0;
        const double finite = is_finite ? (double)value : 0;
        bits += Of::bits(raw[number], value);
        nan += is_nan;
        infinite += !is_nan && !is_finite;
        digest.sum += finite;
        digest.square += finite * finite;
        projection += finite * (double)weights[lane + 32 * number];
        smallest = is_inside && is_finite && value < smallest ? value : smallest;
        largest = is_inside && is_finite && value > largest ? value : largest;
    }
    bits_of_row += bits << (lane & 1 ? Of::shift : 0);  // segments begin at even places
    digest.nan += nan;
    digest.infinite += infinite;
    digest.smallest = smallest;
    digest.largest = largest;
}

template <int kind>
__device__ void piece(uint64 pointer, uint64 begin, uint64 length, bool is_wide,
                      const typename Element<kind>::Value* weights, Digest& digest) {
    uint64 end = begin + PIECE < length ? begin + PIECE : length;
    uint32 width = is_wide ? WIDE_ROW : NARROW_ROW;
    for (uint64 start = begin + threadIdx.x / 32 * SEGMENT; start < end; start += THREADS / 32 * SEGMENT) {
        const typename Element<kind>::Value* here = weights + (is_wide ? NARROW_ROW : 0) + start % width;
        double projection = 0;
        uint64 bits = 0;
        segment<kind>(pointer, start, end, here, digest, projection, bits);
        uint32 row = (uint32)(start / width);
        digest.bits += bits * (2 * (uint64)hashed(row, 1 + SKETCH) + 1);
        for (int number = 0; number < SKETCH; number++) digest.sketch[number] += projection * row_weight(row, number);
    }
}

// Of all threads of the block, for thread 0.
__device__ void together(Digest* of_threads, Digest& digest) {
    of_threads[threadIdx.x] = digest;
    for (int half = THREADS / 2; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) add(of_threads[threadIdx.x], of_threads[threadIdx.x + half]);
    }
    __syncthreads();
    digest = of_threads[0];
}

// As finished() of digest.py has it: elements, NaN, infinities, bits, min, max, mean, std, norm, sketch.
__device__ void write(const Digest& digest, uint64 length, uint64* line) {
    double* numbers = (double*)line + 4;
    double finite = (double)(length - digest.nan - digest.infinite);
    double nothing = __longlong_as_double(0x7FF8000000000000LL);
    double mean = digest.sum / finite;
    double variance = digest.square / finite - mean * mean;
    bool is_even = digest.smallest == digest.largest;
    line[0] = length;
    line[1] = digest.nan;
    line[2] = digest.infinite;
    line[3] = digest.bits;
    numbers[0] = finite ? digest.smallest : nothing;
    numbers[1] = finite ? digest.largest : nothing;
    numbers[2] = finite ? mean : nothing;
    numbers[3] = finite ? (variance > 0 && !is_even ? sqrt(variance) : 0) : nothing;
    numbers[4] = finite ? sqrt(digest.square) : nothing;
    for (int number = 0; number < SKETCH; number++) numbers[5 + number] = digest.sketch[number];
}

extern "C" __global__ void __launch_bounds__(THREADS) digest_tensors(const __grid_constant__ Table table) {
    __shared__ Digest of_threads[THREADS];
    __shared__ bool is_last;
    int low = 0, high = (int)table.count - 1;  // the last tensor that begins at this block or before
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (table.items[middle].first_block <= blockIdx.x) low = middle; else high = middle - 1;
    }
    const int number = low;
    const uint64 pointer = table.pointers[number], length = table.items[number].length;
    const uint32 first_block = table.items[number].first_block, kind = table.items[number].kind;
    const uint64 begin = (uint64)(blockIdx.x - first_block) * PIECE;
    const float* weights = (const float*)table.weights;
    const double* wide_weights = (const double*)table.wide_weights;
    const bool is_wide = kind & WIDE;
    Digest digest;
    clear(digest);
#define CASE(KIND, WEIGHTS) case KIND: piece<KIND>(pointer, begin, length, is_wide, WEIGHTS, digest); break;
    switch (kind & (WIDE - 1)) {
        CASE(FLOAT32, weights)
        CASE(BFLOAT16, weights)
        CASE(FLOAT16, weights)
        CASE(INT16, weights)
        CASE(INT8, weights)
        CASE(UINT8, weights)
        CASE(FLOAT64, wide_weights)
        CASE(INT64, wide_weights)
        CASE(INT32, wide_weights)
    }
    together(of_threads, digest);

    uint64* line = (uint64*)table.lines + 13 * (uint64)number;
    const uint32 blocks = length > PIECE ? (uint32)((length + PIECE - 1) / PIECE) : 1;
    if (blocks == 1) {
        if (threadIdx.x == 0) write(digest, length, line);
        return;
    }
    Digest* pieces = (Digest*)table.pieces + first_block;
    uint32* finished = (uint32*)table.finished + number;
    if (threadIdx.x == 0) {
        pieces[blockIdx.x - first_block] = digest;
        __threadfence();
        is_last = atomicAdd(finished, 1u) == blocks - 1;
        __threadfence();
    }
    __syncthreads();
    if (!is_last) return;
    clear(digest);
    for (uint32 block = threadIdx.x; block < blocks; block += THREADS) add(digest, pieces[block]);
    together(of_threads, digest);
    if (threadIdx.x == 0) {
        write(digest, length, line);
        *finished = 0;
    }
}
