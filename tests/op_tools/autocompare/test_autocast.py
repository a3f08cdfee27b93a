"""Autocast is part of a call: its policy decides the dtype, and its cache gives one cast weight to several calls."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import op_tools
from ditorch.sim import faults

LOW = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("low", LOW, ids=str)
def test_one_weight_in_two_calls_of_a_region(low, device):
    """The cast weight stands in the cache: both calls' gradients end in it, each has its own share."""
    torch.manual_seed(0)
    net, x = nn.Linear(8, 8).to(device), torch.randn(16, 8, device=device)
    with op_tools.OpAutoCompare(verbose=0, out="out") as tool:
        with torch.autocast(device, low):
            loss = net(net(x)).float().square().mean() + net(x * 2).float().mean()
        loss.backward()
    assert not list(tool.results)
    (table,) = Path("out").rglob("*.csv")
    with table.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if "linear grad[1]" in row["name"]]
    assert [row["verdict"] for row in rows] == ["right"] * 3  # none of them was left out


def _waves(x, low, *shape):
    return torch.sin(torch.arange(torch.Size(shape).numel(), device=x.device) * x.sum()).view(shape).to(low)


CASES = {
    "softmax of a dtype": lambda x, low: x.softmax(-1, dtype=low),
    "log_softmax of a dtype": lambda x, low: x.to(low).log_softmax(-1, dtype=low),
    "sum of a dtype": lambda x, low: x.to(low).sum(-1, dtype=low),
    "cumsum": lambda x, low: x.to(low).cumsum(-1),
    "prod": lambda x, low: x.to(low).prod(-1),
    "norm": lambda x, low: x.to(low).norm(dim=-1),
    "cosine_similarity": lambda x, low: F.cosine_similarity(x.to(low), x.to(low).flip(0)),
    "mse of two dtypes": lambda x, low: F.mse_loss(x.to(low), x),
    "layer_norm": lambda x, low: F.layer_norm(x.to(low), (16,)),
    "response norm": lambda x, low: F.local_response_norm(_waves(x, low, 3, 8, 18, 18), 3, 1e-2, 0.75, 2.0),
    "response norm of rows": lambda x, low: F.local_response_norm(_waves(x, low, 4, 9, 99), 4, 0.5, 0.6),
    "pool by norm": lambda x, low: F.lp_pool2d(x.to(low).view(2, 8, 2, 4), 2, 2),
    "cdist": lambda x, low: torch.cdist(x.to(low), x.to(low).flip(0)),
    "bilinear": lambda x, low: F.bilinear(x, x, torch.ones(3, 16, 16, device=x.device)),
    "addmv": lambda x, low: torch.addmv(x[:, 0], x, x[0]),
    "multi_dot": lambda x, low: torch.linalg.multi_dot([x, x.t(), x]),
    "cat of two dtypes": lambda x, low: torch.cat([x, x.to(low)]),
    "attention": lambda x, low: F.scaled_dot_product_attention(*[x.view(1, 2, 8, 8)] * 3),
    "multi-head attention": lambda x, low: nn.MultiheadAttention(16, 4).to(x.device)(*[x[:, None]] * 3)[0],
    "LSTM": lambda x, low: nn.LSTM(16, 8).to(x.device)(x[:, None])[0],
    "encoder layer": lambda x, low: nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0).to(x.device)(x[:, None]),
}


@pytest.mark.parametrize("low", LOW, ids=str)
def test_the_policy_of_autocast_is_the_references_too(low, device):
    blamed = {}
    for name, case in CASES.items():
        torch.manual_seed(1)
        x = torch.randn(8, 16, device=device, requires_grad=True)
        with op_tools.OpAutoCompare(verbose=0) as tool:
            with torch.autocast(device, low):
                result = case(x, low)
            result.float().square().sum().backward()
        found = [row["op"] for row in tool.results] + [row["what"] for row in tool.results.not_looked_at]
        if found or not tool.summary.values:
            blamed[name] = found
    assert not blamed


