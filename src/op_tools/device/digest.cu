// The digests of many tensors in one pass over each of them: what device/digest.py computes in several, by the same
// rules. Compiled when it is first needed (compiled.py), so it includes nothing.
//
// A tensor is gone over in strips of at most 512 elements (native/csrc/digest_layout.h has the same): whole rows, several, or
// parts of one. A block takes up to 128 strips. The elements of 4 strips times the weights of these strips are a product of
// matrices, for which the device has units of its own (`multiply_add`): a warp has 64 places of the strips, so that each of
// its lanes holds 8 places of one strip when it loads, and one weight of each of the 8 places in the end, when it is weighed
// with the place's own. The block that is the last to finish one of a tensor puts its pieces together, always in the same
// order: so a tensor has the same digest wherever it stands in the table.

typedef unsigned int uint32;
typedef unsigned long long uint64;

#define THREADS 256
#define WARPS 8          // of a block
#define MAX_STRIPS 128   // of a block
#define PLACES 8         // of a lane
#define LANES 4          // of a warp that have the same places: one for each strip, and for each of the four numbers
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
    uint64 strips;        // of a block
    uint64 blocks, dimensions;
    uint64 sizes[1];      // as many as dimensions
};

enum { FLOAT32, BFLOAT16, FLOAT16, FLOAT64, INT64, INT32, INT16, INT8, UINT8 };

// A digest while it is summed up; each word of it on its own.
struct Digest {
    double sum, square, sketch[SKETCH], smallest, largest;
    uint64 nan, infinite, bits, bits_by_place;
};

#define WORDS (8 + SKETCH)
#define SMALLEST (2 + SKETCH)
#define LARGEST (3 + SKETCH)

__device__ uint64 nothing(int word) {
    return word == SMALLEST ? 0x7FF0000000000000ULL : word == LARGEST ? 0xFFF0000000000000ULL : 0;
}

