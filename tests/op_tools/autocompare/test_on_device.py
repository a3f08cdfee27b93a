"""The device as reference: nobody is blamed on its word alone."""

from __future__ import annotations

import pytest
import torch

import op_tools
from ditorch.sim import faults
from op_tools.autocompare import examiner


@pytest.fixture
def wrong(tmp_path):
    """Runs a program under the tool: its results."""

    def run(program, **options):
        with op_tools.OpAutoCompare(reference="device", out=tmp_path, verbose=0, **options) as tool:
            program()
        return tool.results

    return run


# gradients that are made of a result, which is rounded: float64 has others
FROM_ROUNDED_RESULTS = {
    "tanh": (torch.tanh, [8.0, -6.5, 5.25]),
    "sigmoid": (torch.sigmoid, [12.0, 9.5, 7.25]),
    "logcumsumexp": (lambda x: torch.logcumsumexp(x, 0), [9.0, 2.0, -3.0, 8.0, 1.0, 7.5]),
    "normalize": (lambda x: torch.nn.functional.normalize(x, 0.5, 0), [3.0]),
}


@pytest.mark.parametrize("op", FROM_ROUNDED_RESULTS)
def test_what_16_bits_cost_the_gradient_of_a_rounded_result_is_no_fault(wrong, device, op):
    function, numbers = FROM_ROUNDED_RESULTS[op]
    x = torch.tensor(numbers, dtype=torch.bfloat16, device=device).requires_grad_()
    assert list(wrong(lambda: function(x).sum().backward())) == []


def test_small_sums_of_large_terms_are_no_fault(wrong, device):
    """Rows that are divided by their sum, again and again, have gradients that cancel out."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(2, 14, 4, 4, generator=generator).to(device).requires_grad_()

    def program():
        shares = x.softmax(-1) + 1e-6
        for _ in range(10):
            shares = shares / (shares.sum(-1, keepdim=True) + 1e-6)
            shares = shares / (shares.sum(-2, keepdim=True) + 1e-6)
        shares.square().sum().backward()

    with faults.inject("aten.*: remake"):
        assert list(wrong(program)) == []


def test_an_operator_that_works_in_place_is_compared_at_its_first_call(wrong, device):
    x = torch.rand(64, device=device) + 0.5

    def program(x):
        x /= 3
        x **= 2  # dispatched as __ipow__, which the device would see with its argument changed already

    assert wrong(lambda: program(x)).not_looked_at == []


@pytest.fixture
def halved(device):
    """An op that is right in float64 alone; on the CPU it is right, or not there."""
    library = torch.library.Library("on_device", "DEF")
    library.define("halved(Tensor x) -> Tensor")
    library.define("lonely(Tensor x) -> Tensor")
    for name in ("halved", "lonely"):
        library.impl(name, lambda x: x * (0.5 if x.dtype == torch.float64 else 0.4), "PrivateUse1")
    library.impl("halved", lambda x: x * 0.5, "CPU")
    yield torch.ops.on_device
    library._destroy()


@pytest.mark.parametrize("name", ["halved", "lonely"])
def test_a_broken_kernel_is_named_at_every_call(wrong, device, halved, name):
    """Though the CPU is asked a few times only, or has no such kernel."""
    x = torch.randn(8, generator=torch.Generator().manual_seed(0)).to(device)
    count = 2 * examiner.MAX_CONFIRMED_PER_PLACE
    (row,) = wrong(lambda: [getattr(halved, name)(x) for _ in range(count)])
    assert row["op"] == f"on_device.{name}"
    assert row["calls"] == count
