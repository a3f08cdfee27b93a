"""How long `ditorch compare` takes for two large runs, and how much memory.

    python benchmarks/compare_scale.py [--calls 1000 100000 1000000] [--steps-of 1000] [-- OPTIONS OF COMPARE]
    python benchmarks/compare_scale.py --megabytes 800

Statistics are made up of random numbers: a call has two inputs and an output, and gradients; the second run's results
are off by rounding. With `--megabytes`, two runs that kept their tensors: layers of a perceptron, the second run with
healthy kernels of another make.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import resource
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


def keep(folder: Path, megabytes: float, fault: str) -> int:
    """A run that keeps tensors, of about this size; how many calls it has."""
    import ditorch
    import op_tools
    from ditorch.sim import faults
    from op_tools.core.steps import STEPS

    ditorch.install()
    STEPS.forget()
    torch.manual_seed(0)
    layer = torch.nn.Linear(1024, 1024).to("cuda")
    x = torch.randn(2048, 1024).to("cuda")
    injection = faults.inject(fault) if fault else contextlib.nullcontext()
    with injection, op_tools.OpCapture(out=folder, verbose=0) as tool:
        for _ in range(round(megabytes / _MEGABYTES_OF_A_LAYER)):
            x = torch.nn.functional.gelu(layer(x)).detach()
    calls: int = tool.results.calls
    return calls


_MEGABYTES_OF_A_LAYER = 52  # three calls


def _processor_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, nargs="+", default=[1_000, 100_000])
    parser.add_argument("--steps-of", type=int, default=1_000)
    parser.add_argument("--megabytes", type=float)
    parser.add_argument("options", nargs="*", help="for ditorch compare, behind --")
    options = parser.parse_args()
    print("| calls | on disk, each | seconds | of the processor | memory | exit code |\n|" + " --- |" * 6 + "")
    if options.megabytes:
        with tempfile.TemporaryDirectory() as name, multiprocessing.get_context("spawn").Pool(1) as pool:
            calls = [pool.apply(keep, (Path(name, side), options.megabytes, fault)) for side, fault in _SIDES.items()]
            compared(Path(name), calls[0], options.options)
        return
    for calls in options.calls:
        with tempfile.TemporaryDirectory() as name:
            for side, seed in (("a", 0), ("b", 1)):
                Path(name, side).mkdir()
                write(Path(name, side), calls, options.steps_of, seed)
            compared(Path(name), calls, options.options)


_SIDES = {"a": "", "b": "aten.*: remake"}


def compared(folder: Path, calls: int, options: list[str]) -> None:
    size = sum(file.stat().st_size for file in (folder / "a").rglob("*") if file.is_file())
    command = [sys.executable, "-c", "from ditorch_cli import main; main()", "compare"]
    began, used = time.perf_counter(), _processor_seconds()
    done = subprocess.run(
        [*command, str(folder / "a"), str(folder / "b"), "--json", *options],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    seconds, used = time.perf_counter() - began, _processor_seconds() - used
    found = json.loads(done.stdout)
    assert found["counts"]["calls"] == calls, done.stdout[-2000:] + done.stderr
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    print(
        f"| {calls:,} | {size / 2**20:.0f} MB | {seconds:.1f} | {used:.1f} | {memory:.2f} GB | {done.returncode} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
