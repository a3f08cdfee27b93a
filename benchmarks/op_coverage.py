"""How much of PyTorch the simulated accelerator can do: every op of torch's own op_db, forward and gradient.

    python benchmarks/op_coverage.py [--dtype float32] [--only softmax] [--json FILE]

Each op's first two samples run on the CPU and on the device, with the same seed; the results must be equal. Ops run in
worker processes, so that one which ends its process costs one line and not the run. Every failing op is listed with
its reason. Exit code 1 if one ended its process, or if fewer ops are equal than docs/simulator.md promises.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch.utils import _pytree as pytree

DEVICE = "sim"
PROMISED = {"forward": 667, "gradient": 536}  # for float32 on torch 2.13
# Results that are undefined by design: only shape and dtype can be compared.
UNINITIALIZED = ("empty", "new_empty", "empty_like", "empty_strided", "empty_permuted", "new_empty_strided")


# ---- one op, in a worker -----------------------------------------------------------------------------------------


class SkippedError(Exception):
    """The op cannot be compared, for a reason that is not the device's."""


def samples(op: Any, dtype: torch.dtype, gradient: bool) -> Iterator[Any]:
    if not op.supports_dtype(dtype, "cpu"):
        raise SkippedError(f"has no {dtype} on the CPU")
    if gradient and not (op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)):
        raise SkippedError("has no gradient")
    return itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=gradient), 2)


def to_device(value: Any) -> Any:
    """The same argument for the device, with the same strides."""
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            raise SkippedError(f"takes a {value.layout} tensor, and the device has strided ones only")
        moved = value.detach().to(DEVICE)
        overlapping = any(stride == 0 and size > 1 for stride, size in zip(value.stride(), value.size()))
        if moved.stride() != value.stride() and value.numel() and not overlapping:
            moved = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=DEVICE).copy_(moved)
        return moved.requires_grad_(value.requires_grad)
    if isinstance(value, torch.device) or value == "cpu":
        return torch.device(DEVICE)
    if isinstance(value, torch.Generator):
        return torch.Generator(DEVICE).manual_seed(0)
    return value


def copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.layout is torch.strided:
        return value.detach().clone().requires_grad_(value.requires_grad)
    return value


def run(op: Any, args: Any, kwargs: Any, gradient: bool) -> list[Any]:
    torch.manual_seed(0)
    outputs = pytree.tree_leaves(op.op(*args, **kwargs))
    if not gradient:
        return outputs
    inputs = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor) and x.requires_grad]
    sums = [
        (x.abs() if x.is_complex() else x).sum() for x in outputs if isinstance(x, torch.Tensor) and x.requires_grad
    ]
    return list(torch.autograd.grad(sums, inputs, allow_unused=True)) if sums else []


