"""Where an op's result is defined to the last sign, and where nobody has defined it: kernels of another make."""

from __future__ import annotations

import math

import pytest
import torch

from ....conftest import DEVICE
from ..kernels import kernel, wrong

pytestmark = pytest.mark.skipif(DEVICE != "sim", reason="kernels are replaced on the simulated accelerator")


# ---- attention to nothing --------------------------------------------------------------------------------------------


def gradients_of_attention(number):
    """A kernel that gives this number to a query that sees nothing."""

    def backward(arrived, query, key, value, bias, *_, **__):
        given = [part.detach().cpu().double() for part in (arrived, query, key, value, bias)]
        arrived_here, queries, keys, values, mask = given
        scale = 1 / math.sqrt(query.shape[-1])
        weights = torch.softmax(queries @ keys.mT * scale + mask, -1).nan_to_num(0.0)
        terms = arrived_here @ values.mT
        scores = weights * (terms - (terms * weights).sum(-1, keepdim=True)) * scale
        made = [scores @ keys, scores.mT @ queries, weights.mT @ arrived_here]
        made[0][..., 1, :] = number
        return *(one.to(query.dtype).to(query.device) for one in made), torch.zeros_like(bias)

    return kernel("_scaled_dot_product_fused_attention_overrideable_backward", backward)


@pytest.mark.parametrize("reference", ["cpu", "identities"])
@pytest.mark.parametrize(("number", "is_right"), [(0.0, True), (0.25, True), (math.nan, False)])
def test_a_query_that_sees_nothing_has_any_gradient_but_none(device, reference, number, is_right):
    """Kernels disagree on what comes of nothing; that a number has NaN for a gradient is no kernel's wish."""
    query, key = (torch.randn(1, 2, length, 4, device=device, requires_grad=True) for length in (3, 5))
    mask = torch.ones(3, 5, dtype=torch.bool, device=device)
    mask[1] = False

    def run():
        torch.nn.functional.scaled_dot_product_attention(query, key, key, mask).sum().backward()

    with gradients_of_attention(number):
        assert wrong(run, reference=reference) == (set() if is_right else {"scaled_dot_product_attention"})


# ---- factors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_factors_of_another_matrix_are_wrong_whatever_signs_the_cpu_has_chosen(device, seed):
    """In float32 the CPU may choose other signs than in float64: then its own error is no measure of any."""
    given = torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(seed))
    given = (given + given.mT).to(device)

    def of_another(x, uplo="L", compute_v=True):
        values, vectors = torch.linalg.eigh(x.cpu(), uplo)
        return values.to(x.device), vectors.roll(1, 0).to(x.device)

    with kernel("_linalg_eigh", of_another):
        assert wrong(lambda: torch.linalg.eigh(given)) == {"eigh"}


# ---- signs of zeros --------------------------------------------------------------------------------------------------


def test_the_sign_of_a_zero_decides_a_direction(device):
    y = torch.tensor([-0.0, 0.0, -0.0, 1.0, -1e-30], device=device)
    x = torch.tensor([-1.0, -1.0, 1.0, -1.0, -1.0], device=device)
    assert wrong(lambda: torch.atan2(y, x)) == set()
    with kernel("atan2", lambda y, x: torch.atan2(y.cpu() + 0.0, x.cpu()).to(y.device)):
        assert wrong(lambda: torch.atan2(y, x)) == {"atan2"}
        assert wrong(lambda: torch.atan2(y[3:], x[3:])) == set()


# ---- systems without a solution --------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_left", [True, False])
def test_nobody_says_what_solves_a_system_without_a_solution(device, is_left):
    matrices = torch.tensor([[[1.0, 1.0], [0.0, 0.0]], [[2.0, 1.0], [0.0, 4.0]]], device=device)
    sides = torch.ones(2, 2, 2, device=device)

    def run():
        torch.linalg.solve_triangular(matrices, sides, upper=True, left=is_left)

    def with_system(number):
        def solve(matrices, sides, *, upper, left=True, unitriangular=False):
            made = torch.linalg.solve_triangular(matrices.cpu(), sides.cpu(), upper=upper, left=left)
            made[number] = 7
            return made.to(sides.device)

        return kernel("linalg_solve_triangular", solve)

    with with_system(0):
        assert wrong(run) == set()
    with with_system(1):
        assert wrong(run) == {"solve_triangular"}


# ---- squares out of range --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "function"), [("std", torch.std), ("var", torch.var)])
def test_the_squares_of_a_spread_may_leave_the_range_on_the_way(device, name, function):
    """CUDA's kernels keep them in float32, and the CPU's in float64."""
    infinite = kernel(f"{name}.correction", lambda x, *_, **__: torch.full((), math.inf).to(x.device))
    large = (torch.randn(1000, generator=torch.Generator().manual_seed(0)) * 1e18).to(device)
    with infinite:
        assert wrong(lambda: function(large * 5)) == set()
        assert wrong(lambda: function(large / 1e3)) == {name}


# ---- matrices that cannot be factored --------------------------------------------------------------------------------


UNFINISHED = {
    "cholesky_ex": (torch.linalg.cholesky_ex, "linalg_cholesky_ex", torch.ones(2, 2)),
    "inv_ex": (torch.linalg.inv_ex, "linalg_inv_ex", torch.ones(2, 2)),
}


@pytest.mark.parametrize("name", UNFINISHED)
def test_what_could_not_be_finished_may_hold_anything(device, name):
    """`info` says of which matrix; that it says so is no matter of taste."""
    function, kernel_name, impossible = UNFINISHED[name]
    matrices = torch.stack([impossible, torch.tensor([[2.0, 1.0], [1.0, 3.0]])]).to(device)

    def with_factor(number, info=0):
        def factor(matrices, *_, **options):
            options.pop("check_errors", None)
            made, informed = function(matrices.cpu(), **options)
            made[number] = math.nan
            informed[number] += info
            return made.to(matrices.device), informed.to(matrices.device)

        return kernel(kernel_name, factor)

    with with_factor(0):
        assert wrong(lambda: function(matrices)) == set()
    with with_factor(1):
        assert wrong(lambda: function(matrices)) == {name}
    with with_factor(1, info=1):
        assert wrong(lambda: function(matrices)) == {name}
