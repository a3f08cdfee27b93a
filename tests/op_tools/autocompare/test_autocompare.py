"""OpAutoCompare: names the op that the device gets wrong, and no other."""

from __future__ import annotations

import contextlib
import csv
import math
import os
import re
import sys
import types
import warnings
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import op_tools
from ditorch.demo.gpt import GPT
from ditorch.sim import faults
from op_tools.autocompare import foreach_lists, on_host, prefilter, report, views
from op_tools.autocompare.arguments import Arguments
from op_tools.autocompare.examiner import Examiner
from op_tools.autocompare.judging.comparer import Comparer
from op_tools.autocompare.judging.limits import Tolerances
from op_tools.autocompare.judging.sensitivity import Sensitivity
from op_tools.autocompare.observed import ObservedCall
from op_tools.autocompare.prefilter import deferred, fused, screen
from op_tools.autocompare.reference.runs import References, Run, run
from op_tools.autocompare.reference.ways import Way
from op_tools.core.gradients import Gradients
from op_tools.errors import DifferenceFound, SettingError
from op_tools.output import messages

LOW = [torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True, params=["the host looks", "the device looks first"])
def _who_looks(request, monkeypatch):
    """At results that the CPU is the reference for: on CUDA the device, elsewhere the host."""
    is_first = request.param != "the host looks"
    monkeypatch.setattr(screen, "is_quick", lambda tensors: is_first and any(not one.is_cpu for one in tensors))


def compare_call(name, function, given, result, grad_outputs=None, grad_inputs=()):
    """One call that was seen elsewhere, forward, and backward where there are gradients."""
    comparer = Comparer(Tolerances(), References(lambda name: None))
    call = ObservedCall(name, function, given, None, result, changed=True)
    found = [comparer.forward(call)]
    return found if grad_outputs is None else [*found, comparer.backward(call, Gradients(grad_inputs, grad_outputs))]


