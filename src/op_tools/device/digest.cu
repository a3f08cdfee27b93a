// The digests of many tensors in one pass over each of them: what device/digest.py computes in several, by the same
// rules. Compiled when it is first needed (compiled.py), so it includes nothing.
//
// A tensor is gone over in strips of at most 512 elements (native/csrc/digest_layout.h has the same): whole rows, several, or
// parts of one. A block takes 32 strips; each of its threads sums up the elements of its places with the weights of their
// strips, and then with the weight of the place. The block that is the last to finish one of a tensor puts its pieces
// together, always in the same order: so a tensor has the same digest wherever it stands in the table.

typedef unsigned int uint32;
typedef unsigned long long uint64;

#define THREADS 256
#define STRIPS 32        // of a block
#define FEW_ROWS 8       // below, the strips of a block are those of one row, where rows are cut
#define STRIP 512        // elements
#define PERIOD 16        // places of the last dimension after which its weights repeat but for a turn
#define NUMBERS 4
#define PROFILES 2
#define SKETCH 18
#define LINE 27
#define MAX_TENSORS 160  // tensors of one launch

struct Item {
    uint64 layout;       // a Layout on the device
    uint32 first_block;  // of those that work on it
    uint32 kind;         // its dtype below
};

struct Table {
    uint64 lines;         // where the digests go, one for each tensor
    uint64 pieces;        // for a Digest of each block
    uint64 finished;      // for each tensor, how many of its blocks have finished; zeros at first, and at the end
    uint64 count;         // of tensors
    uint64 pointers[MAX_TENSORS];
    Item items[MAX_TENSORS];
};

struct Layout {
    uint64 length, columns, rows;
    uint64 width;         // of a strip
    uint64 cut;           // elements of one of the dimension that is cut, or 0
    uint64 cuts;          // strips of it
    uint64 cut_places;    // of it, in a strip
    uint64 cut_dimension; // counted from the last; 0: the last one is cut
    uint64 stride;        // elements of one outer place
    uint64 outer_count, outer_dimensions;  // places and dimensions before it
    uint64 blocks, dimensions;
    uint64 sizes[1];      // as many as dimensions
};

enum { FLOAT32, BFLOAT16, FLOAT16, FLOAT64, INT64, INT32, INT16, INT8, UINT8 };

struct Digest {
    double sum, square, smallest, largest;
    double sketch[SKETCH];
    uint64 nan, infinite, bits, bits_by_place;
};

__device__ void clear(Digest& digest) {
    digest.sum = digest.square = 0;
    digest.smallest = __longlong_as_double(0x7FF0000000000000LL);
    digest.largest = -digest.smallest;
    for (int number = 0; number < SKETCH; number++) digest.sketch[number] = 0;
    digest.nan = digest.infinite = digest.bits = digest.bits_by_place = 0;
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
    digest.bits_by_place += other.bits_by_place;
}

// ---- one element -----------------------------------------------------------------------------------------------

