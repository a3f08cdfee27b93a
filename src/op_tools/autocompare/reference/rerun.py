"""The same call elsewhere: on the CPU or on the device itself, in another dtype, with its gradients.

A run here disturbs nothing: gradients, autocast, random numbers and modes stay as they are. Warnings of a second run
are of no use to anybody; `silence` keeps them away.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable

import torch
from torch import Tensor

from op_tools.autocompare.arguments import Arguments, Convert
from op_tools.ops import autocast_policy
from op_tools.output import messages
from op_tools.values import trees
from op_tools.values.tensors import tensors_in, versions_of

Dtypes = Mapping[torch.dtype, torch.dtype]

HIGHER: Dtypes = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex32: torch.complex128,
    torch.complex64: torch.complex128,
}

SINGLE: Dtypes = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.complex32: torch.complex64}


class Way:
    """How a call is run again: where, and in which dtypes."""

    __slots__ = ("autocast", "convert", "device", "dtypes", "name")

    def __init__(
        self,
        name: str,
        dtypes: Dtypes,
        device: str | None = "cpu",
        convert: Convert | None = None,
        autocast: torch.dtype | None = None,
    ) -> None:
        self.name = name
        self.dtypes = dtypes
        self.device = device  # None: where the tensors are
        self.convert = convert or functools.partial(_in_other_dtype, dtypes)
        self.autocast = autocast

    def then(self, change: Convert) -> Way:
        """The same way with something done to every floating-point tensor in the end."""
        before = self.convert
        return Way(self.name, self.dtypes, self.device, lambda tensor: change(before(tensor)), self.autocast)


def _in_other_dtype(dtypes: Dtypes, tensor: Tensor) -> Tensor:
    dtype = dtypes.get(tensor.dtype)
    return tensor if dtype is None else tensor.to(dtype)


_engine: Any = torch.autograd.Variable._execution_engine


class Run:
    """A call that has run again: its result, and its arguments as they are now."""

    __slots__ = ("_leaves", "arguments", "result", "results", "way", "written")

    def __init__(
        self, way: Way, arguments: Arguments, result: Any, leaves: list[Tensor | None], written: list[Tensor]
    ) -> None:
        self.way = way
        self.arguments = arguments
        self.result = result
        self.results = [result] if isinstance(result, Tensor) else [value for _, value in trees.leaves(result)]
        self.written = written  # the arguments that the call has worked in place on
        self._leaves = leaves  # one for each tensor among the arguments; None where no gradient is wanted

    def gradients(self, grad_outputs: Sequence[Tensor | None]) -> list[Tensor | None]:
        """The gradient of every input; that of a tensor given twice is at its first place."""
        outputs, given = [], []
        for output, gradient in zip(tensors_in(self.results), grad_outputs):
            if gradient is not None and output.requires_grad:
                arrived = self.way.convert(gradient.detach() if gradient.requires_grad else gradient)
                outputs.append(output)
                given.append(arrived if arrived.dtype is output.dtype else arrived.to(output.dtype))
        wanted = {id(leaf): leaf for leaf in self._leaves if leaf is not None}
        if not outputs or not wanted:
            return [None] * len(self._leaves)
        with _undisturbed(self.way.autocast, graph=False):
            # as torch.autograd.grad does, which takes long to look at shapes that are known to be right
            found = _engine.run_backward(
                tuple(outputs),
                tuple(given),
                False,
                False,
                tuple(wanted.values()),
                allow_unreachable=True,
                accumulate_grad=False,
            )
        by_leaf = dict(zip(wanted, found))
        return [by_leaf.pop(id(leaf), None) for leaf in self._leaves]


def run(
    function: Callable[..., Any], given: Arguments, way: Way, graph: bool = False, changes_inputs: bool = False
) -> Run:
    """Runs a call again. `graph`: for gradients, too. `changes_inputs`: it works in place on some of its arguments."""
    copied: dict[int, Tensor] = {}  # leaves of which the call is given copies

    def elsewhere(tensor: Tensor) -> Tensor:
        moved = tensor.detach()
        is_number = moved.is_floating_point() or moved.is_complex()
        if is_number:
            moved = way.convert(moved)
        if way.device is not None:
            moved = moved.to(way.device)
        if changes_inputs and moved.data_ptr() == tensor.data_ptr():
            moved = moved.clone()
        if not graph or not is_number or not tensor.requires_grad:
            return moved
        moved.requires_grad_()
        if not changes_inputs:
            return moved
        copied[id(tensor)] = moved
        return moved.clone()

    leaves: list[Tensor | None]
    if graph and changes_inputs:  # it is handed copies that belong to the graph
        with _undisturbed(None, True):
            arguments = given.mapped(elsewhere)
        leaves = [copied.get(id(tensor)) for tensor in given.tensors]
    else:
        arguments = given.mapped(elsewhere)
        leaves = [tensor if tensor.requires_grad else None for tensor in arguments.tensors]
    args, kwargs = arguments.args, arguments.kwargs
    if arguments.may_name_others():
        args = _adapted(args, way, None)
        kwargs = kwargs and {key: _adapted(value, way, key) for key, value in kwargs.items()}
    lent = arguments.tensors
    versions = versions_of(lent)
    with _undisturbed(way.autocast, graph):
        result = function(*args, **kwargs)
    now = versions_of(lent)
    written = [] if now == versions else [one for one, new, old in zip(lent, now, versions) if new != old]
    if written and not changes_inputs:
        raise RuntimeError("it changes its arguments on the CPU, which it does not on the device")
    if args is not arguments.args or kwargs is not arguments.kwargs:
        arguments = Arguments(args, kwargs)
    return Run(way, arguments, result, leaves, written)


def on_cpu(given: Arguments) -> Arguments:
    """With the names of devices among them replaced; the tensors must be there already."""
    way = Way("", {})
    return Arguments(_adapted(given.args, way, None), {k: _adapted(v, way, k) for k, v in given.kwargs.items()})


def _adapted(value: Any, way: Way, key: str | None) -> Any:
    """Devices and dtypes among the arguments, which name those of the accelerator."""
    if isinstance(value, torch.dtype):
        return way.dtypes.get(value, value)
    if way.device is not None and value is not None and (key == "device" or _is_device(value)):
        return torch.device(way.device)
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return trees.rebuilt(value, [_adapted(part, way, None) for part in value])
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


_OWN_METHODS = ("cuda", "xpu", "hpu", "ipu", "mtia", "npu", "mlu", "musa", "gcu")


@functools.lru_cache(maxsize=10_000)
def stand_in(name: str) -> Callable[..., Any] | None:
    """What runs in place of a method that brings a tensor to the accelerator; None for all others."""
    home, _, method = name.rpartition(".")
    is_own = method in _OWN_METHODS or method == torch._C._get_privateuse1_backend_name()
    return (lambda tensor, *args, **kwargs: tensor.clone()) if is_own and home == "torch.Tensor" else None


def higher_on(tensors: Sequence[Tensor], wanted: Dtypes) -> Dtypes:
    """The dtypes for a run on the device itself. Some devices have no float64: there float32 must do."""
    for tensor in tensors:
        if not tensor.is_cpu:
            device = tensor.device
            break
    else:
        return wanted
    if _has_float64(device.type):
        return wanted
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
def _has_float64(device_type: str) -> bool:
    try:
        return bool((torch.ones(1, dtype=torch.float64, device=device_type) + 1).item() == 2)
    except Exception:  # noqa: BLE001  each vendor has errors of its own
        return False


# ---- leaving everything as it was ------------------------------------------------------------------------------------


NOTHING: contextlib.AbstractContextManager[None] = contextlib.nullcontext()


def _undisturbed(autocast: torch.dtype | None, graph: bool) -> contextlib.AbstractContextManager[Any]:
    is_plain = (
        autocast is None
        and autocast_policy.active_dtype("cpu") is None
        and not (graph and (_top_hooks(True) is not None or _is_below_autograd()))
        and not torch.is_anomaly_enabled()
    )
    if not is_plain:
        return _shielded(autocast, graph)
    return NOTHING if torch.is_grad_enabled() is graph else torch.set_grad_enabled(graph)


@contextlib.contextmanager
def _shielded(autocast: torch.dtype | None, graph: bool) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.set_grad_enabled(graph))
        if autocast is not None:
            stack.enter_context(torch.autocast("cpu", dtype=autocast, cache_enabled=False))
        elif autocast_policy.active_dtype("cpu") is not None:
            stack.enter_context(torch.autocast("cpu", enabled=False))
        if graph and _top_hooks(True) is not None:
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor))
        if graph and _is_below_autograd():
            stack.enter_context(_above_autograd())
        if torch.is_anomaly_enabled():
            stack.enter_context(torch.autograd.set_detect_anomaly(False))
        yield


# inside a kernel that is written in Python nothing has gradients
_is_below_autograd: Callable[[], bool] = functools.partial(
    torch._C._dispatch_tls_is_dispatch_key_excluded, torch._C.DispatchKey.AutogradFunctionality
)


@contextlib.contextmanager
def _above_autograd() -> Iterator[None]:
    key = torch._C.DispatchKey.AutogradFunctionality
    torch._C._dispatch_tls_set_dispatch_key_excluded(key, False)
    try:
        yield
    finally:
        torch._C._dispatch_tls_set_dispatch_key_excluded(key, True)


# None unless checkpointing, or somebody else, hooks into what is saved for backward: what we save is no business of
# theirs. Where torch does not tell, somebody may.
_top_hooks: Callable[[bool], Any] = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", bool)


@contextlib.contextmanager
def random_numbers_kept() -> Iterator[None]:
    """The CPU's generator goes on where it was."""
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)


