// The digests of many tensors in one pass over each of them: what device/digest.py computes in several, by the same
// rules. Compiled when it is first needed (compiled.py).
//
// A tensor is gone over in strips of at most 512 elements (native/csrc/digest_layout.h has the same): whole rows, several, or
// parts of one. A block takes up to 256 strips. 16-bit elements have a way of their own (digest_quick.cuh), the others this
// one: the elements of 4 strips times the weights of these strips are a product of matrices, for which the device has units
// of its own (`multiply_add`). A warp has 64 places of the strips, so that each of its lanes holds 8 places of one strip when
// it loads, and one weight of each of the 8 places in the end, when it is weighed with the place's own. The block that is the
// last to finish one of a tensor puts its pieces together, always in the same order: so a tensor has the same digest
// wherever it stands in the table.
#include "digest_quick.cuh"

#define PLACES 8         // of a lane
#define LINE 27
#define AHEAD 16         // pieces of a tensor that a thread loads at once
#define MAX_TENSORS 160  // tensors of one launch

struct Item {
    uint64 layout;       // a Layout on the device
    uint32 first_block;  // of those that work on it
    uint32 kind;         // its dtype
};

struct Table {
    uint64 lines;         // where the digests go, one for each tensor
    uint64 pieces;        // for a Digest of each block
    uint64 finished;      // for each tensor, how many of its blocks have finished; zeros at first, and at the end
    uint64 weights;       // of the places of a strip, as digest_quick.cuh needs them: for bfloat16, then for float16
    uint64 count;         // of tensors
    uint64 pointers[MAX_TENSORS];
    Item items[MAX_TENSORS];
};

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

// ---- elements times weights ----------------------------------------------------------------------------------------

// What a lane has of 8 x 8 sums, of places (by lane / LANES) and weights (two, by lane % LANES).
struct Pair {
    double first, second;
};

