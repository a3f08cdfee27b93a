"""The catalogue of ops: what an op is like, by its name, one entry per fact.

To add a fact about an op, put its name into the right entry; for a new kind of fact, add a Trait and an entry. Facts
of more than yes or no have tables of their own: dimensions.py, distributions.py, silent_writes.py. An op that no entry
of _OF_OPS holds is taken for one that sums up: the most lenient of the ordinary ones.
"""

from __future__ import annotations

import enum
import re
from functools import lru_cache

from op_tools.ops.aliases import ALIASES
from op_tools.ops.names import normalized


class Trait(enum.Flag):
    """What an op is like. Most have a few traits."""

    __hash__ = object.__hash__  # asked for at every call, and the enum's own is written in Python

    # how exact it is
    EXACT = enum.auto()  # no rounding: moved data, whole numbers, truth values, one of its inputs
    POINTWISE = enum.auto()  # a few roundings for each element
    ELEMENTWISE = enum.auto()  # the same, and an element of the result depends on no other elements of its inputs
    SUMS = enum.auto()  # adds up many terms, in an order of the device's own
    MATRIX = enum.auto()  # sums on matrix units, which may take fewer bits (tf32, reduced-precision reduction)
    CONVOLUTION = enum.auto()  # the same, in the library for convolutions and recurrent layers
    MULTIPLIES = enum.auto()  # no product by itself, but made of some, or its gradient is
    ADDS = enum.auto()  # sums of products of its inputs: of absolute values, it gives the size of what was added up
    SCATTERS = enum.auto()  # adds up what meets in one place, or its gradient does: perhaps in its own dtype
    STEPS = enum.auto()  # works from one time step, or one reflection, to the next
    SCANS = enum.auto()  # each result is one before with one more number: partial ones may be rounded to its own dtype
    POWERS = enum.auto()  # products of products: errors grow with their number
    NORM = enum.auto()  # rounded once in the end, with no constant of low precision: a factor shows below one unit
    ROUGH = enum.auto()  # its statistics, and sums of its gradients, may be kept in 16 bits
    LOGITS = enum.auto()  # has a softmax inside: where that is certain, large numbers cancel out
    SHARES = enum.auto()  # divides by a sum in the end: along its dimension the result adds up to one
    FINE = enum.auto()  # 16 bits are computed in float32 and rounded: small elements are as right as large ones
    RELATIVE = enum.auto()  # each element of its result is as exact as its own size asks for, however small it is
    RANDOM = enum.auto()
    DROPOUT = enum.auto()  # random unless it is told not to be; the mask can be seen in the result
    EMPTY = enum.auto()  # its result is whatever the memory holds
    ORDER = enum.auto()  # positions of elements: among equals, any is right
    JUMPS = enum.auto()  # not continuous: a rounding error decides between results far apart
    DECIDES = enum.auto()  # jumps, and nothing is computed before: equal inputs have one right result
    DIVIDES = enum.auto()  # jumps after a division
    BENDS = enum.auto()  # its gradient jumps, and nothing is computed before: it has one right value at the bend, too
    CHOICE = enum.auto()  # several results are right: signs of vectors, order of eigenvalues
    # what it does with memory
    VIEW = enum.auto()  # may return its input's memory
    ALWAYS_VIEW = enum.auto()  # always does
    PERHAPS_VIEW = enum.auto()  # does so if it can, else it copies
    CONVERTS = enum.auto()  # the same, or the numbers in another dtype
    RESHAPES = enum.auto()  # neither it nor its gradient computes anything
    MOVES_DATA = enum.auto()  # puts numbers into other places and computes none; its gradient may be a sum
    FILLS = enum.auto()  # its numbers come from elsewhere: of a tensor it wants the shape, the dtype and the device
    OVERWRITES = enum.auto()  # what is in its first argument does not matter
    CONSTRUCTS = enum.auto()  # makes a tensor, without one among its arguments
    BRINGS_DATA = enum.auto()  # from outside of torch
    READS_BACK = enum.auto()  # the host waits for the device there anyway
    NO_ARITHMETIC = enum.auto()  # changes what a tensor is like, moves it to another device, takes memory, or asks
    WRITES_AT_TIMES = enum.auto()  # changes an argument in some calls: running statistics, renormed weights
    FLOAT32_NUMBERS = enum.auto()  # takes tensors of one number, a scale or a flag, which are float32 whatever the rest
    SECOND_RESULT_ON_CPU = enum.auto()  # wherever its arguments are
    # what torch.autocast runs it in
    AUTOCAST_LOW = enum.auto()
    AUTOCAST_FLOAT32 = enum.auto()


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


