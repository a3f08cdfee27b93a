"""Mixed precision: which operators run in which dtype, and the gradient scaler."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

LOW = [torch.bfloat16, torch.float16]


def image(channels=1):
    return torch.ones(1, channels, 4, 4, device="sim")


def matrix(dtype=torch.float32):
    return torch.ones(2, 2, device="sim", dtype=dtype)


LOW_PRECISION = {
    "mm": lambda: torch.mm(matrix(), matrix()),
    "matmul": lambda: matrix() @ matrix(),
    "bmm": lambda: torch.bmm(matrix()[None], matrix()[None]),
    "addmm": lambda: torch.addmm(matrix(), matrix(), matrix()),
    "linear": lambda: F.linear(matrix(), matrix()),
    "einsum": lambda: torch.einsum("ij,jk->ik", matrix(), matrix()),
    "conv2d": lambda: nn.Conv2d(1, 1, 1).to("sim")(image()),
    "conv_transpose2d": lambda: nn.ConvTranspose2d(1, 1, 1).to("sim")(image()),
    "lstm": lambda: nn.LSTM(2, 2).to("sim")(torch.ones(1, 1, 2, device="sim"))[0],
    "attention": lambda: F.scaled_dot_product_attention(*[matrix()[None, None]] * 3),
}
FLOAT32 = {
    "softmax": lambda low: low.softmax(-1),
    "log_softmax": lambda low: low.log_softmax(-1),
    "layer_norm": lambda low: F.layer_norm(low, (2,)),
    "exp": torch.exp,
    "log": torch.log,
    "pow": lambda low: low.pow(2),
    "sum": torch.sum,
    "cumsum": lambda low: low.cumsum(0),
    "norm": torch.linalg.vector_norm,
    "mse_loss": lambda low: F.mse_loss(low, low),
    "cross_entropy": lambda low: F.cross_entropy(low, torch.zeros(2, dtype=torch.long, device="sim")),
    "binary_cross_entropy_with_logits": lambda low: F.binary_cross_entropy_with_logits(low, low),
}


@pytest.mark.parametrize("dtype", LOW, ids=str)
@pytest.mark.parametrize("operation", LOW_PRECISION)
def test_these_run_in_low_precision(operation, dtype):
    with torch.autocast("sim", dtype=dtype):
        assert LOW_PRECISION[operation]().dtype == dtype


@pytest.mark.parametrize("dtype", LOW, ids=str)
@pytest.mark.parametrize("operation", FLOAT32)
def test_these_run_in_float32(operation, dtype):
    with torch.autocast("sim", dtype=dtype):
        assert FLOAT32[operation](matrix(dtype)).dtype == torch.float32


@pytest.mark.parametrize("dtype", LOW, ids=str)
def test_these_run_in_the_widest_dtype_of_their_arguments(dtype):
    with torch.autocast("sim", dtype=dtype):
        assert torch.addcmul(matrix(dtype), matrix(), matrix(dtype)).dtype == torch.float32
        assert torch.addcmul(matrix(dtype), matrix(dtype), matrix(dtype)).dtype == dtype


@pytest.mark.parametrize("dtype", LOW, ids=str)
def test_other_operators_keep_their_dtype(dtype):
    with torch.autocast("sim", dtype=dtype):
        assert matrix().relu().dtype == torch.float32
        assert matrix(dtype).relu().dtype == dtype
        assert (matrix(torch.float64) @ matrix(torch.float64)).dtype == torch.float64


def test_autocast_can_be_switched_off_inside():
    with torch.autocast("sim", dtype=torch.bfloat16):
        assert torch.is_autocast_enabled("sim")
        with torch.autocast("sim", enabled=False):
            assert not torch.is_autocast_enabled("sim")
            assert (matrix() @ matrix()).dtype == torch.float32
        assert (matrix() @ matrix()).dtype == torch.bfloat16


def test_autocast_of_the_device_leaves_the_cpu_alone():
    with torch.autocast("sim", dtype=torch.bfloat16):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (matrix() @ matrix()).dtype == torch.float32


def test_the_default_dtype_is_float16_as_on_cuda():
    with torch.autocast("sim"):
        assert (matrix() @ matrix()).dtype == torch.float16


def test_an_unsupported_dtype_switches_autocast_off_with_a_warning():
    with pytest.warns(UserWarning, match="not supported"), torch.autocast("sim", dtype=torch.float64):
        assert not torch.is_autocast_enabled("sim")


def test_binary_cross_entropy_is_refused():
    probabilities = torch.full((2,), 0.5, device="sim")
    assert F.binary_cross_entropy(probabilities, probabilities).dtype == torch.float32
    with (
        torch.autocast("sim", dtype=torch.float16),
        pytest.raises(RuntimeError, match=r"binary_cross_entropy is unsafe to autocast.*with_logits"),
    ):
        F.binary_cross_entropy(probabilities, probabilities)


def test_gradients_have_the_parameters_dtype_and_the_cpus_values():
    gradients = []
    for device in ("cpu", "sim"):
        torch.manual_seed(0)
        model, inputs = nn.Linear(8, 8).to(device), torch.randn(4, 8).to(device)
        with torch.autocast(device, dtype=torch.bfloat16):
            model(inputs).float().pow(2).mean().backward()
        gradients.append(model.weight.grad.cpu())
    assert gradients[1].dtype == torch.float32
    assert torch.equal(*gradients)


def test_custom_functions_are_cast():
    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="sim", cast_inputs=torch.float32)
        def forward(context, x):
            assert not torch.is_autocast_enabled("sim")
            return x @ x

        @staticmethod
        @torch.amp.custom_bwd(device_type="sim")
        def backward(context, gradient):
            return gradient

    with torch.autocast("sim", dtype=torch.float16):
        assert Product.apply(matrix(torch.float16).requires_grad_()).dtype == torch.float32


@pytest.fixture
def scaled_step():
    """A model, and one step of it through a gradient scaler with the loss multiplied by a factor."""
    scaler = torch.amp.GradScaler("sim", init_scale=1024.0)
    model = nn.Linear(2, 1).to("sim")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(factor=1.0):
        optimizer.zero_grad()
        scaler.scale((model(torch.ones(1, 2, device="sim")) * factor).sum()).backward()
        scaler.unscale_(optimizer)
        gradient = model.weight.grad.tolist()
        scaler.step(optimizer)
        scaler.update()
        return gradient

    step.model, step.scaler = model, scaler
    return step


def test_the_scaler_unscales_gradients(scaled_step):
    before = scaled_step.model.weight.detach().clone()
    assert scaled_step() == [[1, 1]]
    assert scaled_step.scaler.get_scale() == 1024
    torch.testing.assert_close(scaled_step.model.weight.detach(), before - 0.1)


@pytest.mark.parametrize("factor", [float("inf"), float("nan")])
def test_a_step_that_overflows_is_skipped_and_halves_the_scale(scaled_step, factor):
    before = scaled_step.model.weight.detach().clone()
    scaled_step(factor)
    assert torch.equal(scaled_step.model.weight.detach().cpu(), before.cpu())
    assert scaled_step.scaler.get_scale() == 512
    scaled_step()
    assert not torch.equal(scaled_step.model.weight.detach().cpu(), before.cpu())


def test_the_scaler_grows_after_enough_good_steps():
    scaler = torch.amp.GradScaler("sim", init_scale=2.0, growth_interval=2)
    weight = torch.ones(1, device="sim", requires_grad=True)
    optimizer = torch.optim.Adam([weight], fused=True)  # takes the scale into its own step
    for _ in range(2):
        scaler.scale(weight.sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 4
