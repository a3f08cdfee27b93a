"""Fake quantization, whose kernels have no float64: levels next to each other, gradients that pass or do not."""

from __future__ import annotations

import pytest
import torch

import op_tools
from ditorch.sim import faults

from ....conftest import DEVICE
from ..kernels import kernel, wrong

only_on_sim = pytest.mark.skipif(DEVICE != "sim", reason="kernels are replaced on the simulated accelerator")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def quantized(device, dtype=torch.float32, learned=True):
    """Each op, with gradients; numbers lie on both sides of the range, and some halfway between two levels."""
    generator = torch.Generator().manual_seed(3)
    x = torch.cat([torch.randn(20, 25, generator=generator), torch.arange(100).view(20, 5) * 0.025], 1)
    x = x.to(device, dtype).requires_grad_()
    scales = (torch.rand(20, generator=generator) * 0.05 + 0.02).to(device)
    zeros = torch.randint(-3, 4, (20,), generator=generator, dtype=torch.int32).to(device)
    made = [torch.fake_quantize_per_tensor_affine(x, 0.05, 3, -20, 30)]
    made += [torch.fake_quantize_per_tensor_affine(x, scales[0], zeros[0], -20, 30)]
    made += [torch.fake_quantize_per_channel_affine(x, scales, zeros, 0, -20, 30)]
    if learned:
        one = [torch.tensor([value], device=device, requires_grad=True) for value in (0.05, 2.3)]
        many = [torch.full((30,), value, device=device, requires_grad=True) for value in (0.04, -1.0)]
        made += [torch._fake_quantize_learnable_per_tensor_affine(x, *one, -20, 30, 0.5)]
        made += [torch._fake_quantize_learnable_per_channel_affine(x, *many, 1, -20, 30, 0.5)]
    sum((part * part.detach()).sum() for part in made).backward()


@pytest.mark.parametrize("reference", ["cpu", "device"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_healthy_levels_and_gradients(device, dtype, reference):
    with op_tools.OpAutoCompare(verbose=0, reference=reference) as tool:
        quantized(device, dtype, learned=dtype is torch.float32)
    assert [row["reason"] for row in tool.results] == []
    assert not list(tool.results.not_looked_at)


@pytest.mark.parametrize("reference", ["cpu", "device"])
@pytest.mark.parametrize("per_row", [False, True])
def test_modules_of_quantization_aware_training(device, per_row, reference):
    quantization = pytest.importorskip("torch.ao.quantization")
    observer = (
        quantization.MovingAveragePerChannelMinMaxObserver if per_row else quantization.MovingAverageMinMaxObserver
    )
    options = {"ch_axis": 0} if per_row else {}
    x = torch.randn(8, 40, generator=torch.Generator().manual_seed(1)).to(device).requires_grad_()
    with op_tools.OpAutoCompare(verbose=0, reference=reference) as tool:
        # the fused one has no form in float64
        modules = (quantization.FakeQuantize, quantization.FusedMovingAvgObsFakeQuantize)
        for module in modules if reference == "cpu" else modules[:1]:
            quantizer = module(observer, 0, 255, **options).to(device)
            for _ in range(3):
                quantizer(x * 1.5).square().sum().backward()
    assert [row["reason"] for row in tool.results] == []
    assert not list(tool.results.not_looked_at)


def by_division(x, scale, zero, least, most):
    level = (x.cpu().float() / scale).round() + zero
    made = (level.clamp(least, most) - zero) * scale
    return made.to(x.device, x.dtype), ((level >= least) & (level <= most)).to(x.device)


@only_on_sim
@pytest.mark.parametrize("reference", ["cpu", "device"])
def test_numbers_between_two_levels_may_go_to_either(device, reference):
    """Half a level is a little more or less where one divides and the other multiplies by the inverse."""
    x = ((torch.arange(200) - 60.5) * 0.03).view(2, 100).to(device).requires_grad_()
    scales, zeros = torch.full((2,), 0.03, device=device), torch.full((2,), 3, dtype=torch.int32, device=device)

    def run():
        torch.fake_quantize_per_tensor_affine(x, 0.03, 3, -20, 60).square().sum().backward()
        torch.fake_quantize_per_channel_affine(x, scales, zeros, 0, -20, 60).square().sum().backward()

    def by_channel(x, scales, zeros, axis, least, most):
        return by_division(x, scales.cpu()[:, None], zeros.cpu()[:, None], least, most)

    one, many = "fake_quantize_per_tensor_affine_cachemask", "fake_quantize_per_channel_affine_cachemask"
    with kernel(one, by_division), kernel(many, by_channel):
        assert wrong(run, reference=reference) == set()


WRONG = {
    "cut off": lambda x, scale, zero, least, most: by_division(x - 0.5 * scale, scale, zero, least, most),
    "one level too high": lambda x, scale, zero, least, most: by_division(x + scale, scale, zero, least, most),
    "no zero point": lambda x, scale, zero, least, most: by_division(x, scale, 0, least, most),
    "no range": lambda x, scale, zero, least, most: by_division(x, scale, zero, -10000, 10000),
    "no mask": lambda *given: (by_division(*given)[0], torch.ones_like(given[0], dtype=torch.bool)),
}


@only_on_sim
@pytest.mark.parametrize("reference", ["cpu", "device"])
@pytest.mark.parametrize("fault", WRONG)
def test_wrong_levels_are_found(device, fault, reference):
    x = torch.randn(300, generator=torch.Generator().manual_seed(2)).to(device).requires_grad_()

    def run():
        torch.fake_quantize_per_tensor_affine(x, 0.05, 3, -20, 30).square().sum().backward()

    with kernel("fake_quantize_per_tensor_affine_cachemask", WRONG[fault]):
        assert wrong(run, reference=reference) == {"fake_quantize_per_tensor_affine"}


@pytest.mark.parametrize(
    "fault",
    [
        "aten._fake_quantize_learnable_per_tensor_affine_backward: scale=1.05",
        "aten._fake_quantize_learnable_per_channel_affine_backward: scale=1.05",
        "aten.fake_quantize_per_channel_affine_cachemask: scale=1.05",
    ],
)
def test_other_faults_are_found(device, fault):
    with faults.inject(fault), op_tools.OpAutoCompare(verbose=0) as tool:
        quantized(device)
    (found,) = {row["op"].rpartition(".")[2] for row in tool.results}
    assert found in fault
