"""Healthy kernels of another make: as right as those that they stand for, with other bits. No fault at all.

Whoever finds faults must leave these alone. Sums have another order, 16 bits are rounded once, functions follow another
formula, and where PyTorch leaves a choice, another one is made.
"""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ditorch.sim.faults import other_algorithms, other_choices
from ditorch.sim.faults.call import KernelCall
from ditorch.sim.faults.work import Results, Work

Make = Callable[[Work], Optional[Results]]  # None: this call is left to the kernel itself

_PARTS = 3


def remake(call: KernelCall) -> Any:
    """Runs the call as another maker's kernel would."""
    with call.undisturbed():
        work = Work(call)
        made = REMADE[call.op._schema.name.rstrip("_")](work) if work.is_plain else None
        return call.run() if made is None else work.handed_over(made)


# ---- ways to compute the same otherwise ----------------------------------------------------------------------------


def _rounded_once(work: Work) -> Results:
    """Everything in float64, rounded in the end: what fused multiply-add and wide registers come to."""
    return work.run(work.converted(_DOUBLE))


def _multiplied_and_added(work: Work) -> Results | None:
    """A sum alone has one rounding anyway."""
    return None if work.given.get("alpha", 1) == 1 else _rounded_once(work)


def _distance_backward(work: Work) -> Results | None:
    """The largest difference of two points is known by being equal to their distance, which is rounded."""
    return None if work.given["p"] == float("inf") else _rounded_once(work)


def _optimizer(work: Work) -> Results:
    """The gradient scaler's numbers stay what they are."""
    given = work.converted(_DOUBLE)
    given.update((name, work.given[name]) for name in ("grad_scale", "found_inf") if name in given)
    return work.run(given)


def _in_parts(name: str, results: int | None = None, **only_once: Any) -> Make:
    """For a kernel that is linear in an argument: the sum of what it makes of parts of that.

    `results`: how many of them are linear. `only_once`: arguments that count for one part alone, and what stands for
    them in the others.
    """

    def make(work: Work) -> Results | None:
        given = work.converted(_WIDE)
        whole = given[name]
        if not isinstance(whole, Tensor) or not _are_finite(given):
            return None  # infinity times nothing is no number
        places = _scattered(whole.numel(), whole.device).reshape(whole.shape)
        total: Results = []
        for part in reversed(range(_PARTS)):
            changed = {**given, name: torch.where(torch.eq(places, part), whole, torch.zeros_like(whole))}
            if total:
                changed.update((key, _nothing(given[key], value)) for key, value in only_once.items())
            made = work.run(changed)[:results]
            total = [_sum(one, other) for one, other in zip(total, made)] if total else made
        return total

    return make


def _scattered(count: int, device: torch.device) -> Tensor:
    """To which part each of so many numbers belongs, without a pattern that rows could share."""
    return torch.arange(count, device=device).mul(40503).bitwise_right_shift(7).remainder(_PARTS)


def _nothing(given: Any, value: Any) -> Any:
    return torch.zeros_like(given) if value is torch.zeros_like else value


def _sum(one: Any, other: Any) -> Any:
    return one + other if isinstance(one, Tensor) else one


def _are_finite(given: dict[str, Any]) -> bool:
    return all(bool(leaf.isfinite().all()) for leaf in pytree.tree_leaves(given) if isinstance(leaf, Tensor))


def _by(formula: Callable[[Tensor, dict[str, Any]], Tensor]) -> Make:
    """Another formula, in float32 where the tensors have 16 bits."""

    def make(work: Work) -> Results | None:
        given = work.converted(_WIDE)
        return [formula(given["self"], given)] if given["self"].is_floating_point() else None

    return make


def _divided(work: Work) -> Results | None:
    """By a number: times its inverse, as many kernels do."""
    given = work.converted(_WIDE)
    self, other = given["self"], given["other"]
    number = float(other) if isinstance(other, (int, float)) else None
    if isinstance(other, Tensor) and other.dim() == 0 and other.is_cpu and other.is_floating_point():
        number = float(other)
    if not number or given.get("rounding_mode") or not self.is_floating_point() or not 1e-30 < abs(number) < 1e30:
        return None
    return [self * (1 / torch.tensor(number, dtype=self.dtype)).item()]


