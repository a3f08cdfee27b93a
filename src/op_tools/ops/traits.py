"""What is known of ops, as data: which are random, which only move data, which sum up, which jump, which may choose.

OpAutoCompare compares by it. An op that is not listed is taken for one that sums up, the most lenient of the ordinary
ones, and whose random numbers nobody should notice.
"""

from __future__ import annotations

import enum
import functools
import re


class Trait(enum.Flag):
    """What an op is like. Most have one trait, some several."""

    __hash__ = object.__hash__  # asked for at every call, and the enum's own is written in Python

    VIEW = enum.auto()  # may hand out its input's memory
    EXACT = enum.auto()  # no rounding: moved data, whole numbers, truth values, one of its inputs
    POINTWISE = enum.auto()  # a few roundings for each element
    SUMS = enum.auto()  # adds up many terms, in an order of the device's own
    MATRIX = enum.auto()  # sums on matrix units, which may take fewer bits (tf32, reduced-precision reduction)
    CONVOLUTION = enum.auto()  # the same, in the library for convolutions and recurrent layers
    STEPS = enum.auto()  # works from one time step to the next
    NORM = enum.auto()  # rounded once in the end, with no constant of low precision: a factor shows below one unit
    ROUGH = enum.auto()  # sums of its gradients may be kept in 16 bits
    LOGITS = enum.auto()  # has a softmax inside: where that is certain, large numbers cancel out
    FINE = enum.auto()  # 16 bits are computed in float32 and rounded: small elements are as right as large ones
    RANDOM = enum.auto()
    DROPOUT = enum.auto()  # random unless it is told not to be; the mask can be seen in the result
    EMPTY = enum.auto()  # its result is whatever the memory holds
    ORDER = enum.auto()  # positions of elements: among equals, any is right
    JUMPS = enum.auto()  # not continuous: a rounding error decides between results far apart
    CHOICE = enum.auto()  # several results are right: signs of vectors, order of eigenvalues


ON_MATRIX_UNITS = Trait.MATRIX | Trait.CONVOLUTION