def silence() -> None:
    """From now on warnings that are raised from this file are not shown. Said twice, it is one entry in the list."""
    warnings.filterwarnings("ignore", module=__name__.replace(".", r"\."))


# ---- dtypes of a device ----------------------------------------------------------------------------------------------


def rounded_to(dtype: torch.dtype, then: torch.dtype) -> Convert:
    """Numbers as they are after a cast to `dtype`, held in another one; float64 is left as it is, as autocast does."""
    return lambda tensor: tensor if tensor.dtype is torch.float64 else tensor.to(dtype).to(then)


def as_tf32(tensor: Tensor) -> Tensor:
    """float32 rounded to the ten bits that matrix units keep where tf32 is allowed."""
    if tensor.dtype is not torch.float32:
        return tensor
    bits = tensor.contiguous().view(torch.int32)
    return torch.where(tensor.isfinite(), ((bits + 0x1000) & ~0x1FFF).view(torch.float32), tensor)


def moved_by(amount: float, seed: int) -> Convert:
    """Every element a little larger or smaller: by the share `amount` of itself, with a random sign."""
    count = itertools.count(1000 * seed)

    def change(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point() and not tensor.is_complex():
            return tensor
        steps = amount * (2 * _coins(tensor, next(count)).to(torch.float64) - 1)
        # equal zeros must be told apart, too
        apart = tensor.abs().nan_to_num(posinf=0.0).mean() * 2**-10 if tensor.numel() else 0.0
        return torch.where(tensor.isfinite(), tensor + steps * tensor + steps * apart, tensor)

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