class Net(nn.Module):
    """Everything in which a fault must be found: embedding, norms, linear, attention by hand and fused, convolution."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.norm = nn.LayerNorm(32)
        self.qkv = nn.Linear(32, 96)
        self.convolution = nn.Conv1d(32, 32, 3, padding=1)
        self.head = nn.Linear(32, 50)

    def forward(self, tokens):
        x = self.embedding(tokens)
        query, key, value = self.qkv(self.norm(x)).chunk(3, -1)
        weights = functional.softmax(query @ key.transpose(-1, -2) / 6, dim=-1)
        x = x + weights @ value
        x = x + functional.scaled_dot_product_attention(query[:, None], key[:, None], value[:, None])[:, 0]
        x = x + functional.gelu(self.convolution(x.transpose(1, 2))).transpose(1, 2)
        return self.head(x)


def step(device, dtype=torch.float32, autocast=None):
    """One training step; the gradients."""
    torch.manual_seed(0)
    model = Net().to(device, dtype)
    tokens = torch.randint(50, (8, 16)).to(device)
    with torch.autocast(device, autocast) if autocast else contextlib.nullcontext():
        loss = functional.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(1, 1).flatten())
    loss.backward()
    return [loss.detach(), *(parameter.grad for parameter in model.parameters())]


def found_by(tool, device, fault=None, dtype=torch.float32, autocast=None):
    with faults.inject(fault) if fault else contextlib.nullcontext(), tool:
        step(device, dtype, autocast)
    return tool.summary.ranked()


def rows_of(folder=Path("op_tools_results")):
    (path,) = (folder / "op_autocompare_result").iterdir()
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


# ---- faults are found, where they are -------------------------------------------------------------------------------

# which of them it is depends on the device
ATTENTION = tuple(
    f"aten._scaled_dot_product_{kind}"
    for kind in ("fused_attention_overrideable", "flash_attention", "efficient_attention", "cudnn_attention")
)
ATTENTION_BACKWARD = tuple(f"{name}_backward" for name in ATTENTION)
CONVOLUTION = ("aten.convolution_overrideable", "aten.cudnn_convolution")
CONVOLUTION_BACKWARD = ("aten.convolution_backward_overrideable", "aten.convolution_backward")


def broken(kernels, kind):
    """A fault in the kernel, or in those of several that the device has."""
    there = []
    for kernel in [kernels] if isinstance(kernels, str) else kernels:
        with contextlib.suppress(ValueError), faults.inject(f"{kernel}: {kind}"):
            there.append(f"{kernel}: {kind}")
    return "; ".join(there)


FORWARD = [
    ("aten.addmm", "torch.nn.functional.linear", "output", "qkv"),
    ("aten.bmm", "torch.Tensor.matmul", "output", "Net"),
    ("aten._softmax", "torch.nn.functional.softmax", "output", "Net"),
    ("aten.native_layer_norm", "torch.nn.functional.layer_norm", "output", "norm"),
    ("aten.embedding", "torch.nn.functional.embedding", "output", "embedding"),
    (CONVOLUTION, "torch.nn.functional.conv1d", "output", "convolution"),
    (ATTENTION, "torch.nn.functional.scaled_dot_product_attention", "output", "Net"),
    ("aten.gelu", "torch.nn.functional.gelu", "output", "Net"),
]
BACKWARD = [
    ("aten.mm", "torch.nn.functional.linear", "grad", "qkv"),
    ("aten._softmax_backward_data", "torch.nn.functional.softmax", "grad", "Net"),
    ("aten.native_layer_norm_backward", "torch.nn.functional.layer_norm", "grad", "norm"),
    ("aten.embedding_dense_backward", "torch.nn.functional.embedding", "grad", "embedding"),
    (CONVOLUTION_BACKWARD, "torch.nn.functional.conv1d", "grad", "convolution"),
    (
        ATTENTION_BACKWARD,
        "torch.nn.functional.scaled_dot_product_attention",
        "grad",
        "Net",
    ),
    ("aten.gelu_backward", "torch.nn.functional.gelu", "grad", "Net"),
]


@pytest.mark.parametrize(("kernel", "op", "what", "module"), FORWARD + BACKWARD)
@pytest.mark.parametrize("dtype", [torch.float32, *LOW])
def test_one_percent_is_blamed_on_the_right_call(device, kernel, op, what, module, dtype):
    found = found_by(op_tools.OpAutoCompare(verbose=0), device, broken(kernel, "scale=1.01"), dtype)
    mine = [one for one in found if one.name == op and one.what.startswith(what)]
    assert mine, found
    assert module in [one.module for one in mine]
    assert all("test_autocompare.py" in one.where or "modules" in one.where for one in mine)
    assert {one.name for one in found} == {op}


@pytest.mark.parametrize(
    "kind", ["scale=1.001", "negate@one", "nan@one", "tail=0.1", "round=bfloat16", "negate", "zero@0.1"]
)
@pytest.mark.parametrize(("kernel", "op"), [(kernel, op) for kernel, op, _, _ in FORWARD[:3] + BACKWARD[:3]])
def test_every_kind_of_fault_is_found_in_float32(device, kernel, op, kind):
    found = found_by(op_tools.OpAutoCompare(verbose=0), device, f"{kernel}: {kind}")
    assert {one.name for one in found} == {op}


@pytest.mark.parametrize(
    ("fault", "op"),
    [
        ("aten.addmm: accumulate=bfloat16", "torch.nn.functional.linear"),
        ("aten.mm: accumulate=bfloat16", "torch.nn.functional.linear"),
        ("aten.addmm: drop=self", "torch.nn.functional.linear"),
        ("aten.native_layer_norm: epsilon=100", "torch.nn.functional.layer_norm"),
        ("aten.embedding: index=1", "torch.nn.functional.embedding"),
    ],
)
def test_faults_inside_a_kernel_are_found(device, fault, op):
    found = found_by(op_tools.OpAutoCompare(verbose=0), device, fault)
    assert op in {one.name for one in found}


def test_swapped_arguments_are_found(device):
    x, y = torch.randn(2, 8, 8, device=device)
    tool = op_tools.OpAutoCompare(verbose=0)
    with faults.inject("aten.sub: swap"), tool:
        x - y
    assert [one.name for one in tool.summary.ranked()] == ["torch.Tensor.sub"]


def test_ten_percent_in_embeddings_gradient_in_bfloat16(device):
    """It drowns in the noise of a fixed tolerance: the CPU itself adds up with a loss there."""
    found = found_by(
        op_tools.OpAutoCompare(verbose=0), device, "aten.embedding_dense_backward: scale=1.1", torch.bfloat16
    )
    assert [(one.name, one.what) for one in found] == [("torch.nn.functional.embedding", "grad[1]")]
    assert "off by a factor of 1.09" in found[0].reason


def test_faults_are_found_under_autocast(device):
    tool = op_tools.OpAutoCompare(verbose=0)
    found = found_by(tool, device, "aten.mm: scale=1.01", autocast=torch.bfloat16)
    assert {one.name for one in found} == {"torch.nn.functional.linear"}


def test_an_optimizers_step_is_compared(device):
    parameters = [nn.Parameter(torch.randn(8, 8, device=device)) for _ in range(12)]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    tool = op_tools.OpAutoCompare(verbose=0)
    with tool:
        torch.optim.AdamW(parameters, foreach=True).step()
    assert tool.summary.ranked() == []
    with faults.inject("aten._foreach_addcdiv_: scale=1.01"), tool:
        torch.optim.AdamW(parameters, foreach=True).step()
    names = {(one.name, one.what) for one in tool.summary.ranked()}
    assert ("torch._foreach_addcdiv_", "input[0]") in names


# ---- a healthy device is not blamed ---------------------------------------------------------------------------------


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
    # the CPU has no such thing
    text = tool.summary.text().replace("not compared: torch._cudnn_rnn_flatten_weight", "")
    assert "not compared" not in text


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
    original = Run.gradients
    monkeypatch.setattr(Run, "gradients", lambda run, given: read.append(run.way.name) or original(run, given))
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


def certain_logits(device, dtype):
    """With their targets, which are hardly in doubt."""
    torch.manual_seed(0)
    target = torch.randint(50, (64,))
    logits = torch.randn(64, 50)
    logits[range(64), target] += 14
    return logits.to(device, dtype).requires_grad_(), target.to(device)


def alike_values(device, dtype, certainty):
    """Query, key and values of attention, and the gradient that arrives: its terms cancel out."""
    torch.manual_seed(0)
    query, key, value, arrived = (torch.randn(2, 4, 64, 32) for _ in range(4))
    parts = [part.to(device, dtype).requires_grad_() for part in (certainty * query, key, value + 5)]
    return *parts, arrived.to(device, dtype)


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


# ---- in-place damage -------------------------------------------------------------------------------------------------


@pytest.fixture
def leaky(device):
    """An op that adds, and on the device writes into an input that it must leave alone."""
    library = torch.library.Library("autocompare_test", "FRAGMENT")
    library.define("leaky(Tensor x, Tensor y) -> Tensor")
    library.define("only_here(Tensor x) -> Tensor")
    library.impl("leaky", lambda x, y: x + y, "CPU")

    def damaging(x, y):
        result = x + y
        y.detach()[0] = 7
        return result

    key = torch._C._dispatch_key_for_device(device)
    library.impl("leaky", damaging, key)
    library.impl("only_here", lambda x: x + 1, key)
    yield torch.ops.autocompare_test
    library._destroy()


def test_an_input_that_is_damaged_is_found(device, leaky):
    tool = op_tools.OpAutoCompare(verbose=0)
    with tool:
        leaky.leaky(torch.ones(3, device=device), torch.ones(3, device=device))
    (found,) = [one for one in tool.summary.ranked() if "leaky" in one.name]
    assert found.what == "input[1]"
    assert "changed an input that it must leave alone" in found.reason
    assert "[0]: 7 instead of 1" in found.reason


def test_an_op_that_the_cpu_lacks_is_named_and_counted(device, leaky, capfd):
    tool = op_tools.OpAutoCompare()
    with tool:
        for _ in range(3):
            leaky.only_here(torch.ones(3, device=device))
    printed = capfd.readouterr()
    assert printed.err.count("OpAutoCompare could not compare autocompare_test.only_here: NotImplementedError") == 1
    assert "not compared: autocompare_test.only_here (3 calls, 50 %): NotImplementedError" in printed.out


def test_a_healthy_run_ends_with_one_line_that_says_so(device, capsys):
    x = torch.randn(4, 4, device=device, requires_grad=True)
    shares = torch.rand(3, device=device)
    with op_tools.OpAutoCompare() as tool:
        (x @ x).sum().backward()
        for _ in range(2):
            torch.nn.functional.gumbel_softmax(shares)
    *_, last, saved = capsys.readouterr().out.splitlines()
    assert last == (
        "OpAutoCompare: nothing wrong in 6 calls, 7 values compared; 66.6 % of all calls were compared; "
        "not compared: torch.nn.functional.gumbel_softmax (2 calls, 33.3 %): random"
    )
    assert saved.endswith(".csv saved")
    assert tool.summary.text() == last


def test_the_summary_names_gradients_for_which_there_was_no_memory(device):
    x = torch.randn(64, 64, device=device, requires_grad=True)
    with op_tools.OpAutoCompare(verbose=0, memory=1) as tool:
        (x @ x).exp()
    assert "not compared: gradients (2 calls, 50 %): the memory for calls that wait is full" in tool.summary.text()


# ---- tf32 ------------------------------------------------------------------------------------------------------------


def cut_off(tensor):
    """As matrix units read a float32 where tf32 is allowed."""
    return (tensor.detach().view(torch.int32) & ~0x1FFF).view(torch.float32)


@pytest.mark.parametrize(("allowed", "factor", "is_right"), [(True, 1, True), (False, 1, False), (True, 1.01, False)])
def test_tf32_is_right_where_it_is_allowed(allowed, factor, is_right):
    x, weight = torch.randn(64, 256, requires_grad=True), torch.randn(32, 256, requires_grad=True)
    gradient = torch.randn(64, 32)
    result = factor * (cut_off(x) @ cut_off(weight).t())
    gradients = [factor * (cut_off(gradient) @ cut_off(weight)), factor * (cut_off(gradient).t() @ cut_off(x))]
    seen = ObservedCall("torch.nn.functional.linear", functional.linear, Arguments((x, weight), {}), None, result)
    seen.is_tf32 = allowed
    comparer = Comparer(Tolerances(), References(lambda name: None))
    for comparison in (comparer.forward(seen), comparer.backward(seen, Gradients(gradients, [gradient]))):
        assert [row.is_wrong for row in comparison.rows] == [not is_right] * len(comparison.rows)


# ---- random ops ------------------------------------------------------------------------------------------------------


def test_dropout_is_judged_by_its_mask(device):
    x = torch.randn(50, 50, device=device, requires_grad=True)
    tool = op_tools.OpAutoCompare(verbose=0)
    with tool:
        functional.dropout(x, 0.3).sum().backward()
        functional.dropout(x, 0.3, training=False).sum().backward()
        functional.dropout1d(x, 0.5).sum().backward()
    assert tool.summary.ranked() == []
    kinds = [row["name"] for row in rows_of()]
    assert "torch.nn.functional.dropout grad" in kinds


@pytest.mark.parametrize("fault", ["aten.native_dropout: scale=1.01", "aten.native_dropout_backward: scale=1.01"])
def test_a_wrong_dropout_is_found(device, fault):
    x = torch.randn(50, 50, device=device, requires_grad=True)
    tool = op_tools.OpAutoCompare(verbose=0)
    try:
        injection = faults.inject(fault)
    except ValueError:
        pytest.skip("no such kernel on this device")
    with injection as struck, tool:
        functional.dropout(x, 0.3).sum().backward()
    if not sum(struck.struck.values()):
        pytest.skip("this device has another kernel for dropout")
    assert [one.name for one in tool.summary.ranked()] == ["torch.nn.functional.dropout"]


def test_a_wrong_rate_of_dropout_is_found():
    given = torch.randn(100, 100)
    result = torch.where(torch.rand(100, 100) < 0.5, 0.0, given / 0.7)
    (found,) = compare_call("torch.nn.functional.dropout", functional.dropout, Arguments((given, 0.3), {}), result)
    assert found.is_wrong
    assert "are dropped where the rate is 0.3" in found.rows[0].verdict.reason


def test_random_numbers_are_never_blamed_for_being_random(device):
    torch.manual_seed(0)
    tool = op_tools.OpAutoCompare(verbose=0)
    x = torch.zeros(1000, device=device)
    query = torch.randn(1, 1, 4, 4, device=device)
    with tool:
        torch.rand(1000, device=device)
        torch.randn(1000, device=device)
        torch.randint(5, (1000,), device=device)
        torch.randperm(10, device=device)
        torch.empty(1000, device=device)
        x.normal_(3, 2).uniform_(-1, 1).bernoulli_(0.3).exponential_(2)
        torch.bernoulli(torch.full((10,), 0.5, device=device))
        torch.multinomial(torch.ones(10, device=device), 3)
        torch.nn.init.kaiming_uniform_(x.view(10, 100))
        functional.scaled_dot_product_attention(query, query, query, dropout_p=0.5)
        functional.rrelu(x, training=True)
    assert tool.summary.ranked() == []


@pytest.mark.parametrize(
    ("name", "args", "numbers", "reason"),
    [
        ("torch.rand", (1000,), torch.rand(1000) * 2, "should lie from 0 to 1"),
        ("torch.rand", (1000,), torch.rand(1000) / 2, "the mean of 1,000 random numbers is"),
        ("torch.randn", (1000,), torch.randn(1000) * 2, "the spread of 1,000 random numbers is"),
        ("torch.randn", (1000,), torch.full((1000,), math.nan), "NaN or infinite"),
        ("torch.Tensor.normal_", (torch.zeros(1000), 3.0), torch.randn(1000), "the mean"),
        ("torch.randint", (5, (1000,)), torch.full((1000,), 5), "should lie from 0 to 4"),
    ],
)
def test_wrong_random_numbers_are_found(name, args, numbers, reason):
    (found,) = compare_call(name, torch.rand, Arguments(args, {}), numbers)
    assert found.is_wrong
    assert reason in found.rows[0].verdict.reason


def test_the_programs_random_numbers_stay_as_they_are(device):
    def draw():
        torch.manual_seed(0)
        x = torch.randn(10, 10, device=device, requires_grad=True)
        functional.dropout(x @ x, 0.5).sum().backward()
        return torch.rand(3), torch.rand(3, device=device)

    plain = draw()
    with op_tools.OpAutoCompare(verbose=0):
        watched = draw()
    assert torch.equal(plain[0], watched[0])
    assert torch.equal(plain[1], watched[1])


# ---- ties and jumps --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "args", "got", "is_right"),
    [
        (torch.argmax, (torch.tensor([1.0, 3.0, 3.0]),), torch.tensor(2), True),
        (torch.argmax, (torch.tensor([1.0, 3.0, 3.0]),), torch.tensor(0), False),
        (torch.argmax, (torch.tensor([1.0, 3.0, 3.0]),), torch.tensor(7), False),
        (torch.argsort, (torch.tensor([2.0, 2.0, 1.0]),), torch.tensor([2, 1, 0]), True),
        (torch.argsort, (torch.tensor([2.0, 2.0, 1.0]),), torch.tensor([2, 1, 1]), False),
        (torch.topk, (torch.tensor([1.0, 1.0, 1.0]), 2), (torch.ones(2), torch.tensor([2, 0])), True),
        (torch.max, (torch.tensor([[5.0, 5.0]]), 1), (torch.tensor([5.0]), torch.tensor([1])), True),
        (torch.median, (torch.tensor([[1.0, 2.0, 2.0]]), 1), (torch.tensor([2.0]), torch.tensor([2])), True),
    ],
)
def test_among_equals_any_position_is_right(function, args, got, is_right):
    (found,) = compare_call(f"torch.{function.__name__}", function, Arguments(args, {}), got)
    assert found.is_wrong is not is_right


def test_a_jump_within_rounding_is_nobodys_fault():
    quotient = (torch.tensor([0.3, 5.0]), torch.tensor([0.1, 2.0]))
    for got, is_right in (([2.0, 2.0], True), ([3.0, 2.0], True), ([2.0, 1.0], False)):
        (found,) = compare_call("torch.floor_divide", torch.floor_divide, Arguments(quotient, {}), torch.tensor(got))
        assert found.is_wrong is not is_right


def test_gradients_at_ties_may_go_either_way():
    x = torch.tensor([[2.0, 2.0, 1.0, 0.0]], requires_grad=True)
    pooled = functional.max_pool1d(x, 2)
    for gradient, is_right in (
        ([[0.0, 1.0, 1.0, 0.0]], True),
        ([[1.0, 0.0, 1.0, 0.0]], True),
        ([[1.0, 0, 0, 1]], False),
    ):
        _, found = compare_call(
            "torch.nn.functional.max_pool1d",
            functional.max_pool1d,
            Arguments((x, 2), {}),
            pooled.detach(),
            [torch.ones(1, 2)],
            [torch.tensor(gradient)],
        )
        assert found.is_wrong is not is_right


@pytest.mark.parametrize(
    ("function", "args", "wrong"),
    [
        (torch.topk, (3,), [0.0, 0, 0, 0, 0, 0, 0, 1, 0]),
        (torch.sort, (), [1.0, 2, 3, 4, 5, 6, 7, 8, 10]),
        (torch.median, (0,), [1.0, 0, 0, 0, 0, 0, 0, 0, 0]),
    ],
)
def test_gradients_among_many_equals_may_go_to_any_of_them(function, args, wrong):
    """More of them than a second look with moved inputs would try."""
    x = torch.tensor([5.0, 1, 1, 1, 1, 1, 1, 1, 0], requires_grad=True)
    values, indices = function(x, *args)
    gradients = torch.arange(1.0, 1 + values.numel()).reshape(values.shape)
    (right,) = torch.autograd.grad(values, x, gradients)
    order = torch.tensor([0, 7, 6, 5, 4, 3, 2, 1, 8])  # the equal ones the other way round
    for gradient, is_right in ((right, True), (right[order], True), (torch.tensor(wrong), False)):
        _, found = compare_call(
            f"torch.{function.__name__}",
            function,
            Arguments((x, *args), {}),
            (values.detach(), indices),
            [gradients, None],
            [gradient],
        )
        assert found.is_wrong is not is_right


def test_signs_of_vectors_are_free_but_not_their_nan():
    matrix = torch.randn(4, 4)
    values, vectors = torch.linalg.eigh(matrix + matrix.t())
    for got, is_right in ((-vectors, True), (vectors * math.nan, False)):
        (found,) = compare_call(
            "torch.linalg.eigh", torch.linalg.eigh, Arguments((matrix + matrix.t(),), {}), (values, got)
        )
        assert found.is_wrong is not is_right


# ---- what is printed and written -------------------------------------------------------------------------------------


def test_the_csv_has_the_contracts_columns_first(device):
    with op_tools.OpAutoCompare(verbose=0):
        torch.ones(2, device=device) * torch.ones(2, device=device)
    (path,) = Path("op_tools_results/op_autocompare_result").iterdir()
    assert path.name.startswith(f"op_autocompare_info_pid{os.getpid()}_")
    header = path.read_text().splitlines()[0]
    assert header.startswith(
        "forward_id,name,allclose,cosine_similarity,max_abs_diff,max_relative_diff,atol,rtol,error_info,"
    )
    rows = [row for row in rows_of() if row["name"].startswith("torch.Tensor.mul ")]
    assert [row["name"] for row in rows] == [f"torch.Tensor.mul {part}" for part in ("input[0]", "input[1]", "output")]
    assert rows[2]["allclose"] == "True"
    assert rows[2]["cosine_similarity"] == "1.000000000"
    assert rows[2]["atol"] == "0.000010000"
    assert rows[2]["error_info"] == "Inconsistent dtypes: torch.float32 torch.float64"
    assert rows[2]["verdict"] == "right"
    assert "test_autocompare.py" in rows[2]["where"]


def test_every_call_is_shown_at_verbosity_2(device, capfd):
    x = torch.ones(2, device=device, requires_grad=True)
    with op_tools.OpAutoCompare(verbose=2, ops="torch.Tensor.mul"):
        (x * 3).sum().backward()
    printed = capfd.readouterr().out
    assert "apply OpAutoCompareHook on torch.Tensor.mul" in printed
    assert "cpu_dtype_cast_info(from:to): {torch.float32: torch.float64}" in printed
    for label in ("inputs[0]", "inputs[1]", "outputs", "inputs(cpu)[0]", "outputs(cpu)", "grad_inputs(cpu)"):
        assert f"torch.Tensor.mul {label} " in printed
    assert re.search(r"\| +name +\| allclose \| max_abs_diff \| max_relative_diff \|", printed)
    row = "| torch.Tensor.mul input[1] |   True   | 0.000000000  |    0.000000000    | 0.000001000 | 0.000001000 |"
    assert row in printed
    assert "| torch.Tensor.mul grad[0] |" in printed
    at_the_end = re.split(r"\| forward_id \| +name +\| allclose \| max_abs_diff \|", printed)[-1]
    names = re.findall(r"\| +torch.Tensor.mul (\S+) +\|", at_the_end)
    assert names == ["input[0]", "input[1]", "output", "grad[0]"]


@pytest.mark.parametrize("worker", [0, 1])
def test_tables_show_the_devices_own_tensors(device, capfd, worker):
    """Not the copies on the host that are compared."""
    x = torch.ones(2, device=device, requires_grad=True)
    with op_tools.OpAutoCompare(verbose=2, worker=worker, ops="torch.Tensor.mul"):
        (x * 3).sum().backward()
    cells = {}
    for line in capfd.readouterr().out.splitlines():
        if line.startswith("| ") and "torch.strided" in line:
            name, *others = (cell.strip() for cell in line.strip("|").split("|"))
            cells[name.removeprefix("torch.Tensor.mul ")] = others
    for label in ("inputs[0]", "outputs", "grad_outputs", "grad_inputs"):
        assert cells[label][4].startswith(device)
    for label in ("inputs(cpu)[0]", "outputs(cpu)", "grad_inputs(cpu)"):
        assert cells[label][4] == "cpu"
    if not worker:
        assert str(x.data_ptr()) in cells["inputs[0]"]


def test_only_what_is_wrong_is_shown_at_verbosity_1(device, capfd):
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)
    with faults.inject("aten.mm: scale=1.01"), op_tools.OpAutoCompare():
        x @ y
        x + y
    printed = capfd.readouterr()
    assert "wrong: torch.Tensor.matmul output: off by a factor of 1.01 as a whole" in printed.out
    assert "torch.Tensor.add output" not in printed.out
    assert "x @ y" in printed.out
    assert printed.err == ""
    assert "OpAutoCompare: 2 calls, 6 values compared, 1 calls wrong" in printed.out
    assert ".csv saved" in printed.out


def test_nothing_is_printed_at_verbosity_0(device, capfd):
    found = found_by(op_tools.OpAutoCompare(verbose=0), device, "aten.addmm: scale=1.01")
    assert found
    assert capfd.readouterr() == ("", "")


def test_after_some_calls_of_one_place_a_line_is_enough(device, capfd):
    x = torch.randn(8, 8, device=device)
    with faults.inject("aten.mm: scale=1.01"), op_tools.OpAutoCompare() as tool:
        for _ in range(12):
            x @ x
    printed = capfd.readouterr().out
    assert printed.count("cpu_dtype_cast_info") == 8
    assert printed.count("wrong: torch.Tensor.matmul output") == 12
    assert [one.calls for one in tool.summary.ranked()] == [12]
    folder = Path("op_tools_results/op_capture_results/torch.Tensor.matmul") / str(os.getpid()) / "autocompare"
    assert len(list(folder.iterdir())) == 8


def test_values_that_are_not_close_but_no_worse_than_their_dtype_are_only_counted(device, capfd):
    x = 100 * torch.randn(20, 20, device=device, dtype=torch.bfloat16)
    with op_tools.OpAutoCompare() as tool:
        x @ x
    assert tool.summary.ranked() == []
    assert "1 values are not allclose but no worse than their dtype" in capfd.readouterr().out


def test_the_summary_ranks_the_worst_first(device):
    x = torch.randn(32, 32, device=device)
    with faults.inject("aten.mm: scale=1.01; aten.exp: scale=1.5; aten.tanh: nan@one"):
        tool = op_tools.OpAutoCompare(verbose=0)
        with tool:
            x @ x
            x.exp()
            x.tanh()
    assert [one.name for one in tool.summary.ranked()] == [
        "torch.Tensor.tanh",
        "torch.Tensor.exp",
        "torch.Tensor.matmul",
    ]


def test_wrong_calls_are_saved(device):
    x = torch.randn(8, 8, device=device, requires_grad=True)
    with faults.inject("aten.mm: scale=1.01"), op_tools.OpAutoCompare(verbose=0):
        (x @ x).sum().backward()
    root = Path("op_tools_results/op_capture_results/torch.Tensor.matmul") / str(os.getpid()) / "autocompare"
    saved = sorted("/".join(path.parts[-2:]) for path in root.rglob("*.pth"))
    assert {"device/input.pth", "device/output.pth", "cpu/input.pth", "cpu/output.pth"} <= set(saved)
    assert {"device/grad_outputs.pth", "device/grad_inputs.pth", "cpu/grad_inputs.pth"} <= set(saved)
    (path,) = root.rglob("cpu/output.pth")
    content = torch.load(path, weights_only=True)
    assert content["name"] == "torch.Tensor.matmul"
    assert torch.allclose(content["args"][0], (x.detach().cpu().double() @ x.detach().cpu().double()))


def test_a_full_disk_is_said_once(device, capfd, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("op_tools.autocompare.examiner.store.save", full)
    x = torch.randn(8, 8, device=device)
    with faults.inject("aten.mm: scale=1.01"), op_tools.OpAutoCompare() as tool:
        for _ in range(3):
            x @ x
    assert capfd.readouterr().err.count("No space left on device") == 1
    assert tool.summary.wrong_calls == 3


# ---- settings --------------------------------------------------------------------------------------------------------


def test_a_wrong_call_can_fail_the_run(device):
    x = torch.randn(8, 8, device=device)
    with (
        faults.inject("aten.mm: scale=1.01"),
        pytest.raises(DifferenceFound, match=r"1 op calls are wrong, the worst: torch\.Tensor\.matmul output: off by"),
        op_tools.OpAutoCompare(verbose=0, fail=True),
    ):
        x @ x
    with op_tools.OpAutoCompare(verbose=0, fail=True):
        x @ x


def test_the_programs_own_error_goes_first(device):
    x = torch.randn(8, 8, device=device)

    def program():
        with op_tools.OpAutoCompare(verbose=0, fail=True):
            x @ x
            raise KeyError

    with faults.inject("aten.mm: scale=1.01"), pytest.raises(KeyError):
        program()


PROGRAM = """
import sys, torch
from ditorch import sim
from ditorch.sim import faults
import op_tools
device = sys.argv[1]
if device == "sim":
    sim.start()
