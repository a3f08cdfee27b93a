"""How the reference of a call is computed: on which device, in which dtypes, with which roundings. runs.py does it."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Mapping
from typing import Any, Callable, NamedTuple, Optional

import torch
from torch import Tensor
from torch.nn import functional

from op_tools.autocompare.arguments import Arguments, Convert
from op_tools.autocompare.judging import limits
from op_tools.autocompare.observed import ObservedCall
from op_tools.autocompare.reference import fused_attention, scans, tf32
from op_tools.ops import catalogue
from op_tools.ops.catalogue import Trait
from op_tools.ops.names import normalized
from op_tools.output import messages
from op_tools.values import trees

Dtypes = Mapping[torch.dtype, torch.dtype]
Function = Callable[..., Any]
Around = Callable[[], contextlib.AbstractContextManager[Any]]

HIGHER: Dtypes = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex32: torch.complex128,
    torch.complex64: torch.complex128,
}

ROUNDED_ONCE = "float32"  # the name of a way
SINGLE: Dtypes = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.complex32: torch.complex64}


class Way:
    """How a call is run again: where, and in which dtypes."""

    __slots__ = ("around", "autocast", "change", "device", "dtypes", "keeps_numbers", "name")

    def __init__(
        self,
        name: str,
        dtypes: Dtypes,
        device: str | None = "cpu",
        change: Convert | None = None,
        autocast: torch.dtype | None = None,
        around: Around | None = None,
        keeps_numbers: bool = False,
    ) -> None:
        self.name = name
        self.dtypes = dtypes
        self.device = device  # None: where the tensors are
        self.change = change  # of every floating-point tensor, in place of what `dtypes` say
        self.autocast = autocast
        self.around = around  # the kernels, which it makes run otherwise
        self.keeps_numbers = keeps_numbers  # single ones, which kernels take in float32 alone

    def convert(self, tensor: Tensor) -> Tensor:
        """A floating-point tensor as it is on this way."""
        if self.change is not None:
            return self.change(tensor)
        dtype = self.dtypes.get(tensor.dtype)
        return tensor if dtype is None else tensor.to(dtype)

    def then(self, change: Convert) -> Way:
        """The same way with something done to every floating-point tensor in the end."""
        changed: Convert = lambda tensor: change(self.convert(tensor))  # noqa: E731
        return Way(self.name, self.dtypes, self.device, changed, self.autocast, self.around, self.keeps_numbers)

    def with_tf32(self) -> Way:
        """The same way with products in tf32."""
        name = f"{self.name}, tf32"
        return Way(name, self.dtypes, self.device, self.change, self.autocast, tf32.Products, self.keeps_numbers)

    def with_scans(self, scan: scans.Scan) -> Way:
        """The same way with scans of another kind."""
        around = functools.partial(scans.Scans, scan)
        return Way(self.name, self.dtypes, self.device, self.change, self.autocast, around, self.keeps_numbers)


class Ways(NamedTuple):
    """The ways of all calls of one kind."""

    higher: Way
    scans: list[Way]  # in the device's own dtype, but for roundings on the way; of the last one only the very result
    own: list[tuple[Function | None, Way]]  # in the device's own dtype; None: with the call's own function
    traits: Trait
    is_unknown: bool  # an op that is not in the catalogue
    is_exact: bool  # no rounding: both runs are the same
    on_device: bool
    chosen: torch.dtype | None  # by autocast
    is_tf32: bool


# by the name of the op, the dtype of autocast, the one that it has chosen, whether tf32 is allowed, and the device
FindWays = Callable[[str, Optional[torch.dtype], Optional[torch.dtype], bool, Optional[torch.device]], Ways]


def ways_with(cast_table: Callable[[str], Dtypes | None], on_device: bool) -> FindWays:
    """What finds the ways of calls, where the reference is the CPU or the device itself."""

    @functools.lru_cache(maxsize=10_000)
    def find(
        name: str, autocast: torch.dtype | None, chosen: torch.dtype | None, is_tf32: bool, device: torch.device | None
    ) -> Ways:
        table, found = cast_table(name), catalogue.of(name)
        dtypes = HIGHER if table is None else {**HIGHER, **table}
        if on_device and device is not None and not has_float64(device):
            dtypes = _without_float64(device, dtypes)
        higher = Way("higher precision", dtypes, None if on_device else "cpu")
        if chosen is not None and chosen is not torch.float32:
            higher = Way(higher.name, dtypes, higher.device, rounded_to(chosen, dtypes.get(chosen, chosen)))
        elif catalogue.has(name, Trait.FLOAT32_NUMBERS):
            higher = Way(higher.name, dtypes, higher.device, keeps_numbers=True)
        own = _on_device(higher, is_tf32) if on_device else _on_cpu(name, autocast, chosen, is_tf32)
        is_exact = not on_device and catalogue.has(name, Trait.EXACT)
        scanning = _scanning(own[0][1]) if not on_device and catalogue.has(name, Trait.SCANS) else []
        return Ways(higher, scanning, own, found or Trait.SUMS, found is None, is_exact, on_device, chosen, is_tf32)

    return find


def _scanning(own: Way) -> list[Way]:
    return [own.with_scans(scan) for scan in (scans.in_blocks, scans.in_small_blocks, scans.one_by_one)]


def _on_device(higher: Way, is_tf32: bool) -> list[tuple[Function | None, Way]]:
    """There is no run in the device's own dtype: that would be the call itself."""
    return [(None, higher.with_tf32())] if is_tf32 else []


