"""How long `ditorch compare` takes for two large runs, and how much memory: statistics made up of random numbers.

    python benchmarks/compare_scale.py [--calls 1000 100000 1000000] [--steps-of 1000] [--jobs N]

A call has two inputs and an output, every second one gradients; the second run's results are off by rounding.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from op_tools.device import digest
from op_tools.storage.pack import Pack

_SITES = 200  # places in the program
_SHAPE = [64, 64]


def write(folder: Path, calls: int, in_a_step: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(0)
    other = torch.Generator().manual_seed(seed)
    pack = Pack(
        folder / "op_capture_statistics_pid1_x.pack", {"host": "h", "rank": 0, "pid": 1, "sketch": 2, "tf32": []}
    )
    parts = [("input", "[0]"), ("input", "[1]"), ("output", ""), ("grad_inputs", "[0]"), ("grad_outputs", "")]
    for site in range(_SITES):
        tensors = [
            {
                "part": part,
                "place": place,
                "shape": _SHAPE,
                "dtype": "float32",
                "device": "cuda:0",
                "requires_grad": True,
            }
            for part, place in parts
        ]
        place = {"op": f"torch.nn.functional.op{site % 20}", "source": f"model.py:{site} forward: x = f(x)"}
        pack.describe({**place, "module": f"layers.{site // 10}", "tensors": tensors})
    for begin in range(0, calls, in_a_step):
        count = min(in_a_step, calls - begin)
        ids = torch.arange(begin, begin + count)
        numbers = torch.randn(count * len(parts), digest.LINE - 4, generator=generator, dtype=torch.float64)
        numbers[:, 4] = 64 + numbers[:, 4].abs()
        numbers[:, 5:] *= 64
        checksums = torch.randint(2**62, (count * len(parts),), generator=generator)
        if seed:
            numbers += 1e-7 * torch.randn(numbers.shape, generator=other, dtype=torch.float64)
            checksums = torch.randint(2**62, checksums.shape, generator=other)
        lines = torch.zeros(count * len(parts), 9 + digest.LINE - 4, dtype=torch.int64)
        lines[:, 0] = (ids % _SITES).repeat_interleave(len(parts))
        lines[:, 1] = ids.repeat_interleave(len(parts))
        lines[:, 2] = begin // in_a_step
        order = torch.arange(count)[:, None] * 2 + torch.tensor([0, 0, 1, 0, 0])
        order[:, 3:] = 2 * (2 * count - torch.arange(count))[:, None]
        lines[:, 3] = (4 * begin + order + 1).flatten()
        lines[:, 4] = torch.arange(len(parts)).repeat(count)
        lines[:, 5], lines[:, 8] = 4096, checksums
        lines[:, 9:] = numbers.view(torch.int64)
        for some in lines.split(20_000):
            pack.add(some)
        pack.repeat(torch.empty(0, 8, dtype=torch.int64))  # as OpCapture does now and then: a reader may forget
    pack.close()


def _processor_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, nargs="+", default=[1_000, 100_000])
    parser.add_argument("--steps-of", type=int, default=1_000)
    parser.add_argument("options", nargs="*", help="for ditorch compare, behind --")
    options = parser.parse_args()
    print("| calls | on disk, each | seconds | of the processor | memory | exit code |\n|" + " --- |" * 6 + "")
    for calls in options.calls:
        folder = Path(tempfile.mkdtemp())
        for name, seed in (("a", 0), ("b", 1)):
            (folder / name).mkdir()
            write(folder / name, calls, options.steps_of, seed)
        size = sum(file.stat().st_size for file in (folder / "a").iterdir())
        began, used = time.perf_counter(), _processor_seconds()
        command = [
            sys.executable,
            "-c",
            "from ditorch_cli import main; main()",
            "compare",
            str(folder / "a"),
            str(folder / "b"),
            "--json",
        ]
        done = subprocess.run([*command, *options.options], capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - began
        used = _processor_seconds() - used
        found = json.loads(done.stdout)
        assert found["counts"]["calls"] == calls, done.stdout[-2000:] + done.stderr
        memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
        print(
            f"| {calls:,} | {size / 2**20:.0f} MB | {seconds:.1f} | {used:.1f} | {memory:.2f} GB | {done.returncode} |",
            flush=True,
        )
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
