"""Whether the simulated accelerator lasts: memory over a long run, and process exits right after backward.

    python benchmarks/sim_soak.py [--steps 2000] [--exits 200]

Exit code 1 if memory grows after warm-up, or if a process does not end by itself.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

os.environ["DITORCH_DISABLE_MOCK"] = "1"

import torch

from ditorch import sim
from ditorch.demo import GPT, batches

ALLOWED_GROWTH = 20  # MiB of resident memory, after warm-up


def resident() -> float:
    """Resident memory of this process in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def train(steps: int) -> bool:
    model = GPT(width=32, heads=2, length=16).to("sim")
    optimizer = torch.optim.AdamW(model.parameters())
    device = torch.get_device_module("sim")
    warm, first = max(steps // 10, 1), 0.0
    for step, (tokens, targets) in zip(range(steps + 1), batches(2, 16)):
        with torch.autocast("sim", dtype=torch.bfloat16):
            loss = model.loss(tokens.to("sim"), targets.to("sim"))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == warm:
            first = resident()
        if step % max(steps // 5, 1) == 0:
            print(f"  step {step:5}: {resident():.1f} MiB resident, {device.memory_allocated()} bytes on the device")
    growth = resident() - first
    print(f"  growth from step {warm} to {steps}: {growth:.1f} MiB (allowed: {ALLOWED_GROWTH})")
    return growth <= ALLOWED_GROWTH


# A long graph: dropping it takes the device's thread as long as it takes the interpreter to begin its end.
EXIT = """
import torch
from ditorch import sim
sim.start()
leaf = torch.ones(64, 64, device="sim", requires_grad=True)
x = leaf
for _ in range(3000):
    x = x * 1.0
x.sum().backward()
"""


def leave(exits: int) -> bool:
    """Processes of their own, two at a time; forked ones would not show the fault that this looks for."""

    def one(_: int) -> int:
        return subprocess.run([sys.executable, "-c", EXIT], capture_output=True).returncode

    with ThreadPoolExecutor(2) as pool:
        codes = Counter(pool.map(one, range(exits)))
    print(f"  {exits} exits right after backward, by exit code: {dict(codes)}")
    return set(codes) == {0}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--exits", type=int, default=200)
    options = parser.parse_args()
    torch.set_num_threads(1)
    sim.start()
    print("process exits")
    leaves = leave(options.exits)
    print(f"memory over {options.steps} training steps")
    return 0 if train(options.steps) and leaves else 1


if __name__ == "__main__":
    sys.exit(main())
