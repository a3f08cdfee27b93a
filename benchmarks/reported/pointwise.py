"""Elementwise kernels: wrong formulas, low precision, narrow integers."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.reported.fault import BOTH, Broken, Data, Family, Wrong
from torch import Tensor
from torch.nn import functional

element = Family("elementwise")


@element("aten.log1p", "#154936", program=lambda data: torch.log1p(data.parameter(64, scale=1e-6)))
def log1p_loses_small_numbers(call: Broken) -> Wrong:
    """Computed as the logarithm of 1 + x."""
    return (1 + call["self"]).log()


def one_minus(data: Data) -> Tensor:
    return 1.0 - data.parameter(6)


@element("aten.rsub", "#82543", program=one_minus, dtypes=BOTH)
def one_minus_a_number_is_whole(call: Broken) -> Wrong:
    """The result is rounded to whole numbers."""
    return call.right[0].round()


def halves(data: Data) -> Tensor:
    return torch.round(data.tensor([0.5, 1.5, 2.5, -0.5, -1.5, 3.2, 7.5]))


@element("aten.round", "triton-lang/triton-ascend#285", program=halves, dtypes=BOTH)
def round_is_the_floor_of_half_more(call: Broken) -> Wrong:
    """Halves go up and not to the even number."""
    return (call["self"] + 0.5).floor()


def shifted_bytes(data: Data) -> Tensor:
    return data.tensor([255, 16, 7], torch.uint8) >> 4


@element("aten.__rshift__", "#144190", program=shifted_bytes)
def shift_of_bytes_does_nothing(call: Broken) -> Wrong:
    """Bytes stay as they are."""
    return call["self"] if call["self"].dtype is torch.uint8 else None


def sums_of_products_of_whole_numbers(data: Data) -> Tensor:
    large = data.tensor([2**25 + 1, 2**26 + 3])
    return torch.addcmul(large, data.tensor([1, 2]), data.tensor([3, 5]))


@element("aten.addcmul", "#189420", program=sums_of_products_of_whole_numbers)
def addcmul_of_whole_numbers_is_computed_in_float32(call: Broken) -> Wrong:
    """Beyond 2^24 it is wrong."""
    return call["self"].float() + call["value"] * call["tensor1"].float() * call["tensor2"].float()


def spaced_whole_numbers(data: Data) -> Tensor:
    return torch.linspace(4.3, -3, 50, dtype=torch.int8, device=data.device)


@element("aten.linspace", "#137635", "#140371", program=spaced_whole_numbers)
def linspace_of_whole_numbers_does_not_cut_off_its_ends(call: Broken) -> Wrong:
    """The ends are cut off after the steps and not before."""
    exact = torch.linspace(float(call["start"]), float(call["end"]), call["steps"], dtype=torch.float64)
    return exact.to(torch.int8).to(call.right[0].device)


def gelu_by_tanh(data: Data) -> Tensor:
    return functional.gelu(data.parameter(40), approximate="tanh")


@element("aten.gelu", "#94529", program=gelu_by_tanh)
def gelu_ignores_the_approximation(call: Broken) -> Wrong:
    """The exact function comes out where its approximation is asked for."""
    return call.rerun(approximate="none")


@element("aten.gelu_backward", "#94529", program=gelu_by_tanh)
def gelu_gradient_ignores_the_approximation(call: Broken) -> Wrong:
    """The gradient of the exact function."""
    return call.rerun(approximate="none")


def several_sums(data: Data) -> Any:
    tensors = [data.normal(*shape) for shape in ((5,), (3, 4), (2,))]
    return torch._foreach_add(tensors, 1e-3)


@element("aten._foreach_add", "#119885", program=several_sums)
def adding_a_number_to_a_list_skips_tensors(call: Broken) -> Wrong:
    """The last tensor of a list stays as it is."""
    return [None, None, call["self"][-1]]


def mirrored_sum(data: Data) -> Tensor:
    x = data.normal(8, 8)
    torch._foreach_add_([x], [x.flip(0)])
    return x * 2


@element("aten._foreach_add_", "#198033", program=mirrored_sum, dtypes=BOTH)
def list_addition_reads_what_it_has_written(call: Broken) -> Wrong:
    """The lower half adds rows of the upper one that are already changed."""
    x = call["self"][0]
    upper = x + x.flip(0)
    return [torch.cat([upper[:4], x[4:] + upper[:4].flip(0)])]


def moving_average(data: Data) -> Tensor:
    average, gradient = data.normal(40), data.normal(40)
    return average.lerp_(gradient, 0.05) * 2


@element("aten.lerp_", "#183575", program=moving_average, dtypes=BOTH)
def moving_average_is_overwritten(call: Broken) -> Wrong:
    """The buffer holds the new value alone."""
    return call["end"]


def comparison_of_two_numbers(data: Data) -> Any:
    pair = data.tensor([0.8267, -1.0293])
    return pair[1] > pair[0], pair[0] > pair[1]


@element("aten.gt.Tensor", "#78107", program=comparison_of_two_numbers, dtypes=BOTH)
def comparison_of_numbers_is_always_true(call: Broken) -> Wrong:
    """Of two numbers without dimensions, each is larger than the other."""
    return torch.ones_like(call.right[0]) if call["self"].dim() == 0 else None


def factor_two(data: Data) -> Tensor:
    return data.tensor([True, False, True]) * 2


@element("aten.mul.Tensor", "#78020", program=factor_two)
def flag_times_number_is_255(call: Broken) -> Wrong:
    """True times two has all bits of a byte set."""
    flags = call["self"]
    return torch.where(flags, 255, 0) if flags.dtype is torch.bool else None
