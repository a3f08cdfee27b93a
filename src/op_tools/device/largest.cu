// The largest absolute value of many tensors at once: NaN where one element is NaN, infinite where one is. Compiled when it
// is first needed (compiled.py).
//
// Without their sign, the bits of floating-point numbers are in the order of their values, with infinity above all
// numbers and NaN above infinity. So the largest bits are all that is looked for.
#include "tensor_table.cuh"

template <typename Bits>
__device__ uint64 largest_bits(const Piece& piece, Bits without_sign) {
    Bits largest = 0;
    for_each<Bits>(piece, [&](Bits loaded) {
        const Bits bits = loaded & without_sign;
        largest = bits > largest ? bits : largest;
    });
    return largest;
}

// As the bits of a float.
__device__ uint32 as_float(uint64 bits, uint32 kind) {
    if (kind == FLOAT32) return (uint32)bits;
    if (kind == BFLOAT16) return (uint32)bits << 16;
    return kind == FLOAT16 ? __float_as_uint(from_half((uint32)bits)) : size_as_float(bits);
}

extern "C" __global__ void __launch_bounds__(THREADS) largest_of_tensors(const __grid_constant__ Table table) {
    __shared__ uint64 of_threads[THREADS];
    const Piece piece(table);
    uint64 bits = 0;
    if (piece.kind == FLOAT32) bits = largest_bits<uint32>(piece, 0x7FFFFFFFu);
    else if (piece.kind == FLOAT64) bits = largest_bits<uint64>(piece, 0x7FFFFFFFFFFFFFFFULL);
    else bits = largest_bits<unsigned short>(piece, 0x7FFF);

    of_threads[threadIdx.x] = bits;
    for (int half = THREADS / 2; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half && of_threads[threadIdx.x + half] > of_threads[threadIdx.x])
            of_threads[threadIdx.x] = of_threads[threadIdx.x + half];
    }
    if (threadIdx.x == 0) atomicMax((uint32*)table.found + piece.number, as_float(of_threads[0], piece.kind));
}