_CATALOGUE = {
    Trait.VIEW: """H T adjoint alias as_strided atleast_1d atleast_2d atleast_3d broadcast_tensors broadcast_to chunk
        conj contiguous cpu cuda detach diagonal dsplit expand expand_as flatten hsplit imag linalg.diagonal mH mT
        meshgrid moveaxis movedim narrow permute positive ravel real requires_grad reshape reshape_as resolve_conj
        resolve_neg select slice split split_with_sizes squeeze swapaxes swapdims t tensor_split to transpose type_as
        unbind unflatten unfold unsafe_chunk unsafe_split unsqueeze view view_as view_as_complex view_as_real vsplit
        __getitem__""",
    Trait.EXACT: """H T abs absolute adjoint alias alias_copy all any argwhere as_strided as_strided_copy
        as_strided_scatter as_tensor atleast_1d atleast_2d atleast_3d bfloat16 bincount bitwise_and bitwise_left_shift
        bitwise_not bitwise_or bitwise_right_shift bitwise_xor block_diag bool broadcast_shapes broadcast_tensors
        broadcast_to bucketize byte cartesian_prod cat cdouble ceil cfloat chalf channel_shuffle char chunk _chunk_cat
        clamp clamp_max clamp_min clip clone column_stack combinations complex concat concatenate conj conj_physical
        constant_pad_nd contiguous copy copysign count_nonzero cpu cuda detach diag diag_embed diagflat diagonal
        diagonal_copy diagonal_scatter double dsplit dstack eq equal expand expand_as expand_copy eye fftshift
        fft.fftshift fft.ifftshift fill fill_diagonal flatten flip fliplr flipud float floor fmax fmin from_numpy full
        full_like gather gcd ge greater greater_equal gt half hardshrink hash_tensor heaviside hsplit hstack imag
        index_copy index_fill index_select int isfinite isin isinf isnan isneginf isposinf isreal item lcm le less
        less_equal linalg.diagonal logical_and logical_not logical_or logical_xor long lt mH mT masked_fill
        masked_scatter masked_select max_unpool1d max_unpool2d max_unpool3d maximum meshgrid minimum moveaxis movedim
        msort nan_to_num narrow narrow_copy ne neg negative new_full new_ones new_tensor new_zeros nextafter nonzero
        nonzero_static nn.init.constant nn.init.dirac nn.init.eye nn.init.ones nn.init.zeros not_equal numpy one_hot
        ones ones_like pad permute permute_copy pixel_shuffle pixel_unshuffle positive put ravel real relu relu6
        repeat repeat_interleave requires_grad reshape reshape_as resolve_conj resolve_neg roll rot90 scalar_tensor
        scatter searchsorted select select_scatter sgn short sign signbit slice slice_scatter split split_with_sizes
        split_with_sizes_copy squeeze squeeze_copy stack swapaxes swapdims t t_copy take take_along_dim tensor
        tensor_split threshold tile to tolist transpose transpose_copy tril tril_indices triu triu_indices trunc fix
        type_as unbind unbind_copy unflatten unfold unfold_copy unique unique_consecutive unravel_index unsafe_chunk
        unsafe_split _unsafe_index _unsafe_masked_index unsqueeze unsqueeze_copy view view_as view_as_complex
        view_as_real view_copy vsplit vstack where zero zeros zeros_like hardtanh frexp __getitem__ __setitem__
        __contains__ __bool__ __int__ __float__ __index__ __and__ __or__ __xor__ __invert__ __lshift__ __rshift__
        __rand__ __ror__ __rxor__""",
    Trait.POINTWISE: """acos acosh add addcdiv addcmul addr angle arange arccos arccosh arcsin arcsinh arctan arctan2
        arctanh asin asinh atan atan2 atanh binary_cross_entropy_backward celu cos cosh cross cumulative_trapezoid
        deg2rad diff digamma div divide elu erf erfc erfinv exp exp2 expm1 float_power floor_divide fmod frac gelu glu
        grid_sample grid_sampler_2d grid_sampler_3d gradient hardsigmoid hardswish hypot i0 igamma igammac interpolate
        isclose kron ldexp leaky_relu lerp lgamma linalg.cross linalg.vander linspace log log10 log1p log2 log_sigmoid
        logaddexp logaddexp2 logit logsigmoid logspace mish mul multiply mvlgamma outer ger polar polygamma pow prelu
        rad2deg reciprocal remainder round rsqrt rsub selu sigmoid silu sin sinc sinh softplus softshrink softsign sqrt
        square sub subtract tan tanh tanhshrink true_divide upsample upsample_bilinear upsample_nearest
        _upsample_bilinear2d_aa vander xlogy native_dropout_backward __radd__ __rdiv__ __rmod__ __rmul__ __rpow__
        __rsub__ __rtruediv__ __rfloordiv__ __truediv__ __floordiv__ __pow__ __mod__ __ipow__ norm_except_dim
        jiterator_2inputs_2outputs jiterator_4inputs_with_extra_args jiterator_binary jiterator_binary_return_by_ref
        jiterator_unary rrelu""",
    Trait.SUMS: """_batch_norm_with_update _native_batch_norm_legit _segment_reduce _softmax_backward_data
        _unsafe_masked_index_put_accumulate adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d allclose
        avg_pool1d avg_pool2d avg_pool3d batch_norm bilinear binary_cross_entropy binary_cross_entropy_with_logits cdist
        cholesky cholesky_inverse cholesky_solve corrcoef cosine_embedding_loss cosine_similarity cov cross_entropy
        ctc_loss cumprod cumsum dist embedding embedding_bag embedding_renorm gaussian_nll_loss geqrf group_norm
        hinge_embedding_loss histc histogram histogramdd huber_loss index_add index_put index_reduce instance_norm istft
        kl_div l1_loss layer_norm linalg.cholesky linalg.cholesky_ex linalg.cond linalg.det linalg.eigvalsh
        linalg.householder_product linalg.inv linalg.inv_ex linalg.ldl_factor linalg.ldl_factor_ex linalg.ldl_solve
        linalg.lstsq linalg.lu linalg.lu_factor linalg.lu_factor_ex linalg.lu_solve linalg.matrix_norm
        linalg.matrix_power linalg.matrix_rank linalg.norm linalg.pinv linalg.slogdet linalg.solve linalg.solve_ex
        linalg.solve_triangular linalg.svdvals linalg.tensorinv linalg.tensorsolve linalg.vector_norm
        linear_cross_entropy local_response_norm log_softmax logcumsumexp logdet logsumexp lu lu_solve lu_unpack
        margin_ranking_loss matrix_exp mean mse_loss multi_margin_loss multilabel_margin_loss
        multilabel_soft_margin_loss nanmean nanquantile nansum native_batch_norm native_group_norm native_layer_norm
        nll_loss norm normalize nuclear_norm ormqr pairwise_distance pdist pinverse poisson_nll_loss prod quantile
        renorm rms_norm scatter_add scatter_reduce smooth_l1_loss soft_margin_loss softmax softmin std std_mean stft sum
        sum_to_size trace trapezoid trapz triangular_solve triplet_margin_loss triplet_margin_with_distance_loss var
        var_mean _safe_softmax _amp_foreach_non_finite_check_and_unscale _fused_adam _fused_adamw _fused_sgd
        clip_grad_norm masked.normalize fold""",
    Trait.MATRIX: """addbmm addmm addmv baddbmm bmm chain_matmul cdist einsum inner dot vdot linalg.multi_dot
        linalg.vecdot linear linear_cross_entropy matmul mm mv multi_head_attention_forward scaled_dot_product_attention
        tensordot
        bilinear sparse.mm sparse.sampled_addmm _scaled_mm _scaled_mm_v2 _flash_attention_forward
        _efficient_attention_forward _scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention
        _scaled_dot_product_attention_math _native_multi_head_attention __matmul__ __rmatmul__ linalg.matmul
        _addmm_activation _grouped_mm _fused_sdp_choice lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell
        rnn_relu_cell linalg.matrix_power linalg.householder_product""",
    Trait.CONVOLUTION: """conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d convolution
        _convolution cudnn_convolution lstm gru rnn_tanh rnn_relu""",
    Trait.STEPS: "lstm gru rnn_tanh rnn_relu",
    Trait.NORM: """batch_norm group_norm instance_norm layer_norm native_batch_norm native_group_norm native_layer_norm
        rms_norm softmax log_softmax""",
    Trait.ROUGH: "batch_norm native_batch_norm instance_norm",
    Trait.LOGITS: """binary_cross_entropy_with_logits cross_entropy linear_cross_entropy log_softmax logaddexp
        logaddexp2 logcumsumexp logsumexp multi_head_attention_forward multilabel_soft_margin_loss
        scaled_dot_product_attention soft_margin_loss _efficient_attention_forward _flash_attention_forward
        _native_multi_head_attention _scaled_dot_product_attention_math _scaled_dot_product_efficient_attention
        _scaled_dot_product_flash_attention""",
    Trait.FINE: """celu cos div divide elu erf exp exp2 expm1 gelu hardswish leaky_relu log log1p log2 log10 mish mul
        multiply pow reciprocal rsqrt selu silu sin softplus sqrt square true_divide""",
    Trait.RANDOM: """alpha_dropout bernoulli cauchy dropout dropout1d dropout2d dropout3d exponential
        feature_alpha_dropout feature_dropout fractional_max_pool2d fractional_max_pool3d geometric gumbel_softmax
        log_normal multinomial native_dropout normal pca_lowrank poisson binomial rand rand_like randint randint_like
        randn randn_like random randperm rrelu rrelu_with_noise svd_lowrank uniform nn.init.kaiming_normal
        nn.init.kaiming_uniform nn.init.normal nn.init.orthogonal nn.init.sparse nn.init.trunc_normal nn.init.uniform
        nn.init.xavier_normal nn.init.xavier_uniform""",
    Trait.DROPOUT: "dropout dropout1d dropout2d dropout3d feature_dropout native_dropout",
    Trait.EMPTY: "empty empty_like empty_permuted empty_strided new_empty new_empty_strided resize resize_as",
    Trait.ORDER: """adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d argmax argmin argsort amax amin aminmax
        cummax cummin kthvalue max max_pool1d max_pool2d max_pool2d_with_indices_backward max_pool3d median min mode
        nanmedian sort topk max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices masked.median
        adaptive_max_pool1d_with_indices adaptive_max_pool2d_with_indices adaptive_max_pool3d_with_indices""",
    Trait.JUMPS: """all any allclose bucketize ceil eq equal floor floor_divide fmod frac ge grid_sample
        grid_sampler_2d grid_sampler_3d gt heaviside histc histogram histogramdd hardshrink interpolate isclose le
        linalg.lstsq linalg.matrix_rank linalg.pinv lt ne nanquantile pinverse quantile remainder round searchsorted
        sign trunc upsample upsample_nearest __floordiv__ __mod__ __rmod__ __rfloordiv__ igamma special.zeta ctc_loss
        multilabel_margin_loss multi_margin_loss""",
    Trait.CHOICE: """linalg.eig linalg.eigh linalg.eigvals linalg.qr linalg.svd qr svd symeig eig geqrf
        linalg.ldl_factor linalg.ldl_factor_ex linalg.lu linalg.lu_factor linalg.lu_factor_ex lu ormqr""",
}

