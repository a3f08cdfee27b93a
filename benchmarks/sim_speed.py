"""How fast the simulated accelerator is, beside the plain CPU in the same process.

    python benchmarks/sim_speed.py [--rounds 9]

CPU time of this process with one thread, not wall time, so that neighbours on the machine count less; the two devices
take turns, and the median of the rounds is reported with the spread. Ratios are the figures that carry over to another
machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["DITORCH_DISABLE_MOCK"] = "1"

import torch

from ditorch import sim
from ditorch.demo import GPT, batches

Step = Callable[[], object]


def cost(step: Step, times: int) -> float:
    """CPU seconds of one call."""
    began = time.process_time()
    for _ in range(times):
        step()
    return (time.process_time() - began) / times


def interleaved(steps: dict[str, Step], times: int, rounds: int) -> dict[str, list[float]]:
    for step in steps.values():
        cost(step, max(1, times // 4))
    measured: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            measured[name].append(cost(step, times))
    return measured


def training_step(device: str, autocast: bool) -> Step:
    torch.manual_seed(0)
    model = GPT(vocabulary=512).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens, targets = (x.to(device) for x in next(batches()))

    def step() -> None:
        with torch.autocast(device, dtype=torch.bfloat16, enabled=autocast):
            loss = model.loss(tokens, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def tiny_ops(device: str) -> dict[str, Step]:
    a, b = torch.ones(4, device=device), torch.ones(4, device=device)
    square = torch.ones(4, 4, device=device)
    return {
        "add": lambda: torch.add(a, b),
        "add_": lambda: a.add_(b),
        "relu": lambda: torch.relu(a),
        "mm": lambda: torch.mm(square, square),
        "softmax": lambda: torch.softmax(square, -1),
        "view": lambda: a.view(2, 2),
        "empty": lambda: torch.empty(4, device=device),
        "item": lambda: a[0].item(),
    }


def products(device: str, dtype: torch.dtype) -> dict[str, Step]:
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    images, kernel = random(4, 32, 32, 32).requires_grad_(), random(64, 32, 3, 3).requires_grad_()
    one, other, query = random(128, 512), random(512, 512), random(2, 8, 128, 64)
    functional = torch.nn.functional
    return {
        "convolution": lambda: functional.conv2d(images, kernel),
        "convolution and gradients": lambda: functional.conv2d(images, kernel).sum().backward(),
        "matrix product": lambda: one @ other,
        "attention": lambda: functional.scaled_dot_product_attention(query, query, query),
    }


def float32_arithmetic(step: Step) -> Step:
    """The same with DITORCH_SIM_16BIT=float32."""

    def run() -> None:
        torch.ops.ditorch_sim.compute_products_in_float32(True)
        try:
            step()
        finally:
            torch.ops.ditorch_sim.compute_products_in_float32(False)

    return run


def spread(values: list[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    began = time.monotonic()
    sim.start()
    print(f"started in {time.monotonic() - began:.2f} s, torch {torch.__version__}, Python {sys.version.split()[0]}")

    print("\nGPT training step, speed as a share of the CPU's (1 is as fast)")
    for autocast in (False, True):
        measured = interleaved({d: training_step(d, autocast) for d in ("cpu", "sim")}, 5, rounds)
        ratios = [cpu / device for cpu, device in zip(measured["cpu"], measured["sim"])]
        name = "bfloat16 autocast" if autocast else "float32"
        step = statistics.median(measured["sim"]) * 1e3
        print(f"  {name:18} {statistics.median(ratios):.2f} ({spread(ratios)}), {step:.1f} ms of CPU time a step")

    print("\nProducts, ms of CPU time: CPU, device, and the device with DITORCH_SIM_16BIT=float32")
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for name, on_cpu in products("cpu", dtype).items():
            on_sim = products("sim", dtype)[name]
            measured = interleaved({"cpu": on_cpu, "sim": on_sim, "wide": float32_arithmetic(on_sim)}, 2, rounds)
            cpu, device, wide = (statistics.median(measured[way]) * 1e3 for way in ("cpu", "sim", "wide"))
            print(f"  {str(dtype)[6:]:9} {name:26} {cpu:7.2f} {device:7.2f} {wide:7.2f}")

    print("\nOne tiny op, microseconds on the CPU and on the device, and what the device adds")
    with torch.no_grad():
        for name, on_cpu in tiny_ops("cpu").items():
            measured = interleaved({"cpu": on_cpu, "sim": tiny_ops("sim")[name]}, 2000, rounds)
            cpu, device = (statistics.median(measured[d]) * 1e6 for d in ("cpu", "sim"))
            print(f"  {name:8} {cpu:6.2f} {device:6.2f} {device - cpu:+6.2f}")


if __name__ == "__main__":
    main()