ON_MATRIX_UNITS = Trait.MATRIX | Trait.CONVOLUTION
WITH_PRODUCTS = ON_MATRIX_UNITS | Trait.MULTIPLIES
MAY_BE_VIEW = Trait.ALWAYS_VIEW | Trait.PERHAPS_VIEW | Trait.CONVERTS

# Who has the first trait has the others, too.
_IMPLIED = {
    Trait.ALWAYS_VIEW: Trait.VIEW | Trait.EXACT,
    Trait.PERHAPS_VIEW: Trait.VIEW | Trait.EXACT,
    Trait.VIEW: Trait.EXACT,
    Trait.MOVES_DATA: Trait.EXACT,
    Trait.STEPS: Trait.MATRIX,
    Trait.NORM: Trait.SUMS,
    Trait.ROUGH: Trait.NORM | Trait.SUMS,
    Trait.ELEMENTWISE: Trait.POINTWISE,
    Trait.FINE: Trait.ELEMENTWISE | Trait.POINTWISE,
    Trait.RELATIVE: Trait.ELEMENTWISE | Trait.POINTWISE,
    Trait.DROPOUT: Trait.RANDOM,
}

# Of an op in all its forms: in place, operator, foreach, overload. The names are OpName.base.
_OF_OPS = {
    Trait.VIEW: "H T cpu cuda linalg.diagonal requires_grad",
    Trait.EXACT: """_chunk_cat _unsafe_index _unsafe_masked_index abs absolute all any as_tensor bfloat16 bincount
        bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor bool broadcast_shapes
        bucketize byte cdouble ceil cfloat chalf char clamp clamp_max clamp_min clip complex conj_physical copysign
        count_nonzero double eq equal eye fft.fftshift fft.ifftshift fill fill_diagonal fix float floor fmax fmin frexp
        from_numpy full full_like gcd ge greater greater_equal gt half hardshrink hardtanh hash_tensor heaviside int
        isfinite isin isinf isnan isneginf isposinf isreal lcm le less less_equal logical_and logical_not logical_or
        logical_xor long lt max_unpool1d max_unpool2d max_unpool3d maximum minimum msort nan_to_num ne neg negative
        new_full new_ones new_tensor new_zeros nextafter nn.init.constant nn.init.dirac nn.init.eye nn.init.ones
        nn.init.zeros not_equal numpy one_hot ones ones_like put relu relu6 scalar_tensor scatter searchsorted sgn short
        sign signbit tensor threshold tril_indices triu_indices trunc unique unique_consecutive unravel_index zero zeros
        zeros_like __and__ __bool__ __contains__ __float__ __index__ __int__ __invert__ __lshift__ __or__ __rand__
        __ror__ __rshift__ __rxor__ __xor__""",
    Trait.POINTWISE: """_upsample_bilinear2d_aa acos acosh add addcdiv addcmul addr angle arange arccos arccosh arcsin
        arcsinh arctan arctan2 arctanh asin asinh atan atan2 atanh binary_cross_entropy_backward cosh cross
        cumulative_trapezoid deg2rad diff digamma erfc erfinv float_power floor_divide fmod frac ger glu gradient
        grid_sample grid_sampler_2d grid_sampler_3d hardsigmoid hypot i0 igamma igammac interpolate isclose
        jiterator_2inputs_2outputs jiterator_4inputs_with_extra_args jiterator_binary jiterator_binary_return_by_ref
        jiterator_unary kron ldexp lerp lgamma linalg.cross linalg.vander linspace log_sigmoid logaddexp logaddexp2
        logit logsigmoid logspace mvlgamma native_dropout_backward norm_except_dim outer polar polygamma prelu rad2deg
        remainder round rrelu rsub sigmoid sinc sinh softshrink softsign sub subtract tan tanh tanhshrink upsample
        upsample_bilinear upsample_nearest vander xlogy __floordiv__ __ipow__ __mod__ __pow__ __radd__ __rdiv__
        __rfloordiv__ __rmod__ __rmul__ __rpow__ __rsub__ __rtruediv__ __truediv__""",
    Trait.ELEMENTWISE: """acos acosh add addcdiv addcmul asin asinh atan atan2 atanh cosh erfc hypot lerp logaddexp
        logsigmoid rsub sigmoid sinh softsign sub subtract tan tanh __pow__ __radd__ __rdiv__ __rmul__ __rpow__ __rsub__
        __rtruediv__ __truediv__""",
    Trait.SUMS: """_amp_foreach_non_finite_check_and_unscale _batch_norm_with_update _fused_adam _fused_adamw _fused_sgd
        _native_batch_norm_legit _safe_softmax _segment_reduce _softmax_backward_data
        _unsafe_masked_index_put_accumulate adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d allclose
        avg_pool1d avg_pool2d avg_pool3d bilinear binary_cross_entropy binary_cross_entropy_with_logits cdist cholesky
        cholesky_inverse cholesky_solve clip_grad_norm corrcoef cosine_embedding_loss cosine_similarity cov
        cross_entropy ctc_loss cumprod cumsum dist embedding embedding_bag embedding_renorm fold gaussian_nll_loss geqrf
        hinge_embedding_loss histc histogram histogramdd huber_loss index_add index_put index_reduce istft kl_div
        l1_loss linalg.cholesky linalg.cholesky_ex linalg.cond linalg.det linalg.eigvalsh linalg.householder_product
        linalg.inv linalg.inv_ex linalg.ldl_factor linalg.ldl_factor_ex linalg.ldl_solve linalg.lstsq linalg.lu
        linalg.lu_factor linalg.lu_factor_ex linalg.lu_solve linalg.matrix_norm linalg.matrix_power linalg.matrix_rank
        linalg.norm linalg.pinv linalg.slogdet linalg.solve linalg.solve_ex linalg.solve_triangular linalg.svdvals
        linalg.tensorinv linalg.tensorsolve linalg.vector_norm linear_cross_entropy local_response_norm logcumsumexp
        logdet logsumexp lu lu_solve lu_unpack margin_ranking_loss masked.normalize matrix_exp mean mse_loss
        multi_margin_loss multilabel_margin_loss multilabel_soft_margin_loss nanmean nanquantile nansum nll_loss norm
        normalize nuclear_norm ormqr pairwise_distance pdist pinverse poisson_nll_loss prod quantile renorm scatter_add
        scatter_reduce smooth_l1_loss soft_margin_loss softmin std std_mean stft sum sum_to_size trace trapezoid trapz
        triangular_solve triplet_margin_loss triplet_margin_with_distance_loss var var_mean""",
    Trait.MATRIX: """_addmm_activation _efficient_attention_forward _flash_attention_forward _fused_sdp_choice
        _grouped_mm _native_multi_head_attention _scaled_dot_product_attention_math _scaled_dot_product_cudnn_attention
        _scaled_dot_product_efficient_attention _scaled_dot_product_flash_attention
        _scaled_dot_product_fused_attention_overrideable _scaled_mm _scaled_mm_v2 addbmm addmm addmv
        baddbmm bilinear bmm cdist chain_matmul dot einsum grouped_mm gru_cell inner
        linalg.householder_product linalg.matmul linalg.matrix_power linalg.multi_dot linalg.vecdot linear
        linear_cross_entropy lstm_cell matmul mm multi_head_attention_forward mv rnn_relu_cell rnn_tanh_cell
        scaled_dot_product_attention sparse.mm sparse.sampled_addmm tensordot vdot __matmul__ __rmatmul__""",
    Trait.MULTIPLIES: """affine_grid affine_grid_generator cholesky cholesky_inverse cholesky_solve corrcoef cov
        det eig geqrf inverse linalg.cholesky linalg.cholesky_ex linalg.cond linalg.det linalg.eig linalg.eigh
        linalg.eigvals linalg.eigvalsh linalg.inv linalg.inv_ex linalg.ldl_factor linalg.ldl_factor_ex
        linalg.ldl_solve linalg.lstsq linalg.lu linalg.lu_factor linalg.lu_factor_ex linalg.lu_solve
        linalg.matrix_exp linalg.matrix_norm linalg.matrix_rank linalg.norm linalg.pinv linalg.qr linalg.slogdet
        linalg.solve linalg.solve_ex linalg.solve_triangular linalg.svd linalg.svdvals linalg.tensorinv
        linalg.tensorsolve lobpcg logdet lu lu_solve lu_unpack matrix_exp norm nuclear_norm ormqr pca_lowrank
        pinverse qr slogdet svd svd_lowrank symeig triangular_solve""",
    Trait.ADDS: """_grouped_mm adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d addbmm addmm addmv addr
        avg_pool1d avg_pool2d avg_pool3d baddbmm batch_norm bmm chain_matmul conv1d conv2d conv3d conv_tbc
        conv_transpose1d conv_transpose2d conv_transpose3d convolution cumsum dot einsum embedding embedding_bag fold
        grouped_mm index_add index_put inner instance_norm linalg.matmul linalg.multi_dot linalg.vecdot linear matmul
        mean mm mv nanmean nansum native_batch_norm scatter_add sum sum_to_size tensordot trace unfold vdot __matmul__
        __rmatmul__""",
    Trait.CONVOLUTION: """_convolution conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d
        convolution cudnn_convolution gru lstm rnn_relu rnn_tanh""",
    Trait.SCATTERS: """as_strided embedding embedding_bag gather index index_add index_put index_select put scatter_add
        scatter_reduce take take_along_dim unfold __getitem__""",
    Trait.STEPS: "gru linalg.householder_product lstm ormqr rnn_relu rnn_tanh",
    Trait.SCANS: "cumprod cumsum cumulative_trapezoid logcumsumexp",
    Trait.POWERS: "linalg.matrix_exp linalg.matrix_power matrix_exp matrix_power",
    Trait.NORM: "layer_norm log_softmax native_layer_norm rms_norm softmax",
    Trait.ROUGH: "batch_norm group_norm instance_norm native_batch_norm native_group_norm",
    Trait.LOGITS: """_efficient_attention_forward _flash_attention_forward _native_multi_head_attention
        _scaled_dot_product_attention_math _scaled_dot_product_cudnn_attention _scaled_dot_product_efficient_attention
        _scaled_dot_product_flash_attention _scaled_dot_product_fused_attention_overrideable
        binary_cross_entropy_with_logits cross_entropy linear_cross_entropy log_softmax logaddexp logaddexp2
        logcumsumexp logsumexp multi_head_attention_forward multilabel_soft_margin_loss scaled_dot_product_attention
        soft_margin_loss""",
    Trait.SHARES: "_safe_softmax _softmax softmax softmin",
    Trait.FINE: """celu cos div divide elu erf exp exp2 expm1 gelu hardswish leaky_relu log log10 log1p log2 mish mul
        multiply pow reciprocal rsqrt selu silu sin softplus sqrt square true_divide""",
    Trait.RELATIVE: """add arcsin arcsinh arctan arctanh asin asinh atan atanh celu div divide elu erf exp exp2 expm1
        log log10 log1p log2 mul multiply reciprocal rsqrt rsub selu sin sinh softplus sqrt square sub subtract tan tanh
        true_divide __radd__ __rdiv__ __rmul__ __rsub__ __rtruediv__ __truediv__""",
    Trait.RANDOM: """bernoulli binomial cauchy exponential fractional_max_pool2d
        fractional_max_pool2d_with_indices fractional_max_pool3d fractional_max_pool3d_with_indices geometric
        gumbel_softmax log_normal multinomial nn.init.kaiming_normal nn.init.kaiming_uniform nn.init.normal
        nn.init.orthogonal nn.init.sparse nn.init.trunc_normal nn.init.uniform nn.init.xavier_normal
        nn.init.xavier_uniform normal pca_lowrank poisson rand rand_like randint randint_like randn randn_like random
        randperm rrelu rrelu_with_noise svd_lowrank uniform _sample_dirichlet _standard_gamma""",
    Trait.DROPOUT: """alpha_dropout dropout dropout1d dropout2d dropout3d feature_alpha_dropout feature_dropout
        native_dropout""",
    Trait.EMPTY: "empty empty_like empty_permuted empty_strided new new_empty new_empty_strided resize resize_as",
    Trait.ORDER: """adaptive_max_pool1d adaptive_max_pool1d_with_indices adaptive_max_pool2d
        adaptive_max_pool2d_with_indices adaptive_max_pool3d adaptive_max_pool3d_with_indices amax amin aminmax argmax
        argmin argsort cummax cummin kthvalue masked.median max max_pool1d max_pool1d_with_indices max_pool2d
        max_pool2d_with_indices max_pool2d_with_indices_backward max_pool3d max_pool3d_with_indices median min mode
        msort nanmedian sort topk""",
    Trait.JUMPS: """all allclose any bucketize ceil ctc_loss eq equal floor floor_divide fmod frac ge grid_sample
        grid_sampler_2d grid_sampler_3d gt hardshrink heaviside histc histogram histogramdd igamma interpolate isclose
        le linalg.lstsq linalg.matrix_rank linalg.pinv lt multi_margin_loss multilabel_margin_loss nanquantile ne
        pinverse quantile remainder round searchsorted sign special.zeta trunc upsample upsample_nearest __floordiv__
        __mod__ __rfloordiv__ __rmod__""",
    Trait.DECIDES: """bucketize ceil eq equal floor ge gt heaviside le lt ne round searchsorted sign trunc""",
    Trait.FLOAT32_NUMBERS: """_amp_foreach_non_finite_check_and_unscale _amp_update_scale _fused_adagrad _fused_adam
        _fused_adamw _fused_sgd""",
    Trait.BENDS: """abs absolute clamp clamp_max clamp_min clip fmax fmin hardtanh leaky_relu maximum minimum relu relu6
        threshold""",
    Trait.DIVIDES: "floor_divide fmod remainder __floordiv__ __mod__ __rfloordiv__ __rmod__",
    Trait.CHOICE: """eig geqrf linalg.eig linalg.eigh linalg.eigvals linalg.ldl_factor linalg.ldl_factor_ex linalg.lu
        linalg.lu_factor linalg.lu_factor_ex linalg.qr linalg.svd lu ormqr qr svd symeig""",
}