__device__ float from_half(unsigned short bits) {
    // of a NaN the instruction keeps nothing, but the processor does, and so shall we
    if ((bits & 0x7FFF) > 0x7C00) return __uint_as_float((bits & 0x8000u) << 16 | 0x7FC00000u | (bits & 0x3FFu) << 13);
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

// Sums are cut off at 64 bits, which must not hide a sign.
__device__ uint64 folded(uint64 bits) {
    return bits ^ bits >> 31;
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
    };

#define AS_DOUBLE(KIND, TYPE, BITS)                                                              \
    template <>                                                                                  \
    struct Element<KIND> {                                                                       \
        typedef TYPE Raw;                                                                        \
        typedef double Value;                                                                    \
        static __device__ double value(TYPE raw) { return (double)raw; }                         \
        static __device__ uint64 bits(TYPE raw, double value) { return folded((uint64)(BITS)); } \
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

// ---- weights -------------------------------------------------------------------------------------------------------

struct Complex {
    double real, imaginary;
};

__device__ Complex times(Complex one, Complex other) {
    return {one.real * other.real - one.imaginary * other.imaginary, one.real * other.imaginary + one.imaginary * other.real};
}

__device__ Complex at_angle(uint32 angle) {  // in 2**-32 turns
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

// Of a place in these dimensions, the last of which is counted first.
__device__ uint32 angle_of(const Layout* layout, int number, uint64 place, uint64 first, uint64 end) {
    uint32 angle = 0;
    for (uint64 at = end; at > first && place; at--) {
        angle += (uint32)(place % layout->sizes[at - 1]) * turn(number, layout->dimensions - at);
        place /= layout->sizes[at - 1];
    }
    return angle;
}

// ---- strips --------------------------------------------------------------------------------------------------------

struct Strips {
    int count;
    bool cuts_last, is_one_row;            // the strips are those of one row; else of one place in several rows
    uint64 starts[STRIPS];                 // in the tensor
    uint32 lengths[STRIPS];
    double weights[STRIPS][2 * NUMBERS + 1];  // and where they stand, for a moment
    Complex common[NUMBERS];               // of the last dimension; if it is one row, of the others
    double common_ramp;
};

// What one block looks at, by its threads together.
__device__ void find(Strips& strips, const Layout* layout, uint64 block) {
    const bool cuts_last = layout->cut && layout->cut_dimension == 0, is_one_row = cuts_last && layout->outer_count < FEW_ROWS;
    const uint64 cuts = layout->cuts, rows = layout->outer_count;
    const uint64 in_one = is_one_row ? cuts : cuts_last ? rows : rows * cuts, blocks_of_one = (in_one + STRIPS - 1) / STRIPS;
    const uint64 outside = cuts_last ? block / blocks_of_one : 0, first = block % blocks_of_one * STRIPS;
    if (threadIdx.x == 0) {
        strips.count = (int)(in_one - first < STRIPS ? in_one - first : STRIPS);
        strips.cuts_last = cuts_last;
        strips.is_one_row = is_one_row;
        strips.common_ramp = is_one_row ? ((double)outside - 0.5 * ((double)layout->rows - 1)) / (double)layout->rows
            : cuts_last ? ((double)(outside * layout->cut_places) - 0.5 * ((double)layout->columns - 1)) / (double)layout->columns : 0;
    }
    if (threadIdx.x < NUMBERS) {
        const int number = threadIdx.x;
        const uint32 angle = is_one_row ? angle_of(layout, number, outside, 0, layout->outer_dimensions)
            : cuts_last ? (uint32)(outside * (layout->cut_places / PERIOD)) * turn(number, 0) : 0;
        strips.common[number] = at_angle(angle);
    }
    if (threadIdx.x < STRIPS * NUMBERS && first + threadIdx.x / NUMBERS < in_one) {
        const int strip = threadIdx.x / NUMBERS, number = threadIdx.x % NUMBERS;
        const uint64 at = first + strip;
        const uint64 row = is_one_row ? outside : cuts_last ? at : at / cuts, part = is_one_row ? at : cuts_last ? outside : at % cuts;
        const uint64 offset = part * layout->width, start = row * layout->stride + offset;
        uint32 angle = is_one_row ? 0 : angle_of(layout, number, row, 0, layout->outer_dimensions);
        if (layout->cut && (is_one_row || !cuts_last))
            angle += (uint32)(part * (cuts_last ? layout->cut_places / PERIOD : layout->cut_places)) * turn(number, layout->cut_dimension);
        const Complex weight = at_angle(angle);
        strips.weights[strip][2 * number] = weight.real;
        strips.weights[strip][2 * number + 1] = weight.imaginary;
        if (number == 0) {
            const uint64 left = layout->cut ? layout->cut - offset : layout->width;
            strips.starts[strip] = start;
            strips.lengths[strip] = (uint32)(left < layout->width ? left : layout->width);
            strips.weights[strip][2 * NUMBERS] = is_one_row
                ? ((double)offset - 0.5 * ((double)layout->columns - 1)) / (double)layout->columns
                : ((double)(start / layout->columns) - 0.5 * ((double)layout->rows - 1)) / (double)layout->rows;
        }
    }
}

// The sums of one place over all strips, with the weights of these.
struct Sums {
    double weighted[2 * NUMBERS], sum, ramp;
};

template <int kind>
__device__ void over_strips(const Strips& strips, uint64 pointer, uint32 place, Sums& sums, Digest& digest) {
    typedef Element<kind> Of;
    const int together = 8;  // loaded before anything is computed: so the memory is not waited for again and again
    const typename Of::Raw* elements = (const typename Of::Raw*)pointer;
    typename Of::Value smallest = (typename Of::Value)digest.smallest, largest = (typename Of::Value)digest.largest;
    for (int line = 0; line < 2 * NUMBERS; line++) sums.weighted[line] = 0;
    sums.sum = sums.ramp = 0;
    for (int first = 0; first < strips.count; first += together) {
        typename Of::Raw raw[together];
#pragma unroll
        for (int number = 0; number < together; number++) {
            const int strip = first + number;
            const bool is_inside = strip < strips.count && place < strips.lengths[strip];
            raw[number] = is_inside ? elements[strips.starts[strip] + place] : (typename Of::Raw)0;
        }
#pragma unroll
        for (int number = 0; number < together; number++) {
            const int strip = first + number;
            const bool is_inside = strip < strips.count && place < strips.lengths[strip];
            const int known = is_inside ? strip : 0;
            const typename Of::Value value = Of::value(raw[number]);
            const bool is_nan = value != value, is_finite = value - value == 0;
            const double finite = is_finite ? (double)value : 0;
            const uint64 bits = Of::bits(raw[number], value);
            digest.bits += bits;
            digest.bits_by_place += bits * (strips.starts[known] + place);
            digest.nan += is_nan;
            digest.infinite += !is_nan && !is_finite;
            digest.square += finite * finite;
            sums.sum += finite;
            sums.ramp += finite * strips.weights[known][2 * NUMBERS];
#pragma unroll
            for (int line = 0; line < 2 * NUMBERS; line++) sums.weighted[line] += finite * strips.weights[known][line];
            smallest = is_inside && is_finite && value < smallest ? value : smallest;
            largest = is_inside && is_finite && value > largest ? value : largest;
        }
    }
    digest.smallest = smallest;
    digest.largest = largest;
}

__device__ void add_complex(double* to, Complex found) {
    to[0] += found.real;
    to[1] += found.imaginary;
}

// Adds the sums of one place, with its weights.
__device__ void weigh(const Strips& strips, const Layout* layout, uint32 place, const Sums& sums, Digest& digest) {
    const uint64 column = strips.cuts_last ? place : place % layout->columns, row = strips.cuts_last ? 0 : place / layout->columns;
    double *of_last = digest.sketch + 2 * NUMBERS, *of_others = of_last + 2 * PROFILES, *moments = of_others + 2 * PROFILES;
    for (int number = 0; number < NUMBERS; number++) {
        const Complex own = at_angle(hashed((uint32)(column % PERIOD), 100 + number) + (uint32)(column / PERIOD) * turn(number, 0));
        Complex given = {sums.weighted[2 * number], sums.weighted[2 * number + 1]};
        const Complex common = strips.common[number];
        if (row) given = times(given, at_angle(angle_of(layout, number, row, layout->outer_dimensions, layout->dimensions - 1)));
        add_complex(digest.sketch + 2 * number, times(times(given, own), common));
        if (number >= PROFILES) continue;
        if (strips.is_one_row) {
            add_complex(of_last + 2 * number, times(given, own));
            add_complex(of_others + 2 * number, {sums.sum * common.real, sums.sum * common.imaginary});
        } else {
            const Complex last = times(own, common);
            add_complex(of_last + 2 * number, {sums.sum * last.real, sums.sum * last.imaginary});
            add_complex(of_others + 2 * number, given);
        }
    }
    const double middle = strips.cuts_last ? 0 : 0.5 * ((double)layout->columns - 1);
    const double common = strips.common_ramp * sums.sum;
    moments[0] += ((double)column - middle) / (double)layout->columns * sums.sum + (strips.is_one_row ? sums.ramp : common);
    moments[1] += (double)row / (double)layout->rows * sums.sum + (strips.is_one_row ? common : sums.ramp);
    digest.sum += sums.sum;
}

template <int kind>
__device__ void piece(const Strips& strips, const Layout* layout, uint64 pointer, Digest& digest) {
    const uint32 width = (uint32)(layout->width < layout->length ? layout->width : layout->length);
    for (uint32 place = threadIdx.x; place < width; place += THREADS) {
        Sums sums;
        over_strips<kind>(strips, pointer, place, sums, digest);
        weigh(strips, layout, place, sums, digest);
    }
}

// Of all threads of the block, for thread 0.
__device__ void together(Digest* of_threads, Digest& digest) {
    for (int half = THREADS / 2; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x >= half && threadIdx.x < 2 * half) of_threads[threadIdx.x - half] = digest;
        __syncthreads();
        if (threadIdx.x < half) add(digest, of_threads[threadIdx.x]);
    }
}

// As lines() of digest.py has it: elements, NaN, infinities, checksum, min, max, mean, std, norm, sketch.
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
    line[3] = digest.bits * 0x1E3779B97F4A7C15ULL + digest.bits_by_place * 0x3F58476D1CE4E5B9ULL;
    numbers[0] = finite ? digest.smallest : nothing;
    numbers[1] = finite ? digest.largest : nothing;
    numbers[2] = finite ? mean : nothing;
    numbers[3] = finite ? (variance > 0 && !is_even ? sqrt(variance) : 0) : nothing;
    numbers[4] = finite ? sqrt(digest.square) : nothing;
    for (int number = 0; number < SKETCH; number++) numbers[5 + number] = digest.sketch[number];
}

extern "C" __global__ void __launch_bounds__(THREADS) digest_tensors(const __grid_constant__ Table table) {
    __shared__ Digest of_threads[THREADS / 2];
    __shared__ Strips strips;
    __shared__ bool is_last;
    int low = 0, high = (int)table.count - 1;  // the last tensor that begins at this block or before
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (table.items[middle].first_block <= blockIdx.x) low = middle; else high = middle - 1;
    }
    const int number = low;
    const uint64 pointer = table.pointers[number];
    const Layout* layout = (const Layout*)table.items[number].layout;
    const uint32 first_block = table.items[number].first_block;
    Digest digest;
    clear(digest);
    if (layout->length) {
        find(strips, layout, blockIdx.x - first_block);
        __syncthreads();
#define CASE(KIND) case KIND: piece<KIND>(strips, layout, pointer, digest); break;
        switch (table.items[number].kind) {
            CASE(FLOAT32)
            CASE(BFLOAT16)
            CASE(FLOAT16)
            CASE(INT16)
            CASE(INT8)
            CASE(UINT8)
            CASE(FLOAT64)
            CASE(INT64)
            CASE(INT32)
        }
    }
    together(of_threads, digest);

    uint64* line = (uint64*)table.lines + LINE * (uint64)number;
    const uint32 blocks = (uint32)layout->blocks;
    if (blocks == 1) {
        if (threadIdx.x == 0) write(digest, layout->length, line);
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
        write(digest, layout->length, line);
        *finished = 0;
    }
}
