"""`ditorch compare` of a device and the CPU, or two devices: healthy runs blame nobody, injected faults are named.

    python benchmarks/compare_devices.py [--device cuda] [--models GPT Llama LSTM]
    python benchmarks/compare_devices.py --record runs              on one machine: only the device's runs
    python benchmarks/compare_devices.py --given runs --good cuda   on another: against the device that is there

Two steps of models of compare_runs.py: float32, tf32 (where the device has it) and bfloat16 autocast against the good
side in float32, and bfloat16 against the good side's own; then float32 and bfloat16 with one broken kernel each.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

import op_tools
from compare_runs import MODELS, _words
from ditorch.sim import faults as injector
from op_tools.compare_runs.comparison import compare
from op_tools.compare_runs.reading import Run
from op_tools.core.steps import STEPS

FAULTS = {  # model: fault, the op that is to be named, its phase
    "GPT": [
        ("aten.addmm: scale=1.02", "torch.nn.functional.linear", "forward"),
        ("aten._softmax: noise=5e-2", "torch.Tensor.softmax", "forward"),
        ("aten.gelu: noise=5e-2", "torch.nn.functional.gelu", "forward"),
        ("aten.native_layer_norm_backward: scale=1.1", "torch.nn.functional.layer_norm", "backward"),
        ("aten.gelu_backward: noise=1e-1", "torch.nn.functional.gelu", "backward"),
    ],
    "Llama": [
        ("aten.mm: scale=1.05", "torch.nn.functional.linear", "forward"),
        ("aten.silu: noise=5e-2", "torch.nn.functional.silu", "forward"),
        ("aten.silu_backward: noise=1e-1", "torch.nn.functional.silu", "backward"),
    ],
    "CNN": [
        ("aten.native_batch_norm: scale=1.05", "torch.nn.functional.batch_norm", "forward"),
        ("aten.relu: noise=5e-2", "torch.nn.functional.relu", "forward"),
        ("aten.threshold_backward: scale=1.1", "torch.nn.functional.relu", "backward"),
    ],
    "LSTM": [
        ("aten.embedding: scale=1.05", "torch.nn.functional.embedding", "forward"),
        ("aten._log_softmax: scale=1.05", "torch.nn.functional.cross_entropy", "forward"),
        ("aten._log_softmax_backward_data: scale=1.1", "torch.nn.functional.cross_entropy", "backward"),
    ],
}
HEALTHY = (("float32", "float32"), ("float32", "tf32"), ("float32", "bfloat16"), ("bfloat16", "bfloat16"))


def place(folder: Path, model: str, device: str, dtype: str, fault: str) -> Path:
    return folder / f"{model}-{device}-{dtype}-{''.join(letter if letter.isalnum() else '_' for letter in fault)}"


def record(folder: Path, model: str, device: str, dtype: str, fault: str = "") -> Path:
    path = place(folder, model, device, dtype, fault)
    if path.exists():
        return path
    torch.manual_seed(0)
    STEPS.forget()
    if device == "cuda" and torch.version.cuda:
        torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
    net = MODELS[model]().to(device).train()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, foreach=True)
    tool = op_tools.OpCapture(mode="statistics", out=path, verbose=0)
    tool.sees_cpu = device == "cpu"
    with contextlib.ExitStack() as stack:
        on = device if device != "cuda" or torch.version.cuda else None
        injection = stack.enter_context(injector.inject(fault, on)) if fault else None
        stack.enter_context(tool)
        for step in range(2):
            given, labels = (one.to(device) for one in data(model, torch.Generator().manual_seed(step)))
            with torch.autocast(device, torch.bfloat16, enabled=dtype == "bfloat16"):
                loss = functional.cross_entropy(net(given).flatten(0, -2), labels.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    if injection is not None and not any(injection.struck.values()):
        raise LookupError("the model does not come to this kernel there")
    return path


def data(model: str, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    if model == "CNN":
        return torch.randn(8, 3, 16, 16, generator=generator), torch.randint(10, (8,), generator=generator)
    ids = torch.randint(96, (4, 24), generator=generator)
    return ids[:, :-1], ids[:, 1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--good", default="cpu", help="the device of the good side")
    parser.add_argument("--models", nargs="+", default=list(FAULTS))
    parser.add_argument("--record", type=Path)
    parser.add_argument("--given", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        good, bad = Path(name) / "good", options.record or options.given or Path(name) / "bad"
        print("| model | good | device | fault | first divergence | events | right |\n|" + " --- |" * 7)
        for model in options.models:
            for own, other, fault, truth in cases(model):
                if options.given is not None and not place(bad, model, options.device, other, fault).exists():
                    continue  # its device has no such kernel
                try:
                    broken = record(bad, model, options.device, other, fault)
                    healthy = None if options.record else record(good, model, options.good, own)
                except Exception as error:  # noqa: BLE001  a kernel that one of them does not have
                    shutil.rmtree(place(good, model, options.good, own, ""), ignore_errors=True)
                    if options.given is None:
                        shutil.rmtree(place(bad, model, options.device, other, fault), ignore_errors=True)
                    print(f"| {model} | {own} | {other} | {fault} | {type(error).__name__}: {error} | | |", flush=True)
                    continue
                if healthy is not None:
                    show(model, own, other, healthy, broken, fault, truth)
    print(f"{time.perf_counter() - began:.0f} s")


def cases(model: str) -> Iterator[tuple[str, str, str, tuple[str, str] | None]]:
    """The dtypes of both sides, the fault, and what is to be named."""
    for own, other in HEALTHY:
        yield own, other, "", None
    for dtype in ("float32", "bfloat16"):
        for fault, op, phase in FAULTS[model]:
            yield dtype, dtype, fault, (op, phase)


def show(
    model: str, own: str, other: str, good: Path, bad: Path, fault: str = "", truth: tuple[str, str] | None = None
) -> None:
    found = compare(Run(good), Run(bad))
    first = found.guilty[0] if found.guilty else None
    is_right = first is None if truth is None else first is not None and (first.op, first.phase) == truth
    words = "none" if first is None else _words(first)
    verdict = "yes" if is_right else "nothing named" if first is None else "NO"
    print(f"| {model} | {own} | {other} | {fault} | {words} | {found.events} | {verdict} |", flush=True)


if __name__ == "__main__":
    main()
