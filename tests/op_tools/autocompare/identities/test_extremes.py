"""Largest and least numbers and their places: all of a large call, of which a slice would show only some."""

from __future__ import annotations

import math

import pytest
import torch

from op_tools.autocompare.identities import whole

from ....conftest import DEVICE
from ..kernels import kernel


@pytest.fixture(autouse=True)
def _as_if_large(monkeypatch):
    monkeypatch.setattr(whole, "MAX_ELEMENTS", 0)


def numbers(device, *shape, dtype=torch.float32):
    drawn = torch.randn(*shape, generator=torch.Generator().manual_seed(0))
    drawn[(0,) * len(shape)] = math.inf
    drawn[(-1,) * len(shape)] = math.nan
    return drawn.to(device, dtype)


CALLS = {
    "max": lambda x: x.max(),
    "max of rows": lambda x: x.max(1),
    "max of columns, kept": lambda x: torch.max(x, dim=0, keepdim=True),
    "min": lambda x: x.min(),
    "min of rows": lambda x: x.min(-1),
    "amax of all": lambda x: x.amax(),
    "amax of two": lambda x: torch.amax(x, (0, -1)),
    "amin": lambda x: x.amin(1, keepdim=True),
    "argmax of all": lambda x: x.argmax(),
    "argmax": lambda x: x.argmax(0),
    "argmin, kept": lambda x: x.argmin(1, True),
    "argmax of turned": lambda x: x.t().argmax(0),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("name", CALLS)
def test_healthy_extremes_are_compared_and_right(compared, device, name, dtype):
    given = torch.randint(9, (40, 30), device=device) if dtype is torch.int64 else numbers(device, 40, 30, dtype=dtype)
    results = compared(lambda: CALLS[name](given))
    assert list(results) == []
    assert not results.not_looked_at


@pytest.mark.parametrize("function", [lambda x: x.max(1).values, lambda x: x.amin(0), lambda x: x.max()])
def test_their_gradients_are_right(compared, device, function):
    given = torch.randn(40, 30, device=device, requires_grad=True)
    assert list(compared(lambda: function(given).sum().backward())) == []


def test_nothing_to_choose_from_is_left_alone(compared, device):
    assert list(compared(lambda: torch.ones(0, 3, device=device).amax(1))) == []


def names(results):
    return {row["op"].rpartition(".")[2] for row in results}


@pytest.mark.skipif(DEVICE != "sim", reason="its kernels are replaced")
class TestBroken:
    """Kernels that are wrong in one row of thousands, which no slice would meet."""

    ROWS = 3000

    def argmax(self, x, dim=None, keepdim=False):
        made = x.cpu().argmax(dim, keepdim)
        made[1234] = self.place
        return made.to(x.device)

    @pytest.mark.parametrize("place", [7, -3, 2**40])
    def test_a_place_of_another_number(self, compared, device, place):
        self.place = place
        given = torch.zeros(self.ROWS, 50, device=device)
        given[:, 9] = 1
        with kernel("argmax", self.argmax):
            assert names(compared(lambda: given.argmax(1))) == {"argmax"}

    @pytest.mark.parametrize("value", [2.5, 0.25, math.nan])
    def test_a_number_that_is_not_there_or_not_the_largest(self, compared, device, value):
        given = torch.rand(self.ROWS, 50, generator=torch.Generator().manual_seed(0)).to(device)
        given[1234, 3] = 0.25

        def amax(x, dim=(), keepdim=False):
            made = x.cpu().amax(dim, keepdim)
            made[1234] = value
            return made.to(x.device)

        with kernel("amax", amax):
            assert names(compared(lambda: given.amax(1))) == {"amax"}

    def test_nan_that_is_passed_over(self, compared, device):
        given = torch.rand(self.ROWS, 50, device=device)
        given[1234, 3] = math.nan
        with kernel("amax", lambda x, dim=(), keepdim=False: x.cpu().nan_to_num(0).amax(dim, keepdim).to(x.device)):
            assert names(compared(lambda: given.amax(1))) == {"amax"}

    def test_the_least_of_infinities(self, compared, device):
        given = torch.full((5000,), math.inf, device=device)
        with kernel("min", lambda x: torch.full((), torch.finfo(x.dtype).max).to(x.device)):
            assert names(compared(given.min)) == {"min"}
