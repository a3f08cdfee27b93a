// A few numbers of many tensors at once, in one pass over each: sum, sum of squares, largest absolute value, how many elements
// are not zero, how many are NaN or infinite, and the sum of their bits. Compiled when it is first needed (compiled.py).
#include "tensor_table.cuh"

struct Moments {
    double sum, square;
    uint64 largest;  // the bits of a float, which have the order of their values: infinity above numbers, NaN above it
    uint64 nonzero, nonfinite;
    uint64 bits;
};

__device__ float value_of(uint32 bits, uint32 kind) { return __uint_as_float(bits); }
__device__ float value_of(unsigned short bits, uint32 kind) {
    return kind == FLOAT16 ? from_half(bits) : __uint_as_float((uint32)bits << 16);
}
__device__ double value_of(uint64 bits, uint32 kind) { return __longlong_as_double((long long)bits); }

__device__ uint64 signed_bits(uint32 bits) { return (uint64)(long long)(int)bits; }
__device__ uint64 signed_bits(unsigned short bits) { return (uint64)(long long)(short)bits; }
__device__ uint64 signed_bits(uint64 bits) { return bits; }

// The bits of a float that is as large.
__device__ uint32 size_of(float value) { return __float_as_uint(value) & 0x7FFFFFFFu; }
__device__ uint32 size_of(double value) {
    return size_as_float((uint64)__double_as_longlong(value) & 0x7FFFFFFFFFFFFFFFULL);
}
__device__ bool is_finite(float value) { return size_of(value) < 0x7F800000u; }
__device__ bool is_finite(double value) {
    return ((uint64)__double_as_longlong(value) & 0x7FF0000000000000ULL) != 0x7FF0000000000000ULL;
}

template <typename Bits, typename Real>
__device__ Moments moments_of(const Piece& piece) {
    Real sum = 0, square = 0;  // of at most 64 elements
    uint32 largest = 0, nonzero = 0, nonfinite = 0;
    uint64 sum_of_bits = 0;
    for_each<Bits>(piece, [&](Bits bits) {
        const Real value = value_of(bits, piece.kind);
        const uint32 size = size_of(value);
        sum += value;
        square += value * value;
        largest = size > largest ? size : largest;
        nonzero += value != 0;
        nonfinite += !is_finite(value);
        sum_of_bits += signed_bits(bits);
    });
    return {(double)sum, (double)square, largest, nonzero, nonfinite, sum_of_bits};
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
    const Piece piece(table);
    of_threads[threadIdx.x] = piece.kind == FLOAT32 ? moments_of<uint32, float>(piece)
        : piece.kind == FLOAT64 ? moments_of<uint64, double>(piece) : moments_of<unsigned short, float>(piece);
    for (int half = THREADS / 2; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) join(of_threads[threadIdx.x], of_threads[threadIdx.x + half]);
    }
    if (threadIdx.x) return;
    Moments* found = (Moments*)table.found + piece.number;
    atomicAdd(&found->sum, of_threads[0].sum);
    atomicAdd(&found->square, of_threads[0].square);
    atomicMax(&found->largest, of_threads[0].largest);
    atomicAdd(&found->nonzero, of_threads[0].nonzero);
    atomicAdd(&found->nonfinite, of_threads[0].nonfinite);
    atomicAdd(&found->bits, of_threads[0].bits);
}
