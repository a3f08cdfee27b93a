// Of each row of a matrix, or of many: the sums of its elements times several weights, and of their squares times one. One pass,
// in double precision, with no product of matrices: identities/ proves such products by it. Compiled when it is first needed
// (compiled.py).
//
// A thread has 4 rows. Where the columns lie side by side in memory, the threads of a block share its 4 rows; else, where the
// rows do, each lane of a warp has 4 of its own, and the warps share the columns. Parts of the columns go to several blocks,
// whose sums are added up afterwards, in the same order.
#include "kernel.cuh"

#define WARPS 8
#define ROWS 4         // of a thread
#define MAX_WEIGHTS 4  // of an element

struct Table {
    uint64 pointer, weights, of_squares, found;     // weights are doubles; without those of squares, they are 1
    uint64 kind, count;                             // the dtype of the elements; how many weights each has
    uint64 rows, columns, inner_batches, batches;
    uint64 row_blocks, parts, are_rows_together;
    uint64 strides[4];                              // of outer and inner batches, rows, columns; in elements
    uint64 weight_strides[4];                       // of outer and inner batches, columns, weights
    uint64 square_strides[3];                       // of outer and inner batches, columns
};

template <int kind> __device__ double value_at(uint64 pointer, uint64 place);
template <> __device__ double value_at<FLOAT32>(uint64 pointer, uint64 place) { return ((const float*)pointer)[place]; }
template <> __device__ double value_at<FLOAT64>(uint64 pointer, uint64 place) { return ((const double*)pointer)[place]; }
template <> __device__ double value_at<FLOAT16>(uint64 pointer, uint64 place) {
    return from_half(((const unsigned short*)pointer)[place]);
}
template <> __device__ double value_at<BFLOAT16>(uint64 pointer, uint64 place) {
    return __uint_as_float((uint32)((const unsigned short*)pointer)[place] << 16);
}

// What a block works on: a part of the columns of some rows of one matrix.
struct Part {
    uint64 batch, first_row, begin, end;
    uint64 elements, weights, of_squares;  // where the matrix and its weights begin

    __device__ explicit Part(const Table& table) {
        const uint64 part = blockIdx.x % table.parts, rest = blockIdx.x / table.parts, size = (table.columns + table.parts - 1) / table.parts;
        batch = rest / table.row_blocks;
        first_row = rest % table.row_blocks * (table.are_rows_together ? 32 * ROWS : ROWS);
        begin = part * size;
        end = begin + size < table.columns ? begin + size : table.columns;
        const uint64 outer = batch / table.inner_batches, inner = batch % table.inner_batches;
        elements = outer * table.strides[0] + inner * table.strides[1];
        weights = outer * table.weight_strides[0] + inner * table.weight_strides[1];
        of_squares = outer * table.square_strides[0] + inner * table.square_strides[1];
    }
};

template <int kind, int count>
__device__ void add_up(const Table& table, const Part& part, double (*sums)[MAX_WEIGHTS + 1]) {
    const bool together = table.are_rows_together;
    const double *weights = (const double*)table.weights + part.weights, *of_squares = (const double*)table.of_squares + part.of_squares;
    uint64 places[ROWS];
#pragma unroll
    for (int at = 0; at < ROWS; at++) {
        const uint64 row = part.first_row + (together ? threadIdx.x % 32 + 32 * at : at);
        places[at] = part.elements + (row < table.rows ? row : table.rows - 1) * table.strides[2];
    }
    const uint64 step = together ? WARPS : THREADS;
#pragma unroll 4
    for (uint64 column = part.begin + (together ? threadIdx.x / 32 : threadIdx.x); column < part.end; column += step) {
        double own[count];
#pragma unroll
        for (int at = 0; at < count; at++) own[at] = weights[column * table.weight_strides[2] + at * table.weight_strides[3]];
        const double of_square = table.of_squares ? of_squares[column * table.square_strides[2]] : 1;
#pragma unroll
        for (int at = 0; at < ROWS; at++) {
            const double value = value_at<kind>(table.pointer, places[at] + column * table.strides[3]);
#pragma unroll
            for (int weight = 0; weight < count; weight++) sums[at][weight] += value * own[weight];
            sums[at][count] += value * value * of_square;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) row_sums(const __grid_constant__ Table table) {
    __shared__ double of_warps[WARPS][32 * ROWS];
    const Part part(table);
    double sums[ROWS][MAX_WEIGHTS + 1] = {};
#define CASE(KIND) case KIND: if (table.count == 1) add_up<KIND, 1>(table, part, sums); else add_up<KIND, MAX_WEIGHTS>(table, part, sums); break;
    switch (table.kind) {
        CASE(FLOAT32)
        CASE(BFLOAT16)
        CASE(FLOAT16)
        CASE(FLOAT64)
    }
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, rows = table.are_rows_together ? 32 * ROWS : ROWS;
    const uint64 all_rows = table.batches * table.rows, values = table.count + 1;
    double* found = (double*)table.found + blockIdx.x % table.parts * values * all_rows + part.batch * table.rows;
    for (int value = 0; value <= MAX_WEIGHTS; value++) {
        if (value >= values) break;
        for (int at = 0; at < ROWS; at++) {
            double sum = sums[at][value];
            if (table.are_rows_together) {
                of_warps[warp][lane + 32 * at] = sum;
                continue;
            }
            for (int bit = 1; bit < 32; bit *= 2) sum += __shfl_xor_sync(~0u, sum, bit);
            if (lane == 0) of_warps[warp][at] = sum;
        }
        __syncthreads();
        const uint64 row = part.first_row + threadIdx.x;
        if (threadIdx.x < rows && row < table.rows) {
            double sum = 0;
            for (int at = 0; at < WARPS; at++) sum += of_warps[at][threadIdx.x];
            found[value * all_rows + row] = sum;
        }
        __syncthreads();
    }
}
