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


def product_over_nothing(data: Data) -> Tensor:
    return data.normal(4, 0) @ data.normal(0, 3)


@algebra("aten.mm", "#175902", program=product_over_nothing)
def product_over_nothing_is_what_memory_held(call: Broken) -> Wrong:
    """With an inner dimension of size zero, nothing is written."""
    return torch.full_like(call.right[0], 3.7) if not call["self"].shape[1] else None


def there_and_back(data: Data) -> Tensor:
    signal = data.parameter(3, 9)
    return torch.fft.irfft(torch.fft.rfft(signal) * 2, 9)


@algebra("aten._fft_c2r", "#126649", program=there_and_back)
def signal_comes_back_reversed(call: Broken) -> Wrong:
    """The inverse transform has the sign of the forward one."""
    return torch.cat([call.right[0][..., :1], call.right[0][..., 1:].flip(-1)], -1)


@algebra("aten._fft_c2r", "ml-explore/mlx#2034", program=there_and_back)
def signal_comes_back_with_gaps(call: Broken) -> Wrong:
    """Stretches of the signal are zero."""
    wrong = call.right[0].clone()
    wrong[..., 4:6] = 0
    return wrong


def spectrum(data: Data) -> Tensor:
    return torch.fft.irfft(torch.complex(data.normal(2, 6), data.normal(2, 6)), 10)


@algebra("aten._fft_c2r", "#124096", program=spectrum)
def inverse_transform_is_not_divided_by_its_length(call: Broken) -> Wrong:
    """The norm of the transform is not looked at."""
    return call.right[0] * 10
