"""Weights of recurrent layers that cuDNN packs are compared, though the CPU has no such kernel."""

from __future__ import annotations

import pytest
import torch

from op_tools.autocompare.arguments import Arguments
from tests.op_tools.autocompare.net import compare_call

NAME = "torch._cudnn_rnn_flatten_weight"


def packed(weights, buffer):
    def lacks_kernel(*args):
        raise NotImplementedError(
            "Could not run 'aten::_cudnn_rnn_flatten_weight' with arguments from the 'CPU' backend"
        )

    options = (4, 3, 2, 5, 0, 1, False, False)
    return compare_call(NAME, lacks_kernel, Arguments((weights, *options), {}), buffer)[0]


@pytest.fixture
def weights():
    torch.manual_seed(0)
    return [torch.randn(20, 3), torch.randn(20, 5), torch.zeros(20), torch.randn(20)]


def test_packed_weights_are_right_in_any_order_and_with_room_between_them(weights):
    first, second, third, fourth = (one.flatten() for one in weights)
    found = packed(weights, torch.cat([fourth, second, torch.zeros(7), first, third]))
    assert (found.failure, found.skipped, found.is_wrong) == ("", "", False)
    assert [row.name for row in found.rows] == [f"{NAME} output"]


@pytest.mark.parametrize("fault", ["another number", "one weight is missing", "NaN"])
def test_wrongly_packed_weights_are_found(weights, fault):
    buffer = torch.cat([one.flatten() for one in weights])
    if fault == "another number":
        buffer[17] *= 1.0001
    elif fault == "NaN":
        buffer[17] = torch.nan
    else:
        buffer = torch.cat([buffer[:-20], torch.zeros(20)])
    found = packed(weights, buffer)
    assert found.is_wrong
    assert "are not those of the weights" in found.rows[0].verdict.reason
