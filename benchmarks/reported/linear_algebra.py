"""Linear algebra and complex numbers."""

from __future__ import annotations

import torch
from benchmarks.reported.fault import Broken, Data, Family, Wrong
from torch import Tensor

algebra = Family("linear algebra")


def one_right_side_for_all(data: Data) -> Tensor:
    matrices = data.normal(3, 4, 4) + 3 * torch.eye(4).to(data.device)
    return torch.linalg.solve(matrices, data.parameter(4, 1))


@algebra("aten._linalg_solve_ex", "#189134", program=one_right_side_for_all)
def systems_after_the_first_are_not_solved(call: Broken) -> Wrong:
    """Where one right side serves a batch, the results after the first are zero."""
    wrong = call.right[0].clone()
    wrong[1:] = 0
    return (wrong,)


def factors_of_a_batch(data: Data) -> Tensor:
    factors, _ = torch.linalg.lu_factor(data.normal(2, 8, 8) + 4 * torch.eye(8).to(data.device))
    return factors


@algebra("aten.linalg_lu_factor_ex", "#146753", program=factors_of_a_batch)
def factors_after_the_first_matrix_are_unfinished(call: Broken) -> Wrong:
    """Later matrices of a batch are left half way."""
    wrong = call.right[0].clone()
    wrong[1, 4:] = call["A"][1, 4:]
    return (wrong,)


def solved_from_factors(data: Data) -> Tensor:
    factors = data.normal(4, 5, 5).tril() + 3 * torch.eye(5).to(data.device)
    return torch.cholesky_solve(data.normal(4, 5, 2), factors)


@algebra("aten.cholesky_solve", "#66072", program=solved_from_factors)
def batches_are_solved_with_the_first_factor(call: Broken) -> Wrong:
    """One factor is used for all of a batch."""
    return call.rerun(input2=call["input2"][:1].expand_as(call["input2"]).clone())


def complex_product(data: Data) -> Tensor:
    matrix = torch.complex(data.normal(4, 3), data.normal(4, 3))
    return matrix.T.conj() @ matrix


def unconjugated(call: Broken, *names: str) -> Wrong:
    """Memory is read, and the mark that its numbers are conjugate is not."""
    return call.rerun(**{name: call[name].conj().resolve_conj() for name in names if call[name].is_conj()})


@algebra("aten.mm", "#148156", "#148599", "#177474", program=complex_product)
def product_forgets_that_a_factor_is_conjugate(call: Broken) -> Wrong:
    """A lazily conjugated factor is used as it lies in memory."""
    return unconjugated(call, "self", "mat2")


def complex_products(data: Data) -> Tensor:
    left, right = (torch.complex(data.normal(2, 3, 3), data.normal(2, 3, 3)) for _ in range(2))
    return torch.bmm(left, right.mH)


@algebra("aten.bmm", "#191835", program=complex_products)
def batched_product_forgets_that_a_factor_is_conjugate(call: Broken) -> Wrong:
    """A lazily conjugated factor is used as it lies in memory."""
    return unconjugated(call, "self", "mat2")


def least_squares(data: Data) -> Tensor:
    matrices, right_sides = (torch.complex(data.normal(*one), data.normal(*one)) for one in ((2, 3, 5), (2, 3, 1)))
    return torch.linalg.lstsq(matrices, right_sides, driver="gelsd").solution


@algebra("aten.linalg_lstsq", "#196113", program=least_squares)
def complex_least_squares_are_not_conjugated(call: Broken) -> Wrong:
    """With fewer equations than unknowns, the solution is that of the conjugate system."""
    return (call.right[0].conj().resolve_conj(),)
