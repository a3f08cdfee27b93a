// For every kernel: NVRTC has no headers. compiled.py puts this in place of its #include.
#pragma once

typedef unsigned int uint32;
typedef unsigned long long uint64;

#define THREADS 256  // of a block

enum { FLOAT32, BFLOAT16, FLOAT16, FLOAT64, INT64, INT32, INT16, INT8, UINT8 };

// Of a NaN it keeps what the processor does.
__device__ float from_half(uint32 bits) {
    const uint32 sign = (bits & 0x8000u) << 16, rest = bits & 0x7FFFu;
    if (rest > 0x7C00u) return __uint_as_float(sign | 0x7FC00000u | (rest & 0x3FFu) << 13);
    if (rest == 0x7C00u) return __uint_as_float(sign | 0x7F800000u);
    return __uint_as_float(sign | __float_as_uint(__uint_as_float(rest << 13) * 5192296858534827628530496329220096.0f));  // 2^112
}

// The last of so many tensors that begins at this block or before.
template <typename FirstBlock>
__device__ int tensor_of_block(int count, FirstBlock first_block) {
    int low = 0, high = count - 1;
    while (low < high) {
        const int middle = (low + high + 1) / 2;
        if (first_block(middle) <= blockIdx.x) low = middle; else high = middle - 1;
    }
    return low;
}