x = torch.randn(8, 8, device=device)
with faults.inject("aten.mm: scale=1.01"):
    op_tools.OpAutoCompare(verbose=0, worker=int(sys.argv[2])).start()
    x @ x
print("the program goes on")
"""


@pytest.mark.parametrize("worker", ["0", "1"])
def test_the_exit_code_tells_that_something_is_wrong(device, run_python, worker):
    done = run_python(PROGRAM, device, worker, check=False, OP_AUTOCOMPARE_FAIL="1")
    assert done.returncode == 1
    assert "the program goes on" in done.stdout
    assert "op_tools: 1 op calls are wrong, the worst: torch.Tensor.matmul output" in done.stderr


def test_the_exit_code_is_the_programs_own_where_nobody_asked(device, run_python):
    assert run_python(PROGRAM, device, "1").returncode == 0


@pytest.mark.parametrize(
    ("options", "variable", "value"),
    [
        ({"reference": "gpu"}, "OP_AUTOCOMPARE_REFERENCE", "gpu"),
        ({"every": 0}, "OP_AUTOCOMPARE_EVERY", "0"),
        ({"worker": 1, "reference": "device"}, "OP_AUTOCOMPARE_WORKER", "-1"),
        ({"worker": -1}, "OP_AUTOCOMPARE_MEMORY", "much"),
        ({"memory": 0}, "OP_AUTOCOMPARE_ONCE", "yes"),
        ({"every": "often"}, "OP_AUTOCOMPARE_FAIL", "2"),
    ],
)
def test_mistakes_are_errors_at_start(monkeypatch, options, variable, value):
    with pytest.raises(SettingError):
        op_tools.OpAutoCompare(**options).start()
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingError, match=variable):
        op_tools.OpAutoCompare().start()


def test_the_dtype_of_the_reference_can_be_chosen(device, monkeypatch, capfd):
    monkeypatch.setenv("OP_DTYPE_CAST_DICT", "torch.bfloat16->torch.float32")
    monkeypatch.setenv("MUL_OP_DTYPE_CAST_DICT", "torch.bfloat16->torch.float64")
    x = torch.ones(3, device=device, dtype=torch.bfloat16)
    with op_tools.OpAutoCompare(verbose=2):
        x + x
        x * x
    printed = capfd.readouterr().out
    assert "{torch.bfloat16: torch.float32}" in printed
    assert "{torch.bfloat16: torch.float64}" in printed


def test_tolerances_come_from_the_environment(device, monkeypatch):
    monkeypatch.setenv("MUL_AUTOCOMPARE_ERROR_TOLERANCE_FLOAT32", "1e-2,2e-2")
    with op_tools.OpAutoCompare(verbose=0):
        torch.ones(3, device=device) * 2
    assert rows_of()[-1]["atol"] == "0.010000000"
    assert rows_of()[-1]["rtol"] == "0.020000000"


# ---- cheaper modes ---------------------------------------------------------------------------------------------------


def test_each_distinct_call_once(device):
    x = torch.randn(4, 4, device=device, requires_grad=True)
    tool = op_tools.OpAutoCompare(verbose=0, once=True, ops="torch.Tensor.mul")
    with tool:
        for scale in range(5):
            (x * scale).sum().backward()
        (x[:2] * 2).sum().backward()
        x * x
    assert tool.summary.calls == 2 + 2 + 1  # forward and backward of the first two


def test_every_nth_step(device):
    x = torch.randn(4, 4, device=device)
    tool = op_tools.OpAutoCompare(verbose=0, every=3)
    with tool:
        for _ in range(9):
            op_tools.step()
            x * 2
    assert tool.summary.calls == 3


def test_memory_for_waiting_calls_is_limited(device, capfd):
    x = torch.randn(100, 100, device=device, requires_grad=True)
    tool = op_tools.OpAutoCompare(memory=100_000, ops="torch.Tensor.mul")
    with tool:
        y = x * 2
        for _ in range(5):
            y = y * 2
        y.sum().backward()
        del y
        (x * 2).sum().backward()
    assert capfd.readouterr().err.count("wait for gradients") == 1
    backward = [row for row in rows_of() if "grad" in row["name"]]
    assert 2 <= len(backward) < 7
    assert tool.summary.ranked() == []


@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_workers_find_the_same(device, autocast, capfd):
    fault = "aten.mm: scale=1.01; aten.native_layer_norm: scale=1.01"
    here = found_by(op_tools.OpAutoCompare(verbose=0), device, fault, autocast=autocast)
    messages.forget()
    tool = op_tools.OpAutoCompare(worker=1, out="elsewhere")
    there = found_by(tool, device, fault, autocast=autocast)
    # sums on the CPU depend on the number of threads, and so does the order of what is about as wrong
    assert {(one.name, one.what, one.module, one.where, one.calls) for one in there} == {
        (one.name, one.what, one.module, one.where, one.calls) for one in here
    }
    printed = capfd.readouterr()
    assert "wrong: torch.nn.functional.linear grad" in printed.out
    assert list(Path("elsewhere").rglob("device/grad_inputs.pth"))


def test_workers_with_little_memory_are_waited_for(device):
    tool = op_tools.OpAutoCompare(verbose=0, worker=1, memory=200_000)
    with tool:
        plain = step(device)
    assert tool.summary.ranked() == []
    assert tool.summary.calls > 30
    assert all(torch.equal(one, other) for one, other in zip(plain, step(device)))


def test_a_dead_worker_is_reported(device, capfd):
    x = torch.randn(8, 8, device=device)
    tool = op_tools.OpAutoCompare(verbose=0, worker=1)
    with tool:
        x @ x
        (worker,) = tool._strategy._workers._workers
        worker._process.kill()
        worker._process.wait()
        worker._thread.join()
        with faults.inject("aten.mm: scale=1.01"):
            x @ x  # compared in this process
    assert [one.name for one in tool.summary.ranked()] == ["torch.Tensor.matmul"]
    assert "a process of OpAutoCompare ended (exit code -9)" in capfd.readouterr().err


def test_the_device_itself_as_reference(device):
    tool = op_tools.OpAutoCompare(verbose=0, reference="device")
    with tool:
        plain = step(device)
    assert tool.summary.ranked() == []
    assert all(torch.equal(one, other) for one, other in zip(plain, step(device)))
    x = torch.randn(64, 64, device=device)
    with faults.inject("aten.tanh: round=bfloat16"), tool:
        x.tanh()
    # the same kernel is wrong in float64, too, but the results differ by their roundings
    assert tool.summary.calls == 1


@pytest.mark.parametrize("dtype", [torch.float32, *LOW])
def test_the_cpu_confirms_what_the_device_finds(device, dtype):
    tool = op_tools.OpAutoCompare(verbose=0, reference="device,cpu")
    assert found_by(tool, device, dtype=dtype) == []
    x = torch.randn(64, 64, device=device, dtype=dtype)
    with faults.inject("aten.tanh: nan@one"), tool:
        x.tanh()
        x.clone().tanh_()
    names = [(one.name, one.what) for one in tool.summary.ranked()]
    assert names[:1] == [("torch.Tensor.tanh", "output")]


# ---- the device itself as reference: a first look there, and a full verdict only where it finds something ------------

ONLY_THE_PROGRAMS_CALL = (
    "every=100000"  # the first call of a kernel is the program's, the next ones are the reference's
)


def test_a_fault_that_higher_precision_does_not_share_is_found(device):
    x = torch.randn(64, 64, device=device, requires_grad=True)
    tool = op_tools.OpAutoCompare(verbose=0, reference="device")
    with faults.inject(f"aten.tanh: scale=1.001, {ONLY_THE_PROGRAMS_CALL}"), tool:
        x.tanh().sum().backward()
    assert ("torch.Tensor.tanh", "output") in [(one.name, one.what) for one in tool.summary.ranked()]
    with faults.inject(f"aten.tanh_backward: negate@one, {ONLY_THE_PROGRAMS_CALL}"), tool:
        x.tanh().sum().backward()
    assert [(one.name, one.what) for one in tool.summary.ranked()] == [("torch.Tensor.tanh", "grad")]


def test_what_is_changed_in_place_is_decided_before(device):
    x = torch.randn(64, 64, device=device)
    tool = op_tools.OpAutoCompare(verbose=0, reference="device")
    with tool:
        for _ in range(3):
            y = x.tanh()
            y.add_(1)
            y[0] = 0
            y.view(-1).mul_(2)
    assert tool.summary.ranked() == []
    assert "not compared" not in tool.summary.text()
    with faults.inject(f"aten.tanh: nan@one, {ONLY_THE_PROGRAMS_CALL}"), tool:
        y = x.tanh()
        y.zero_()
    assert [one.name for one in tool.summary.ranked()] == ["torch.Tensor.tanh"]


def test_every_call_has_its_row_with_all_measures(device):
    x = torch.randn(16, 16, device=device, dtype=torch.bfloat16, requires_grad=True)
    with op_tools.OpAutoCompare(verbose=0, reference="device") as tool:
        for _ in range(50):  # more than are looked at together
            (x @ x).sum().backward()
    rows = [row for row in rows_of() if row["name"] == "torch.Tensor.matmul output"]
    assert len(rows) == 50
    assert tool.summary.calls == 50 * 4
    for row in rows:
        assert float(row["cosine_similarity"]) == pytest.approx(1, abs=1e-4)
        assert 0 < float(row["mean_ulp"]) <= float(row["max_ulp"])
        assert (row["bad_share"], row["nonfinite_mismatch"], row["verdict"]) == ("0", "0", "right")


def test_a_backward_pass_beside_a_forward_pass_does_not_wait_for_it(device, run_python):
    """A full look takes autograd's thread, which may have something to be looked at itself."""
    done = run_python(
        f"""
        import faulthandler, threading, torch, op_tools
        from ditorch import sim
        from op_tools.autocompare.prefilter import deferred, first_look

        if {device!r} == "sim":
            sim.start()
        faulthandler.dump_traceback_later(120, exit=True)
        deferred._MAX_CALLS = deferred._MAX_CALLS_ALONE = 2
        decide = first_look.PendingRows.decide
        # each is looked at in full
        first_look.PendingRows.decide = lambda self, verdicts: decide(self, verdicts) and False
        x = torch.randn(8, 8, device={device!r}, requires_grad=True)

        def loss():
            y = x
            for _ in range(20):
                y = (y @ x).tanh()
            return y.sum()

        with op_tools.OpAutoCompare(verbose=0, reference="device") as tool:
            previous = loss()
            for _ in range(10):
                thread = threading.Thread(target=previous.backward)
                thread.start()
                previous = loss()
                thread.join()
        assert tool.summary.ranked() == []
        print(tool.summary.values)
        """
    )
    assert int(done.stdout.split()[-1]) > 10 * 20 * 4