_DOUBLE = {
    **dict.fromkeys((torch.float16, torch.bfloat16, torch.float32), torch.float64),
    torch.complex64: torch.complex128,
}
_WIDE = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


# ---- the kernels ---------------------------------------------------------------------------------------------------


def _words(text: str, make: Make) -> dict[str, Make]:
    return {f"aten::{name}": make for name in text.split()}


REMADE: dict[str, Make] = {
    **_words(
        """mm bmm mv dot vdot sum mean nansum trace _grouped_mm avg_pool2d _adaptive_avg_pool2d
        upsample_bilinear2d upsample_bicubic2d upsample_linear1d upsample_nearest2d""",
        _in_parts("self"),
    ),
    "aten::addmm": _in_parts("mat1", beta=0),
    "aten::addmv": _in_parts("vec", beta=0),
    "aten::addr": _in_parts("vec1", beta=0),
    **_words("baddbmm addbmm", _in_parts("batch1", beta=0)),
    "aten::convolution": _in_parts("weight", bias=None),
    **_words(
        """convolution_backward avg_pool2d_backward _adaptive_avg_pool2d_backward embedding_dense_backward
        upsample_bilinear2d_backward upsample_bicubic2d_backward upsample_linear1d_backward upsample_nearest2d_backward
        _softmax_backward_data _log_softmax_backward_data max_pool2d_with_indices_backward""",
        _in_parts("grad_output"),
    ),
    **_words("native_layer_norm_backward native_group_norm_backward native_batch_norm_backward", _in_parts("grad_out")),
    "aten::_scaled_dot_product_fused_attention_overrideable_backward": _in_parts("grad_out"),
    **_words("index_add", _in_parts("source", self=torch.zeros_like)),
    **_words("scatter_add", _in_parts("src", self=torch.zeros_like)),
    "aten::nll_loss_forward": _in_parts("self", results=1),
    "aten::nll_loss2d_forward": _in_parts("self", results=1),
    **_words(
        """addcmul addcdiv lerp pow reciprocal exp2 expm1 log1p log2 log10 sin cos tan asin acos atan
        sinh cosh asinh acosh atanh erf erfc erfinv lgamma digamma atan2 hypot logaddexp logaddexp2 xlogy logit sinc
        gelu_backward silu_backward mish mish_backward softplus_backward elu elu_backward hardswish hardswish_backward
        hardsigmoid tanh_backward sigmoid_backward log_sigmoid_forward log_sigmoid_backward glu glu_backward
        prod norm linalg_vector_norm renorm std_mean var_mean
        mse_loss mse_loss_backward smooth_l1_loss smooth_l1_loss_backward huber_loss huber_loss_backward
        binary_cross_entropy binary_cross_entropy_backward nll_loss_backward
        native_group_norm _thnn_fused_lstm_cell _thnn_fused_lstm_cell_backward_impl _thnn_fused_gru_cell
        _embedding_bag_dense_backward grid_sampler_2d grid_sampler_2d_backward _euclidean_dist _cdist_forward
        _ctc_loss _ctc_loss_backward _fft_r2c _fft_c2r _fft_c2c
        linalg_cholesky_ex linalg_lu_factor_ex linalg_lu_solve linalg_solve_triangular linalg_inv_ex _linalg_solve_ex
        _linalg_det _linalg_slogdet cholesky_solve cholesky_inverse linalg_lstsq linalg_matrix_exp
        _foreach_addcmul _foreach_addcdiv _foreach_lerp _foreach_pow _foreach_norm _foreach_exp _foreach_log
        _foreach_tanh _foreach_sigmoid _foreach_reciprocal""",
        _rounded_once,
    ),
    **_words("add sub rsub _foreach_add _foreach_sub", _multiplied_and_added),
    **_words("_fused_adam _fused_adamw _fused_sgd _fused_adagrad", _optimizer),
    "aten::_cdist_backward": _distance_backward,
    "aten::div": _divided,
    **{f"aten::{name}": _by(formula) for name, formula in other_algorithms.FORMULAS.items()},
    **{f"aten::{name}": make for name, make in other_algorithms.ALGORITHMS.items()},
    **{f"aten::{name}": make for name, make in other_choices.CHOICES.items()},
}
