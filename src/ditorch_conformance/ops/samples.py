"""The calls of an entry: with the arguments that torch's lists have for it, all on the CPU."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Callable

import torch
from torch import Tensor

from ditorch_conformance.results import full_name
from op_tools.values import trees

_OPTIMIZER_STEPS = 3
_OPTIMIZER_SHAPES = ((8, 16), (16, 8))


@dataclass
class Call:
    """One call: what is run, and which other forms it has."""

    name: str  # as op_tools knows the op
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    in_place: Callable[..., Any] | None = None
    takes_out: bool = False
    has_gradient: bool = False
    has_second_gradient: bool = False
    changes_arguments: bool = False
    is_derived: bool = False  # ours, not torch's: it counts only where the CPU takes it
    draws: bool = False  # random numbers whose distribution is unknown
    is_module: bool = False  # it may be more than the op that it is named after
    stays_on_host: bool = False  # integer tensors do: torch wants them there, whatever the device

    @property
    def tensors(self) -> list[Tensor]:
        return [*trees.tensors(self.args), *trees.tensors(self.kwargs)]

    def with_tensors(self, change: Callable[[Tensor], Tensor]) -> Call:
        """The same call with other tensors."""
        args, kwargs = trees.map_tensors(change, (self.args, self.kwargs))
        return Call(**{**vars(self), "args": args, "kwargs": kwargs})


# ---- ops -------------------------------------------------------------------------------------------------------------


def of_op(op: Any, dtype: torch.dtype) -> Iterator[Call]:
    """All samples of an entry of op_db; then, where torch has none, an empty one and one without dimensions."""
    is_reference = hasattr(op, "torch_opinfo_name")
    has_gradient = not is_reference and op.supports_autograd and dtype in _differentiable(op)
    first: Call | None = None
    has_empty = has_zero_dimensional = False
    for sample in op.sample_inputs("cpu", dtype, requires_grad=has_gradient):
        call = Call(
            f"torch.{op.torch_opinfo_name}" if is_reference else name_of(op),
            _first_result(op.op) if op.name in _WITH_INTERNALS else op.op,
            (sample.input, *sample.args),
            sample.kwargs,
            in_place=None if is_reference or sample.broadcasts_input else op.inplace_variant,
            takes_out=op.supports_out and not is_reference and op.name not in _WITH_INTERNALS,
            has_gradient=has_gradient,
            has_second_gradient=has_gradient and op.supports_gradgrad,
            draws=full_name(op) in _MISNAMED,
            stays_on_host=op.name.endswith("tensor_split"),
        )
        has_empty |= is_empty(call)
        has_zero_dimensional |= is_zero_dimensional(call)
        first = first or call
        yield call
    if first is not None and not is_reference and all(one.layout is torch.strided for one in first.tensors):
        if not has_empty:
            yield from _derived(first, lambda tensor: tensor[:0] if tensor.dim() else tensor)
        if not has_zero_dimensional:
            yield from _derived(first, lambda tensor: tensor.reshape(-1)[0] if tensor.numel() else tensor)


# torch's list calls another op by these names, or with its arguments in another order
_MISNAMED = ("rand_like", "normal.number_mean")


# what else they return is for their own backward pass, and each kernel's own affair
_WITH_INTERNALS = ("native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update")


def _first_result(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: function(*args, **kwargs)[0]


def name_of(op: Any) -> str:
    """Many entries are functions of torch's tests around the op, so the entry's name is taken."""
    return f"op_db.{full_name(op)}" if full_name(op) in _MISNAMED else f"torch.{op.name}"


def is_empty(call: Call) -> bool:
    return any(tensor.layout is torch.strided and tensor.numel() == 0 for tensor in call.tensors)


def is_zero_dimensional(call: Call) -> bool:
    first = next(iter(call.tensors), None)
    return first is not None and first.dim() == 0


def _differentiable(op: Any) -> set[torch.dtype]:
    return {*op.supported_backward_dtypes("cpu"), *op.supported_backward_dtypes("cuda")}


def _derived(call: Call, change: Callable[[Tensor], Tensor]) -> Iterator[Call]:
    with torch.no_grad():
        made = call.with_tensors(lambda tensor: change(tensor).clone().requires_grad_(tensor.requires_grad))
    made.is_derived = True
    if made.tensors:
        yield made


# ---- modules ---------------------------------------------------------------------------------------------------------


def of_module(info: Any, dtype: torch.dtype) -> Iterator[Call]:
    """A module's parameters and buffers are arguments of the call, so that they are compared, too."""
    for training in (False, True) if info.train_and_eval_differ else (True,):
        inputs = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=True, training=training)
        for one in inputs:
            if one.forward_input is None:
                continue
            module = info.module_cls(*one.constructor_input.args, **one.constructor_input.kwargs)
            module = module.to(dtype).train(training)
            forward = one.forward_input
            if info.is_lazy:
                with torch.no_grad():
                    module(*forward.args, **forward.kwargs)
            state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
            yield Call(
                _op_of(info.module_cls.__name__),
                _as_function(module),
                (state, *forward.args),
                forward.kwargs,
                # cuDNN's recurrent layers have no backward pass in evaluation
                has_gradient=dtype.is_floating_point and (training or not isinstance(module, torch.nn.RNNBase)),
                changes_arguments=training and bool(dict(module.named_buffers())),
                is_module=True,
            )


