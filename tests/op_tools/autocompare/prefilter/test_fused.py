"""The first look as two kernels for a whole batch: what they are handed, and what is made of what they find."""

from __future__ import annotations

import ctypes
import math
import sys
import types

import pytest
import torch

from ditorch.backends.sim import SIM
from ditorch.redirect import Redirect
from op_tools.autocompare import prefilter
from op_tools.autocompare.judging import verdict
from op_tools.autocompare.judging.limits import Tolerance, precision_of
from op_tools.autocompare.prefilter import fused, screen
from op_tools.autocompare.prefilter.first_look import Look
from op_tools.device import compiled

HERE = torch.device("cpu")


def memory_at(address, count, dtype):
    size = count * torch.empty((), dtype=dtype).element_size()
    return torch.frombuffer((ctypes.c_char * size).from_address(address), dtype=dtype).double()


def run(table, given, sizes, found, pairs, got, expected):
    """What kernels.py does, with torch on the CPU."""
    assert table.data_ptr() % 16 == given.data_ptr() % 16 == 0
    found.fill_(math.nan)  # as memory that nobody has written to may be
    rows, numbers = table.flatten()[: 4 * pairs].view(pairs, 4), given.flatten().view(pairs, 6)
    for pair, (mine_at, right_at, count, allowed_at) in enumerate(rows.tolist()):
        half_eps, share, smallest, largest, rtol, share_of_largest = numbers[pair].tolist()
        mine, right = memory_at(mine_at, count, got), memory_at(right_at, count, expected)
        sizes_here = right.abs().nan_to_num(0.0, 0.0)
        floor = max(sizes_here.sum() / count * share, sizes_here.max() * share_of_largest)
        finite = mine.isfinite() & (right.abs() <= largest)
        alike = (mine == right) | (mine.isnan() & right.isnan())
        mine, right = mine.where(finite, 0.0 * finite), right.where(finite, 0.0 * finite)
        error, size = mine - right, right.abs()
        half_ulp = ((size.view(torch.int64) & 0x7FF0000000000000).view(torch.float64) * half_eps).clamp_min(smallest)
        scale = half_ulp.clamp_min(floor)
        if allowed_at:
            scale = torch.maximum(scale, memory_at(allowed_at, count, torch.float64))
        scaled, value, units = error / scale, right / scale, error.abs() / half_ulp
        sums = [scaled * scaled, scaled * value, value * value, mine * mine, mine * right, right * right, error * error]
        sums += [units / 2, (right != 0).double(), (~(finite | alike)).double()]
        maxima = [scaled.abs(), error.abs(), error.abs() / size.clamp_min(1e-300), units / 2, error.abs() - rtol * size]
        slots = found.shape[1]
        slot = torch.arange(count) % slots
        for column, values in enumerate(sums):
            found[pair, :, column] = torch.zeros(slots, dtype=torch.float64).index_add_(0, slot, values)
        for column, values in enumerate(maxima, len(sums)):
            zeros = torch.zeros(slots, dtype=torch.float64)
            found[pair, :, column] = zeros.scatter_reduce_(0, slot, values, "amax")


KERNELS = types.SimpleNamespace(run=run)


def test_kernels_that_are_right_pass_the_check():
    with torch.no_grad():
        fused._compare_with_torch(KERNELS, HERE)


def test_kernels_that_are_wrong_do_not_pass():
    def wrong(table, given, sizes, found, *others):
        run(table, given, sizes, found, *others)
        found[:, 0, 0] *= 1.001

    with torch.no_grad(), pytest.raises(ArithmeticError, match="squares"):
        fused._compare_with_torch(types.SimpleNamespace(run=wrong), HERE)


@pytest.fixture
def installed(monkeypatch):
    """A build of torch with CUDA, and Triton with kernels that are right."""
    monkeypatch.setattr(torch.version, "cuda", "12.1")
    monkeypatch.setattr(fused, "_known", {})
    monkeypatch.setattr(prefilter, "kernels", KERNELS, raising=False)
    monkeypatch.setitem(sys.modules, f"{prefilter.__name__}.kernels", KERNELS)


@pytest.mark.usefixtures("installed")
def test_an_accelerator_that_goes_by_the_name_of_cuda_does_without_them():
    redirect = Redirect(SIM)
    try:
        device = torch.device("cuda", 0)
        assert device.type == "cuda"
        assert not fused.is_there(device)
        assert not compiled.is_cuda(device)
    finally:
        redirect.undo()


@pytest.mark.usefixtures("installed")
def test_they_are_not_interpreted(monkeypatch):
    monkeypatch.setattr(fused, "is_genuine", lambda device: True)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert fused._checked(HERE) is KERNELS
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert fused._checked(HERE) is None


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_each_pair_has_a_row_of_its_own(count):
    """Also tensors that require gradients, lie with gaps or the other way round, or are zeros without memory."""
    torch.manual_seed(0)
    precision, tolerance = precision_of(torch.float32), Tolerance(1e-5, 1e-5)
    expected = [torch.randn(5, 4 + one, dtype=torch.float64) for one in range(count)]
    got = [one.float().requires_grad_() for one in expected]
    got[0] = got[0].t().contiguous().t()
    expected[-1] = torch.cat([expected[-1], expected[-1]], 1)[:, ::2]
    got[-1] = expected[-1].float()
    looks = [Look(one, right, precision, tolerance) for one, right in zip(got, expected)]
    looks.append(Look(got[0].t(), expected[0].t(), precision, tolerance))
    looks.append(Look(torch.ones(3, 2).t(), torch.ones(3, 2).double().t(), precision, tolerance))
    looks.append(Look(torch._efficientzerotensor((3, 2)), torch.zeros(3, 2, dtype=torch.float64), precision, tolerance))
    with torch.no_grad():
        found = fused._launched(KERNELS, looks)
        slow = torch.stack([screen._alone(look) for look in looks])
    slow[:, -1].clamp_min_(0.0)  # how far errors exceed rtol: the kernels begin with nothing
    torch.testing.assert_close(found, slow, rtol=1e-9, atol=0.0)
    assert all(look.verdict(row).right for look, row in zip(looks, found.tolist()))
    assert isinstance(looks[0].verdict(found[0].tolist()), verdict.Verdict)
