"""Law 1: watching changes nothing. Every op of op_db under every observing tool, to the last bit."""

from __future__ import annotations

import contextlib
import io
import warnings

import pytest
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import op_tools

from . import op_samples
from .op_samples import bits, tensors_in

CHUNKS = 8
OBSERVING = {
    "OpObserve": lambda: op_tools.OpObserve(),
    "OpTimeMeasure": lambda: op_tools.OpTimeMeasure(),
    "OpOverflowCheck": lambda: op_tools.OpOverflowCheck(),
    "OpCapture": lambda: op_tools.OpCapture(),
    "OpCapture statistics": lambda: op_tools.OpCapture(mode="statistics"),
    "OpAutoCompare": lambda: op_tools.OpAutoCompare(),
}


def aliases(result, arguments):
    """Which results share memory with which arguments, and where in it."""
    storages = [tensor.untyped_storage().data_ptr() for tensor in arguments]
    return [
        (
            [place for place, storage in enumerate(storages) if storage == tensor.untyped_storage().data_ptr()],
            tensor.storage_offset(),
            tensor.stride(),
            [place for place, argument in enumerate(arguments) if argument is tensor],
        )
        for tensor in result
    ]


def random_state(device):
    states = [torch.get_rng_state(), torch.get_device_module(device).get_rng_state()]
    return [state.numpy().tobytes() for state in states]


def everything(op, sample, device, tool):
    """All that can be seen of one call and its backward pass, with or without a tool."""
    args, kwargs = sample.arguments()
    arguments = tensors_in((args, kwargs))
    torch.manual_seed(0)
    with tool or contextlib.nullcontext():
        result = op.op(*args, **kwargs)
        outputs = tensors_in(result)
        seen = {
            "results": [bits(tensor) for tensor in outputs] if "empty" not in op.name else len(outputs),
            "plain results": [leaf for leaf in pytree.tree_leaves(result) if not isinstance(leaf, torch.Tensor)],
            "kind": type(result),
            "aliases": aliases(outputs, arguments),
            "arguments": [bits(tensor) for tensor in arguments],
            "versions": [tensor._version for tensor in (*arguments, *outputs)],
            "graph": [(tensor.requires_grad, type(tensor.grad_fn).__name__) for tensor in outputs],
            "random state": random_state(device),
        }
        differentiable = [tensor for tensor in outputs if tensor.requires_grad and "empty" not in op.name]
        wanted = [tensor for tensor in arguments if tensor.requires_grad]
        if differentiable and wanted:
            gradients = torch.autograd.grad(
                differentiable,
                wanted,
                [torch.ones_like(tensor) for tensor in differentiable],
                allow_unused=True,
            )
            seen["gradients"] = [bits(gradient) for gradient in gradients]
            seen["strides of gradients"] = [None if gradient is None else gradient.stride() for gradient in gradients]
        seen["random state after backward"] = random_state(device)
    return seen


def varies(op, sample, device, plain):
    """Whether a real device that adds up in any order has only been lucky so far."""
    return device != "sim" and any(str(everything(op, sample, device, None)) != str(plain) for _ in range(50))