def _real(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def compare(name: str, expected: list[Any], got: list[Any]) -> bool:
    """Whether the results are equal to the last bit; AssertionError if they are not even close."""
    assert len(expected) == len(got), f"{len(got)} results instead of {len(expected)}"
    exact = True
    for right, result in zip(expected, got):
        if not isinstance(right, torch.Tensor):
            assert right == result or right != right, f"{result} instead of {right}"
            continue
        assert result.device.type in (DEVICE, "meta"), f"the result is on {result.device}"
        result = result.cpu()
        if name in UNINITIALIZED:
            assert (result.shape, result.dtype) == (right.shape, right.dtype)
            continue
        torch.testing.assert_close(result, right, equal_nan=True)
        exact &= torch.equal(*(x.nan_to_num() if x.is_floating_point() else x for x in (_real(result), _real(right))))
    return exact


def check(op: Any, dtype: torch.dtype, gradient: bool) -> tuple[str, str]:
    """The status of one op and its reason: equal, close, wrong, skipped, not implemented or error."""
    exact, compared = True, 0
    try:
        for sample in samples(op, dtype, gradient):
            args, kwargs = (sample.input, *sample.args), sample.kwargs
            if op.name == "tensor_split":  # wants its indices on the CPU, whatever the device
                on_device = ((to_device(args[0]), *args[1:]), kwargs)
            else:
                on_device = pytree.tree_map(to_device, (args, kwargs))
            try:
                expected = run(op, *pytree.tree_map(copied, (args, kwargs)), gradient)
            except Exception as error:
                raise SkippedError(f"fails on the CPU, too: {error}") from error
            exact &= compare(op.name, expected, run(op, *on_device, gradient))
            compared += 1
        return ("equal" if exact else "close") if compared else "skipped", "" if compared else "has no samples"
    except SkippedError as reason:
        return "skipped", str(reason)
    except NotImplementedError as error:
        return "not implemented", str(error)
    except AssertionError as error:
        return "wrong", str(error)
    except Exception as error:  # noqa: BLE001 (it is the report)
        return "error", f"{type(error).__name__}: {error}"


def full_name(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def work(dtype: torch.dtype) -> None:
    """Takes jobs from standard input and reports each on standard output."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    from torch.testing._internal.common_methods_invocations import op_db

    from ditorch import sim

    sim.start()
    by_name = {full_name(op): op for op in op_db}
    for name, phase in json.load(sys.stdin):
        print(json.dumps(["begin", name, phase]), flush=True)
        status, reason = check(by_name[name], dtype, phase == "gradient")
        print(json.dumps(["end", name, phase, status, reason.replace("\n", " ")[:160]]), flush=True)


# ---- all of them -------------------------------------------------------------------------------------------------

Job = tuple[str, str]


def run_worker(jobs: list[Job], dtype: str) -> dict[Job, tuple[str, str]]:
    results: dict[Job, tuple[str, str]] = {}
    while jobs:
        command = [sys.executable, __file__, "--worker", "--dtype", dtype]
        worker = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "DITORCH_DISABLE_MOCK": "1"},
        )
        assert worker.stdin
        assert worker.stdout
        json.dump(jobs, worker.stdin)
        worker.stdin.close()
        under_way: Job | None = None
        for line in worker.stdout:
            if not line.startswith("["):
                continue  # something an op printed
            what, name, phase, *result = json.loads(line)
            under_way = (name, phase) if what == "begin" else None
            if what == "end":
                results[name, phase] = (result[0], result[1])
        code = worker.wait()
        if under_way:
            results[under_way] = ("crash", f"ended its process with exit code {code}")
        left = [job for job in jobs if job not in results]
        if len(left) == len(jobs):
            sys.exit(f"The worker does not start (exit code {code}): {' '.join(command)}")
        jobs = left
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--only", help="only ops whose name contains this")
    parser.add_argument("--json", help="write all results to this file")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(getattr(torch, options.dtype))
        return 0

    from torch.testing._internal.common_methods_invocations import op_db

    began = time.monotonic()
    names = dict.fromkeys(full_name(op) for op in op_db if not options.only or options.only in full_name(op))
    jobs = [(name, phase) for name in names for phase in ("forward", "gradient")]
    processes = min(os.cpu_count() or 1, len(jobs))
    with ThreadPoolExecutor(processes) as pool:
        parts = list(pool.map(run_worker, [jobs[i::processes] for i in range(processes)], [options.dtype] * processes))
    results = {job: result for part in parts for job, result in part.items()}
    if options.json:
        with open(options.json, "w") as file:
            json.dump([[*job, *result] for job, result in sorted(results.items())], file, indent=0)

    for job, (status, reason) in sorted(results.items()):
        if status not in ("equal", "skipped"):
            print(f"{status:16} {job[1]:9} {job[0]}: {reason}")
    short = False
    for phase in ("forward", "gradient"):
        counts = Counter(status for job, (status, _) in results.items() if job[1] == phase)
        print(f"{phase}: {', '.join(f'{count} {status}' for status, count in counts.most_common())}")
        short |= counts["equal"] + counts["close"] < PROMISED[phase]
    print(f"{len(names)} ops, {options.dtype}, torch {torch.__version__}, {time.monotonic() - began:.0f} s")
    crashed = any(status == "crash" for status, _ in results.values())
    promised = not options.only and options.dtype == "float32"
    return int(crashed or (promised and short))


if __name__ == "__main__":
    sys.exit(main())
