// The largest absolute value of many tensors at once: NaN where one element is NaN, infinite where one is. Compiled when it
// is first needed (compiled.py), so it includes nothing.
//
// Without their sign, the bits of floating-point numbers are in the order of their values, with infinity above all
// numbers and NaN above infinity. So the largest bits are all that is looked for.

typedef unsigned int uint32;
typedef unsigned long long uint64;

#define THREADS 256
#define PIECE 16384  // elements of a block
#define AHEAD 8      // elements that a thread loads at once
#define MAX_TENSORS 200     // tensors of one launch

struct Item {
    uint64 pointer;
    uint64 length_and_kind;  // elements, times 4, and the dtype below
};

struct Table {
    uint64 found;  // a float for each tensor, 0 at first
    uint64 count;  // of tensors
    Item items[MAX_TENSORS];
    uint32 first_block[MAX_TENSORS];  // of those that work on it
};

enum { FLOAT32, BFLOAT16, FLOAT16, FLOAT64 };

template <typename Bits>
__device__ uint64 largest_bits(uint64 pointer, uint64 begin, uint64 end, Bits without_sign) {
    const Bits* elements = (const Bits*)pointer;
    Bits largest = 0;
    for (uint64 start = begin + threadIdx.x; start < end; start += AHEAD * THREADS) {
        Bits loaded[AHEAD];
#pragma unroll
        for (int number = 0; number < AHEAD; number++)
            loaded[number] = start + number * THREADS < end ? elements[start + number * THREADS] : (Bits)0;
#pragma unroll
        for (int number = 0; number < AHEAD; number++) {
            const Bits bits = loaded[number] & without_sign;
            largest = bits > largest ? bits : largest;
        }
    }
    return largest;
}

// As the bits of a float. A number too large for one is the largest that there is.
__device__ uint32 as_float(uint64 bits, uint32 kind) {
    if (kind == FLOAT32) return (uint32)bits;
    if (kind == BFLOAT16) return (uint32)bits << 16;
    if (kind == FLOAT16) {
        if (bits >= 0x7C00) return 0x7F800000u | (uint32)(bits & 0x3FF) << 13;
        return __float_as_uint(__uint_as_float((uint32)bits << 13) * 5192296858534827628530496329220096.0f);  // 2^112
    }
    if (bits > 0x7FF0000000000000ULL) return 0x7FC00000u;
    if (bits == 0x7FF0000000000000ULL) return 0x7F800000u;
    if (bits > 0x47EFFFFFE0000000ULL) return 0x7F7FFFFFu;
    return __float_as_uint((float)__longlong_as_double((long long)bits));
}

extern "C" __global__ void __launch_bounds__(THREADS) largest_of_tensors(const __grid_constant__ Table table) {
    __shared__ uint64 of_threads[THREADS];
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
    uint64 bits = 0;
    if (kind == FLOAT32) bits = largest_bits<uint32>(pointer, begin, end, 0x7FFFFFFFu);
    else if (kind == FLOAT64) bits = largest_bits<uint64>(pointer, begin, end, 0x7FFFFFFFFFFFFFFFULL);
    else bits = largest_bits<unsigned short>(pointer, begin, end, 0x7FFF);

    of_threads[threadIdx.x] = bits;
    for (int half = THREADS / 2; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half && of_threads[threadIdx.x + half] > of_threads[threadIdx.x])
            of_threads[threadIdx.x] = of_threads[threadIdx.x + half];
    }
    if (threadIdx.x == 0) atomicMax((uint32*)table.found + number, as_float(of_threads[0], kind));
}
