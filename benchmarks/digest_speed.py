"""The kernel that digests tensors for OpCapture's statistics: is it right, and how fast does it read memory?

    python benchmarks/digest_speed.py                    on a GPU with Triton: the Triton kernel
    python benchmarks/digest_speed.py --device sim       the C++ kernel

First the kernel is compared with torch's own kernels on the CPU. Then for tensors of 1e3 to 1e9 elements: the time of
one digest, what it reads in a second, and that as a share of what copying the tensor moves. Last, many small tensors in
one launch, and a tensor that is seen again and only probed. The ratio of a training step:

    python benchmarks/overhead.py --only "OpCapture, statistics"
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any, Callable

import torch
from torch import Tensor

import ditorch  # noqa: F401  "cuda" is the accelerator that is there
from op_tools.device import digest, digests

ROUNDS = 7
SIZES = (10**3, 10**4, 10**5, 10**6, 10**7, 10**8, 10**9)


def seconds(run: Callable[[], object], device: torch.device) -> float:
    """The median of some rounds, each long enough to be measured."""
    module = torch.get_device_module(device)
    run()
    module.synchronize()
    times = 1
    while True:
        began = time.perf_counter()
        for _ in range(times):
            run()
        module.synchronize()
        if time.perf_counter() - began > 0.02 or times >= 4096:
            break
        times *= 2
    found = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(times):
            run()
        module.synchronize()
        found.append((time.perf_counter() - began) / times)
    return statistics.median(found)


class Runs:
    """Digests the same tensors again and again."""

    def __init__(self, kernel: Any, tensors: list[Tensor]) -> None:
        self.kernel, self.tensors = kernel, tensors
        (self.group,) = digests.grouped(tensors)
        self.memory, self.first = kernel.memory(4096), 0

    def __call__(self, known: bool = False) -> None:
        count = len(self.tensors)
        if self.first + count > 4096 or not self.kernel.has_room(self.memory, self.group):
            self.memory, self.first = self.kernel.memory(4096), 0
        lines = list(range(self.first - count, self.first)) if known and self.first else [-1] * count
        self.kernel.write(self.tensors, self.group, None, self.memory, self.first, lines)
        self.first += count

    def lines(self) -> Tensor:
        return self.kernel.lines([one.cpu() for one in self.kernel.finish(self.memory, self.first)])


def check(kernel: Any, device: torch.device) -> None:
    torch.manual_seed(0)
    worst = 0.0
    for shape in ((), (5,), (300_000,), (700, 2048), (3, 50_257), (4, 6, 100, 64), (64, 32, 3, 3), (1000, 3), (0, 4)):
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.bool):
            tensor = (torch.randn(shape) * 9).to(dtype)
            if tensor.numel() > 4 and dtype.is_floating_point:
                tensor.view(-1)[[1, 3]] = torch.tensor([float("nan"), float("inf")], dtype=dtype)
            runs = Runs(kernel, [tensor.to(device)])
            runs()
            line, right = runs.lines()[0], digest.line_of(tensor)
            assert torch.equal(line[:4], right[:4]), (shape, dtype, line[:4], right[:4])
            found, expected = line[4:-1].view(torch.float64), right[4:-1].view(torch.float64)
            assert torch.equal(found[:2].nan_to_num(), expected[:2].nan_to_num()), (shape, dtype)
            norm = max(float(expected[4].nan_to_num()), 1e-9)
            worst = max(worst, float((found[2:13] - expected[2:13]).nan_to_num().abs().max()) / norm)
    print(f"right: counts, checksums and ends equal; mean, std, norm and sketch off by {worst:.1e} of the norm at most")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--most", type=float, default=1e9, help="elements of the largest tensor")
    options = parser.parse_args()
    device = torch.empty(0, device=options.device).device
    kernel = digests.kernel_for(device)
    print(f"{type(kernel).__name__} on {device}, torch {torch.__version__}")
    check(kernel, device)
    print(f"{'elements':>12} {'dtype':>9} {'shape':>16} {'µs':>10} {'GB/s':>8} {'of a copy':>9}")
    for size in SIZES:
        if size > options.most:
            break
        for dtype in (torch.float32, torch.bfloat16):
            for shape in ((size,), (size // 1000, 1000)) if size >= 10**6 else ((size,),):
                tensor = torch.ones(shape, dtype=dtype, device=device)
                copy = torch.empty_like(tensor)
                taken = seconds(Runs(kernel, [tensor]), device)
                copied = seconds(lambda tensor=tensor, copy=copy: copy.copy_(tensor), device)
                share = 2 * tensor.nbytes / copied  # a copy reads and writes
                speed = tensor.nbytes / taken
                name = str(dtype).partition(".")[2]
                print(f"{size:12} {name:>9} {shape!s:>16} {taken * 1e6:10.1f} {speed / 1e9:8.1f} {speed / share:9.2f}")
                del tensor, copy
    small = [torch.ones(1000, device=device) for _ in range(300)]
    print(f"300 tensors of 1000 elements in one launch: {seconds(Runs(kernel, small), device) * 1e6:.1f} µs")
    runs = Runs(kernel, [torch.ones(int(min(options.most, 1e8)), device=device)])
    again = seconds(lambda: runs(known=True), device)
    print(f"a tensor of {runs.tensors[0].numel()} elements that is seen again: {again * 1e6:.1f} µs")


if __name__ == "__main__":
    main()