# Whole families of them.
_FAMILIES = (
    (re.compile(r"special\..*"), Trait.POINTWISE),
    (re.compile(r"signal\.windows\..*|(bartlett|blackman|hamming|hann|kaiser)_window"), Trait.POINTWISE),
    (re.compile(r"fft\..*"), Trait.SUMS),
    (re.compile(r".*_backward(_data)?"), Trait.SUMS),
    (re.compile(r"to_(sparse|dense|mkldnn|padded_tensor).*|_to_(copy|dense)|from_.*"), Trait.EXACT),
    (re.compile(r"_upsample_.*|upsample_.*"), Trait.POINTWISE),
)

# Of one form of an op alone: `copy_` is not `copy`. The names are OpName.form.
_OF_FORMS = {
    Trait.ALWAYS_VIEW: """_conj _indices _neg_view _values adjoint alias align_to as_strided atleast_1d atleast_2d
        atleast_3d broadcast_tensors broadcast_to ccol_indices chunk col_indices conj crow_indices detach diagonal
        dsplit expand expand_as hsplit imag indices lift_fresh mH mT meshgrid moveaxis movedim narrow permute positive
        real refine_names rename row_indices select slice split split_with_sizes squeeze swapaxes swapdims t
        tensor_split transpose unbind unflatten unfold unsafe_chunk unsafe_split unsafe_split_with_sizes unsqueeze
        values view view_as view_as_complex view_as_real vsplit __iter__""",
    Trait.PERHAPS_VIEW: "contiguous flatten ravel reshape reshape_as resolve_conj resolve_neg to type_as __getitem__",
    Trait.CONVERTS: """as_tensor asarray bfloat16 bool byte cdouble cfloat chalf char coalesce double float half int
        long short""",
    Trait.RESHAPES: """adjoint alias contiguous detach flatten moveaxis movedim permute ravel reshape reshape_as squeeze
        swapaxes swapdims t transpose unflatten unsqueeze view view_as""",
    Trait.MOVES_DATA: """_foreach_copy_ alias_copy argwhere as_strided_copy as_strided_scatter block_diag cartesian_prod
        cat channel_shuffle clone column_stack combinations concat concatenate constant_pad_nd copy_ detach_copy diag
        diag_embed diagflat diagonal_copy diagonal_scatter dstack expand_copy fftshift flip fliplr flipud gather hstack
        ifftshift index_copy index_copy_ index_fill index_fill_ index_select item masked_fill masked_fill_
        masked_scatter masked_scatter_ masked_select narrow_copy native_channel_shuffle nonzero nonzero_static pad
        permute_copy pixel_shuffle pixel_unshuffle repeat repeat_interleave roll rot90 row_stack select_copy
        select_scatter slice_copy slice_scatter split_copy split_with_sizes_copy squeeze_copy stack t_copy take
        take_along_dim tile tolist transpose_copy tril tril_ triu triu_ unbind_copy unfold_copy unsqueeze_copy
        view_as_complex_copy view_as_real_copy view_copy vstack where __setitem__""",
    Trait.FILLS: """_foreach_zero_ bernoulli_ cauchy_ exponential_ fill_ full_like geometric_ log_normal_ new_full
        new_ones new_tensor new_zeros normal_ ones_like rand_like randint_like randn_like random_ uniform_ zero_
        zeros_like""",
    Trait.OVERWRITES: """cauchy_ exponential_ fill_ full_like geometric_ log_normal_ new_full new_ones new_tensor
        new_zeros normal_ ones_like rand_like randint_like randn_like random_ uniform_ zero_ zeros_like copy_""",
    Trait.CONSTRUCTS: """arange bartlett_window blackman_window eye full hamming_window hann_window kaiser_window
        linspace logspace ones rand randint randn randperm scalar_tensor tensor tril_indices triu_indices zeros""",
    Trait.BRINGS_DATA: "as_tensor asarray from_dlpack from_file from_numpy frombuffer new_tensor scalar_tensor tensor",
    Trait.READS_BACK: "cpu item numpy tolist __bool__ __complex__ __float__ __index__ __int__",
    Trait.NO_ARITHMETIC: """_debug_has_internal_overlap _fused_sdp_choice _has_compatible_shallow_copy_type _nnz
        _use_cudnn_ctc_loss as_strided_ const_data_ptr cpu cuda cudnn_is_acceptable detach_ empty empty_like
        empty_permuted empty_strided hpu ipu is_coalesced is_set_to mtia new_empty new_empty_strided numpy pin_memory
        qscheme requires_grad_ resize_ resize_as_ set_ squeeze_ swapaxes_ swapdims_ t_ transpose_ unsqueeze_ xpu""",
    Trait.WRITES_AT_TIMES: "embedding embedding_bag instance_norm",
    Trait.SECOND_RESULT_ON_CPU: "_pack_padded_sequence _pad_packed_sequence",
    Trait.AUTOCAST_LOW: """_convolution addbmm addmm addmv addr baddbmm bmm chain_matmul conv1d conv2d conv3d conv_tbc
        conv_transpose1d conv_transpose2d conv_transpose3d convolution einsum gru gru_cell linalg_multi_dot
        linalg_vecdot linear lstm lstm_cell matmul mm multi_dot multi_head_attention_forward mv prelu rnn_relu
        rnn_relu_cell rnn_tanh rnn_tanh_cell scaled_dot_product_attention vecdot __matmul__ __rmatmul__""",
    Trait.AUTOCAST_FLOAT32: """acos asin binary_cross_entropy_with_logits cdist cosh cosine_embedding_loss
        cosine_similarity cross_entropy cumprod cumsum dist erfinv exp expm1 frobenius_norm group_norm
        hinge_embedding_loss huber_loss kl_div l1_loss layer_norm linalg_matrix_norm linalg_vector_norm log log10 log1p
        log2 log_softmax logsumexp margin_ranking_loss matrix_norm mse_loss multi_margin_loss multilabel_margin_loss
        nll_loss nll_loss2d norm normalize nuclear_norm pdist poisson_nll_loss pow prod reciprocal renorm rms_norm rsqrt
        sinh smooth_l1_loss soft_margin_loss softmax softmin softplus sum tan triplet_margin_loss vector_norm __pow__
        __rpow__""",
}