IN_FLOAT32 = {
    "sum": ("aten.sum", lambda x: x.abs().sum()),
    "norm": ("aten.linalg_vector_norm", lambda x: x.norm()),
    "logsumexp": ("aten.logsumexp", lambda x: x.logsumexp(-1)),
    "mse_loss": ("aten.mse_loss", lambda x: F.mse_loss(x, x.flip(0))),
    "prod": ("aten.prod", lambda x: (1 + x * x).prod(-1)),
    "cumsum": ("aten.cumsum", lambda x: x.cumsum(-1)),
}


@pytest.mark.parametrize("name", IN_FLOAT32)
def test_what_autocast_computes_in_float32_is_held_to_float32(name, device):
    """The CPU's autocast leaves some of these in 16 bits: that excuses no result in float32."""
    kernel, work = IN_FLOAT32[name]
    x = torch.randn(16, 32, generator=torch.Generator().manual_seed(2)).bfloat16().to(device)
    tool = op_tools.OpAutoCompare(verbose=0)
    with faults.inject(f"{kernel}: scale=1.001"), torch.autocast(device, torch.bfloat16), tool:
        assert work(x).dtype is torch.float32
    assert [row["op"].rpartition(".")[2] for row in tool.results] == [name]


@pytest.mark.parametrize(("rows", "factor"), [(1, 1.03), (64, 1.005), (1024, 1.001)])
def test_a_mean_of_many_rounded_logarithms_is_off_by_little(rows, factor, device):
    torch.manual_seed(3)
    scores, target = torch.randn(rows, 32).bfloat16().to(device), torch.randint(32, (rows,)).to(device)
    for scale in (1, factor):
        tool = op_tools.OpAutoCompare(verbose=0)
        with faults.inject(f"aten.nll_loss_forward: scale={scale}"), torch.autocast(device, torch.bfloat16), tool:
            F.cross_entropy(scores, target)
        assert [row["what"] for row in tool.results] == (["output"] if scale > 1 else [])


@pytest.mark.parametrize("form", ["ignored", "weighted"])
def test_a_mean_of_few_among_many_may_be_off_by_more(form, device):
    """One row of 1,024 counts, and nothing of its rounding is averaged out."""
    torch.manual_seed(3)
    scores, target = 2 * torch.randn(1024, 32).bfloat16().to(device), torch.zeros(1024, dtype=torch.long)
    target[5] = 7
    weight = torch.full((32,), 1e-4)
    weight[7] = 1000.0
    options = {"ignore_index": 0} if form == "ignored" else {"weight": weight.to(device)}
    tool = op_tools.OpAutoCompare(verbose=0)
    with faults.inject("aten._log_softmax: scale=1.006"), torch.autocast(device, torch.bfloat16), tool:
        F.cross_entropy(scores, target.to(device), **options)  # whose logarithms are rounded otherwise
    assert not list(tool.results)


def test_a_mean_of_rounded_logarithms_is_as_right_as_another_one(device):
    """Of these scores the CPU's errors happen to cancel out; a kernel that rounds otherwise is no worse."""
    scores, target = torch.randn(28, 64, generator=torch.Generator().manual_seed(0)).half(), torch.arange(28) * 2
    lucky = min(range(64), key=lambda shift: _error_of_mean(scores.roll(shift, 1), target))
    scores = scores.roll(lucky, 1).to(device)

    def other(x, dim, to_float):
        made = x.cpu().float().log_softmax(dim)
        turns = torch.arange(made.numel()).view_as(made) % 3 == 0  # where it rounds up
        return (made * (1 + turns * 2**-11)).half().to(x.device)

    library = torch.library.Library("aten", "IMPL")
    library.impl("_log_softmax", other, "PrivateUse1")
    try:
        with op_tools.OpAutoCompare(verbose=0, out="out") as tool, torch.autocast(device, torch.float16):
            F.cross_entropy(scores, target.to(device))
    finally:
        library._destroy()
    assert not list(tool.results)


def _error_of_mean(scores, target):
    rounded, exact = (F.log_softmax(scores, 1, dtype=dtype).double() for dtype in (torch.float16, torch.float64))
    return abs(float(F.nll_loss(rounded - exact, target)))
