// A few numbers of many tensors at once, in one pass over each: sum, sum of squares, largest absolute value, how many elements
// are not zero, how many are NaN or infinite, and the sum of their bits. Compiled when it is first needed (compiled.py), so
// it includes nothing. The table is the one of largest.cu.

typedef unsigned int uint32;
typedef unsigned long long uint64;

#define THREADS 256
#define PIECE 16384      // elements of a block
#define AHEAD 8          // elements that a thread loads at once
#define MAX_TENSORS 200  // tensors of one launch

struct Item {
    uint64 pointer;
    uint64 length_and_kind;  // elements, times 4, and the dtype below
};

struct Table {
    uint64 found;  // Moments for each tensor, 0 at first
    uint64 count;  // of tensors
    Item items[MAX_TENSORS];
    uint32 first_block[MAX_TENSORS];  // of those that work on it
};

struct Moments {
    double sum, square;
    uint64 largest;  // the bits of a float, which have the order of their values: infinity above numbers, NaN above it
    uint64 nonzero, nonfinite;
    uint64 bits;
};

enum { FLOAT32, BFLOAT16, FLOAT16, FLOAT64 };

__device__ float from_half(uint32 bits) {
    const uint32 sign = (bits & 0x8000u) << 16, rest = bits & 0x7FFFu;
    if (rest >= 0x7C00u) return __uint_as_float(sign | 0x7F800000u | (rest & 0x3FFu) << 13);
    const float size = __uint_as_float(rest << 13) * 5192296858534827628530496329220096.0f;  // 2^112
    return sign ? -size : size;
}

__device__ float value_of(uint32 bits, uint32 kind) { return __uint_as_float(bits); }
__device__ float value_of(unsigned short bits, uint32 kind) {
    return kind == FLOAT16 ? from_half(bits) : __uint_as_float((uint32)bits << 16);
}
__device__ double value_of(uint64 bits, uint32 kind) { return __longlong_as_double((long long)bits); }

__device__ uint64 signed_bits(uint32 bits) { return (uint64)(long long)(int)bits; }
__device__ uint64 signed_bits(unsigned short bits) { return (uint64)(long long)(short)bits; }
__device__ uint64 signed_bits(uint64 bits) { return bits; }

// The bits of a float that is as large; of a number too large for one, the largest that there is.
__device__ uint64 size_of(float value) { return __float_as_uint(value) & 0x7FFFFFFFu; }
__device__ uint64 size_of(double value) {
    const uint64 bits = (uint64)__double_as_longlong(value) & 0x7FFFFFFFFFFFFFFFULL;
    if (bits > 0x7FF0000000000000ULL) return 0x7FC00000u;
    if (bits == 0x7FF0000000000000ULL) return 0x7F800000u;
    if (bits > 0x47EFFFFFE0000000ULL) return 0x7F7FFFFFu;
    return __float_as_uint((float)__longlong_as_double((long long)bits));
}
__device__ bool is_finite(float value) { return size_of(value) < 0x7F800000u; }
__device__ bool is_finite(double value) {
    return ((uint64)__double_as_longlong(value) & 0x7FF0000000000000ULL) != 0x7FF0000000000000ULL;
}

template <typename Bits, typename Real>
__device__ void add_up(Moments& found, uint64 pointer, uint64 begin, uint64 end, uint32 kind, Real zero) {
    const Bits* elements = (const Bits*)pointer;
    Real sum = zero, square = zero;  // of at most 64 elements
    for (uint64 start = begin + threadIdx.x; start < end; start += AHEAD * THREADS) {
        Bits loaded[AHEAD];
#pragma unroll
        for (int number = 0; number < AHEAD; number++)
            loaded[number] = start + number * THREADS < end ? elements[start + number * THREADS] : (Bits)0;
#pragma unroll
        for (int number = 0; number < AHEAD; number++) {
            const Real value = value_of(loaded[number], kind);
            const uint64 size = size_of(value);
            sum += value;
            square += value * value;
            found.largest = size > found.largest ? size : found.largest;
            found.nonzero += value != zero;
            found.nonfinite += !is_finite(value);
            found.bits += signed_bits(loaded[number]);
        }
    }
    found.sum = sum;
    found.square = square;
}

__device__ void join(Moments& one, const Moments& other) {
    one.sum += other.sum;
    one.square += other.square;
    one.largest = other.largest > one.largest ? other.largest : one.largest;
    one.nonzero += other.nonzero;
    one.nonfinite += other.nonfinite;
    one.bits += other.bits;
}

extern "C" __global__ void __launch_bounds__(THREADS) moments_of_tensors(const __grid_constant__ Table table) {
    __shared__ Moments of_threads[THREADS];
    int low = 0, high = (int)table.count - 1;  // the last tensor that begins at this block or before
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (table.first_block[middle] <= blockIdx.x) low = middle; else high = middle - 1;
    }
    const int number = low;
    const uint64 pointer = table.items[number].pointer, length = table.items[number].length_and_kind >> 2;
    const uint32 kind = (uint32)(table.items[number].length_and_kind & 3);
    const uint64 begin = (uint64)(blockIdx.x - table.first_block[number]) * PIECE;
    const uint64 end = begin + PIECE < length ? begin + PIECE : length;
    Moments own = {0, 0, 0, 0, 0, 0};
    if (kind == FLOAT32) add_up<uint32, float>(own, pointer, begin, end, kind, 0);
    else if (kind == FLOAT64) add_up<uint64, double>(own, pointer, begin, end, kind, 0);
    else add_up<unsigned short, float>(own, pointer, begin, end, kind, 0);

    of_threads[threadIdx.x] = own;
    for (int half = THREADS / 2; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) join(of_threads[threadIdx.x], of_threads[threadIdx.x + half]);
    }
    if (threadIdx.x) return;
    Moments* found = (Moments*)table.found + number;
    atomicAdd(&found->sum, of_threads[0].sum);
    atomicAdd(&found->square, of_threads[0].square);
    atomicMax(&found->largest, of_threads[0].largest);
    atomicAdd(&found->nonzero, of_threads[0].nonzero);
    atomicAdd(&found->nonfinite, of_threads[0].nonfinite);
    atomicAdd(&found->bits, of_threads[0].bits);
}