@pytest.mark.parametrize(("free", "together"), [(0.0, 1), (math.inf, 8)])
def test_with_little_room_few_calls_wait_to_be_looked_at(device, monkeypatch, free, together):
    launched = []
    original = screen.numbers_of
    monkeypatch.setattr(screen, "numbers_of", lambda looks: launched.append(len(looks)) or original(looks))
    monkeypatch.setattr(deferred, "free_memory", lambda device: free)
    x = torch.randn(16, 16, device=device)
    with op_tools.OpAutoCompare(verbose=0, reference="device") as tool:
        for _ in range(8):
            x.tanh()
    assert tool.summary.ranked() == []
    assert launched == [together] * (8 // together)


def test_with_little_room_references_are_run_again_for_their_gradients(device):
    def rows(memory):
        with op_tools.OpAutoCompare(verbose=0, reference="device", out=str(memory), memory=memory) as tool:
            step(device)
        assert tool.summary.ranked() == []
        return sorted((row["name"], row["mean_ulp"]) for row in rows_of(Path(str(memory))))

    assert rows(2_000_000) == rows(2**32)


def test_no_tensor_is_held_when_it_is_over(device):
    tool = op_tools.OpAutoCompare(verbose=0, reference="device")
    x = torch.randn(16, 16, device=device, requires_grad=True)
    with tool:
        y = x.tanh()
        y.sum().backward()
        held = [weakref.ref(y)]
        del y
    assert [one() for one in held] == [None]


def test_infinities_of_a_mask_need_no_second_look(device, monkeypatch):
    x = torch.randn(16, 16, device=device)
    tool = op_tools.OpAutoCompare(verbose=0, reference="device")
    with tool:
        masked = x.masked_fill(torch.ones(16, 16, device=device, dtype=torch.bool).triu(1), -math.inf)
        masked.softmax(-1)
    assert tool.summary.ranked() == []


def test_lists_that_are_changed_without_being_counted_are_seen_as_they_are(device):
    """As torch._foreach_lerp_ does on CUDA."""
    changed = [torch.zeros(4, device=device) for _ in range(12)]
    others = [torch.ones(4, device=device) for _ in range(12)]
    together = foreach_lists.joined(Arguments((changed, others, 0.5), {}))
    with torch.autograd._unsafe_preserve_version_counter(tuple(changed)):
        torch._foreach_lerp_(changed, others, 0.5)
    assert together.args[0][0].unique().tolist() == [0]
    assert together.now().args[0][0].unique().tolist() == [0.5]


@pytest.mark.parametrize("reference", ["cpu", "device"])
def test_an_optimizers_lists_are_looked_at_together(device, reference):
    parameters = [nn.Parameter(torch.randn(8, 8, device=device)) for _ in range(12)]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer = torch.optim.AdamW(parameters, foreach=True)
    with op_tools.OpAutoCompare(verbose=0, reference=reference) as tool:
        optimizer.step()
    assert tool.summary.ranked() == []
    rows = {row["name"]: row for row in rows_of()}
    assert rows["torch._foreach_addcdiv_ input[0..11]"]["verdict"] == "right"
    assert float(rows["torch._foreach_addcdiv_ input[0..11]"]["max_ulp"]) > 0
    assert rows["torch._foreach_addcdiv_ input[12..23]"]["max_ulp"] == "0"
    broken_once = f"aten._foreach_addcdiv_: scale=1.5@one, {ONLY_THE_PROGRAMS_CALL}"
    with faults.inject(broken_once), op_tools.OpAutoCompare(verbose=0, reference=reference, out="other") as tool:
        optimizer.step()
    # tensor by tensor where something is wrong
    found = {(one.name, one.what) for one in tool.summary.ranked()}
    assert found
    assert all(re.fullmatch(r"(input|output)\[\d+\]", what) for _, what in found)
    assert list(Path("other").rglob("device/input.pth"))


def test_gradients_of_a_reference_are_there_below_autograd():
    """Inside a kernel that is written in Python, where a comparison may have to be decided."""
    x = torch.randn(4, requires_grad=True)
    with torch._C._AutoDispatchBelowAutograd():
        again = run(torch.mul, Arguments((x, 3.0), {}), Way("again", {}), graph=True)
        (gradient,) = again.gradients([torch.ones(4)])
    assert gradient.tolist() == [3.0] * 4


def test_without_a_compiler_there_is_no_fused_look_and_one_line_says_so(monkeypatch, capfd):
    def fails(*arguments):
        raise RuntimeError("no C compiler was found")

    broken = types.SimpleNamespace(run=fails)
    monkeypatch.setitem(sys.modules, "op_tools.autocompare.prefilter.kernels", broken)
    monkeypatch.setattr(prefilter, "kernels", broken, raising=False)
    monkeypatch.setattr(fused, "_known", {})
    monkeypatch.setattr(fused, "is_genuine", lambda device: True)
    assert fused._kernels(torch.device("cpu")) is None
    assert fused._kernels(torch.device("cpu")) is None
    assert capfd.readouterr().err.count("does without Triton: RuntimeError: no C compiler was found") == 1


def test_the_fused_look_sees_what_torch_sees(device):
    here = torch.zeros(1, device=device).device
    if not fused.is_there(here):
        pytest.skip("Triton and CUDA are not there")
    fused._compare_with_torch(fused._kernels(here), here)


# ---- the CPU as reference, with a first look on the device -----------------------------------------------------------


def test_both_ways_of_looking_measure_the_same(device, monkeypatch):
    def rows(is_first):
        monkeypatch.setattr(screen, "is_quick", lambda tensors: is_first and any(not one.is_cpu for one in tensors))
        with op_tools.OpAutoCompare(verbose=0, out=str(is_first)):
            step(device)
        return {(row["forward_id"], row["name"]): row for row in rows_of(Path(str(is_first)))}

    full, first = rows(False), rows(True)
    shift = int(next(iter(first))[0]) - int(next(iter(full))[0])
    assert len(full) == len(first) > 60
    # these ask the CPU in the device's own dtype, which does not run where a first look is enough
    columns = set(report.CSV) - {"forward_id", "rmse_ratio", "severity", "error_info"}
    for (number, name), row in full.items():
        seen = first[str(int(number) + shift), name]
        different = [column for column in columns if not _is_about(row[column], seen[column])]
        assert not different, (name, different, row, seen)


def _is_about(one, other):
    with contextlib.suppress(ValueError):
        return float(one) == pytest.approx(float(other), rel=1e-6, abs=1e-12)
    return one == other


def test_what_is_changed_right_after_is_compared_as_it_was(device):
    """Gradients are added up in place, without any op that could be seen."""
    x, weight = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device, requires_grad=True)
    tool = op_tools.OpAutoCompare(verbose=0)
    with faults.inject("aten.mm: scale=1.01, phase=backward"), tool:
        for _ in range(3):
            (x @ weight).sum().backward()
    (found,) = tool.summary.ranked()
    assert found.calls == 3, str(found)


