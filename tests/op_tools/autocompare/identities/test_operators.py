"""Python's operators by element: large ones are compared as the functions that they stand for."""

from __future__ import annotations

import operator

import pytest
import torch

from op_tools.autocompare.identities import whole

from ....conftest import DEVICE
from ..kernels import kernel

ARITHMETIC = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "eq", "ne", "lt", "le", "gt", "ge"]
BITS = ["and_", "or_", "xor", "lshift", "rshift"]


@pytest.fixture(autouse=True)
def _as_if_large(monkeypatch):
    monkeypatch.setattr(whole, "MAX_ELEMENTS", 0)


def is_right_and_compared(results):
    return not list(results) and not results.not_looked_at


@pytest.mark.parametrize("name", [*ARITHMETIC, "iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow"])
def test_operators_of_fractions_are_compared(compared, device, name):
    apply, one, other = getattr(operator, name), torch.rand(50, 40) + 0.5, torch.rand(50, 40) + 0.5
    one, other = one.to(device), other.to(device)
    for left, right in ((one, other), (one, 2.0), (2.0, other)):
        if isinstance(left, torch.Tensor) or not name.startswith("i"):
            assert is_right_and_compared(compared(lambda left=left, right=right: apply(left, right)))


@pytest.mark.parametrize("name", [*BITS, "iand", "ior", "ixor", "ilshift", "irshift"])
def test_operators_of_bits_are_compared(compared, device, name):
    one, other = (torch.randint(1, 5, (50, 40), device=device) for _ in range(2))
    assert is_right_and_compared(compared(lambda: getattr(operator, name)(one, other)))


@pytest.mark.parametrize("name", ["neg", "pos", "abs", "invert"])
def test_operators_of_one_are_compared(compared, device, name):
    numbers = torch.randint(-5, 5, (50, 40), device=device)
    assert is_right_and_compared(compared(lambda: getattr(operator, name)(numbers)))


@pytest.mark.skipif(DEVICE != "sim", reason="a kernel is replaced")
def test_a_comparison_that_never_holds_is_found(compared, device):
    numbers = torch.randint(0, 3, (50, 40), device=device)
    with kernel("eq.Tensor", lambda x, y: torch.zeros(x.shape, dtype=torch.bool, device=x.device)):
        results = compared(lambda: numbers == numbers.clone())
    assert {row["op"] for row in results} == {"torch.Tensor.__eq__"}
