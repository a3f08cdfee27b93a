"""What several tests of OpAutoCompare share: a net in which a fault must be found, and one call alone."""

from __future__ import annotations

import contextlib
import csv
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from ditorch.sim import faults
from op_tools.autocompare.judging.comparer import Comparer
from op_tools.autocompare.judging.limits import Tolerances
from op_tools.autocompare.observed import ObservedCall
from op_tools.autocompare.reference.runs import References
from op_tools.core.gradients import Gradients

LOW = [torch.bfloat16, torch.float16]


def compare_call(name, function, given, result, grad_outputs=None, grad_inputs=()):
    """One call that was seen elsewhere, forward, and backward where there are gradients."""
    comparer = Comparer(Tolerances(), References(lambda name: None))
    call = ObservedCall(name, function, given, None, result, changed=True)
    found = [comparer.forward(call)]
    return found if grad_outputs is None else [*found, comparer.backward(call, Gradients(grad_inputs, grad_outputs))]


class Net(nn.Module):
    """Everything in which a fault must be found: embedding, norms, linear, attention by hand and fused, convolution."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.norm = nn.LayerNorm(32)
        self.qkv = nn.Linear(32, 96)
        self.convolution = nn.Conv1d(32, 32, 3, padding=1)
        self.head = nn.Linear(32, 50)

    def forward(self, tokens):
        x = self.embedding(tokens)
        query, key, value = self.qkv(self.norm(x)).chunk(3, -1)
        weights = functional.softmax(query @ key.transpose(-1, -2) / 6, dim=-1)
        x = x + weights @ value
        x = x + functional.scaled_dot_product_attention(query[:, None], key[:, None], value[:, None])[:, 0]
        x = x + functional.gelu(self.convolution(x.transpose(1, 2))).transpose(1, 2)
        return self.head(x)


def step(device, dtype=torch.float32, autocast=None):
    """One training step; the gradients."""
    torch.manual_seed(0)
    model = Net().to(device, dtype)
    tokens = torch.randint(50, (8, 16)).to(device)
    with torch.autocast(device, autocast) if autocast else contextlib.nullcontext():
        loss = functional.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(1, 1).flatten())
    loss.backward()
    return [loss.detach(), *(parameter.grad for parameter in model.parameters())]


def found_by(tool, device, fault=None, dtype=torch.float32, autocast=None):
    with faults.inject(fault) if fault else contextlib.nullcontext(), tool:
        step(device, dtype, autocast)
    return tool.summary.ranked()


def rows_of(folder=Path("op_tools_results")):
    (path,) = (folder / "op_autocompare_result").iterdir()
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


# which of them it is depends on the device
ATTENTION = tuple(
    f"aten._scaled_dot_product_{kind}"
    for kind in ("fused_attention_overrideable", "flash_attention", "efficient_attention", "cudnn_attention")
)


ATTENTION_BACKWARD = tuple(f"{name}_backward" for name in ATTENTION)


CONVOLUTION = ("aten.convolution_overrideable", "aten.cudnn_convolution")


CONVOLUTION_BACKWARD = ("aten.convolution_backward_overrideable", "aten.convolution_backward")


def broken(kernels, kind):
    """A fault in the kernel, or in those of several that the device has."""
    there = []
    for kernel in [kernels] if isinstance(kernels, str) else kernels:
        with contextlib.suppress(ValueError), faults.inject(f"{kernel}: {kind}"):
            there.append(f"{kernel}: {kind}")
    return "; ".join(there)


def certain_logits(device, dtype):
    """With their targets, which are hardly in doubt."""
    torch.manual_seed(0)
    target = torch.randint(50, (64,))
    logits = torch.randn(64, 50)
    logits[range(64), target] += 14
    return logits.to(device, dtype).requires_grad_(), target.to(device)


def alike_values(device, dtype, certainty):
    """Query, key and values of attention, and the gradient that arrives: its terms cancel out."""
    torch.manual_seed(0)
    query, key, value, arrived = (torch.randn(2, 4, 64, 32) for _ in range(4))
    parts = [part.to(device, dtype).requires_grad_() for part in (certainty * query, key, value + 5)]
    return *parts, arrived.to(device, dtype)


ONLY_THE_PROGRAMS_CALL = (
    "every=100000"  # the first call of a kernel is the program's, the next ones are the reference's
)
