"""Dropout inside of attention and recurrent layers: the device runs them once more, the CPU drops the same, or none."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import op_tools
from ditorch.sim import faults
from op_tools.autocompare import drawn_masks

from ...conftest import DEVICE
from .kernels import kernel

pytestmark = pytest.mark.skipif(DEVICE != "sim", reason="kernels are broken on the simulated accelerator")


def attention(device):
    numbers = torch.Generator().manual_seed(1)
    query, key, value = (torch.randn(2, 2, 6, 8, generator=numbers).to(device).requires_grad_() for _ in range(3))

    def run():
        result = functional.scaled_dot_product_attention(query, key, value, dropout_p=0.4, is_causal=True)
        result.square().sum().backward()
        return [result.detach(), query.grad, key.grad, value.grad]

    return run


def layer(device):
    torch.manual_seed(1)
    made = torch.nn.MultiheadAttention(16, 2, dropout=0.3, batch_first=True).to(device)
    words = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(2)).to(device).requires_grad_()

    def run():
        result, weights = made(words, words, words)
        (result.square().sum() + weights.square().sum()).backward()
        return [result.detach(), words.grad, made.in_proj_weight.grad]

    return run


def recurrent(kind):
    def make(device):
        torch.manual_seed(1)
        made = getattr(torch.nn, kind)(8, 6, 2, dropout=0.5, batch_first=True).to(device)
        words = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(2)).to(device).requires_grad_()

        def run():
            result = made(words)[0]
            result.square().sum().backward()
            return [result.detach(), words.grad, made.weight_hh_l0.grad]

        return run

    return make


SOFTMAX = "_safe_softmax" if hasattr(torch.ops.aten, "_safe_softmax") else "_softmax"  # before torch 2.5
# the op, and a kernel that it uses
CALLS = {
    "scaled_dot_product_attention": (attention, SOFTMAX, "_softmax_backward_data"),
    "multi_head_attention_forward": (layer, "_softmax", "_softmax_backward_data"),
    "lstm": (recurrent("LSTM"), "_thnn_fused_lstm_cell", "_thnn_fused_lstm_cell_backward_impl"),
    "gru": (recurrent("GRU"), "_thnn_fused_gru_cell", "_thnn_fused_gru_cell_backward"),
}


def found(run, **options):
    with op_tools.OpAutoCompare(verbose=0, **options) as tool:
        run()
    skipped = [row["what"] for row in tool.results.not_looked_at]
    return {(row["op"].rpartition(".")[2], row["what"][:4]) for row in tool.results}, skipped, tool


@pytest.fixture(params=["masks are seen", "masks are hidden"])
def sees_masks(request, monkeypatch):
    """Whether kernels show what they drop. Fused ones do not, of which there are none here: there is no room for it."""
    sees = request.param == "masks are seen"
    if not sees:
        monkeypatch.setattr(drawn_masks, "MAX_BYTES", -1)
    return sees


@pytest.mark.parametrize("reference", ["cpu", "device", "identities"])
@pytest.mark.parametrize("name", CALLS)
def test_a_healthy_call_is_compared_and_right(device, name, reference, sees_masks):
    run = CALLS[name][0](device)
    blamed, skipped, tool = found(lambda: [run(), run()], reference=reference)
    assert (blamed, skipped) == (set(), [])
    without = {op.rpartition(".")[2]: calls for op, calls in tool.results.facts["without_dropout"].items()}
    assert without == ({} if sees_masks else {name: 2})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_attention_is_right_at_every_rate(device, rate, dtype):
    numbers = torch.Generator().manual_seed(1)
    query, key, value = (
        torch.randn(2, 3, 40, 16, generator=numbers).to(device, dtype).requires_grad_() for _ in range(3)
    )

    def run():
        functional.scaled_dot_product_attention(query, key, value, None, rate, True).square().sum().backward()

    assert found(run)[:2] == (set(), [])


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("reference", ["cpu", "identities"])
def test_a_gradient_that_forgets_what_was_dropped_is_found(device, name, reference):
    run = CALLS[name][0](device)
    with kernel("native_dropout_backward", lambda gradient, mask, scale: gradient.clone()):
        blamed, skipped, _ = found(run, reference=reference)
    assert (blamed, skipped) == ({(name, "grad")}, [])


@pytest.mark.parametrize("name", CALLS)
def test_a_broken_kernel_is_found_forward_and_backward(device, name, sees_masks):
    make, forward, backward = CALLS[name]
    with faults.inject(f"aten.{forward}: scale=1.01"):
        blamed, _, _ = found(make(device))
    assert (name, "outp") in blamed
    with faults.inject(f"aten.{backward}: scale=1.01"):
        blamed, _, _ = found(make(device))
    assert (name, "grad") in blamed
    assert (name, "outp") not in blamed


@pytest.mark.parametrize("name", CALLS)
def test_the_programs_own_results_and_random_numbers_stay_as_they_are(device, name, sees_masks):
    runs = []
    for watch in (False, True):
        run, results = CALLS[name][0](device), []
        torch.manual_seed(5)
        with op_tools.OpAutoCompare(verbose=0) if watch else contextlib.nullcontext():
            results += run()
        runs.append([*results, torch.rand(3, device=device), torch.rand(3)])
    assert all(torch.equal(one, other) for one, other in zip(*runs))


@pytest.mark.parametrize("name", CALLS)
def test_where_the_cpu_is_the_device(name):
    runs = []
    tool = op_tools.OpAutoCompare(verbose=0)
    tool.sees_cpu = True
    for watch in (False, True):
        run = CALLS[name][0]("cpu")
        torch.manual_seed(5)
        with tool if watch else contextlib.nullcontext():
            results = run()
        runs.append([*results, torch.rand(3)])
    assert all(torch.equal(one, other) for one, other in zip(*runs))
    assert (list(tool.results), list(tool.results.not_looked_at)) == ([], [])
    assert tool.results.facts["without_dropout"]


def test_under_autocast_and_checkpointing(device, sees_masks):
    made = torch.nn.MultiheadAttention(16, 2, dropout=0.3, batch_first=True).to(device)
    words = torch.randn(2, 6, 16, device=device, requires_grad=True)
    losses = []

    def run():
        torch.manual_seed(3)
        words.grad = made.in_proj_weight.grad = None
        with torch.autocast(device, torch.bfloat16):
            result = checkpoint(lambda x: made(x, x, x)[0], words, use_reentrant=False)
            result = result + made(words, words, words)[0]
        result.square().mean().backward()
        losses.append([result.detach().clone(), words.grad.clone(), made.in_proj_weight.grad.clone()])

    run()
    blamed, skipped, tool = found(run)
    assert (blamed, skipped) == (set(), [])
    assert sum(tool.results.facts["without_dropout"].values()) == (0 if sees_masks else 2)
    assert all(torch.equal(one, other) for one, other in zip(*losses))


def test_the_summary_says_what_was_compared_without(device, capsys, sees_masks):
    with op_tools.OpAutoCompare():
        attention(device)()
    printed = capsys.readouterr().out
    text = "compared without their dropout: torch.nn.functional.scaled_dot_product_attention (1 call)"
    assert (text in printed) is not sees_masks
