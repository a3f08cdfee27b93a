"""Runs a .cu file without a GPU: a block's threads take turns at each barrier, its blocks come one after the other."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from op_tools.device import compiled

BEFORE = """
#include <setjmp.h>
#include <ucontext.h>
#include <cmath>
#include <cstring>
#include <vector>
using std::fmax, std::fmin, std::sqrt;
#define __device__
#define __global__
#define __shared__ static
#define __grid_constant__
#define __noinline__
#define __launch_bounds__(...)
struct Index { unsigned x; };
static Index threadIdx, blockIdx;
static void wait_for(unsigned* arrived, unsigned first, unsigned count);  // until these threads have all come here
static unsigned at_exchange[1024], at_barrier[1024];  // how often each has come to one
static void __syncthreads();
static unsigned long long exchanged[2][1024];  // in turns, so that nothing is overwritten before all have read it
static unsigned turns[1024];
template <typename Value> static Value __shfl_sync(unsigned, Value value, int lane) {
    const unsigned warp = threadIdx.x / 32 * 32;
    unsigned long long* all = exchanged[turns[threadIdx.x]++ % 2];
    memcpy(&all[threadIdx.x], &value, sizeof value);
    wait_for(at_exchange, warp, 32);
    memcpy(&value, &all[warp + lane % 32], sizeof value);
    return value;
}
template <typename Value> static Value __shfl_xor_sync(unsigned mask, Value value, int bits) {
    return __shfl_sync(mask, value, threadIdx.x % 32 ^ bits);
}
static void __syncwarp() {}
static void sincospi(double x, double* s, double* c) { *s = std::sin(M_PI * x); *c = std::cos(M_PI * x); }
static void __threadfence() {}
template <typename T> static T atomicAdd(T* place, T value) { T before = *place; *place += value; return before; }
template <typename T> static void atomicMax(T* place, T value) { if (value > *place) *place = value; }
template <typename To, typename From> static To bits_of(From from) { To to; memcpy(&to, &from, sizeof to); return to; }
static unsigned __float_as_uint(float value) { return bits_of<unsigned>(value); }
static float __uint_as_float(unsigned value) { return bits_of<float>(value); }
static long long __double_as_longlong(double value) { return bits_of<long long>(value); }
static double __longlong_as_double(long long value) { return bits_of<double>(value); }
"""
AFTER = """
static ucontext_t contexts[THREADS], main_context;  // where each begins
static jmp_buf places[THREADS];                      // and is: to go there takes no system call
static bool is_running[THREADS];
static std::vector<char> stacks(THREADS * 65536);
static unsigned ended;  // of the running block
static const Table* table_of_all;
static void next() {
    const unsigned from = threadIdx.x, to = (from + 1) % THREADS;
    if (!_setjmp(places[from])) {
        threadIdx.x = to;
        if (is_running[to]) _longjmp(places[to], 1);
        is_running[to] = true;
        setcontext(&contexts[to]);
    }
}
static void wait_for(unsigned* arrived, unsigned first, unsigned count) {
    const unsigned mine = ++arrived[threadIdx.x];
    for (unsigned thread = first; thread < first + count; thread++)
        while (arrived[thread] < mine) next();
}
static void __syncthreads() { wait_for(at_barrier, 0, THREADS); }
static void run() {
    FUNCTION(*table_of_all);
    at_exchange[threadIdx.x] = at_barrier[threadIdx.x] = ~0u;
    ended++;
    while (ended < THREADS) next();
    setcontext(&main_context);
}
extern "C" void launch(unsigned blocks, const Table* given) {
    const Table table = *given;
    table_of_all = &table;
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) {
        ended = 0;
        for (unsigned number = 0; number < THREADS; number++) {
            at_exchange[number] = at_barrier[number] = is_running[number] = 0;
            getcontext(&contexts[number]);
            contexts[number].uc_stack = {&stacks[number * 65536], 0, 65536};
            makecontext(&contexts[number], run, 0);
        }
        threadIdx.x = 0;
        is_running[0] = true;
        swapcontext(&main_context, &contexts[0]);
    }
}
extern "C" unsigned size_of_table() { return sizeof(Table); }
"""


class Kernel:
    """Stands in for compiled.Kernel."""

    def __init__(self, folder: Path, name: str, function: str) -> None:
        compiler = shutil.which("g++") or shutil.which("clang++")
        if compiler is None:
            pytest.skip("there is no compiler")
        source, library = folder / f"{name}.cpp", folder / f"{name}.so"
        source.write_text(BEFORE + compiled.source(f"{name}.cu") + AFTER)
        options = ["-std=c++17", "-O1", "-w", "-U_FORTIFY_SOURCE", "-shared", "-fPIC", f"-DFUNCTION={function}"]
        subprocess.run([compiler, *options, source, "-o", library], check=True)
        self.library = ctypes.CDLL(str(library))

    def launch(self, blocks: int, threads: int, argument: ctypes.Array[ctypes.c_void_p], stream: int) -> None:
        self.library.launch(blocks, ctypes.c_void_p(argument[0]))