// Adds a product. `element`: of place lane / LANES in strip lane % LANES. `weight`: the lane / LANES th of that strip.
// By all lanes at once: none may be on another branch.
__device__ void multiply_add(Pair& sums, double element, double weight) {
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
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

// What a lane has found without the weights of its places: of all its strips, and of each place.
struct Unweighted {
    Pair weighted[PLACES];  // of number lane % LANES
    double sums[PLACES];    // of strips lane % LANES
    double ramp;            // the sum with the strips' places in the ramp
    double square, smallest, largest;
    uint32 nan, not_finite;
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
__device__ void go_over(const Strips& strips, const Layout* layout, uint64 pointer, Unweighted& found) {
    typedef Element<kind> Of;
    typedef typename Of::Raw Raw;
    typedef typename Of::Value Value;
    const int together = sizeof(Raw) >= 4 ? 8 / sizeof(Raw) : 4;  // loaded at a time: memory is waited for less often
    const int lane = threadIdx.x % 32, column = lane / LANES;
    const Share share(layout);
    const int first = share.chunk * PLACES_OF_WARP + column * PLACES, at_once = LANES * together;
    const Raw* elements = (const Raw*)pointer;
    const Value infinity = (Value)__longlong_as_double(nothing(SMALLEST));
    Value smallest = infinity, largest = -infinity;
    for (int group = share.begin(strips, at_once); group < strips.count; group += share.turns * at_once) {
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
            __syncwarp();  // all lanes multiply together
#pragma unroll
            for (int place = 0; place < PLACES; place++) {
                const Value value = Of::value(raw[number][place]);
                const bool is_finite = value - value == 0, counts = place < inside[number] && is_finite;
                const double finite = is_finite ? (double)value : 0;
                const uint64 own = Of::bits(raw[number][place], value);
                bits += own;
                by_place += own * place;
                found.square += finite * finite;
                multiply_add(found.weighted[place], finite, weight);
                found.sums[place] += finite;
                found.ramp += finite * place_in_ramp;
                // Not "if it counts": ptxas of CUDA 13.0 then takes in the zeros of places that are not there.
                const Value low = counts ? value : infinity, high = counts ? value : -infinity;
                smallest = low < smallest ? low : smallest;
                largest = high > largest ? high : largest;
                found.nan += value != value;
                found.not_finite += !is_finite;
            }
            found.bits += bits;
            if (inside[number]) found.bits_by_place += by_place + bits * (strips.places[strip] + first);
        }
    }
    found.smallest = smallest;
    found.largest = largest;
}

// ---- a block's digest ----------------------------------------------------------------------------------------------

// With the weights of the places.
__device__ Found weighed(const Strips& strips, const Layout* layout, const Unweighted& unweighted) {
    const int lane = threadIdx.x % 32, number = lane % LANES;
    const uint32 first = Share(layout).chunk * PLACES_OF_WARP + lane / LANES * PLACES;
    const uint32 width = (uint32)layout->width, columns = strips.cuts_last ? width : (uint32)layout->columns;
    const Complex common = strips.common[number];
    const double middle = strips.cuts_last ? 0 : 0.5 * ((double)layout->columns - 1);
    const double ramp = sum_of_lanes(unweighted.ramp, 1, LANES);
    Found found = {};
    uint64 address;
#pragma unroll
    for (int at = 0; at < PLACES; at++) {
        const uint32 place = first + at, row = place / columns, column = place - row * columns;
        const double of_place = sum_of_lanes(unweighted.sums[at], 1, LANES);
        if (place >= width) continue;
        Complex given = {unweighted.weighted[at].first, unweighted.weighted[at].second};
        if (row) given = times(given, at_angle(angle_of(layout, number, row, layout->outer_dimensions, layout->dimensions - 1, address)));
        const Complex own = at_angle(hashed(column % PERIOD, 100 + number) + column / PERIOD * turn(number, 0));
        const Complex weighted = times(given, own), last = times(own, common);
        add_complex(found.all, times(weighted, common));
        add_complex(found.of_last, strips.is_one_row ? weighted : Complex{of_place * last.real, of_place * last.imaginary});
        add_complex(found.of_others, strips.is_one_row ? Complex{of_place * common.real, of_place * common.imaginary} : given);
        const double outside = strips.common_ramp * of_place;
        found.along_columns += ((double)column - middle) / (double)layout->columns * of_place + (strips.is_one_row ? 0 : outside);
        found.along_rows += (double)row / (double)layout->rows * of_place + (strips.is_one_row ? outside : 0);
        found.sum += of_place;
    }
    (strips.is_one_row ? found.along_columns : found.along_rows) += ramp;
    found.square = unweighted.square;
    found.smallest = unweighted.smallest;
    found.largest = unweighted.largest;
    found.nan = unweighted.nan;
    found.infinite = unweighted.not_finite - unweighted.nan;
    found.bits = unweighted.bits;
    found.bits_by_place = unweighted.bits_by_place;
    return found;
}

__device__ Found go_over_all(const Strips& strips, const Layout* layout, uint64 pointer, uint32 kind) {
    Unweighted found = {};
#define CASE(KIND) case KIND: go_over<KIND>(strips, layout, pointer, found); break;
    switch (kind) {
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
    return weighed(strips, layout, found);
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

// As lines() of digest.py has it: elements, NaN, infinities, checksum, min, max, mean, std, norm, sketch. By all threads.
__device__ void write(const Digest& digest, uint64 length, uint64* line) {
    if (threadIdx.x >= 32 && threadIdx.x < 32 + SKETCH) ((double*)line)[9 + threadIdx.x - 32] = digest.sketch[threadIdx.x - 32];
    if (threadIdx.x) return;
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
}

// Bytes of an element.
__device__ uint32 size_of(uint32 kind) {
    return kind == FLOAT64 || kind == INT64 ? 8 : kind == FLOAT32 || kind == INT32 ? 4 : kind == INT8 || kind == UINT8 ? 1 : 2;
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) digest_tensors(const __grid_constant__ Table table) {
    __shared__ Digest of_warps[WARPS];
    __shared__ Strips strips;
    __shared__ bool is_last, is_unusual;
    const int number = tensor_of_block((int)table.count, [&](int at) { return table.items[at].first_block; });
    const uint64 pointer = table.pointers[number];
    const Layout* layout = (const Layout*)table.items[number].layout;
    const uint32 first_block = table.items[number].first_block, kind = table.items[number].kind;
    const int warp = threadIdx.x / 32, word = threadIdx.x % 32;
    if (layout->length) {
        Found found;
        find(strips, layout, blockIdx.x - first_block, pointer, size_of(kind));
        const bool is_quick = HAS_TILES && layout->is_quick && pointer % sizeof(Vector8) == 0;
        is_unusual = !is_quick;
        __syncthreads();
        if (is_quick) {
            const PairOfWeights* weights = (const PairOfWeights*)table.weights;
            const bool is_sure = kind == BFLOAT16 ? go_over_quickly<BFLOAT16>(strips, layout, pointer, weights, found)
                : go_over_quickly<FLOAT16>(strips, layout, pointer, weights + WEIGHTS, found);
            if (!is_sure) is_unusual = true;
            __syncthreads();
        }
        if (is_unusual) found = go_over_all(strips, layout, pointer, kind);
        add_up(found, of_warps[warp]);
    } else if (word < WORDS) {
        ((uint64*)&of_warps[warp])[word] = nothing(word);
    }
    together(of_warps);

    uint64* line = (uint64*)table.lines + LINE * (uint64)number;
    const uint32 blocks = (uint32)layout->blocks;
    if (blocks == 1) {
        write(of_warps[0], layout->length, line);
        return;
    }
    uint64* pieces = (uint64*)table.pieces + (uint64)first_block * WORDS;
    uint32* finished = (uint32*)table.finished + number;
    if (threadIdx.x < WORDS) {
        pieces[(blockIdx.x - first_block) * WORDS + threadIdx.x] = ((const uint64*)of_warps)[threadIdx.x];
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        is_last = atomicAdd(finished, 1u) == blocks - 1;
        __threadfence();
    }
    __syncthreads();
    if (!is_last) return;
    if (word < WORDS) {
        uint64 sum = nothing(word);
        for (uint32 block = warp; block < blocks; block += WARPS * AHEAD) {
            uint64 loaded[AHEAD];  // all at once, or each is waited for
#pragma unroll
            for (int at = 0; at < AHEAD; at++) {
                const uint32 next = block + at * WARPS;
                loaded[at] = next < blocks ? pieces[next * WORDS + word] : nothing(word);
            }
#pragma unroll
            for (int at = 0; at < AHEAD; at++) sum = added(word, sum, loaded[at]);
        }
        ((uint64*)&of_warps[warp])[word] = sum;
    }
    together(of_warps);
    write(of_warps[0], layout->length, line);
    if (threadIdx.x == 0) *finished = 0;
}
