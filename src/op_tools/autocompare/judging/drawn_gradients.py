"""Gradients of random ops, which follow from what was drawn: that can be seen in the result."""

from __future__ import annotations

from typing import Callable

import torch
from torch import Tensor

from op_tools.autocompare.judging import verdict
from op_tools.autocompare.judging.limits import Tolerances, precision_of
from op_tools.autocompare.judging.verdict import Row, error_info
from op_tools.autocompare.observed import ObservedCall
from op_tools.core.gradients import Gradients
from op_tools.ops.distributions import argument
from op_tools.ops.names import normalized
from op_tools.values import trees

# what each number may be off by, as a share of itself, and all of them together
_ROUNDINGS = 4.0  # units in the last place of what was drawn
_OF_GAMMA = 2.0**-9  # PyTorch's kernels approximate that one, in pieces that do not fit together exactly

# from what was drawn, and the gradient that arrived: the gradient, and the size of what it is added up of
Compute = Callable[[ObservedCall, Tensor, Tensor], "tuple[Tensor, Tensor] | None"]


def rows(call: ObservedCall, gradients: Gradients, tolerances: Tolerances) -> list[Row]:
    """None where the gradient cannot be told from the result."""
    base, result = normalized(call.name).base, next(trees.tensors(call.result), None)
    arrived = next((one for one in gradients.outputs if one is not None), None)
    names, made = call.given.gradient_names(call.name), []
    for name, got in zip(names, gradients.inputs):
        if got is None or result is None or arrived is None:
            continue
        tolerance, got = tolerances.of(call.name, got), got.detach()
        if base in _NOTHING:
            made.append(Row(name, verdict.judge_exact(got, torch.zeros_like(got)), *tolerance))
            continue
        compute = _FROM_DRAWS.get(base)
        computed = None if compute is None else compute(call, result.detach().double(), arrived.detach().double())
        if computed is None or computed[0].shape != got.shape:
            continue
        expected, size = computed
        share = _OF_GAMMA if base == "_standard_gamma" else _ROUNDINGS * float(torch.finfo(got.dtype).eps)
        precision, same = precision_of(got.dtype), expected.to(got.dtype)
        allowed = share * precision.limits.bulk * size
        judged = verdict.judge(got, expected, same, precision, tolerance, allowed, factor=share)
        made.append(Row(name, judged, *tolerance, error_info(got.dtype, expected.dtype)))
    return made


def _of_gamma(call: ObservedCall, drawn: Tensor, arrived: Tensor) -> tuple[Tensor, Tensor]:
    shapes = call.given.tensors[0].detach().double()
    gradient = arrived * torch._standard_gamma_grad(shapes, drawn)
    return gradient, gradient.abs()


def _of_rrelu(call: ObservedCall, drawn: Tensor, arrived: Tensor) -> tuple[Tensor, Tensor] | None:
    given = call.given.tensors[0].detach().double()
    if call.changed or bool((given == 0).any()):
        return None  # what was drawn there cannot be seen
    gradient = torch.where(given > 0, arrived, arrived * drawn / given)
    return gradient, gradient.abs()


def _of_gumbel_softmax(call: ObservedCall, drawn: Tensor, arrived: Tensor) -> tuple[Tensor, Tensor] | None:
    args, kwargs = call.given.args, call.given.kwargs
    if argument(args, kwargs, 2, "hard", False):
        return None  # the shares that were drawn cannot be seen
    temperature, dimension = float(argument(args, kwargs, 1, "tau", 1.0)), int(argument(args, kwargs, 4, "dim", -1))
    terms = drawn * arrived
    gradient = drawn * (arrived - terms.sum(dimension, keepdim=True)) / temperature
    return gradient, drawn * (arrived.abs() + terms.abs().sum(dimension, keepdim=True)) / temperature


# what they draw does not depend on their arguments smoothly, or not in PyTorch
_NOTHING = ("bernoulli", "cauchy", "exponential", "geometric", "log_normal", "normal", "poisson", "random", "uniform")
_FROM_DRAWS: dict[str, Compute] = {
    "_standard_gamma": _of_gamma,
    "gumbel_softmax": _of_gumbel_softmax,
    "rrelu": _of_rrelu,
}
