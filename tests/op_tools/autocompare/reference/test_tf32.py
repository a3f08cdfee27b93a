"""What tf32 costs is no fault where the program allows it."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

import op_tools
from ditorch.sim import faults
from op_tools.autocompare.arguments import Arguments
from op_tools.autocompare.judging.comparer import Comparer
from op_tools.autocompare.judging.limits import Tolerances
from op_tools.autocompare.observed import ObservedCall
from op_tools.autocompare.reference.runs import References
from op_tools.core.gradients import Gradients

pytestmark = pytest.mark.usefixtures("who_looks")


def cut_off(tensor):
    """As matrix units read a float32 where tf32 is allowed."""
    return (tensor.detach().view(torch.int32) & ~0x1FFF).view(torch.float32)


@pytest.mark.parametrize(("allowed", "factor", "is_right"), [(True, 1, True), (False, 1, False), (True, 1.01, False)])
def test_tf32_is_right_where_it_is_allowed(allowed, factor, is_right):
    x, weight = torch.randn(64, 256, requires_grad=True), torch.randn(32, 256, requires_grad=True)
    gradient = torch.randn(64, 32)
    result = factor * (cut_off(x) @ cut_off(weight).t())
    gradients = [factor * (cut_off(gradient) @ cut_off(weight)), factor * (cut_off(gradient).t() @ cut_off(x))]
    seen = ObservedCall("torch.nn.functional.linear", functional.linear, Arguments((x, weight), {}), None, result)
    seen.is_tf32 = allowed
    comparer = Comparer(Tolerances(), References(lambda name: None))
    for comparison in (comparer.forward(seen), comparer.backward(seen, Gradients(gradients, [gradient]))):
        assert [row.is_wrong for row in comparison.rows] == [not is_right] * len(comparison.rows)


PRODUCTS_INSIDE = {
    "affine_grid": lambda x: functional.affine_grid(x[:6, :2].reshape(2, 2, 3), [2, 1, 5, 7], align_corners=True),
    "affine_grid in space": lambda x: functional.affine_grid(
        x[:6, :4].reshape(2, 3, 4), [2, 1, 3, 4, 5], align_corners=False
    ),
    "matrix_power": lambda x: torch.matrix_power(x, 3),
    "Tensor.matrix_power": lambda x: x.matrix_power(2),
    "orgqr": lambda x: torch.orgqr(x[:, :5], x[0, :5]),
    "aten.linalg_inv_ex": lambda x: torch.ops.aten.linalg_inv_ex.default(x + 9 * torch.eye(8, device=x.device))[0],
}


@pytest.mark.parametrize("reference", ["cpu", "device"])
@pytest.mark.parametrize("name", PRODUCTS_INSIDE)
def test_products_inside_of_an_op_may_be_tf32(device, name, reference):
    if device != "sim":
        pytest.skip("kernels are replaced on the simulated accelerator")
    torch.manual_seed(0)
    x = torch.randn(8, 8, device=device, requires_grad=True)
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        for allowed in (True, False):
            torch.backends.cuda.matmul.allow_tf32 = allowed
            with faults.inject("aten.*: tf32"), op_tools.OpAutoCompare(verbose=0, reference=reference) as tool:
                PRODUCTS_INSIDE[name](x).square().sum().backward()
            assert bool(tool.summary.ranked()) is not allowed
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.parametrize("seed", range(4))
def test_a_recurrent_layer_whose_weights_have_grown_too_large_may_end_anywhere(device, seed):
    """Its gates open or close by a rounding: what a few moves of the inputs show of that, another place may have."""
    if device != "sim":
        pytest.skip("kernels are replaced on the simulated accelerator")
    torch.manual_seed(seed)
    layer = torch.nn.LSTM(16, 16, 2, bidirectional=True)
    with torch.no_grad():
        for one in layer.parameters():
            one.mul_(100 if one.dim() == 2 else 1)
    layer.to(device)
    x = (0.1 * torch.randn(8, 3, 16)).to(device).requires_grad_()
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        flags = torch.backends.cudnn.flags(allow_tf32=True)
        with flags, faults.inject("aten.*: tf32"), op_tools.OpAutoCompare(verbose=0) as tool:
            made = layer(x)[0]
            (1e-3 * made * torch.randn_like(made)).sum().backward()
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    assert not tool.summary.ranked()
