"""Mixed precision as programs written for CUDA use it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.usefixtures("redirect")


@pytest.fixture
def square():
    return torch.ones(2, 2, device="cuda")


@pytest.mark.parametrize(
    "context",
    [
        lambda: torch.autocast("cuda", dtype=torch.bfloat16),
        lambda: torch.autocast(device_type="cuda", dtype=torch.bfloat16),
        lambda: torch.amp.autocast("cuda", torch.bfloat16),
        lambda: torch.autocast(torch.device("cuda").type, dtype=torch.bfloat16),
    ],
)
def test_autocast_of_cuda_is_the_accelerators(context, square):
    with context():
        assert torch.is_autocast_enabled()
        assert torch.is_autocast_enabled("cuda")
        assert not torch.is_autocast_enabled("cpu")
        assert torch.get_autocast_dtype("cuda") == torch.bfloat16
        assert torch.get_autocast_gpu_dtype() == torch.bfloat16
        assert (square @ square).dtype == torch.bfloat16
    assert not torch.is_autocast_enabled()
    assert (square @ square).dtype == torch.float32


@pytest.mark.filterwarnings("ignore:.*torch.cuda.amp.*is deprecated:FutureWarning")
def test_the_old_names_in_torch_cuda_amp(square):
    with torch.cuda.amp.autocast():
        assert (square @ square).dtype == torch.float16
    with torch.cuda.amp.autocast(dtype=torch.bfloat16):
        assert (square @ square).dtype == torch.bfloat16
    with torch.cuda.amp.autocast(enabled=False):
        assert (square @ square).dtype == torch.float32
    assert torch.cuda.amp.GradScaler().is_enabled()


def test_autocast_as_a_decorator(square):
    @torch.autocast("cuda", dtype=torch.bfloat16)
    def product(x):
        return x @ x

    assert product(square).dtype == torch.bfloat16


def test_custom_functions_under_autocast(square):
    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x @ x

        @staticmethod
        @torch.amp.custom_bwd(device_type="cuda")
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad @ x.t() + x.t() @ grad

    leaf = square.half().requires_grad_()
    with torch.autocast("cuda", dtype=torch.float16):
        result = Product.apply(leaf)
    assert result.dtype == torch.float32
    result.sum().backward()
    assert leaf.grad.dtype == torch.float16


@pytest.mark.parametrize("make", [lambda **k: torch.amp.GradScaler(**k), lambda **k: torch.amp.GradScaler("cuda", **k)])
def test_grad_scaler_scales_steps_and_backs_off(make, square):
    scaler = make(init_scale=1024.0)
    model = nn.Linear(2, 1).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert scaler.is_enabled()
    before = model.weight.detach().clone()
    scaler.scale(model(square).sum()).backward()
    scaler.unscale_(optimizer)
    assert model.weight.grad.tolist() == [[2.0, 2.0]]
    scaler.step(optimizer)
    scaler.update()
    assert torch.allclose(model.weight, before - 0.2)
    assert scaler.get_scale() == 1024
    optimizer.zero_grad()
    before = model.weight.detach().clone()
    scaler.scale((model(square) * float("inf")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(model.weight, before)
    assert scaler.get_scale() == 512


def test_compiled_autocast(square):
    def product(x):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return x @ x

    compiled = torch.compile(product, fullgraph=True, backend="aot_eager")
    assert compiled(square).dtype == torch.bfloat16
    torch._dynamo.reset()
