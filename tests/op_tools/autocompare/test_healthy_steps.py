"""A healthy device is not blamed, and training is what it would be without the tool."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import op_tools
from ditorch.sim import faults
from op_tools.autocompare import views
from op_tools.autocompare.arguments import Arguments
from op_tools.autocompare.examiner import Examiner
from op_tools.autocompare.judging.sensitivity import Sensitivity
from op_tools.autocompare.prefilter import screen
from op_tools.autocompare.reference.runs import Rerun
from tests.op_tools.autocompare.net import LOW, ONLY_THE_PROGRAMS_CALL, alike_values, certain_logits, rows_of, step

pytestmark = pytest.mark.usefixtures("who_looks")


@pytest.mark.parametrize(
    ("dtype", "autocast"), [(torch.float32, None), *((one, None) for one in LOW), (torch.float32, LOW[0])]
)
def test_a_healthy_step_is_right_and_as_it_would_be_alone(device, dtype, autocast):
    plain = step(device, dtype, autocast)
    tool = op_tools.OpAutoCompare(verbose=0)
    with tool:
        watched = step(device, dtype, autocast)
    assert all(torch.equal(one, other) for one, other in zip(plain, watched))
    assert tool.summary.ranked() == []
    assert tool.summary.calls > 40
    assert "not compared" not in tool.summary.text()


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointed_layers(device, use_reentrant):
    layer = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)).to(device)
    x = torch.randn(4, 8, device=device, requires_grad=True)
    tool = op_tools.OpAutoCompare(verbose=0)
    with tool:
        checkpoint(layer, x, use_reentrant=use_reentrant).sum().backward()
    assert tool.summary.ranked() == []
    assert x.grad is not None


def test_layers_of_all_sorts_are_right(device):
    """Layers with state, several results, recurrences and ties."""
    torch.manual_seed(0)
    image = torch.randn(4, 8, 8, 8, device=device, requires_grad=True)
    tool = op_tools.OpAutoCompare(verbose=0)
    with tool:
        x = nn.BatchNorm2d(8).to(device)(image)
        x = functional.relu(x, inplace=True)
        x = functional.max_pool2d(x.round(), 2)  # many equal values
        x = nn.GroupNorm(2, 8).to(device)(x)
        values, indices = x.flatten(1).topk(5)
        ordered = x.flatten(1).sort(dim=1).values
        outputs, (hidden, _) = nn.LSTM(8, 8, batch_first=True).to(device)(x.flatten(2).transpose(1, 2))
        out = torch.empty(4, 5, device=device)
        with torch.no_grad():
            torch.mul(values, 2, out=out)
            out[0] = 1
            out += out
        (values.sum() + ordered.std() + outputs.mean() + hidden.amax() + indices.sum()).backward()
    assert tool.summary.ranked() == []
    assert "not compared" not in tool.summary.text()


def test_the_same_tensor_twice(device):
    x = torch.randn(4, 4, device=device, requires_grad=True)
    tool = op_tools.OpAutoCompare(verbose=0)
    with tool:
        y = functional.linear(x, x) + torch.mul(x, x)
        y.sum().backward()
        with torch.no_grad():
            x.mul_(x)
    assert tool.summary.ranked() == []


def test_views_are_compared_without_a_copy(device):
    x = torch.randn(6, 4, device=device, requires_grad=True)
    tool = op_tools.OpAutoCompare(verbose=0)
    with tool:
        x.view(4, 6).t()[1:].expand(2, 5, 4).reshape(-1).sum().backward()
    assert tool.summary.ranked() == []
    names = {row["name"] for row in rows_of()}
    assert {"torch.Tensor.view output", "torch.Tensor.expand grad[0]"} <= names


@pytest.mark.parametrize("reference", ["cpu", "device"])
@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.view(4, 6),
        lambda x: x.t(),
        lambda x: x.permute(1, 0).unsqueeze(1),
        lambda x: x.transpose(0, 1).reshape(3, 8),  # a copy, whose gradient is none
        lambda x: x.t().unflatten(0, (2, 2)).flatten(1),
    ],
)
def test_the_gradient_of_a_view_is_compared_without_a_copy(device, view, reference, monkeypatch):
    """What arrived is looked at in another way: no number of it is read."""
    x = torch.randn(6, 4, device=device, requires_grad=True)
    arrived = torch.randn_like(view(x).detach())
    read = []
    original = Rerun.gradients
    monkeypatch.setattr(Rerun, "gradients", lambda run, given: read.append(run.way.name) or original(run, given))
    tool = op_tools.OpAutoCompare(verbose=0, reference=reference)
    with tool:
        for _ in range(2):
            view(x).backward(arrived)
    assert tool.summary.ranked() == []
    assert set(read) <= {"meta"}  # which is remembered
    gradients = [row for row in rows_of() if "grad" in row["name"]]
    assert gradients
    assert {row["verdict"] for row in gradients} == {"right"}


def test_a_views_gradient_must_look_at_the_right_places(device):
    given = Arguments((torch.randn(4, 4, device=device, requires_grad=True),), {})
    arrived = torch.randn(4, 4, device=device)
    assert views.hands_back_memory(torch.Tensor.t, given, [arrived], [arrived.t()])
    assert not views.hands_back_memory(torch.Tensor.t, given, [arrived], [arrived])
    assert not views.hands_back_memory(torch.Tensor.t, given, [arrived], [arrived.t().clone()])


def test_moves_between_host_and_device(device):
    tool = op_tools.OpAutoCompare(verbose=0)
    with tool:
        x = torch.randn(3, 3).to(device)
        y = torch.ones(2, 2, device=device) * 2
        assert x.cpu().shape == (3, 3)
        assert y.sum().item() == 8
        assert (x == x).all()
        assert y.tolist() == [[2, 2], [2, 2]]
        x.half().float().to(torch.int32)
    assert tool.summary.ranked() == []
    assert "not compared" not in tool.summary.text()


@pytest.mark.parametrize("reference", ["cpu", "device"])
@pytest.mark.parametrize("dtype", [torch.float32, *LOW], ids=str)
def test_a_model_that_is_certain_is_not_blamed(device, dtype, reference):
    """The loss and its gradient are then what is left when numbers near one cancel out."""
    logits, target = certain_logits(device, dtype)
    with op_tools.OpAutoCompare(verbose=0, reference=reference) as tool:
        functional.cross_entropy(logits, target).backward()
        functional.log_softmax(logits, -1)[range(64), target].sum().backward()
    assert tool.summary.ranked() == []


@pytest.mark.parametrize("reference", ["cpu", "device"])
@pytest.mark.parametrize("dtype", [torch.float32, *LOW], ids=str)
@pytest.mark.parametrize("certainty", [1, 30])
def test_attention_whose_terms_cancel_out_is_not_blamed(device, dtype, reference, certainty):
    *parts, arrived = alike_values(device, dtype, certainty)
    with op_tools.OpAutoCompare(verbose=0, reference=reference) as tool:
        functional.scaled_dot_product_attention(*parts, is_causal=True).backward(arrived)
    assert tool.summary.ranked() == []


@pytest.mark.parametrize("reference", ["cpu", "device"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_attention_whose_gradient_is_wrong_is_blamed_all_the_same(device, dtype, reference):
    if device != "sim":
        pytest.skip("other devices have other kernels for it")
    torch.manual_seed(0)
    parts = [torch.randn(2, 4, 64, 32, device=device, dtype=dtype, requires_grad=True) for _ in range(3)]
    kernel = "aten._scaled_dot_product_fused_attention_overrideable_backward"
    with faults.inject(f"{kernel}: scale=1.02, {ONLY_THE_PROGRAMS_CALL}") as injected:
        with op_tools.OpAutoCompare(verbose=0, reference=reference) as tool:
            functional.scaled_dot_product_attention(*parts).sum().backward()
        assert sum(injected.struck.values()) == 1
    assert {one.name for one in tool.summary.ranked()} == {"torch.nn.functional.scaled_dot_product_attention"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_what_a_second_look_excuses_is_excused_by_the_first_from_then_on(device, dtype, monkeypatch):
    logits, target = certain_logits(device, dtype)
    *parts, arrived = alike_values(device, dtype, 30)
    examined = []
    original = Examiner.backward
    monkeypatch.setattr(
        Examiner, "backward", lambda self, call, *rest: examined.append(call.name) or original(self, call, *rest)
    )

    def step():
        functional.cross_entropy(logits, target).backward()
        functional.scaled_dot_product_attention(*parts, is_causal=True).backward(arrived)
        logits.grad.zero_()  # before that, what depends on it is decided

    with op_tools.OpAutoCompare(verbose=0, reference="device") as tool:
        step()
        first = len(examined)
        for _ in range(3):
            step()
    assert tool.summary.ranked() == []
    assert 0 < first == len(examined)


def test_without_room_for_an_allowance_there_is_a_full_look(device, monkeypatch):
    logits, target = certain_logits(device, torch.float32)

    sizes = Sensitivity._sizes_in_gradient

    def full(*_):
        monkeypatch.setattr(Sensitivity, "_sizes_in_gradient", sizes)  # when it is looked at in full there is room
        raise screen.OUT_OF_MEMORY("no room")

    with op_tools.OpAutoCompare(verbose=0, reference="device") as tool:
        functional.cross_entropy(logits, target).backward()
        with torch.no_grad():
            logits.mul_(1)  # before that, what depends on it is decided
        assert tool._strategy._deferred._first_look.lenient
        monkeypatch.setattr(Sensitivity, "_sizes_in_gradient", full)
        functional.cross_entropy(logits, target).backward()
    assert tool.summary.ranked() == []
    assert "not compared" not in tool.summary.text()
    assert sum("cross_entropy grad" in row["name"] for row in rows_of()) == 2


def test_leniency_excuses_no_fault(device):
    if device != "sim":
        pytest.skip("other devices have other kernels for it")
    *certain, arrived = alike_values(device, torch.bfloat16, 30)
    usual = [torch.randn(2, 4, 64, 32, device=device, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    kernel = "aten._scaled_dot_product_fused_attention_overrideable_backward"
    with op_tools.OpAutoCompare(verbose=0, reference="device") as tool:
        for _ in range(2):
            functional.scaled_dot_product_attention(*certain, is_causal=True).backward(arrived)
            arrived.mul_(1)  # before that, what depends on it is decided
        assert "torch.nn.functional.scaled_dot_product_attention" in tool._strategy._deferred._first_look.lenient
        with faults.inject(f"{kernel}: scale=1.02, {ONLY_THE_PROGRAMS_CALL}"):
            functional.scaled_dot_product_attention(*usual).sum().backward()
    assert {one.name for one in tool.summary.ranked()} == {"torch.nn.functional.scaled_dot_product_attention"}