# the op whose limits a module has: libraries compute these less precisely, and OpAutoCompare knows it of the op
_RECURRENT = {
    "RNN": "rnn_tanh",
    "LSTM": "lstm",
    "GRU": "gru",
    "RNNCell": "rnn_tanh_cell",
    "LSTMCell": "lstm_cell",
    "GRUCell": "gru_cell",
}
_CONVOLUTION = re.compile(r"(?:Lazy)?Conv(Transpose)?([123]d)")


def _op_of(module: str) -> str:
    if module in _RECURRENT:
        return f"torch.{_RECURRENT[module]}"
    if convolution := _CONVOLUTION.fullmatch(module):
        transposed, dimensions = convolution.groups()
        return f"torch.conv_transpose{dimensions}" if transposed else f"torch.conv{dimensions}"
    return f"torch.nn.{module}"


def _as_function(module: torch.nn.Module) -> Callable[..., Any]:
    def run(state: dict[str, Tensor], *args: Any, **kwargs: Any) -> Any:
        return torch.func.functional_call(module, state, args, kwargs)

    return run


# ---- optimizers ------------------------------------------------------------------------------------------------------


def of_optimizer(info: Any, dtype: torch.dtype) -> Iterator[Call]:
    """A few steps with gradients that are given: parameters in, parameters out."""
    generator = torch.Generator().manual_seed(0)

    def numbers() -> list[Tensor]:
        return [torch.randn(shape, generator=generator).to(dtype) for shape in _OPTIMIZER_SHAPES]

    parameters, gradients = numbers(), [numbers() for _ in range(_OPTIMIZER_STEPS)]
    for one in info.optim_inputs_func("cpu"):
        if {"capturable", "differentiable"} & set(one.kwargs) or [*trees.tensors(one.kwargs)]:
            continue  # for other ways of running a step
        forms = [form for form in ("foreach", "fused") if form in info.supported_impls]
        if "cuda" not in getattr(info, "supports_fused_on", ("cuda",)):
            forms = [form for form in forms if form != "fused"]
        for form in ("for-loop", *forms):
            flags = {name: name == form for name in forms}
            function = _steps(info, {**one.kwargs, **flags})
            yield Call(f"torch.optim.{info.optim_cls.__name__}.step", function, (parameters, gradients))


def _steps(info: Any, options: dict[str, Any]) -> Callable[..., Any]:
    def run(parameters: list[Tensor], gradients: list[list[Tensor]]) -> list[Tensor]:
        weights = [one.detach().clone().requires_grad_() for one in parameters]
        optimizer = info.optim_cls(weights, **options)
        with torch.enable_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # a search along a line needs a valley, and the same one at every step: what it remembers of another one
            # tells it nothing, and its next step would be one of rounding errors
            for given in gradients[:1] * len(gradients) if info.step_requires_closure else gradients:

                def loss(given: list[Tensor] = given) -> Tensor:
                    for weight, gradient in zip(weights, given):
                        used = weight.detach() - gradient if info.step_requires_closure else gradient.clone()
                        weight.grad = used.to_sparse() if info.only_supports_sparse_grads else used
                    return torch.stack([(w.detach() - g).square().sum() / 2 for w, g in zip(weights, given)]).sum()

                loss()
                optimizer.step(loss) if info.step_requires_closure else optimizer.step()
        return [weight.detach() for weight in weights]

    return run
