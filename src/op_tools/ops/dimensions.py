"""Along which dimensions of its first tensor an op works: what it does at one index of the others has nothing to do
with other indices. The names are OpName.base.
"""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _by_name(entries: dict[int, str]) -> dict[str, int]:
    return {name: count for count, names in entries.items() for name in names.split()}


# Along so many of the last ones.
ALONG_LAST = _by_name({
    1: "adaptive_avg_pool1d adaptive_max_pool1d avg_pool1d lp_pool1d max_pool1d max_unpool1d",
    2: """adaptive_avg_pool2d adaptive_max_pool2d avg_pool2d cholesky cholesky_inverse cholesky_solve conv_transpose1d
        det fold inverse linalg.cholesky linalg.cholesky_ex linalg.det linalg.eigh linalg.eigvalsh linalg.inv
        linalg.inv_ex linalg.matrix_exp linalg.pinv linalg.qr linalg.slogdet linalg.solve linalg.solve_triangular
        linalg.svd linalg.svdvals logdet lp_pool2d matrix_exp max_pool2d max_unpool2d qr slogdet svd
        triangular_solve tril triu""",
    3: """adaptive_avg_pool3d adaptive_max_pool3d avg_pool3d conv_transpose2d lp_pool3d max_pool3d max_unpool3d
        pixel_shuffle pixel_unshuffle unfold""",
    4: "conv_transpose3d",
})  # fmt: skip

# Along all but so many of the first ones.
ALONG_ALL_BUT_FIRST = _by_name({
    1: "channel_shuffle grid_sample group_norm local_response_norm",
    2: "instance_norm interpolate upsample upsample_bilinear upsample_nearest",
})  # fmt: skip

# Along those that an argument says: its place, its name, what is usual.
_ALONG: dict[tuple[int, str, int | None], str] = {
    (1, "dim", None): """all amax amin aminmax any argmax argmin count_nonzero cummax cummin cumprod cumsum gather
        index_add index_copy index_fill index_reduce index_select logcumsumexp logsumexp max min nanmean nansum prod
        scatter scatter_add scatter_reduce softmin std std_mean var var_mean""",
    (1, "dim", -1): "argsort glu median mode nanmedian sort",
    (1, "dim", 0): "cat concat concatenate",
    (1, "dims", None): "flip",
    (2, "dim", None): "linalg.norm linalg.vector_norm norm repeat_interleave take_along_dim",
    (2, "dim", -1): "diff fft.fft fft.hfft fft.ifft fft.ihfft fft.irfft fft.rfft kthvalue topk",
    (2, "dim", 1): "cosine_similarity normalize",
    (2, "dims", None): "roll rot90",
}
ALONG_ARGUMENT = {name: where for where, names in _ALONG.items() for name in names.split()}

# Along none of the first tensor; the bounds are the same for all.
WITH_BOUNDS = _words("bucketize")
# Along none, but the result has a new one where an argument says.
ALONG_NEW = _words("stack")
# Along all but the channels, the second one; what has one dimension belongs to the channels.
ALONG_ALL_BUT_CHANNELS = _words("batch_norm")
# Along none at all, as those do that have Trait.ELEMENTWISE: exact ones, copies, optimizers' fused ops.
ALONG_NONE = _words("""
    abs bitwise_and bitwise_not bitwise_or bitwise_xor ceil clamp clamp_max clamp_min clone contiguous copysign eq floor
    ge gt hardtanh isfinite isinf isnan le logical_and logical_not logical_or logical_xor lt masked_fill maximum minimum
    ne neg relu relu6 sgn sign signbit threshold trunc where
    to type type_as float double half bfloat16 int long bool cuda
    arctan2 clip copy deg2rad digamma erfinv fix float_power floor_divide fmax fmin fmod frac gcd hardshrink hardsigmoid
    heaviside i0 isclose isneginf isposinf lcm ldexp lgamma log_sigmoid logaddexp2 logit nan_to_num negative nextafter
    rad2deg remainder round sinc softshrink tanhshrink xlogy __floordiv__ __mod__
    bitwise_left_shift bitwise_right_shift __lshift__ __rshift__ __and__ __or__ __xor__
    __invert__ __rfloordiv__ __rmod__
    greater greater_equal less less_equal not_equal
    fill full_like ones_like zero zeros_like _fused_adam _fused_adamw _fused_sgd
""")
# Losses that do so, too, unless they add up.
LOSSES_ALONG_NONE = _words("""
    binary_cross_entropy binary_cross_entropy_with_logits huber_loss kl_div l1_loss mse_loss poisson_nll_loss
    smooth_l1_loss soft_margin_loss
""")