def _on_cpu(
    name: str, autocast: torch.dtype | None, chosen: torch.dtype | None, is_tf32: bool
) -> list[tuple[Function | None, Way]]:
    """With autocast and tf32 as on the device: several ways may be right."""
    if normalized(name).base == "_fused_sgd":  # the CPU's own kernel is wrong in 16 bits (pytorch#191763)
        return [(None, Way("in float32", SINGLE))]
    own = Way("the same dtype", {})
    if chosen is not None:
        own = Way(own.name, {}, change=rounded_to(chosen, chosen))
    elif autocast is not None:
        own = Way(own.name, {}, autocast=autocast)
    ways: list[tuple[Function | None, Way]] = [(None, own.with_tf32() if is_tf32 else own)]
    if autocast is not None and normalized(name).base == "local_response_norm":
        ways.insert(0, (_response_norm_in_parts, Way("in parts", {})))
    if chosen is not None:
        if normalized(name).base == "cross_entropy":
            ways.insert(0, (_cross_entropy_in_parts, Way("in parts", {})))
        # an op that is made of others: autocast looks at each of them
        ways.append((None, Way("autocast on the CPU", {}, autocast=autocast)))
    # where the CPU has no kernel for a low precision: rounded once, in the end
    return [*ways, (None, Way(ROUNDED_ONCE, SINGLE))]


