"""Kernels of fused attention by their own names, as compiled code calls them: the CPU has none of them."""

from __future__ import annotations

import pytest
import torch

import op_tools
from ditorch.sim import faults

aten = torch.ops.aten
FLASH, EFFICIENT = "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention"


def qkv(device, dtype, key_heads=4):
    return [torch.randn(2, heads, 12, 8).to(device, dtype) for heads in (4, key_heads, key_heads)]


def flash(query, key, value, dropout=0.0, causal=True):
    results = getattr(aten, FLASH)(query, key, value, dropout, causal)
    output, logsumexp, cum_q, cum_k, max_q, max_k, seed, offset, _ = results
    gradients = getattr(aten, f"{FLASH}_backward")(
        output, query, key, value, output, logsumexp, cum_q, cum_k, max_q, max_k, dropout, causal, seed, offset
    )
    return output, gradients


def efficient(query, key, value, bias=None, causal=False):
    output, logsumexp, seed, offset = getattr(aten, EFFICIENT)(query, key, value, bias, True, 0.0, causal)
    wanted = [True, True, True, bias is not None]
    gradients = getattr(aten, f"{EFFICIENT}_backward")(
        output, query, key, value, bias, output, logsumexp, seed, offset, 0.0, wanted, causal
    )
    return output, gradients


@pytest.fixture(params=["cpu", "device"])
def tool(request, monkeypatch):
    monkeypatch.setenv("OP_AUTOCOMPARE_REFERENCE", request.param)
    return op_tools.OpAutoCompare(verbose=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_healthy_kernels_are_compared_and_right(tool, device, dtype):
    bias = torch.randn(2, 4, 12, 12).to(device, dtype)
    with tool:
        flash(*qkv(device, dtype))
        flash(*qkv(device, dtype, key_heads=2))
        efficient(*qkv(device, dtype))
        efficient(*qkv(device, dtype), bias)
    assert not tool.summary.ranked()
    assert "not compared" not in tool.summary.text()


@pytest.mark.parametrize("kernel", [FLASH, f"{FLASH}_backward", f"{EFFICIENT}_backward"])
def test_a_broken_kernel_alone_is_named(tool, device, kernel):
    with faults.inject(f"aten.{kernel}: scale=1.05"), tool:
        (flash if "flash" in kernel else efficient)(*qkv(device, torch.float32))
    assert {found.name for found in tool.summary.ranked()} == {f"aten.{kernel}"}


def test_a_wrong_sum_that_is_kept_padded_shows_in_the_gradients(tool, device):
    with faults.inject(f"aten.{EFFICIENT}: scale=1.05"), tool:
        efficient(*qkv(device, torch.float32))
    assert {found.name for found in tool.summary.ranked()} == {f"aten.{EFFICIENT}", f"aten.{EFFICIENT}_backward"}


def test_a_kernel_that_drops_is_left_out_and_told(tool, device):
    with tool:
        flash(*qkv(device, torch.float32), dropout=0.5)
    assert not tool.summary.ranked()
    assert f"aten.{FLASH}" in tool.summary.text()
    assert "it drops numbers, and does not tell which" in tool.summary.text()
