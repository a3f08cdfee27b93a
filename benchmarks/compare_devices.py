"""`ditorch compare` of a device and the CPU: healthy runs blame nobody, injected faults are named.

    python benchmarks/compare_devices.py [--device cuda] [--models GPT Llama]

Two steps of the models of compare_runs.py: float32, tf32 (where the device has it) and bfloat16 autocast against the
CPU in float32, and bfloat16 against the CPU's own; then float32 and bfloat16 with one broken kernel each.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import tempfile
import time
import warnings
from pathlib import Path

import torch
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
}


def record(folder: Path, model: str, device: str, dtype: str, fault: str = "") -> Path:
    path = folder / f"{model}-{device}-{dtype}-{''.join(letter if letter.isalnum() else '_' for letter in fault)}"
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
        if fault:
            stack.enter_context(injector.inject(fault, device))
        stack.enter_context(tool)
        for step in range(2):
            ids = torch.randint(96, (4, 24), generator=torch.Generator().manual_seed(step)).to(device)
            with torch.autocast(device, torch.bfloat16, enabled=dtype == "bfloat16"):
                loss = functional.cross_entropy(net(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--models", nargs="+", default=list(FAULTS))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    began, device = time.perf_counter(), options.device
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print("| model | CPU | device | fault | first divergence | events | right |\n|" + " --- |" * 7)
        for model in options.models:
            pairs = [("float32", "float32"), ("float32", "tf32"), ("float32", "bfloat16"), ("bfloat16", "bfloat16")]
            for own, other in pairs:
                show(model, own, other, record(folder, model, "cpu", own), record(folder, model, device, other))
            for dtype in ("float32", "bfloat16"):
                for fault, op, phase in FAULTS[model]:
                    try:
                        broken = record(folder, model, device, dtype, fault)
                    except Exception as error:  # noqa: BLE001  a kernel that this device does not have
                        print(f"| {model} | | {dtype} | {fault} | {type(error).__name__}: {error} | | |")
                        continue
                    show(model, dtype, dtype, record(folder, model, "cpu", dtype), broken, fault, (op, phase))
    print(f"{time.perf_counter() - began:.0f} s")


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