# Whole families, by how the name begins.
_FAMILIES = (
    (re.compile(r"special\..*"), Trait.POINTWISE),
    (re.compile(r"signal\.windows\..*|(bartlett|blackman|hamming|hann|kaiser)_window"), Trait.POINTWISE),
    (re.compile(r"fft\..*"), Trait.SUMS),
    (re.compile(r".*_backward(_data)?"), Trait.SUMS),
    (re.compile(r"to_(sparse|dense|mkldnn|padded_tensor).*|_to_(copy|dense)|from_.*"), Trait.EXACT),
    (re.compile(r"_upsample_.*|upsample_.*"), Trait.POINTWISE),
)
_PREFIXES = ("torch.Tensor.", "torch.nn.functional.", "torch.functional.", "torch._C._nn.", "torch._VF.", "torch.")
_OPERATORS = re.compile(r"__i(?!nvert|nt|ndex)(\w+)__")


@functools.lru_cache(maxsize=10_000)
def base_name(name: str) -> str:
    """A name without its home, its overload and what says that it works in place: `add` of `torch.Tensor.add_`."""
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            name = name[len(prefix) :]
            break
    if name.startswith(("ops.aten.", "aten.")):
        name = name.partition("aten.")[2].partition(".")[0]
    if name.startswith("nn.functional."):
        name = name[len("nn.functional.") :]
    operator = _OPERATORS.fullmatch(name)
    if operator:
        name = operator[1]
    if name.startswith("_foreach_"):
        name = name[len("_foreach_") :]
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


@functools.lru_cache(maxsize=100_000)
def has(name: str, trait: Trait) -> bool:
    """True where the op with this full name has this trait, or one of several. An op that nobody has described sums up.

    Asked for at every call: looking it up is quicker than asking a flag.
    """
    return bool((of(name) or Trait.SUMS) & trait)


@functools.lru_cache(maxsize=10_000)
def of(name: str) -> Trait | None:
    """The traits of the op with this full name; None for an op that nobody has described."""
    base = base_name(name)
    found = _BY_NAME.get(base)
    if found is not None:
        return found
    home, _, last = base.rpartition(".")
    if home in ("linalg", "masked", "special") and last in _BY_NAME:
        return _BY_NAME[last]
    for pattern, trait in _FAMILIES:
        if pattern.fullmatch(base):
            return trait
    return None


def _by_name() -> dict[str, Trait]:
    found: dict[str, Trait] = {}
    for trait, names in _CATALOGUE.items():
        for name in names.split():
            found[name] = found[name] | trait if name in found else trait
    return found


_BY_NAME = _by_name()