def _cross_entropy_in_parts(
    scores: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """As autocast runs it on accelerators: the logarithm in the dtype of the scores, the sums in float32."""
    if size_average is not None or reduce is not None:
        raise NotImplementedError("old names of reductions")
    dimension = 1 if scores.dim() > 1 else 0
    log = functional.log_softmax(scores, dimension, dtype=scores.dtype).float()
    classes = scores.shape[dimension]
    weights = torch.ones(classes) if weight is None else weight.float()
    weighted = log.movedim(dimension, -1) * weights
    if target.is_floating_point():
        smooth = target.float() * (1 - label_smoothing) + label_smoothing / classes
        losses = -(weighted * smooth.movedim(dimension, -1)).sum(-1)
        return _reduced(losses, losses.numel(), reduction)
    counts = (target != ignore_index).float()
    total = (weights[target.clamp_min(0)] * counts).sum()
    picked = functional.nll_loss(log, target, weights, ignore_index=ignore_index, reduction="none")
    even = -weighted.sum(-1) * counts
    return _reduced((1 - label_smoothing) * picked + label_smoothing / classes * even, total, reduction)


def _response_norm_in_parts(x: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Tensor:
    """As autocast runs it on accelerators: squares and their means in the dtype of the data, powers in float32.

    The CPU's autocast takes means in float32, too.
    """
    squares = functional.pad(x * x, (0, 0) * (x.dim() - 2) + (size // 2, (size - 1) // 2))
    means = squares.float().unfold(1, size, 1).mean(-1).to(x.dtype)
    return x / means.mul(alpha).add(k).float().pow(beta)


_OF_CROSS_ENTROPY = ("input", "target", "weight", "size_average", "ignore_index")


def rounded_terms(call: ObservedCall) -> float | None:
    """How many logarithms, each rounded to the 16 bits of the scores, a cross entropy under autocast is the mean of.

    Of rows with unequal weights, as many as would average out as well. None for other calls.
    """
    if normalized(call.name).base != "cross_entropy" or not call.given.tensors:
        return None
    given = {**dict(zip(_OF_CROSS_ENTROPY, call.given.args)), **call.given.kwargs}
    scores, target, weight = given.get("input"), given.get("target"), given.get("weight")
    if not isinstance(scores, Tensor) or scores.dtype not in limits.IN_16_BITS or not scores.numel():
        return None
    if not isinstance(target, Tensor) or target.is_floating_point() or not target.is_cpu:  # reading would wait
        return scores.numel() / scores.shape[min(1, scores.dim() - 1)]
    counted = target != given.get("ignore_index", -100)
    if weight is None:
        return float(counted.sum())
    weights = weight.double()[target.clamp(min=0)] * counted
    return float(weights.sum().square() / weights.square().sum().clamp(min=1e-300))


def _reduced(losses: Tensor, count: Tensor | int, reduction: str) -> Tensor:
    if reduction == "none":
        return losses
    return losses.sum() / count if reduction == "mean" else losses.sum()


def _without_float64(device: torch.device, wanted: Dtypes) -> Dtypes:
    """Some devices have no float64: there float32 must do."""
    messages.say_once(
        "autocompare",
        "float64",
        device.type,
        text=f"{device.type} has no float64: with the device as reference, 16 bits are compared with float32, and "
        "float32 only with itself",
    )
    return {**SINGLE, **{source: target for source, target in wanted.items() if target in _SINGLES}}


_SINGLES = (torch.float32, torch.complex64)


@functools.lru_cache(maxsize=16)
def has_float64(device: torch.device) -> bool:
    try:
        return bool((torch.ones(1, dtype=torch.float64, device=device) + 1).item() == 2)
    except Exception:  # noqa: BLE001  each vendor has errors of its own
        return False


_OWN_METHODS = ("cuda", "xpu", "hpu", "ipu", "mtia", "npu", "mlu", "musa", "gcu")


@functools.lru_cache(maxsize=10_000)
def stand_in(name: str) -> Function | None:
    """What runs in place of a method that brings a tensor to the accelerator, or of an accelerator's own kernel.

    None for all others.
    """
    home, _, method = name.rpartition(".")
    is_own = method in _OWN_METHODS or method == torch._C._get_privateuse1_backend_name()
    if is_own and home == "torch.Tensor":
        return lambda tensor, *args, **kwargs: tensor.clone()
    return fused_attention.written_out(name)


# ---- devices and dtypes among the arguments --------------------------------------------------------------------------


def on_cpu(given: Arguments) -> Arguments:
    """With the names of devices among them replaced; the tensors must be there already."""
    way = Way("", {})
    return Arguments(adapted(given.args, way, None), {k: adapted(v, way, k) for k, v in given.kwargs.items()})


def adapted(value: Any, way: Way, key: str | None) -> Any:
    """Devices and dtypes among the arguments, which name those of the accelerator."""
    if isinstance(value, torch.dtype):
        return way.dtypes.get(value, value)
    if way.device is not None and value is not None and (key == "device" or _is_device(value)):
        return torch.device(way.device)
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return trees.rebuilt(value, [adapted(part, way, None) for part in value])
    return value


def _is_device(value: Any) -> bool:
    return isinstance(value, torch.device) or (isinstance(value, str) and _names_device(value))


@functools.lru_cache(maxsize=1000)
def _names_device(text: str) -> bool:
    try:
        torch.device(text)
    except RuntimeError:
        return False
    return True


# ---- what is done to a tensor on the way -----------------------------------------------------------------------------


def rounded_to(dtype: torch.dtype, then: torch.dtype) -> Convert:
    """Numbers as they are after a cast to `dtype`, held in another one; float64 is left as it is, as autocast does."""
    return lambda tensor: tensor if tensor.dtype is torch.float64 else tensor.to(dtype).to(then)


def moved_by(amount: float, seed: int, labels: int | None = None) -> Convert:
    """Every element a little larger or smaller: by the share `amount` of itself, with a random sign.

    `labels`: the number of a tensor that says which case an element is, and is exactly what it is.
    """
    count = itertools.count(1000 * seed)

    def change(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point() and not tensor.is_complex():
            return tensor
        number = next(count)
        if labels is not None and number == 1000 * seed + labels:
            return tensor
        # equal zeros must be told apart, too
        apart = tensor.abs().nan_to_num_(posinf=0.0).mean() * 2**-10 if tensor.numel() else 0.0
        steps = _coins(tensor, number).to(torch.float64).mul_(2).sub_(1).mul_(amount)
        moved = (steps * tensor).add_(tensor).add_(steps.mul_(apart))
        return torch.where(tensor.isfinite(), moved, tensor)

    return change


def with_zeros(number: int) -> Convert:
    """Zeros in place of the tensor with this number; for one run."""
    numbers = itertools.count()
    return lambda tensor: torch.zeros_like(tensor) if next(numbers) == number else tensor


def _coins(like: Tensor, seed: int) -> Tensor:
    """Zeros and ones, made where the tensor is if that device can."""
    for device in (like.device, torch.device("cpu")):
        with contextlib.suppress(RuntimeError, NotImplementedError, TypeError):
            generator = torch.Generator(device).manual_seed(seed)
            coins = torch.randint(0, 2, like.shape, generator=generator, dtype=torch.int8, device=device)
            return coins.to(like.device)
    raise RuntimeError("no random numbers")