@pytest.mark.parametrize("when", ["before", "after", "launch"])
def test_without_room_on_the_device_the_host_looks(device, monkeypatch, when):
    def full(*arguments):
        raise screen.OUT_OF_MEMORY("no room")

    places = {"before": (on_host, "clone"), "after": (on_host, "clones_of"), "launch": (screen, "numbers_of")}
    place, name = places[when]
    monkeypatch.setattr(place, name, full)
    tool = op_tools.OpAutoCompare()
    assert [one.name for one in found_by(tool, device, "aten.gelu: scale=1.01")] == ["torch.nn.functional.gelu"]
    assert len(rows_of()) > 60


# ---- what else must hold ---------------------------------------------------------------------------------------------


def test_gpt_training_is_untouched(device):
    def train():
        torch.manual_seed(0)
        model = GPT(vocabulary=64, width=32, heads=2, layers=1, length=16).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        losses = []
        for _ in range(3):
            tokens = torch.randint(64, (2, 17)).to(device)
            loss = model.loss(tokens[:, :-1], tokens[:, 1:])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    plain = train()
    tool = op_tools.OpAutoCompare(verbose=0)
    with tool:
        assert train() == plain
    assert tool.summary.ranked() == []


def test_it_can_be_started_again(device):
    tool = op_tools.OpAutoCompare(verbose=0)
    x = torch.randn(4, 4, device=device)
    with faults.inject("aten.mm: scale=1.01"), tool:
        x @ x
    assert len(tool.summary.ranked()) == 1
    with tool:
        x @ x
    assert tool.summary.ranked() == []


