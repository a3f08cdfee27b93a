"""Solutions of systems of equations: all of a large batch, put into the equations again."""

from __future__ import annotations

import pytest
import torch

from op_tools.autocompare.identities import whole

from ....conftest import DEVICE
from ..kernels import kernel


@pytest.fixture(autouse=True)
def _as_if_large(monkeypatch):
    monkeypatch.setattr(whole, "MAX_ELEMENTS", 0)


def triangles(device, *shape, upper=True, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    drawn = torch.rand(*shape, generator=generator, dtype=dtype)
    kept = drawn.triu() if upper else drawn.tril()
    return (kept + shape[-1] * torch.eye(shape[-1], dtype=dtype)).to(device)


def sides(device, *shape, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=dtype).to(device)


def unkind(device):
    """Nearly singular: what solves it may be far from what solves it exactly, and puts it right all the same."""
    matrix = torch.eye(12).repeat(50, 1, 1) + torch.randn(50, 12, 12, generator=torch.Generator().manual_seed(2))
    matrix[:, 3] = matrix[:, 2] + 1e-4 * matrix[:, 5]
    return matrix.to(device)


CALLS = {
    "upper": lambda device: torch.linalg.solve_triangular(
        triangles(device, 90, 5, 5), sides(device, 90, 5, 3), upper=True
    ),
    "lower": lambda device: torch.linalg.solve_triangular(
        triangles(device, 7, 7, upper=False), sides(device, 7, 2), upper=False
    ),
    "the other half is not looked at": lambda device: torch.linalg.solve_triangular(
        sides(device, 6, 6) + 6 * torch.eye(6).to(device), sides(device, 6, 2), upper=False
    ),
    "ones on the diagonal": lambda device: torch.linalg.solve_triangular(
        triangles(device, 9, 4, 4) / 9, sides(device, 9, 4, 1), upper=True, unitriangular=True
    ),
    "from the right": lambda device: torch.linalg.solve_triangular(
        triangles(device, 9, 4, 4), sides(device, 9, 2, 4), upper=True, left=False
    ),
    "repeated": lambda device: torch.linalg.solve_triangular(
        triangles(device, 4, 4), sides(device, 9, 4, 2), upper=True
    ),
    "double": lambda device: torch.linalg.solve(
        triangles(device, 9, 4, 4, dtype=torch.float64), sides(device, 9, 4, 1, dtype=torch.float64)
    ),
    "any": lambda device: torch.linalg.solve(
        sides(device, 300, 3, 3) + 2 * torch.eye(3).to(device), sides(device, 300, 3, 2)
    ),
    "of one vector": lambda device: torch.linalg.solve(triangles(device, 6, 6), sides(device, 6)),
    "unkind": lambda device: torch.linalg.solve(unkind(device), sides(device, 50, 12, 2)),
    "large": lambda device: torch.linalg.solve(sides(device, 200, 200), sides(device, 200, 3)),
    "inverse": lambda device: torch.linalg.inv(triangles(device, 40, 6, 6) + 1),
}


@pytest.mark.parametrize("name", CALLS)
def test_healthy_solutions_are_right(compared, device, name):
    assert list(compared(lambda: CALLS[name](device))) == []


def test_their_gradients_are_right(compared, device):
    matrices, side = triangles(device, 30, 3, 3).requires_grad_(), sides(device, 30, 3, 2).requires_grad_()
    assert list(compared(lambda: torch.linalg.solve(matrices, side).sum().backward())) == []


@pytest.mark.skipif(DEVICE != "sim", reason="its kernels are replaced")
class TestBroken:
    """Kernels that are wrong for one system of thousands, which no slice would meet."""

    COUNT = 5000

    def found(self, compared, name, kernel_name, run, broken):
        with kernel(kernel_name, broken):
            results = compared(run)
        assert {row["op"].rpartition(".")[2] for row in results} == {name}

    def test_a_triangle(self, compared, device):
        matrices, side = triangles(device, self.COUNT, 3, 3), sides(device, self.COUNT, 3, 1)

        def broken(matrices, side, *, upper, left=True, unitriangular=False):
            made = torch.linalg.solve_triangular(matrices.cpu(), side.cpu(), upper=upper)
            made[4321, 0] *= 1.001
            return made.to(side.device)

        run = lambda: torch.linalg.solve_triangular(matrices, side, upper=True)  # noqa: E731
        self.found(compared, "solve_triangular", "linalg_solve_triangular", run, broken)

    def test_an_inverse(self, compared, device):
        matrices = triangles(device, self.COUNT, 3, 3) + 1

        def broken(matrices, check_errors=False):
            made, info = torch.linalg.inv_ex(matrices.cpu())
            made[4321] = made[4321].mT.clone()
            return made.to(matrices.device), info.to(matrices.device)

        self.found(compared, "inv", "linalg_inv_ex", lambda: torch.linalg.inv(matrices), broken)
