"""Runs a .cu file without a GPU: a block's threads are threads of the system, its blocks come one after the other."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from op_tools.device import digests

BEFORE = """
#include <pthread.h>
#include <cmath>
#include <cstring>
#include <thread>
#include <vector>
using std::fmax, std::fmin, std::sqrt;
#define __device__
#define __global__
#define __shared__ static
#define __grid_constant__
#define __launch_bounds__(threads)
struct Index { unsigned x; };
static thread_local Index threadIdx;
static Index blockIdx;
static pthread_barrier_t barrier;
static void sincospi(double x, double* s, double* c) { *s = std::sin(M_PI * x); *c = std::cos(M_PI * x); }
static void __syncthreads() { pthread_barrier_wait(&barrier); }
static void __threadfence() {}
static unsigned atomicAdd(unsigned* place, unsigned value) { unsigned before = *place; *place += value; return before; }
static void atomicMax(unsigned* place, unsigned value) { if (value > *place) *place = value; }
template <typename To, typename From> static To bits_of(From from) { To to; memcpy(&to, &from, sizeof to); return to; }
static unsigned __float_as_uint(float value) { return bits_of<unsigned>(value); }
static float __uint_as_float(unsigned value) { return bits_of<float>(value); }
static long long __double_as_longlong(double value) { return bits_of<long long>(value); }
static double __longlong_as_double(long long value) { return bits_of<double>(value); }
"""
AFTER = """
extern "C" void launch(unsigned blocks, const Table* given) {
    const Table table = *given;
    pthread_barrier_init(&barrier, nullptr, THREADS);
    std::vector<std::thread> threads;
    for (unsigned number = 0; number < THREADS; number++)
        threads.emplace_back([&, number] {
            threadIdx.x = number;
            for (unsigned block = 0; block < blocks; block++) {
                if (number == 0) blockIdx.x = block;
                __syncthreads();
                FUNCTION(table);
                __syncthreads();
            }
        });
    for (auto& thread : threads) thread.join();
    pthread_barrier_destroy(&barrier);
}
extern "C" unsigned size_of_table() { return sizeof(Table); }
"""
CONVERSION = 'asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));'


class Kernel:
    """Stands in for compiled.Kernel."""

    def __init__(self, folder: Path, name: str, function: str) -> None:
        compiler = shutil.which("g++") or shutil.which("clang++")
        if compiler is None:
            pytest.skip("there is no compiler")
        kernel = Path(digests.__file__).with_name(f"{name}.cu").read_text()
        kernel = kernel.replace(CONVERSION, "value = bits_of<_Float16>(bits);")
        assert "asm" not in kernel
        source, library = folder / f"{name}.cpp", folder / f"{name}.so"
        source.write_text(BEFORE + kernel + AFTER)
        options = ["-std=c++17", "-O1", "-w", "-shared", "-fPIC", "-pthread", f"-DFUNCTION={function}"]
        subprocess.run([compiler, *options, source, "-o", library], check=True)
        self.library = ctypes.CDLL(str(library))

    def launch(self, blocks: int, threads: int, argument: ctypes.Array[ctypes.c_void_p], stream: int) -> None:
        self.library.launch(blocks, ctypes.c_void_p(argument[0]))