def test_one_call_from_elsewhere_can_be_compared():
    x, weight = torch.randn(8, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    result = functional.linear(x, weight)
    gradient = torch.randn(8, 4)
    grads = torch.autograd.grad(result, (x, weight), gradient)
    given = Arguments((x, weight), {})
    forward, backward = compare_call("torch.nn.functional.linear", functional.linear, given, result, [gradient], grads)
    assert not forward.is_wrong
    assert not backward.is_wrong
    assert [row.name for row in backward.rows] == [f"torch.nn.functional.linear grad[{place}]" for place in (0, 1)]
    _, backward = compare_call(
        "torch.nn.functional.linear", functional.linear, given, result, [gradient], [grads[0], 1.01 * grads[1]]
    )
    assert [row.is_wrong for row in backward.rows] == [False, True]


@pytest.mark.parametrize("reference", ["cpu", "device"])
def test_random_numbers_that_require_gradients_cause_no_warning(device, reference):
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # else torch warns once, perhaps in an earlier test
    try:
        with warnings.catch_warnings(record=True) as caught, op_tools.OpAutoCompare(reference=reference):
            warnings.simplefilter("always")
            torch.randn(40, device=device, requires_grad=True)
    finally:
        torch.set_warn_always(before)
    assert [str(warning.message) for warning in caught] == []
