"""What is known about an op before its tensors are looked at, and how much of rounding its results may gather."""

from __future__ import annotations

import math
from functools import lru_cache

from op_tools.compare_runs.calls import Seen
from op_tools.ops import catalogue
from op_tools.ops.catalogue import Trait

_MANY_ROWS = 16  # whose sum is a gradient: of a bias, a norm's weight; what their differences have in common adds up
_NO_FUNCTION = Trait.RANDOM | Trait.DROPOUT | Trait.EMPTY | Trait.BRINGS_DATA  # of its arguments
_CONVOLVED = ("[0]", "input")  # not the weight, nor the bias
_ROUGH_FACTOR = 2.0  # recurrent layers gather rounding from step to step, Winograd's convolutions inside
_DIVIDE = {"addcdiv_", "_foreach_addcdiv_"}  # of an optimizer: a gradient that is all rounding, by its size
_POWERS = {"pow", "pow_", "square", "square_"}  # of tensors: a power has so many times their relative distance
_EXPONENT = 2.0
_JUMPS = Trait.JUMPS | Trait.ORDER | Trait.CHOICE
_SUMS = {
    "add", "sub", "__add__", "__sub__", "__radd__", "__rsub__", "__iadd__", "__isub__", "add_", "sub_", "sum", "mean",
    "addmm",
    "_foreach_add_", "_foreach_sub_", "_foreach_lerp_", "_foreach_addcdiv_", "_foreach_add", "_foreach_sub",
}  # fmt: skip


class Nature:
    """What is known about an op, asked for at each of its calls."""

    def __init__(self, op: str) -> None:
        last, traits = op.rpartition(".")[2], catalogue.of(op) or Trait(0)
        self.is_no_function = catalogue.has(op, _NO_FUNCTION)
        self.is_random = catalogue.has(op, Trait.RANDOM | Trait.DROPOUT)
        self.jumps = catalogue.has(op, _JUMPS)
        self.bends_always, self.bends_backward = last in _DIVIDE, catalogue.has(op, Trait.BENDS)
        self.is_convolution = catalogue.has(op, Trait.CONVOLUTION)
        self.is_rough = self.is_convolution or catalogue.has(op, Trait.STEPS)
        self.is_sum = last in _SUMS
        self.is_power = last in _POWERS
        self.orders = catalogue.has(op, Trait.ORDER)
        self.is_view = catalogue.has(op, Trait.ALWAYS_VIEW)
        self.is_product = bool(traits & Trait.ADDS and traits & catalogue.ON_MATRIX_UNITS)
        # what tf32 may narrow; cuDNN's recurrent nets, too
        self.in_tf32 = {"matmul"} if traits & Trait.MATRIX else set()
        self.in_tf32 |= {"convolution"} if traits & (Trait.CONVOLUTION | Trait.STEPS) else set()


nature_of = lru_cache(10_000)(Nature)


def roughness(nature: Nature, result: Seen, flowing: tuple[Seen, ...]) -> float:
    """How much more than one rounding a result gathers. `flowing`: the gradients that came in, in backward."""
    if nature.is_convolution and flowing and result.kind.place not in _CONVOLVED:
        return _ROUGH_FACTOR * _ROUGH_FACTOR  # rough, and a sum over the batch and all positions
    if nature.is_rough or any(result.kind.numel * _MANY_ROWS <= one.kind.numel for one in flowing):
        return _ROUGH_FACTOR
    return _EXPONENT if nature.is_power else 1.0


def _added_up(a: Seen, b: Seen, result: Seen) -> float:
    """How large a product of the two is whose terms do not cancel each other out."""
    terms = math.sqrt(a.kind.numel * b.kind.numel / result.kind.numel)  # that each element is the sum of
    return a.norm * b.norm / math.sqrt(max(terms, 1.0))


def cancelled(
    nature: Nature, output: Seen, is_backward: bool, inputs: dict[str, Seen], flowing: tuple[Seen, ...]
) -> float:
    """How much larger what it was made from is than the result."""
    norm = 0.0
    if is_backward:
        own = output.kind.name.replace("grad_inputs", "input")
        given = {name: seen for name, seen in inputs.items() if seen.kind.part == "input" and seen.kind.is_float}
        others = [seen for name, seen in given.items() if name != own]
        sizes = [seen.norm / math.sqrt(seen.kind.numel) for seen in others]
        factor = min(1.0, max(sizes, default=1.0))  # a product's own factor
        norm = max((seen.norm for seen in flowing), default=0.0) * factor
        if nature.is_product:
            norm = max([norm, *(_added_up(gradient, seen, output) for gradient in flowing for seen in others)])
    elif nature.is_sum:
        norm = max((seen.norm for seen in inputs.values() if seen.kind.is_float), default=0.0)
    ratio = norm / max(output.norm, 1e-300)
    return max(ratio, 1.0) if ratio < math.inf else 1.0
