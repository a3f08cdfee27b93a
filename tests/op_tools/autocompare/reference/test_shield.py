"""What a second run of a call is kept apart from."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import forward_ad

import op_tools
from ditorch.sim import faults

from ....conftest import DEVICE


@pytest.fixture
def by_default(device):
    torch.set_default_device(device)
    yield
    torch.set_default_device(None)


@pytest.mark.parametrize("reference", ["cpu", "device"])
def test_factories_on_the_default_device_are_compared(by_default, reference, capsys):
    with op_tools.OpAutoCompare(reference=reference) as tool:
        torch.eye(3)
        torch.arange(3.0)
        torch.linspace(0, 1, 5)
    printed = capsys.readouterr()
    assert "could not" not in printed.out + printed.err
    assert len(tool.results) == 0


@pytest.mark.skipif(DEVICE != "sim", reason="kernels are broken on the simulated accelerator")
def test_a_broken_factory_on_the_default_device_is_found(by_default):
    with faults.inject("aten.eye: scale=1.5"), op_tools.OpAutoCompare(verbose=0) as tool:
        torch.eye(3)
    assert [row["op"] for row in tool.results] == ["torch.eye"]


@pytest.mark.parametrize("reference", ["cpu", "device", "identities"])
def test_making_and_unpacking_duals_is_no_call_to_compare(device, reference, capsys):
    x = torch.randn(4, 4, device=device)
    with op_tools.OpAutoCompare(reference=reference) as tool, forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        tangent = forward_ad.unpack_dual(dual.tanh() @ dual).tangent
    printed = capsys.readouterr()
    assert "could not" not in printed.out + printed.err
    assert tangent is not None
    assert len(tool.results) == 0
