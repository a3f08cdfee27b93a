"""What `import ditorch` costs: the time of the import itself, and of a training step afterwards.

    python benchmarks/redirect_cost.py [--rounds 61]

The step is a tiny GPT's, where calls count more than arithmetic. The redirect is applied and undone between rounds in
one process, so that both kinds of step meet the same machine; medians and spread of the ratio are reported.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["DITORCH_DISABLE_MOCK"] = "1"

import torch

from ditorch import sim
from ditorch.backends.sim import SIM
from ditorch.demo import GPT, batches
from ditorch.redirect import Redirect


def steps(model: GPT, optimizer: torch.optim.Optimizer, times: int) -> float:
    """CPU seconds of one training step."""
    tokens, targets = (x.to("sim") for x in next(batches(1, 16)))
    began = time.process_time()
    for _ in range(times):
        loss = model.loss(tokens, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return (time.process_time() - began) / times


def step_ratio(rounds: int) -> None:
    model = GPT(width=32, heads=2, layers=4, length=16).to("sim")
    optimizer = torch.optim.AdamW(model.parameters())
    steps(model, optimizer, 50)
    ratios, plain_times = [], []
    for number in range(rounds):
        measured = {}
        for redirected in (True, False) if number % 2 else (False, True):
            redirect = Redirect(SIM) if redirected else None
            steps(model, optimizer, 10)  # the interpreter forgets what it learnt of a class that changes
            measured[redirected] = steps(model, optimizer, 30)
            if redirect is not None:
                redirect.undo()
        ratios.append(measured[True] / measured[False])
        plain_times.append(measured[False])
    print(
        f"training step after the import: {statistics.median(ratios):.3f} of the plain one "
        f"({min(ratios):.3f} to {max(ratios):.3f} over {rounds} rounds, {statistics.median(plain_times) * 1e3:.1f} ms)"
    )


def import_time(rounds: int) -> None:
    """Wall seconds from the start of `import torch` to the end, with and without ditorch, in processes of their own."""
    timed = "import time; t = time.perf_counter(); {}; print(time.perf_counter() - t)"
    programs = {"torch": "import torch", "both": "import torch, ditorch"}
    environment = {**os.environ, "DITORCH_DISABLE_MOCK": "0", "DITORCH_BACKEND": "sim"}
    measured: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(rounds):
        for name, program in programs.items():
            command = [sys.executable, "-c", timed.format(program)]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            measured[name].append(float(done.stdout))
    torch_alone, both = (statistics.median(measured[name]) for name in programs)
    print(f"import torch: {torch_alone:.2f} s; import torch, ditorch: {both:.2f} s ({both - torch_alone:+.2f} s)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=61)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    sim.start()
    step_ratio(rounds)
    import_time(7)


if __name__ == "__main__":
    main()
