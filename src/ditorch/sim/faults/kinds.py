"""The kinds of fault. To add one: write what it does to a call or to a result, and list it in KINDS."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Callable

import torch
from torch import Tensor

from ditorch.sim.faults.call import KernelCall
from ditorch.sim.faults.low_precision import ACCUMULATING, MULTIPLYING, accumulate, cut_to_tf32
from ditorch.sim.faults.other_make import REMADE, remake

Behaviour = Callable[[KernelCall], Any]


@dataclass(frozen=True)
class Kind:
    """One way in which a kernel can be wrong."""

    name: str
    help: str
    example: str
    behave: Behaviour
    parse: Callable[[str], Any] | None = None  # of the value; None: takes no value
    value_is_optional: bool = False
    takes_share: bool = False
    changes_values: bool = True
    applies_to: Callable[[torch._ops.OpOverload, Any], bool] | None = None  # None: to every kernel
    names: Collection[str] = ()  # of the kernels that it is known for, where not for all


# ---- values ------------------------------------------------------------------------------------------------------


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("needs a number") from None


def _whole_number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("needs a whole number") from None


def _fraction(text: str) -> float:
    value = _number(text)
    if not 0 < value <= 1:
        raise ValueError("needs a number above 0 and not above 1")
    return value


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|us|s)", text)
    if not match:
        raise ValueError("needs a time in s, ms or us")
    return float(match[1]) * {"s": 1.0, "ms": 1e-3, "us": 1e-6}[match[2]]


def _low_precision(text: str) -> torch.dtype:
    dtypes = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
    if text not in dtypes:
        raise ValueError(f"needs one of {', '.join(dtypes)}")
    return dtypes[text]


# ---- what each kind does -----------------------------------------------------------------------------------------


def _on_floats(change: Callable[[KernelCall, Tensor], Tensor]) -> Behaviour:
    """A fault that changes the floating-point results of a healthy call."""

    def behave(call: KernelCall) -> Any:
        result = call.run()
        call.made_no_difference = True  # until a result is overwritten
        with call.undisturbed():
            for tensor in call.results(result):
                if (tensor.is_floating_point() or tensor.is_complex()) and tensor.numel():
                    call.overwrite(tensor, change(call, tensor))
        return result

    return behave


def _noise(call: KernelCall, tensor: Tensor) -> Tensor:
    return torch.mul(tensor, 1 + call.value * (2 * call.random_like(tensor) - 1))


def _stale(call: KernelCall, tensor: Tensor) -> Tensor:
    """The kernel stops before the end: the last elements are what the memory held before, here the last call's."""
    fresh = tensor.reshape(-1)
    previous = call.remembered(tensor.shape, tensor.dtype)
    written = tensor.numel() - round(tensor.numel() * call.value)
    rest = torch.zeros_like(fresh) if previous is None else previous.reshape(-1)
    call.remember(tensor.clone())
    return torch.cat([fresh[:written], rest[written:]]).view(tensor.shape)


def _offset(call: KernelCall) -> Any:
    result = call.run()
    with call.undisturbed():
        for tensor in call.results(result):
            if tensor.dtype in (torch.int32, torch.int64) and tensor.numel():
                call.overwrite(tensor, tensor + call.value)
    return result


_EPSILONS = ("eps", "epsilon")


def _argument_names(op: torch._ops.OpOverload) -> list[str]:
    return [argument.name for argument in op._schema.arguments]


def _epsilon(call: KernelCall) -> Any:
    given = call.arguments()
    return call.run_with({name: given[name] * call.value for name in _EPSILONS if name in given})


def _drop(call: KernelCall) -> Any:
    """An optional argument is not there; one that the kernel must have is zero."""
    schema = next(argument for argument in call.op._schema.arguments if argument.name == call.value)
    dropped = call.arguments()[call.value]
    if isinstance(dropped, Tensor) and not str(schema.type).startswith("Optional"):
        with call.undisturbed():
            return call.run_with({call.value: torch.zeros_like(dropped)})
    return call.run_with({call.value: None})


def _index(call: KernelCall) -> Any:
    """Reads beside the place it should; never outside of what the call itself names."""
    changed: dict[str, Any] = {}
    with call.undisturbed():
        for name, value in call.arguments().items():
            if isinstance(value, Tensor) and value.dtype in (torch.int32, torch.int64) and value.numel():
                shifted = torch.clamp(value + call.value, 0, int(value.max().clamp(min=0)))
                changed[name] = torch.where(torch.ge(value, 0), shifted, value)  # a negative one says: none
        call.made_no_difference = all(torch.equal(value, call.arguments()[name]) for name, value in changed.items())
    return call.run_with(changed)


def _swap(call: KernelCall) -> Any:
    tensors = [(name, value) for name, value in call.arguments().items() if isinstance(value, Tensor)]
    for (first, one), (second, other) in zip(tensors, tensors[1:]):
        if one.shape == other.shape and one.dtype == other.dtype and one is not other:
            return call.run_with({first: other, second: one})
    call.made_no_difference = True
    return call.run()


