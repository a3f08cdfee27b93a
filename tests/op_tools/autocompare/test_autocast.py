"""Autocast is part of a call: its policy decides the dtype, and its cache gives one cast weight to several calls."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import op_tools

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
