"""Dropout of every kind is judged with the mask that it drew."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

import op_tools
from ditorch.sim import faults
from op_tools.autocompare.arguments import Arguments
from tests.op_tools.autocompare.net import compare_call, rows_of

pytestmark = pytest.mark.usefixtures("who_looks")
ALPHA = 1.7580993408473766  # what SELU goes to
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("reference", ["cpu", "device", "identities"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_alpha_dropout_is_compared_with_its_mask(device, reference, dtype):
    torch.manual_seed(0)
    x = (3 * torch.randn(40, 60)).to(device, dtype).requires_grad_()
    with op_tools.OpAutoCompare(verbose=0, reference=reference) as tool:
        functional.alpha_dropout(functional.selu(4 * x), 0.2, training=True).sum().backward()  # many at its least value
        functional.feature_alpha_dropout(x.view(20, 12, 10), 0.3, training=True).square().sum().backward()
        functional.alpha_dropout(x.detach().clone(), 0.5, training=True, inplace=True)
        functional.alpha_dropout(x, 0.0, training=True).sum().backward()
    assert [one.name for one in tool.summary.ranked()] == []
    assert not [row for row in tool.results.not_looked_at if "dropout" in row["what"]]
    kinds = {row["name"] for row in rows_of()}
    assert {"torch.nn.functional.alpha_dropout output", "torch.nn.functional.alpha_dropout grad"} <= kinds
    assert "torch.nn.functional.feature_alpha_dropout grad" in kinds


@pytest.mark.parametrize("reference", ["cpu", "device", "identities"])
@pytest.mark.parametrize("drop", [functional.dropout1d, functional.dropout2d, functional.dropout3d])
def test_dropout_of_channels_is_compared(device, drop, reference):
    torch.manual_seed(0)
    x = torch.randn(6, 20, 4, 4, 4)[(slice(None),) * 2 + (0,) * (3 - int(drop.__name__[-2]))]
    x = x.to(device).requires_grad_()
    with op_tools.OpAutoCompare(verbose=0, reference=reference) as tool:
        drop(x, 0.4).square().sum().backward()
    assert tool.summary.ranked() == []
    assert tool.results.not_looked_at == []
    assert {f"torch.nn.functional.{drop.__name__} {kind}" for kind in ("output", "grad")} <= {
        row["name"] for row in rows_of()
    }


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("forward", "backward", "wrong"),
    [
        (lambda kept, dropped: (1.02 * kept, dropped), 1.0, "output"),
        (lambda kept, dropped: (kept, 0 * dropped), 1.0, "output"),
        (lambda kept, dropped: (kept - 0.2, dropped), 1.0, "output"),
        (lambda kept, dropped: (kept, dropped), 1.02, "grad"),
        (lambda kept, dropped: (kept, dropped), -1.0, "grad"),
    ],
)
def test_a_wrong_alpha_dropout_is_found(dtype, forward, backward, wrong):
    torch.manual_seed(0)
    rate, given = 0.3, torch.randn(50, 50, dtype=torch.float64)
    scale = 1 / math.sqrt((ALPHA**2 * rate + 1) * (1 - rate))
    mask = torch.rand(50, 50) > rate
    arrived = torch.randn(50, 50, dtype=torch.float64)
    kept, dropped = forward(
        scale * (given.to(dtype) + ALPHA * rate), torch.full_like(given, -scale * ALPHA * (1 - rate))
    )
    result = torch.where(mask, kept, dropped).to(dtype).requires_grad_()
    gradient = (backward * scale * arrived.to(dtype) * mask).to(dtype)
    name = "torch.nn.functional.alpha_dropout"
    there, back = compare_call(
        name, functional.alpha_dropout, Arguments((given.to(dtype).requires_grad_(), rate, True), {}), result,
        [arrived.to(dtype)], [gradient],
    )  # fmt: skip
    assert there.is_wrong == (wrong == "output")
    assert back.is_wrong or wrong != "grad"  # a wrong output may show a wrong mask


def test_a_wrong_rate_of_alpha_dropout_is_found():
    given = torch.randn(100, 100)
    result = functional.alpha_dropout(given, 0.5, True)
    (found,) = compare_call(
        "torch.nn.functional.alpha_dropout", functional.alpha_dropout, Arguments((given, 0.3, True), {}), result
    )
    assert found.is_wrong


def test_infinite_numbers_under_alpha_dropout_are_no_fault(device):
    torch.manual_seed(0)
    x = torch.randn(30, 30)
    x[::3] = math.inf
    x[1::3, ::2] = math.nan
    with op_tools.OpAutoCompare(verbose=0) as tool:
        functional.alpha_dropout(x.to(device).requires_grad_(), 0.4, training=True)
    assert tool.summary.ranked() == []


def test_a_broken_kernel_inside_of_alpha_dropout_is_found(device):
    if device != "sim":
        pytest.skip("kernels are broken on the simulated accelerator")
    x = torch.randn(50, 50, device=device, requires_grad=True)
    with faults.inject("aten.mul.Tensor: scale=1.01"), op_tools.OpAutoCompare(verbose=0) as tool:
        functional.alpha_dropout(x, 0.3, training=True)
    assert [one.name for one in tool.summary.ranked()] == ["torch.nn.functional.alpha_dropout"]


@pytest.mark.parametrize("reference", ["cpu", "device", "identities"])
def test_dropped_features_in_a_piece_of_a_row_are_no_wrong_rate(device, reference):
    torch.manual_seed(0)
    x = torch.randn(8, 16, 200, device=device, requires_grad=True)
    with op_tools.OpAutoCompare(verbose=0, reference=reference) as tool:
        for _ in range(6):
            torch.feature_dropout(x, 0.5, True).sum().backward()
    assert tool.summary.ranked() == []