def _unimplemented(call: KernelCall) -> Any:
    raise NotImplementedError(
        f"Could not run '{call.op.name()}' on device '{call.device_type}': there is no kernel for it (injected fault)."
    )


def _raise(call: KernelCall) -> Any:
    text = call.value or "unspecified launch failure"
    raise RuntimeError(f"{call.device_type} error in {call.op.name()}: {text} (injected fault)")


def _assert(call: KernelCall) -> Any:
    result = call.run()
    call.fail_on_device()
    return result


def _slow(call: KernelCall) -> Any:
    result = call.run()
    call.spend_device_time(call.value)
    return result


_ALL = (
    Kind(
        "scale",
        "floating-point results are multiplied by a number",
        "aten.mm: scale=1.01",
        _on_floats(lambda call, tensor: tensor * call.value),
        _number,
        takes_share=True,
    ),
    Kind(
        "noise",
        "relative noise: each element is off by up to this share of itself",
        "aten._softmax_backward_data: noise=1e-2",
        _on_floats(_noise),
        _number,
        takes_share=True,
    ),
    Kind(
        "negate",
        "the sign is wrong",
        "aten.sub: negate@one",
        _on_floats(lambda _, tensor: -tensor),
        takes_share=True,
    ),
    Kind(
        "nan",
        "elements are NaN",
        "aten.exp: nan@0.001",
        _on_floats(lambda _, tensor: torch.full_like(tensor, float("nan"))),
        takes_share=True,
    ),
    Kind(
        "inf",
        "elements are infinite",
        "aten.exp: inf@one",
        _on_floats(lambda _, tensor: torch.full_like(tensor, float("inf"))),
        takes_share=True,
    ),
    Kind(
        "zero",
        "elements are zero",
        "aten.gelu: zero@0.1",
        _on_floats(lambda _, tensor: torch.zeros_like(tensor)),
        takes_share=True,
    ),
    Kind(
        "tail",
        "this share of the elements, the last ones, is stale: the previous call's values, or zero",
        "aten.rsqrt: tail=0.5",
        _on_floats(_stale),
        _fraction,
    ),
    Kind(
        "round",
        "results are rounded to a lower precision",
        "aten.gelu: round=bfloat16",
        _on_floats(lambda call, tensor: tensor.to(call.value).to(tensor.dtype)),
        _low_precision,
    ),
    Kind(
        "accumulate",
        "sums are kept in a lower precision: mm, addmm, bmm, baddbmm, convolution, sum, mean",
        "aten.addmm: accumulate=bfloat16",
        accumulate,
        _low_precision,
        names=ACCUMULATING,
    ),
    Kind(
        "tf32",
        "float32 factors are cut off to the ten bits of tf32: no fault where the program allows it",
        "aten.*: tf32",
        cut_to_tf32,
        names=MULTIPLYING,
    ),
    Kind(
        "remake",
        "no fault: a healthy kernel of another make, with other bits (other order of sums, other formula, other choice "
        "among equals)",
        "aten.*: remake",
        remake,
        names=[name + end for name in REMADE for end in ("", "_")],
    ),
    Kind("offset", "integer results are off by a number", "aten.argmax: offset=1", _offset, _whole_number),
    Kind(
        "index",
        "indices among the arguments are off by a number",
        "aten.embedding: index=1",
        _index,
        _whole_number,
    ),
    Kind(
        "epsilon",
        "the small number that keeps a division safe is multiplied by this",
        "aten.native_layer_norm: epsilon=100",
        _epsilon,
        _number,
        applies_to=lambda op, _: any(name in _argument_names(op) for name in _EPSILONS),
    ),
    Kind(
        "drop",
        "the argument of this name is not looked at, such as a bias",
        "aten.addmm: drop=self",
        _drop,
        str,
        applies_to=lambda op, name: name in _argument_names(op),
    ),
    Kind("swap", "the first two arguments of one shape are exchanged", "aten.sub: swap", _swap),
    Kind(
        "unimplemented",
        "the kernel is missing: NotImplementedError",
        "aten.cumsum: unimplemented",
        _unimplemented,
        changes_values=False,
    ),
    Kind(
        "raise",
        "the kernel fails: RuntimeError, with a text of your own if given",
        "aten.mul: raise",
        _raise,
        str,
        value_is_optional=True,
        changes_values=False,
    ),
    Kind(
        "assert",
        "the kernel fails on the device: the next wait for it raises, and every call from then on",
        "aten.embedding: assert",
        _assert,
        changes_values=False,
    ),
    Kind(
        "slow",
        "the kernel takes this much longer on the device",
        "aten.sort: slow=5ms",
        _slow,
        _seconds,
        changes_values=False,
    ),
)
KINDS = {kind.name: kind for kind in _ALL}
