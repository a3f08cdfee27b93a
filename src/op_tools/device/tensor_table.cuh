// Many tensors that are looked at in one launch, each in pieces: the table of largest.cu and moments.cu, which largest.py fills.
#pragma once
#include "kernel.cuh"

#define PIECE 16384      // elements of a block
#define AHEAD 8          // elements that a thread loads at once
#define MAX_TENSORS 200  // tensors of one launch

struct Item {
    uint64 pointer;
    uint64 length_and_kind;  // elements, times 4, and the dtype
};

struct Table {
    uint64 found;  // what is found of each tensor, 0 at first
    uint64 count;  // of tensors
    Item items[MAX_TENSORS];
    uint32 first_block[MAX_TENSORS];  // of those that work on it
};

// What a block looks at.
struct Piece {
    int number;  // of the tensor
    uint64 pointer, begin, end;
    uint32 kind;

    __device__ explicit Piece(const Table& table) {
        number = tensor_of_block((int)table.count, [&](int at) { return table.first_block[at]; });
        const uint64 length = table.items[number].length_and_kind >> 2;
        pointer = table.items[number].pointer;
        kind = (uint32)(table.items[number].length_and_kind & 3);
        begin = (uint64)(blockIdx.x - table.first_block[number]) * PIECE;
        end = begin + PIECE < length ? begin + PIECE : length;
    }
};

// Each element of a piece, for the threads together.
template <typename Bits, typename Look>
__device__ void for_each(const Piece& piece, Look look) {
    const Bits* elements = (const Bits*)piece.pointer;
    for (uint64 start = piece.begin + threadIdx.x; start < piece.end; start += AHEAD * THREADS) {
        Bits loaded[AHEAD];
#pragma unroll
        for (int number = 0; number < AHEAD; number++)
            loaded[number] = start + number * THREADS < piece.end ? elements[start + number * THREADS] : (Bits)0;
#pragma unroll
        for (int number = 0; number < AHEAD; number++) look(loaded[number]);
    }
}

// The bits of a float that is as large as a double is; of a number too large for one, the largest that there is.
__device__ uint32 size_as_float(uint64 bits) {
    if (bits > 0x7FF0000000000000ULL) return 0x7FC00000u;
    if (bits == 0x7FF0000000000000ULL) return 0x7F800000u;
    if (bits > 0x47EFFFFFE0000000ULL) return 0x7F7FFFFFu;
    return __float_as_uint((float)__longlong_as_double((long long)bits));
}