@pytest.mark.parametrize("chunk", op_samples.chunks(CHUNKS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_op_is_the_same_under_every_observing_tool(device, dtype, chunk, monkeypatch):
    monkeypatch.setenv("OP_TOOLS_VERBOSE", "1")
    compared, wrong = 0, []
    for op in op_samples.ops()[chunk::CHUNKS]:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            try:
                sample = next(op_samples.samples(op, device, dtype, most=1), None)
                if sample is None:
                    continue
                plain = everything(op, sample, device, None)
                again = [everything(op, sample, device, None) for _ in range(1 if device == "sim" else 4)]
                if any(str(plain) != str(one) for one in again):
                    continue  # not even the same twice by itself
            except (RuntimeError, NotImplementedError, ValueError, TypeError, AssertionError):
                continue  # the device refuses the sample
            for name, tool in OBSERVING.items():
                watched = everything(op, sample, device, tool())
                compared += 1
                different = [key for key in plain if str(plain[key]) != str(watched[key])]
                if different and not varies(op, sample, device, plain):
                    wrong.append(f"{op_samples.full_name(op)} under {name}: {', '.join(different)} differ")
    assert not wrong, "\n".join(wrong)
    assert compared > 200


@pytest.mark.parametrize("make", OBSERVING.values(), ids=OBSERVING)
def test_a_backward_pass_inside_autocast_is_the_same(device, make):
    def gradient():
        torch.manual_seed(0)
        net = torch.nn.Linear(8, 8, device=device)
        x = torch.randn(16, 8, device=device, requires_grad=True)
        with torch.autocast(torch.device(device).type, torch.bfloat16):
            y = net(x)
            (first,) = torch.autograd.grad(y.float().square().sum(), x, create_graph=True)
            loss = net(x * 2).float().square().mean() + y.float().mean() + (first * first).sum()
        loss.backward()
        return net.weight.grad

    plain = gradient()
    with make():
        watched = gradient()
    assert torch.equal(plain, watched)


def encoder():
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=True)


FAST_PATHS = {
    "encoder": (encoder, lambda model, x, mask: model(x, src_key_padding_mask=mask)),
    "layer": (
        lambda: torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
        lambda model, x, mask: model(x, src_key_padding_mask=mask),
    ),
    "attention": (
        lambda: torch.nn.MultiheadAttention(8, 2, batch_first=True),
        lambda model, x, mask: model(x, x, x, key_padding_mask=mask),
    ),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("tool", OBSERVING)
@pytest.mark.parametrize("name", FAST_PATHS)
def test_a_model_takes_the_path_that_it_takes_unwatched(device, name, tool):
    """nn.TransformerEncoder and its parts leave their fast path where a mode is on; ours must not count."""
    make, call = FAST_PATHS[name]
    torch.manual_seed(0)
    model = make().to(device).eval()
    x = torch.randn(3, 5, 8, device=device)
    lengths = torch.tensor([5, 3, 2], device=device)
    mask = torch.arange(5, device=device) >= lengths[:, None]
    with torch.no_grad():
        plain = tensors_in(call(model, x, mask))
        with contextlib.redirect_stdout(io.StringIO()), OBSERVING[tool]():
            watched = tensors_in(call(model, x, mask))
            assert torch.overrides.has_torch_function((x,))
    assert [bits(tensor) for tensor in watched] == [bits(tensor) for tensor in plain]
    assert all(part.forward.__module__.startswith("torch.") for part in model.modules())


def test_the_mode_of_a_program_keeps_its_models_off_the_fast_path(device):
    class Theirs(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    x = torch.randn(3, 5, 8, device=device)
    model = torch.nn.MultiheadAttention(8, 2, batch_first=True).to(device).eval()
    paths = []
    for tool in (contextlib.nullcontext(), op_tools.OpTimeMeasure()):
        seen = []
        with torch.no_grad(), contextlib.redirect_stdout(io.StringIO()), tool, Theirs():
            model(x, x, x)
        paths.append(torch._native_multi_head_attention in seen)
    assert paths == [False, False]


@pytest.mark.parametrize("tool", OBSERVING)
@pytest.mark.usefixtures("way")
def test_dispatch_modes_of_a_program_see_nothing_of_ours_in_backward(device, tool):
    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen[-1].append(func)
            return func(*args, **(kwargs or {}))

    seen = []
    for make in (contextlib.nullcontext, OBSERVING[tool]):
        seen.append([])
        x = torch.randn(4, 4, device=device, requires_grad=True)
        with contextlib.redirect_stdout(io.StringIO()), make(), Seen():
            y = (x @ x).exp()
            (y * y).sum().backward()
    assert seen[0] == seen[1]