__device__ uint64 added(int word, uint64 one, uint64 other) {
    if (word > LARGEST) return one + other;
    const double first = __longlong_as_double(one), second = __longlong_as_double(other);
    const double both = word == SMALLEST ? fmin(first, second) : word == LARGEST ? fmax(first, second) : first + second;
    return __double_as_longlong(both);
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

// Of a place in these dimensions, the last of which is counted first.
__device__ __noinline__ uint32 angle_of(const Layout* layout, int number, uint64 place, uint64 first, uint64 end) {
    uint32 angle = 0;
    for (uint64 at = end; at > first && place; at--) {
        const uint64 size = layout->sizes[at - 1];
        const uint64 above = (place | size) >> 32 ? place / size : (uint32)place / (uint32)size;  // which takes a tenth
        angle += (uint32)(place - above * size) * turn(number, layout->dimensions - at);
        place = above;
    }
    return angle;
}

// ---- strips --------------------------------------------------------------------------------------------------------

struct Strips {
    int count;
    bool cuts_last, is_one_row;            // the strips are those of one row; else of one place in several rows
    uint64 starts[MAX_STRIPS];                 // in the tensor
    uint32 lengths[MAX_STRIPS];
    double weights[MAX_STRIPS][2 * NUMBERS + 1];  // and where they stand, for a moment
    Complex common[NUMBERS];               // of the last dimension; if it is one row, of the others
    double common_ramp;
};

// What one block looks at, by its threads together.
__device__ void find(Strips& strips, const Layout* layout, uint64 block) {
    const bool cuts_last = layout->cut && layout->cut_dimension == 0, is_one_row = cuts_last && layout->outer_count < FEW_ROWS;
    const uint64 cuts = layout->cuts, rows = layout->outer_count;
    const uint64 in_one = is_one_row ? cuts : cuts_last ? rows : rows * cuts, of_block = layout->strips;
    const uint64 blocks_of_one = (in_one + of_block - 1) / of_block;
    const uint64 outside = cuts_last ? block / blocks_of_one : 0, first = block % blocks_of_one * of_block;
    if (threadIdx.x == 0) {
        strips.count = (int)(in_one - first < of_block ? in_one - first : of_block);
        strips.cuts_last = cuts_last;
        strips.is_one_row = is_one_row;
        strips.common_ramp = is_one_row ? ((double)outside - 0.5 * ((double)layout->rows - 1)) / (double)layout->rows
            : cuts_last ? ((double)(outside * layout->cut_places) - 0.5 * ((double)layout->columns - 1)) / (double)layout->columns : 0;
    }
    __syncthreads();
    if (threadIdx.x < NUMBERS) {
        const int number = threadIdx.x;
        const uint32 angle = is_one_row ? angle_of(layout, number, outside, 0, layout->outer_dimensions)
            : cuts_last ? (uint32)(outside * (layout->cut_places / PERIOD)) * turn(number, 0) : 0;
        strips.common[number] = at_angle(angle);
    }
    for (int at = threadIdx.x; at < strips.count * NUMBERS; at += THREADS) {
        const int strip = at / NUMBERS, number = at % NUMBERS;
        const uint64 here = first + strip;
        const uint64 row = is_one_row ? outside : cuts_last ? here : here / cuts;
        const uint64 part = is_one_row ? here : cuts_last ? outside : here % cuts;
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

// ---- elements times weights ----------------------------------------------------------------------------------------

// What a lane has of 8 x 8 sums, of places (by lane / LANES) and weights (two, by lane % LANES).
struct Pair {
    double first, second;
};

// Adds a product. `element`: of place lane / LANES in strip lane % LANES. `weight`: the lane / LANES th of that strip.
__device__ void multiply_add(Pair& sums, double element, double weight) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
        : "+d"(sums.first), "+d"(sums.second) : "d"(element), "d"(weight));
#else
    const int lane = threadIdx.x % 32, of_place = lane - lane % LANES, of_weight = lane % LANES * 2 * LANES;
    for (int strip = 0; strip < LANES; strip++) {
        const double factor = __shfl_sync(~0u, element, of_place + strip);
        sums.first += factor * __shfl_sync(~0u, weight, of_weight + strip);
        sums.second += factor * __shfl_sync(~0u, weight, of_weight + LANES + strip);
    }
#endif
}

// What a lane has found: of all its strips, and of each of its places.
struct Found {
    Pair weighted[PLACES];  // of number lane % LANES
    double sums[PLACES];    // of strips lane % LANES
    double ramp;            // the sum with the strips' places in the ramp
    double square, smallest, largest;
    uint32 nan, infinite;
    uint64 bits, bits_by_place;
};

template <int size>
struct alignas(size) Vector {
    uint64 words[size / 8];
};

// The lane's places of one strip. `inside`: how many of them there are.
template <typename Raw>
__device__ void load(const Raw* from, int inside, Raw* raw) {
    typedef Vector<PLACES * sizeof(Raw) < 16 ? 8 : 16> Several;
    if (inside == PLACES && (uint64)from % sizeof(Several) == 0) {
#pragma unroll
        for (int part = 0; part < PLACES * sizeof(Raw) / sizeof(Several); part++)
            ((Several*)raw)[part] = ((const Several*)from)[part];
    } else {
#pragma unroll
        for (int place = 0; place < PLACES; place++) raw[place] = place < inside ? from[place] : (Raw)0;
    }
}

template <int kind>
__device__ void go_over(const Strips& strips, uint64 pointer, Found& found) {
    typedef Element<kind> Of;
    typedef typename Of::Raw Raw;
    typedef typename Of::Value Value;
    const int together = sizeof(Raw) >= 4 ? 8 / sizeof(Raw) : 4;  // loaded at a time: memory is waited for less often
    const int lane = threadIdx.x % 32, column = lane / LANES;
    const int first = threadIdx.x / 32 * (32 / LANES * PLACES) + column * PLACES;
    const Raw* elements = (const Raw*)pointer;
    Value smallest = (Value)found.smallest, largest = (Value)found.largest;
    for (int group = 0; group < strips.count; group += LANES * together) {
        alignas(16) Raw raw[together][PLACES];
        int inside[together];
#pragma unroll
        for (int number = 0; number < together; number++) {
            const int strip = group + number * LANES + lane % LANES;
            const int left = strip < strips.count ? (int)strips.lengths[strip] - first : 0;
            inside[number] = left < 0 ? 0 : left < PLACES ? left : PLACES;
            load(elements + (inside[number] ? strips.starts[strip] + first : 0), inside[number], raw[number]);
        }
#pragma unroll
        for (int number = 0; number < together; number++) {
            const int strip = group + number * LANES + lane % LANES;
            const bool is_there = strip < strips.count;
            const double weight = is_there ? strips.weights[strip][column] : 0;
            const double place_in_ramp = is_there ? strips.weights[strip][2 * NUMBERS] : 0;
            uint64 bits = 0, by_place = 0;
            bool is_usual = inside[number] == PLACES;
#pragma unroll
            for (int place = 0; place < PLACES; place++) {
                const Value value = Of::value(raw[number][place]);
                is_usual = is_usual && value - value == 0;
            }
#pragma unroll
            for (int place = 0; place < PLACES; place++) {
                const Value value = Of::value(raw[number][place]);
                const bool is_finite = is_usual || value - value == 0;
                const double finite = is_finite ? (double)value : 0;
                const uint64 own = Of::bits(raw[number][place], value);
                bits += own;
                by_place += own * place;
                found.square += finite * finite;
                multiply_add(found.weighted[place], finite, weight);
                found.sums[place] += finite;
                found.ramp += finite * place_in_ramp;
                if (is_usual || place < inside[number] && is_finite) {
                    smallest = value < smallest ? value : smallest;
                    largest = value > largest ? value : largest;
                } else if (!is_finite) {
                    found.nan += value != value;
                    found.infinite += value == value;
                }
            }
            found.bits += bits;
            if (inside[number]) found.bits_by_place += by_place + bits * (strips.starts[strip] + first);
        }
    }
    found.smallest = smallest;
    found.largest = largest;
}

// ---- a block's digest ----------------------------------------------------------------------------------------------

__device__ void add_complex(Complex& to, Complex found) {
    to.real += found.real;
    to.imaginary += found.imaginary;
}

// Of the lanes whose numbers differ in these bits, for all of them.
__device__ double sum_of_lanes(double value, int first, int end) {
    for (int bit = first; bit < end; bit *= 2) value += __shfl_xor_sync(~0u, value, bit);
    return value;
}

__device__ uint64 count_of_lanes(uint64 value) {
    for (int bit = 1; bit < 32; bit *= 2) value += __shfl_xor_sync(~0u, value, bit);
    return value;
}

// Weighs what a warp's lanes have found with the weights of their places, and adds it up.
__device__ void weigh(const Strips& strips, const Layout* layout, const Found& found, Digest& digest) {
    const int lane = threadIdx.x % 32, number = lane % LANES;
    const uint32 first = threadIdx.x / 32 * (32 / LANES * PLACES) + lane / LANES * PLACES;
    const uint32 width = (uint32)layout->width, columns = strips.cuts_last ? width : (uint32)layout->columns;
    const Complex common = strips.common[number];
    const double middle = strips.cuts_last ? 0 : 0.5 * ((double)layout->columns - 1);
    Complex all = {0, 0}, of_last = {0, 0}, of_others = {0, 0};
    double sum = 0, along_columns = 0, along_rows = 0;
#pragma unroll
    for (int at = 0; at < PLACES; at++) {
        const uint32 place = first + at, row = place / columns, column = place - row * columns;
        const double of_place = sum_of_lanes(found.sums[at], 1, LANES);
        if (place >= width) continue;
        Complex given = {found.weighted[at].first, found.weighted[at].second};
        if (row) given = times(given, at_angle(angle_of(layout, number, row, layout->outer_dimensions, layout->dimensions - 1)));
        const Complex own = at_angle(hashed(column % PERIOD, 100 + number) + column / PERIOD * turn(number, 0));
        const Complex weighted = times(given, own), last = times(own, common);
        add_complex(all, times(weighted, common));
        add_complex(of_last, strips.is_one_row ? weighted : Complex{of_place * last.real, of_place * last.imaginary});
        add_complex(of_others, strips.is_one_row ? Complex{of_place * common.real, of_place * common.imaginary} : given);
        const double outside = strips.common_ramp * of_place;
        along_columns += ((double)column - middle) / (double)layout->columns * of_place + (strips.is_one_row ? 0 : outside);
        along_rows += (double)row / (double)layout->rows * of_place + (strips.is_one_row ? outside : 0);
        sum += of_place;
    }
    double* sketch = digest.sketch;
    const double parts[] = {all.real, all.imaginary, of_last.real, of_last.imaginary, of_others.real, of_others.imaginary};
#pragma unroll
    for (int part = 0; part < 6; part++) {
        const double together = sum_of_lanes(parts[part], LANES, 32);
        const int kind = part / 2, before = kind == 0 ? 0 : kind == 1 ? 2 * NUMBERS : 2 * NUMBERS + 2 * PROFILES;
        if (lane < (kind ? PROFILES : NUMBERS)) sketch[before + 2 * number + part % 2] = together;
    }
    const double ramp = sum_of_lanes(found.ramp, 1, 32);
    along_columns = sum_of_lanes(along_columns, LANES, 32) + (strips.is_one_row ? ramp : 0);
    along_rows = sum_of_lanes(along_rows, LANES, 32) + (strips.is_one_row ? 0 : ramp);
    sum = sum_of_lanes(sum, LANES, 32);
    const double square = sum_of_lanes(found.square, 1, 32);
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

// The sum of the warps' digests, in the first of them.
__device__ void together(Digest* of_warps) {
    __syncthreads();
    const int word = threadIdx.x;
    if (word < WORDS) {
        uint64 sum = nothing(word);
        for (int warp = 0; warp < WARPS; warp++) sum = added(word, sum, ((const uint64*)&of_warps[warp])[word]);
        ((uint64*)of_warps)[word] = sum;
    }
    __syncthreads();
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

extern "C" __global__ void __launch_bounds__(THREADS, 2) digest_tensors(const __grid_constant__ Table table) {
    __shared__ Digest of_warps[WARPS];
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
    Found found = {};
    found.smallest = __longlong_as_double(nothing(SMALLEST));
    found.largest = __longlong_as_double(nothing(LARGEST));
    const int warp = threadIdx.x / 32, word = threadIdx.x % 32;
    if (layout->length) {
        find(strips, layout, blockIdx.x - first_block);
        __syncthreads();
#define CASE(KIND) case KIND: go_over<KIND>(strips, pointer, found); break;
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
        weigh(strips, layout, found, of_warps[warp]);
    } else if (word < WORDS) {
        ((uint64*)&of_warps[warp])[word] = nothing(word);
    }
    together(of_warps);

    uint64* line = (uint64*)table.lines + LINE * (uint64)number;
    const uint32 blocks = (uint32)layout->blocks;
    if (blocks == 1) {
        if (threadIdx.x == 0) write(of_warps[0], layout->length, line);
        return;
    }
    uint64* pieces = (uint64*)table.pieces + (uint64)first_block * WORDS;
    uint32* finished = (uint32*)table.finished + number;
    if (threadIdx.x < WORDS) {
        pieces[(blockIdx.x - first_block) * WORDS + threadIdx.x] = ((const uint64*)of_warps)[threadIdx.x];
        __threadfence();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        is_last = atomicAdd(finished, 1u) == blocks - 1;
        __threadfence();
    }
    __syncthreads();
    if (!is_last) return;
    if (word < WORDS) {
        uint64 sum = nothing(word);
#pragma unroll 8
        for (uint32 block = warp; block < blocks; block += WARPS) sum = added(word, sum, pieces[block * WORDS + word]);
        ((uint64*)&of_warps[warp])[word] = sum;
    }
    together(of_warps);
    if (threadIdx.x == 0) {
        write(of_warps[0], layout->length, line);
        *finished = 0;
    }
}