# They may bring a tensor from the CPU to the accelerator. All others leave CPU tensors on the CPU.
_TO_DEVICE = _words("to cuda copy_ type_as new_tensor new_ones new_zeros new_full new_empty")

# Losses that take one of two cases by a label, 1 or -1: its number among their tensors.
LABELS = {"hinge_embedding_loss": 1, "cosine_embedding_loss": 2}


@lru_cache(maxsize=100_000)
def has(name: str, trait: Trait) -> bool:
    """True where the op with this full name has this trait, or one of several."""
    of_form = _BY_FORM.get(normalized(name).form, Trait(0))
    return bool(((of(name) or Trait.SUMS) | of_form) & trait)


@lru_cache(maxsize=10_000)
def of(name: str) -> Trait | None:
    """The traits that the op with this full name has in all its forms; None for an unknown op."""
    base = normalized(name).base
    found = _BY_BASE.get(base)
    if found is not None:
        return found
    home, _, last = base.rpartition(".")
    if home in ("linalg", "masked", "special") and last in _BY_BASE:
        return _BY_BASE[last]
    return next((trait for pattern, trait in _FAMILIES if pattern.fullmatch(base)), None)


def moves_to_device(name: str) -> bool:
    """True for ops that may bring a tensor from the CPU to the accelerator."""
    return name.startswith("torch.Tensor.") and name[13:] in _TO_DEVICE


def _traits_by_name(entries: dict[Trait, str]) -> dict[str, Trait]:
    found: dict[str, Trait] = {}
    for trait, names in entries.items():
        for name in names.split():
            found[name] = found.get(name, Trait(0)) | trait | _IMPLIED.get(trait, Trait(0))
    return found


_BY_BASE = _traits_by_name(_OF_OPS)
_BY_FORM = _traits_by_name(_OF_FORMS)
_OF_AUTOCAST = Trait.AUTOCAST_LOW | Trait.AUTOCAST_FLOAT32  # which knows ops by one of their names
for _pair in ALIASES.items():
    _shared = (_BY_BASE.get(_pair[0], Trait(0)) | _BY_BASE.get(_pair[1], Trait(0))) & ~_OF_AUTOCAST
    _BY_BASE.update({_name: _BY_BASE.get(_name, Trait(0)) | _shared for _name in _pair})
for _form, _traits in _BY_FORM.items():
    if _traits & Trait.EXACT:  # what only moves data does so in all its forms
        _base = normalized(f"torch.{_form}").base
        _BY_BASE[_base] = _BY_BASE.get(_base, Trait(0)) | _traits & (Trait.EXACT | Trait.VIEW)
