"""Factorizations and products that chips have and the CPU has not, or has otherwise."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

DTYPES = [torch.float32, torch.float64, torch.complex64, torch.complex128]


def _dominant(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """A matrix whose pivots are on its diagonal already."""
    return torch.randn(shape, dtype=dtype) + 10 * torch.eye(*shape[-2:], dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (3, 5), (2, 3, 4, 4), (0, 3, 3), (3, 0), (1, 1)])
def test_lu_without_pivoting_gives_the_factors(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    matrix = _dominant(*shape, dtype=dtype).to("sim")

    permutation, lower, upper = torch.linalg.lu(matrix, pivot=False)

    assert permutation.shape == (0,)
    assert permutation.device.type == lower.device.type == upper.device.type == "sim"
    size = min(shape[-2:])
    assert lower.shape == (*shape[:-1], size)
    assert upper.shape == (*shape[:-2], size, shape[-1])
    torch.testing.assert_close(lower @ upper, matrix)
    assert torch.equal(lower.tril(), lower)
    assert torch.equal(upper.triu(), upper)
    assert bool((lower.diagonal(dim1=-2, dim2=-1) == 1).all())


def test_lu_without_pivoting_swaps_no_rows() -> None:
    matrix = torch.tensor([[1.0, 2.0], [4.0, 3.0]], device="sim")  # with pivoting the rows would change places

    factors, pivots = torch.linalg.lu_factor(matrix, pivot=False)

    assert factors.tolist() == [[1, 2], [4, -5]]
    assert pivots.tolist() == [1, 2]
    assert pivots.dtype == torch.int32


def test_lu_without_pivoting_solves() -> None:
    matrix, right = _dominant(2, 4, 4).to("sim"), torch.randn(2, 4, 3, dtype=torch.float64).to("sim")

    solution = torch.linalg.lu_solve(*torch.linalg.lu_factor(matrix, pivot=False), right)

    torch.testing.assert_close(matrix @ solution, right)


def test_lu_without_pivoting_tells_where_a_pivot_is_zero() -> None:
    singular = torch.tensor(
        [[[1.0, 2.0], [2.0, 4.0]], [[0.0, 1.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]], device="sim"
    )

    assert torch.linalg.lu_factor_ex(singular, pivot=False).info.tolist() == [2, 1, 0]
    with pytest.raises(RuntimeError, match="is zero"):
        torch.linalg.lu_factor_ex(singular, pivot=False, check_errors=True)
    with pytest.raises(RuntimeError, match="is zero"):
        torch.linalg.lu_factor(singular, pivot=False)


def test_lu_without_pivoting_writes_to_out() -> None:
    matrix = _dominant(3, 3).to("sim")
    expected = torch.linalg.lu_factor_ex(matrix, pivot=False)

    out = [torch.empty(0, dtype=tensor.dtype, device="sim") for tensor in expected]
    torch.linalg.lu_factor_ex(matrix, pivot=False, out=out)
    factors = [torch.empty(0, dtype=torch.float64, device="sim") for _ in range(3)]
    torch.linalg.lu(matrix, pivot=False, out=factors)

    assert all(torch.equal(got, wanted) for got, wanted in zip(out, expected))
    torch.testing.assert_close(factors[1] @ factors[2], matrix)


def test_lu_without_pivoting_has_a_gradient() -> None:
    matrix = _dominant(3, 3).to("sim").requires_grad_()

    assert torch.autograd.gradcheck(lambda given: torch.linalg.lu(given, pivot=False)[1:], matrix)


def test_lu_with_pivoting_is_the_cpus() -> None:
    matrix = torch.randn(2, 4, 3)

    for got, expected in zip(torch.linalg.lu(matrix.to("sim")), torch.linalg.lu(matrix)):
        assert torch.equal(got.cpu(), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_fused_product_approximates_gelu_by_tanh(dtype: torch.dtype) -> None:
    bias, left, right = torch.randn(5), 2 * torch.randn(3, 4), torch.randn(4, 5)
    given = [tensor.to("sim", dtype) for tensor in (bias, left, right)]
    product = torch.addmm(bias.to(dtype), left.to(dtype), right.to(dtype), beta=0.5, alpha=2)
    expected = F.gelu(product, approximate="tanh")

    result = torch._addmm_activation(*given, beta=0.5, alpha=2, use_gelu=True)
    out = torch.empty(0, dtype=dtype, device="sim")
    torch._addmm_activation(*given, beta=0.5, alpha=2, use_gelu=True, out=out)

    torch.testing.assert_close(result.cpu(), expected)
    assert torch.equal(out, result)
    assert not torch.equal(result.cpu(), F.gelu(product))


def test_the_fused_products_relu_is_the_cpus() -> None:
    bias, left, right = torch.randn(5), torch.randn(3, 4), torch.randn(4, 5)

    result = torch._addmm_activation(bias.to("sim"), left.to("sim"), right.to("sim"))

    assert torch.equal(result.cpu(), torch._addmm_activation(bias, left, right))
