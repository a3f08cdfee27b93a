"""OpOverflowCheck names the op that makes NaN or Inf, and no other."""

from __future__ import annotations

import collections
import contextlib
import gc
import math
import threading
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
from op_tools import OpOverflowCheck
from op_tools.core.call import OpCall
from op_tools.errors import OverflowFound, SettingError
from op_tools.overflow import calls, finite
from op_tools.overflow import tool as overflow_tool
from op_tools.overflow.calls import Window
from op_tools.overflow.statistics import statistics

from ..recorder import Recorder

INF, NAN = math.inf, math.nan


@pytest.fixture(params=["answers at once", "answers late"], autouse=True)
def _answers(request, monkeypatch):
    """A device that is far behind the host: when its answers come, tensors are gone, or have been changed."""
    if request.param == "answers late":
        asked = collections.Counter()

        def is_ready(batch):
            asked[batch] += 1
            return asked[batch] > 3

        monkeypatch.setattr(Window, "is_ready", is_ready)


def small_gpt(device):
    torch.manual_seed(0)
    return GPT(vocabulary=32, width=16, heads=2, layers=2, length=8).to(device)


def tokens(device):
    return torch.arange(16, device=device).reshape(2, 8) % 7


def train(device, steps=1, model=None, **optimizer):
    model = model or small_gpt(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, **optimizer)
    losses = []
    for _ in range(steps):
        loss = model.loss(tokens(device), tokens(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [parameter.detach().cpu() for parameter in model.parameters()]


def check(function, **arguments):
    """What the tool finds while `function` runs."""
    with OpOverflowCheck(**{"verbose": 0, **arguments}) as tool:
        function()
    return tool.found


def test_what_a_call_has_made_is_what_it_returns_and_what_it_changed():
    one, two, three = (torch.ones(1) for _ in range(3))
    for results, changed, right in [
        ([], (one, two), (one, two)),  # older lists of ops return nothing
        ([one, two], (one, two), (one, two)),
        ([two, one], (one, two), (two, one)),
        ([three], (one, two), (three, one, two)),
        ([three, one], (one, two), (three, one, two)),
        ([one], (), (one,)),
    ]:
        made = calls.made_by(results, changed)
        assert list(map(id, made)) == list(map(id, right))


# ---- which op, where -----------------------------------------------------------------------------------------------


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)

    def forward(self, x):
        opened = self.gate(x)
        opened = torch.exp(opened)  # the guilty line
        return self.norm(opened)


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(4, 4), Gated()])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def test_names_op_line_module_step_and_call(device, capsys):
    model = Outer().to(device)
    x = torch.ones(3, 4, device=device)
    op_tools.step()
    step = op_tools.step()
    with faults.inject("aten.exp: nan@one"), OpOverflowCheck() as tool:
        model(x).sum().backward()
    [found] = tool.found
    assert (found.name, found.phase, found.what) == ("torch.exp", "forward", "made NaN out of finite inputs")
    assert (found.module, found.step) == ("blocks.1", step)
    assert "test_overflow.py:" in found.where
    assert found.where.endswith("forward: opened = torch.exp(opened)  # the guilty line")
    printed = capsys.readouterr().out
    assert f"OpOverflowCheck: torch.exp made NaN out of finite inputs, forward, step {step}\n" in printed
    assert f"torch.exp    forward_id: {found.forward_id}    blocks.1\n{found.where}\n+--" in printed


def test_shows_statistics_of_inputs_and_outputs(device, capsys):
    x = torch.tensor([[1.0, -2.0, 3.0], [1000.0, 4.0, 0.0]], device=device)
    with OpOverflowCheck():
        torch.exp(x)
    lines = capsys.readouterr().out.splitlines()
    [header] = [line for line in lines if "first_bad" in line]
    [given] = [line for line in lines if "torch.exp inputs" in line]
    [made] = [line for line in lines if "torch.exp outputs" in line]
    columns = [cell.strip() for cell in header.split("|")]
    given = dict(zip(columns, (cell.strip() for cell in given.split("|"))))
    made = dict(zip(columns, (cell.strip() for cell in made.split("|"))))
    assert (given["min"], given["max"], given["nan"], given["inf"], given["first_bad"]) == ("-2", "1000", "0", "0", "")
    assert given["shape"] == "(2, 3)"
    assert given["dtype"] == "float32"
    assert made["inf"] == "1"
    assert made["first_bad"] == "[1, 0]"
    assert float(made["max"]) == pytest.approx(math.exp(4), rel=1e-4)
    assert float(given["mean"]) == pytest.approx(1006 / 6, rel=1e-4)
    assert float(given["norm"]) == pytest.approx(float(x.cpu().norm()), rel=1e-4)
    assert float(given["std"]) == pytest.approx(float(x.cpu().std(correction=0)), rel=1e-4)


@pytest.mark.parametrize(
    ("kernel", "op", "module"),
    [
        (
            "aten.native_layer_norm_backward: nan@one, after=1",
            "torch.nn.functional.layer_norm",
            "blocks.1.perceptron_norm",
        ),
        ("aten.embedding_dense_backward: inf@one", "torch.nn.functional.embedding", "token"),
        ("aten.mm: nan@one, phase=backward, after=2", "torch.nn.functional.linear", "blocks.1.down"),
        ("aten.gelu_backward: nan", "torch.nn.functional.gelu", "blocks.1"),
    ],
)
def test_names_the_op_whose_backward_kernel_is_broken(device, kernel, op, module):
    with faults.inject(kernel):
        first = check(lambda: train(device))[0]
    assert (first.name, first.phase, first.module) == (op, "backward", module)
    assert "gpt.py:" in first.where
    assert first.what == f"made {'NaN' if 'nan' in kernel else 'Inf'} out of finite gradients"


@pytest.mark.parametrize(
    ("kernel", "op"),
    [
        ("aten.gelu: nan@one", "torch.nn.functional.gelu"),
        ("aten.native_layer_norm: inf@one", "torch.nn.functional.layer_norm"),
        ("aten.embedding: nan@one", "torch.nn.functional.embedding"),
        ("aten.addmm: nan@one, after=3", "torch.nn.functional.linear"),
    ],
)
def test_names_the_op_whose_forward_kernel_is_broken_before_all_that_carry_it_on(device, kernel, op):
    with faults.inject(kernel):
        first, *others = check(lambda: train(device))
    assert (first.name, first.phase) == (op, "forward")
    assert not [found for found in others if "finite" in found.what], "all else was given what it has"


def test_a_fault_in_an_optimizer_is_found(device):
    with faults.inject("aten.addcdiv: nan@one, after=3; aten._foreach_addcdiv: nan@one"):
        [found, *_] = check(lambda: train(device, foreach=True))
    assert found.name == "torch._foreach_addcdiv_"


@pytest.mark.parametrize("faulty", ["aten.mul: nan@one", "aten.sin: nan@one", "aten.cos: nan@one"])
def test_in_place_ops_do_not_hide_or_take_over_what_another_op_made(device, faulty):
    def program():
        x = torch.ones(8, device=device) * 2
        x.sin_()
        y = x.cos()
        y[2:4] = 0.5
        y += 1
        y.add_(1)

    with faults.inject(faulty):
        [found] = check(program)
    assert faulty.partition(":")[0].removeprefix("aten.") in found.name


def test_overwritten_at_once_is_found_all_the_same(device):
    def program():
        x = torch.ones(4, device=device) / 0
        x.fill_(1.0)
        functional.relu(torch.ones(4, device=device).log() * INF, inplace=True)

    assert [found.name for found in check(program)] == ["torch.Tensor.div", "torch.Tensor.mul"]


def test_inputs_that_are_changed_later_do_not_confuse(device):
    """Until the answer is there, the inputs are what they were, or known to be something else."""

    def program():
        x = torch.zeros(4, device=device)
        y = 1 / x  # the fault
        x.fill_(NAN)
        z = torch.full((4,), NAN, device=device)
        _ = z + 1
        z.fill_(1.0)
        return y

    assert [found.name for found in check(program)] == ["torch.Tensor.__rtruediv__"]


def test_two_overflows_are_both_counted_the_first_is_shown(device, capsys):
    x = torch.tensor([100.0, 1.0], device=device)
    with OpOverflowCheck() as tool:
        torch.exp(x)
        torch.log(x - x)
        torch.exp(x)
    assert [found.name for found in tool.found] == ["torch.exp", "torch.log"]
    printed = capsys.readouterr().out
    assert printed.count("OpOverflowCheck: torch.exp made Inf") == 1
    assert "OpOverflowCheck: torch.log made" not in printed
    assert "OpOverflowCheck: 3 calls made NaN or Inf" in printed


def test_a_run_without_any_says_so(device, capsys):
    with OpOverflowCheck():
        torch.ones(2, device=device) + 1
    assert capsys.readouterr().out.endswith("OpOverflowCheck: none of 2 calls made NaN or Inf\n")


# ---- intent --------------------------------------------------------------------------------------------------------


def causal(device):
    return torch.ones(4, 4, dtype=torch.bool, device=device).triu(1)


def buffer_from_the_host(device):
    return torch.full((4, 4), -INF).triu(1).to(device)


def set_item(scores):
    scores = scores.clone()
    scores[causal(scores.device)] = -INF
    return scores


MASKS = {
    "masked_fill": lambda s: s.masked_fill(causal(s.device), -INF),
    "masked_fill_": lambda s: s.clone().masked_fill_(causal(s.device), -INF),
    "masked_fill with a tensor": lambda s: s.masked_fill(causal(s.device), torch.tensor(-INF)),
    "where": lambda s: torch.where(causal(s.device), -INF, s),
    "where with a tensor": lambda s: torch.where(causal(s.device), torch.tensor(-INF, device=s.device), s),
    "full": lambda s: s + torch.triu(torch.full((4, 4), -INF, device=s.device), 1),
    "new_full": lambda s: s + s.new_full((4, 4), -INF).triu(1),
    "full_like": lambda s: s + torch.full_like(s, -INF).triu(1),
    "setitem": set_item,
    "index_fill": lambda s: s.index_fill(1, torch.tensor([2, 3], device=s.device), -INF),
    "tensor": lambda s: s + torch.tensor([0.0, 0.0, -INF, -INF], device=s.device),
    "brought from the host": lambda s: s + buffer_from_the_host(s.device),
    "a part of a larger mask": lambda s: s + torch.full((8, 8), -INF, device=s.device).triu(1)[:4, :4],
    "zeros, then filled": lambda s: s + torch.zeros_like(s).masked_fill_(causal(s.device), float("-inf")),
    "cat": lambda s: torch.cat([s[:, :2], torch.full((4, 2), -INF, device=s.device)], 1),
}


@pytest.mark.parametrize("mask", MASKS)
def test_a_mask_of_infinities_is_intent(device, mask, capsys):
    torch.manual_seed(0)
    query = torch.randn(4, 8, device=device, requires_grad=True)
    value = torch.randn(4, 8, device=device)

    def program():
        for _ in range(2):
            scores = MASKS[mask](query @ query.T / 8)
            assert torch.isinf(scores).any()
            (torch.softmax(scores.clone(), -1) @ value).sum().backward()

    assert check(program, verbose=1) == []
    assert "no op made" not in capsys.readouterr().out


def test_attention_of_torch_with_its_own_mask_is_healthy(device):
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True).to(device)
    mask = nn.Transformer.generate_square_subsequent_mask(6, device=device)
    x = torch.randn(2, 6, 16, device=device)
    assert check(lambda: layer(x, src_mask=mask, is_causal=True).sum().backward()) == []
    assert check(lambda: functional.scaled_dot_product_attention(x, x, x, attn_mask=mask)) == []


def test_a_real_fault_behind_a_mask_is_found(device):
    def program():
        scores = torch.randn(4, 4, device=device).masked_fill(causal(device), -INF)
        weights = torch.softmax(scores, -1)
        return (weights * 1e30) * 1e30

    with faults.inject("aten._softmax: nan@one"):
        assert check(program)[0].name == "torch.softmax"
    assert [(one.name, one.what) for one in check(program)] == [("torch.Tensor.mul", "made Inf out of finite inputs")]


@pytest.mark.parametrize(
    ("name", "program"),
    [
        ("torch.Tensor.sub", lambda x: x.masked_fill(x > 0, INF) - x.masked_fill(x > 0, INF)),
        ("torch.softmax", lambda x: torch.softmax(x.masked_fill(x > 0, -INF), -1)),
        ("torch.Tensor.mul", lambda x: (1 - x) * -INF),
        ("torch.Tensor.mul", lambda x: torch.full_like(x, INF) * (1 - x)),
        ("torch.nn.functional.layer_norm", lambda x: functional.layer_norm(x.masked_fill(x > 0, INF), (4,))),
    ],
)
def test_nan_made_from_infinities_is_a_fault(device, name, program):
    found = check(lambda: program(torch.ones(2, 4, device=device)))
    assert [(one.name, one.what) for one in found] == [(name, "made NaN out of infinities")]


@pytest.mark.parametrize(
    ("name", "program"),
    [
        ("torch.Tensor.div", lambda x: x / 0),
        ("torch.Tensor.div", lambda x: x / (x - x)),
        ("torch.log", lambda x: torch.log(x - x)),
        ("torch.Tensor.half", lambda x: (x * 1e5).half()),
        ("torch.Tensor.to", lambda x: (x * 1e5).to(torch.float16)),
        ("torch.Tensor.exp_", lambda x: (x * 1e5).exp_()),
    ],
)
def test_infinities_made_of_numbers_are_faults(device, name, program):
    found = check(lambda: program(torch.ones(2, 4, device=device)))
    assert [(one.name, one.what) for one in found] == [(name, "made Inf out of finite inputs")]


def test_nan_that_the_user_writes_is_intent(device, capsys):
    def program():
        x = torch.full((4,), NAN, device=device)
        y = torch.ones(4, device=device).masked_fill(x.isnan(), NAN)
        _ = x + y

    assert check(program, verbose=1) == []
    assert "no op made" not in capsys.readouterr().out


def test_memory_that_nobody_has_written_to_is_no_fault(device, capsys):
    def program():
        x = torch.ones(4, device=device)
        by_stride = torch.empty_strided((4,), (1,), device=device)
        for empty in (torch.empty(4, device=device), torch.empty_like(x), x.new_empty(4), by_stride):
            empty.view(2, 2)[0]
            torch.add(x, 1, out=empty)
            _ = empty * 2
            buffer = torch.empty(4, device=device)
            buffer[:2] = x[:2]
            _ = buffer[:2] + 1
            buffer.copy_(x)
            torch.empty(4, device=device).normal_()

    with faults.inject("aten.empty.memory_format: nan; aten.empty_strided: nan"):
        assert torch.empty(4, device=device).isnan().all()
        assert check(program, verbose=1) == []
    assert "no op made" not in capsys.readouterr().out


# ---- what comes in -------------------------------------------------------------------------------------------------


def test_nan_in_the_data_is_told_from_nan_that_an_op_made(device, capsys):
    model = nn.Linear(3, 2).to(device)
    batch = torch.ones(4, 3)
    batch[2, 1] = NAN

    found = check(lambda: model(batch.to(device)).sum().backward(), verbose=1)
    assert found == []
    printed = capsys.readouterr().out
    assert (
        "OpOverflowCheck: torch.Tensor.to was given NaN that no op made, forward, step "
        f"{op_tools.step() - 1}: it was in the data, in a parameter, or in memory that nobody had written to\n"
    ) in printed
    assert "[2, 1]" in printed, "where it is"
    assert printed.count("it was in the data") == 1


@pytest.mark.parametrize("made", ["on the device", "by torch.tensor", "changed uncounted"])
def test_nan_in_a_tensor_that_was_there_before_is_named_with_its_first_user(device, made, capsys):
    x = torch.ones(4, device=device)

    def program():
        data = x
        if made == "by torch.tensor":
            data = torch.tensor([1.0, NAN], device=device)
        _ = data * 2

    if made == "on the device":
        x[1] = NAN
    with OpOverflowCheck() as tool:
        _ = x + 1
        if made == "changed uncounted":
            x.cpu()
            x.data.fill_(NAN)
        program()
    assert tool.found == []
    name = (
        "torch.tensor"
        if made == "by torch.tensor"
        else "torch.Tensor.add"
        if made == "on the device"
        else "torch.Tensor.mul"
    )
    assert f"{name} was given NaN that no op made" in capsys.readouterr().out


def test_gradients_that_are_not_finite_when_they_arrive_are_no_fault_of_the_op(device, capsys):
    x = torch.ones(4, device=device, requires_grad=True)
    y = x * 2
    with OpOverflowCheck() as tool:
        z = x * 3
        z.backward(torch.tensor([1.0, INF, 1.0, 1.0], device=device))
        y.sum().backward()
    assert tool.found == []
    assert "torch.Tensor.mul was given gradients with Inf that no op made, backward" in capsys.readouterr().out


def test_an_overflow_where_gradients_are_summed_up_is_told(device, capsys):
    x = torch.full((2,), 1e-9, device=device, requires_grad=True)
    with OpOverflowCheck() as tool:
        y = x + 0
        (y * 2e38 + y * 2.5e38).sum().backward()
    assert tool.found == []
    assert "torch.Tensor.add was given gradients with Inf that no op made, backward" in capsys.readouterr().out


# ---- actions -------------------------------------------------------------------------------------------------------


def test_stop_ends_the_program_in_forward(device):
    x = torch.ones(4, device=device)
    reached = []

    def program():
        y = x / 0
        for number in range(1000):
            y = y + 1
            reached.append(number)

    with pytest.raises(
        OverflowFound, match=r"^OpOverflowCheck: torch.Tensor.div made Inf out of finite inputs, forward, "
    ):
        check(program, action="stop")
    assert len(reached) < 500


def test_stop_ends_the_program_at_the_latest_where_the_step_ends(device):
    def program():
        torch.ones(4, device=device) / 0
        op_tools.step()
        raise AssertionError("went on")

    with pytest.raises(OverflowFound, match=r"torch\.Tensor\.div made Inf"):
        check(program, action="stop")


def test_stop_ends_the_program_where_the_tool_is_stopped(device):
    tool = OpOverflowCheck(action="stop", verbose=0).start()
    torch.ones(4, device=device) / 0
    with pytest.raises(OverflowFound, match=r"torch\.Tensor\.div made Inf"):
        tool.stop()
    assert not tool.active


def test_stop_does_not_take_the_place_of_an_error_of_the_program(device):
    def program():
        torch.ones(4, device=device) / 0
        raise KeyError("of the program")

    with pytest.raises(KeyError, match="of the program"):
        check(program, action="stop")


def test_stop_ends_backward_through_the_engine(device):
    def program():
        x = torch.zeros(4, device=device, requires_grad=True)
        y = torch.sqrt(x)
        for _ in range(200):
            y = y + x * 1
        with pytest.raises(OverflowFound, match=r"torch.sqrt made Inf out of finite gradients, backward"):
            (torch.sqrt(x * 1) + y).sum().backward()
        raise KeyError("the program has seen it")

    with pytest.raises(KeyError, match="the program has seen it"):
        check(program, action="stop")


def test_a_program_that_never_stops_the_tool_ends_as_it_would(device, run_python):
    code = """
        import sys
        import torch
        from ditorch import sim

        if sys.argv[1] == "sim":
            sim.start()
        from op_tools import OpOverflowCheck

        OpOverflowCheck(action="stop").start()
        torch.ones(4, device=sys.argv[1]) / 0
    """
    done = run_python(code, device)
    assert "OpOverflowCheck: torch.Tensor.div made Inf out of finite inputs, forward, step 0" in done.stdout
    assert "1 call made NaN or Inf" in done.stdout
    assert done.stderr == ""


def test_the_variable_chooses_the_action_and_the_argument_goes_before_it(device, monkeypatch):
    monkeypatch.setenv("OP_OVERFLOW_CHECK_ACTION", "stop")
    with pytest.raises(OverflowFound):
        check(lambda: torch.ones(4, device=device) / 0)
    assert len(check(lambda: torch.ones(4, device=device) / 0, action="continue")) == 1


@pytest.mark.parametrize("how", ["argument", "variable"])
def test_an_unknown_action_is_an_error_at_start(how, monkeypatch):
    if how == "variable":
        monkeypatch.setenv("OP_OVERFLOW_CHECK_ACTION", "panic")
    tool = OpOverflowCheck(action="panic" if how == "argument" else None)
    name = "action" if how == "argument" else "OP_OVERFLOW_CHECK_ACTION"
    with pytest.raises(SettingError, match=f"{name}='panic' cannot be used: it must be one of continue, stop, dump"):
        tool.start()
    assert not tool.active


def saved(tmp_path, part):
    [path] = tmp_path.glob(f"out/op_capture_results/*/*/*/*/{part}.pth")
    return torch.load(path, weights_only=True)


@pytest.mark.parametrize("in_place", [False, True])
def test_dump_saves_the_inputs_as_they_were(device, tmp_path, in_place, capsys):
    x = torch.tensor([1.0, 0.0, 2.0], device=device)

    def program():
        y = x * 1
        z = y.div_(x) if in_place else torch.div(y, x, rounding_mode=None)
        y.fill_(7.0)
        return z

    [found] = check(program, action="dump", out=tmp_path / "out", verbose=1)
    value = saved(tmp_path, "input")
    assert value["name"] == found.name
    assert value["args"][0].tolist() == value["args"][1].tolist() == [1.0, 0.0, 2.0]
    assert value["kwargs"] == ({} if in_place else {"rounding_mode": None})
    [folder] = tmp_path.glob("out/op_capture_results/*/*/*/*")
    assert folder.parts[-2] == str(found.forward_id)
    assert f"OpOverflowCheck: inputs saved to {folder.relative_to(Path.cwd())}" in capsys.readouterr().out
    assert (folder / "input.pth.json").exists()


def test_dump_in_backward_saves_inputs_and_gradients(device, tmp_path):
    x = torch.tensor([4.0, 0.0], device=device, requires_grad=True)

    def program():
        y = torch.sqrt(x * 1)
        (y * 3).sum().backward()

    [found] = check(program, action="dump", out=tmp_path / "out")
    assert (found.name, found.phase) == ("torch.sqrt", "backward")
    assert saved(tmp_path, "input")["args"][0].tolist() == [4.0, 0.0]
    assert saved(tmp_path, "input")["args"][0].requires_grad
    assert saved(tmp_path, "grad_outputs")["args"][0].tolist() == [3.0, 3.0]
    assert saved(tmp_path, "grad_inputs")["args"][0].tolist() == [0.75, INF]


def test_dump_where_a_view_flows_back(device, tmp_path):
    x = torch.ones(4, 2, device=device, requires_grad=True)

    def program():
        rows = torch.unbind(x * 1)
        with faults.inject("aten.cat: nan@one"):  # which puts the gradients of the rows together
            (rows[0] * 2).sum().backward()

    found = [one for one in check(program, action="dump", out=tmp_path / "out") if one.phase == "backward"]
    assert [one.name for one in found] == ["torch.unbind"]
    [path] = tmp_path.glob("out/op_capture_results/torch.unbind/*/*/*/input.pth")
    assert torch.load(path, weights_only=True)["args"][0].tolist() == x.tolist()


def test_dump_in_a_second_backward_pass(device, tmp_path, capsys):
    x = torch.zeros(2, device=device, requires_grad=True)

    def program():
        y = x.sqrt()
        for _ in range(2):
            op_tools.step()
            y.sum().backward(retain_graph=True)

    assert [one.name for one in check(program, action="dump", out=tmp_path / "out")] == ["torch.Tensor.sqrt"]
    assert capsys.readouterr().err == ""


def test_a_folder_that_cannot_be_written_is_told_and_the_program_goes_on(device, tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    check(lambda: torch.ones(4, device=device) / 0, action="dump", out=tmp_path / "file")
    assert "cannot be written" in capsys.readouterr().err


def test_continue_and_dump_go_on_to_the_end(device, tmp_path):
    with faults.inject("aten.gelu: nan@one"):
        for action in ("continue", "dump"):
            losses = []
            check(lambda losses=losses: losses.extend(train(device, 2)[0]), action=action, out=tmp_path)
            assert len(losses) == 2


# ---- several steps -------------------------------------------------------------------------------------------------


def test_one_message_a_step_and_not_too_many(device, capsys):
    x = torch.ones(2, device=device)
    with OpOverflowCheck() as tool:
        for _ in range(15):
            op_tools.step()
            for _ in range(3):
                _ = x / 0
                _ = torch.log(x - x)
    printed = capsys.readouterr().out
    assert printed.count("OpOverflowCheck: torch.Tensor.div made Inf") == 10
    assert printed.count("OpOverflowCheck: torch.log made") == 0
    assert "OpOverflowCheck: 90 calls made NaN or Inf" in printed
    assert [found.name for found in tool.found] == ["torch.Tensor.div", "torch.log"]


def test_the_summary_is_bounded(device, capsys):
    functions = [getattr(torch, name) for name in ("exp", "exp2", "sinh", "cosh", "expm1", "square", "special.i0"[8:])]
    x = torch.full((2,), 1e30, device=device)
    methods = [(torch.mul, 1e30), (torch.div, 0), (torch.pow, 3), (torch.float_power, 1e9), (torch.true_divide, 0)]
    with OpOverflowCheck() as tool:
        for function in functions:
            function(x)
        for function, number in methods:
            function(x, number)
        for name in ("mul", "div", "pow", "exp", "exp2", "sinh", "cosh", "expm1", "square", "addcmul"):
            arguments = (
                (1e30,) if name in ("mul", "pow") else (0,) if name == "div" else (x, x) if name == "addcmul" else ()
            )
            getattr(torch.Tensor, name)(x, *arguments)
    assert len(tool.found) > 20
    lines = capsys.readouterr().out.rpartition("calls made NaN or Inf")[2].splitlines()
    assert len(lines) == 1 + 3 + 20 + 1 + 1
    assert lines[-1] == f"… and {len(tool.found) - 20} more kinds"


def test_mixed_precision_with_a_scaler_that_overflows_goes_on_as_without_the_tool(device, capsys):
    def program():
        torch.manual_seed(0)
        model = small_gpt(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        scaler = torch.amp.GradScaler(device, init_scale=2.0**28)
        losses = []
        for _ in range(8):
            op_tools.step()
            optimizer.zero_grad()
            with torch.autocast(device, dtype=torch.float16):
                loss = model.loss(tokens(device), tokens(device))
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
        return losses, scaler.get_scale(), [parameter.detach().cpu() for parameter in model.parameters()]

    plain = program()
    with OpOverflowCheck() as tool:
        watched = program()
    assert watched[:2] == plain[:2]
    assert all(torch.equal(one, other) for one, other in zip(plain[2], watched[2]))
    assert plain[1] < 2.0**28, "it did overflow"
    assert {found.phase for found in tool.found} == {"backward"}
    assert not {found.name for found in tool.found} & {"torch._amp_foreach_non_finite_check_and_unscale_"}
    shown = capsys.readouterr().out.count("OpOverflowCheck: torch.nn.functional.")
    assert 1 <= shown <= 8


def test_restart_begins_anew(device, capsys):
    tool = OpOverflowCheck()
    for _ in range(2):
        with tool:
            torch.ones(4, device=device) / 0
        assert [found.name for found in tool.found] == ["torch.Tensor.div"]
    assert capsys.readouterr().out.count("OpOverflowCheck: 1 call made NaN or Inf") == 2
    with tool:
        torch.ones(4, device=device) + 1
    assert tool.found == []


def test_gradients_of_calls_before_a_restart_are_no_trouble(device, capsys):
    x = torch.zeros(4, device=device, requires_grad=True)
    tool = OpOverflowCheck()
    with tool:
        y = torch.sqrt(x * 1)
    with tool:
        y.sum().backward()
    assert [found.name for found in tool.found] == ["torch.sqrt"]
    assert capsys.readouterr().err == ""


# ---- it changes nothing, and does not wait -------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["continue", "dump"])
def test_training_is_the_same_to_the_last_bit(device, action, tmp_path):
    plain = train(device, 5)
    with OpOverflowCheck(verbose=0, action=action, out=tmp_path):
        watched = train(device, 5)
    assert plain[0] == watched[0]
    assert all(torch.equal(one, other) for one, other in zip(plain[1], watched[1]))


def test_the_device_is_not_waited_for_at_each_op(device, monkeypatch):
    x = torch.ones(8, device=device, requires_grad=True)
    check(lambda: (x * 2).sum().backward())  # what is done once
    waits = []

    def counted(owner, name):
        original = getattr(owner, name)

        def stand_in(*args, **kwargs):
            waits.append(name)
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, stand_in)

    counted(torch.get_device_module(device), "synchronize")
    counted(torch.accelerator, "synchronize")
    for name in ("item", "tolist", "cpu", "numpy", "__bool__", "__float__"):
        counted(torch.Tensor, name)
    with OpOverflowCheck(verbose=0):
        y = x
        for _ in range(300):
            y = torch.tanh(y * 1.5)
        y.sum().backward()
    assert 0 < len(waits) <= 1200 // 64 + 8, "it reads back some answers together"
    assert set(waits) == {"tolist"}


def test_other_tools_do_not_see_what_it_computes(device):
    x = torch.ones(4, device=device, requires_grad=True)
    with Recorder() as outside, OpOverflowCheck(verbose=0) as tool, Recorder() as inside:
        for _ in range(3):
            op_tools.step()
            y = (x * 2).exp()
            y.sum().backward()
            _ = y.detach() / 0
        tool.stop()
    for recorder in (outside, inside):
        names = set(recorder.names) | {call.name for call, _ in recorder.backward}
        own = {"torch.ones_like"}  # by backward
        assert names - own == {f"torch.Tensor.{name}" for name in ("mul", "exp", "sum", "detach", "div")}


def test_gradients_of_parameters_are_kept_as_they_are_not_copied(device):
    """Autograd takes over a gradient that nobody else has hold of."""
    weight = torch.ones(64, 64, device=device, requires_grad=True)
    x = torch.ones(64, 64, device=device)
    taken = []
    weight.register_hook(lambda gradient: taken.append(gradient.data_ptr()))
    (x @ weight).sum().backward()
    plain = weight.grad.data_ptr() == taken[0]
    weight.grad = None
    with OpOverflowCheck(verbose=0):
        (x @ weight).sum().backward()
        assert (weight.grad.data_ptr() == taken[1]) is plain


def test_gradients_added_up_over_several_backward_passes_are_looked_at_each_time(device):
    weight = torch.ones(4, device=device, requires_grad=True)

    def program():
        for number in range(4):
            with faults.inject("aten.mul: nan@one, phase=backward") if number == 2 else contextlib.nullcontext():
                (weight * 2).sum().backward()

    assert [(found.name, found.phase) for found in check(program)] == [("torch.Tensor.mul", "backward")]


def test_tensors_larger_than_may_be_held_are_let_go(device, monkeypatch, capsys):
    monkeypatch.setattr(calls, "_max_bytes_held", lambda device: 1000)
    monkeypatch.setattr(Window, "is_ready", lambda batch: False)
    kept = torch.zeros(1000, device=device)
    with OpOverflowCheck() as tool:
        for _ in range(3):
            kept + 1
        _ = 1 / kept
        del _
        for _ in range(3):
            kept + 1
    assert [found.name for found in tool.found] == ["torch.Tensor.__rtruediv__"]
    printed = capsys.readouterr().out
    assert "freed since" in printed
    assert "(1000,)" in printed, "what is still there is shown"


def test_memory_that_is_freed_under_a_tensor_is_not_touched(device):
    def program():
        x = torch.ones(64, device=device) * 2
        x.untyped_storage().resize_(0)
        _ = torch.ones(4, device=device) / 0

    assert [found.name for found in check(program)] == ["torch.Tensor.div"]


# ---- unusual calls -------------------------------------------------------------------------------------------------


def test_dtypes_and_layouts_without_infinities_or_without_kernels(device, capsys):
    def program():
        torch.arange(4, device=device) // 2
        torch.ones(4, device=device).gt(0)
        torch.ones(0, device=device).sum() + torch.ones(0, 3, device=device).sum(0)
        torch.ones(4, device=device).to(torch.float8_e4m3fn).float()
        with contextlib.suppress(NotImplementedError):
            torch.eye(3, device=device).to_sparse() * 2
        torch.ones(3, dtype=torch.float64, device=device).exp()

    assert [found.name for found in check(program)] == []
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.float8_e5m2])
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("way", [finite.by_lists, finite.by_range])
def test_finds_it_in_every_dtype_and_layout(device, dtype, bad, way, monkeypatch):
    x = torch.zeros(30, 7)
    x[17, 5] = bad
    x = x.to(dtype).to(device)
    monkeypatch.setattr(finite, "_finders", {x.device: way})
    batch = Window(x.device, backward=False)
    parts = [x, x.T, x[::2], x[1::2], x[17, 5].expand(3, 3), torch.ones(3, device=device)]
    for part in parts:
        batch.add(part)
    batch.launch()
    assert not batch.read()
    found = [batch.value(index) for index in range(len(parts))]
    expected = [abs(bad), abs(bad), 0.0, abs(bad), abs(bad), 1.0]
    assert str(found) == str(expected)


@pytest.mark.parametrize("way", [finite.by_lists, finite.by_range, finite.by_question])
def test_every_way_to_look_at_tensors_sees_nan_and_infinity(device, way, monkeypatch):
    x = torch.ones(4, device=device)
    monkeypatch.setattr(finite, "_finders", {x.device: way})
    assert check(lambda: x + 1) == []
    assert [one.what for one in check(lambda: (x / 0, (x - x) / 0))] == [
        "made Inf out of finite inputs",
        "made NaN out of finite inputs",
    ]


def test_a_device_whose_maximum_overlooks_nan_is_asked_in_another_way(device, monkeypatch):
    monkeypatch.setattr(finite, "_finders", {})
    monkeypatch.setattr(finite.kernel, "can_find", lambda device: False)
    monkeypatch.setattr(finite, "_has_kernel_for_lists", lambda device: False)
    monkeypatch.setattr(torch, "aminmax", lambda x: (x.nan_to_num().min(), x.nan_to_num().max()))
    x = torch.zeros(4, device=device)
    assert [one.what for one in check(lambda: x / 0)] == ["made NaN out of finite inputs"]
    assert finite._finders == {x.device: finite.by_question}


def test_inference_mode(device):
    def program():
        with torch.inference_mode():
            x = torch.zeros(4, device=device) + 1
            x -= 1
            y = 1 / x
            y.add_(1).view(2, 2).mul(2)

    assert [found.name for found in check(program)] == ["torch.Tensor.__rtruediv__"]


class CheckpointedGPT(GPT):
    def forward(self, tokens):
        x = self.token(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(x)


def test_checkpointed_layers(device):
    model = CheckpointedGPT(vocabulary=32, width=16, heads=2, layers=2, length=8).to(device)

    def program():
        model(tokens(device)).sum().backward()

    assert check(program) == []
    with faults.inject("aten.gelu_backward: nan@one, after=1"):
        first = check(program)[0]
    assert (first.name, first.phase, first.module) == ("torch.nn.functional.gelu", "backward", "blocks.0")


class Reciprocal(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.add_(1)

    @staticmethod
    def backward(ctx, gradient):
        return gradient / 0


def test_functions_of_the_users_own(device):
    x = torch.ones(4, device=device, requires_grad=True)

    def program():
        for _ in range(2):
            Reciprocal.apply(x * 1).sum().backward()

    found = check(program)
    assert {one.phase for one in found} == {"backward", "forward"}
    assert any(one.name.endswith("Reciprocal.apply") and one.phase == "backward" for one in found)
    # the division inside its backward is the very first
    assert found[0].name == "torch.Tensor.div"


def test_batch_norm_and_its_running_statistics(device):
    model = nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3), nn.ReLU(inplace=True)).to(device)
    x = torch.ones(2, 2, 4, 4, device=device)

    def program():
        for _ in range(3):
            model(x).sum().backward()

    assert check(program) == []
    with faults.inject(f"aten.{'cudnn' if device == 'cuda' else 'native'}_batch_norm: nan@one, after=1"):
        first = check(program)[0]
    assert (first.name, first.phase, first.module) == ("torch.nn.functional.batch_norm", "forward", "1")


@pytest.mark.parametrize("op", ["torch.native_batch_norm", "torch._native_batch_norm_legit", "aten"])
def test_running_statistics_that_nobody_counts(device, op):
    """What a batch norm wrote into them is its own fault, not that of the op which reads them next."""
    norm = {
        "torch.native_batch_norm": torch.native_batch_norm,
        "torch._native_batch_norm_legit": torch._native_batch_norm_legit,
        "aten": torch.ops.aten._native_batch_norm_legit.default,
    }[op]
    mean, variance = torch.zeros(2, device=device), torch.ones(2, device=device)
    x = torch.tensor([-3e38, 3e38], device=device).expand(2, 2, 2).contiguous()

    def program():
        norm(x, None, None, mean, variance, True, 0.1, 1e-5)
        mean + variance

    names = {one.name for one in check(program)}
    assert not variance.isfinite().all()
    assert len(names) == 1
    assert "batch_norm" in names.pop()


def test_an_optimizer_that_does_not_count_its_changes(device):
    weight = torch.ones(4, device=device, requires_grad=True)
    try:
        optimizer = torch.optim.AdamW([weight], lr=1e-2, fused=True)
    except RuntimeError:
        pytest.skip("the device has no fused AdamW")

    def program():
        for number in range(3):
            weight.grad = torch.ones(4, device=device) if number != 1 else torch.full((4,), NAN, device=device)
            optimizer.step()
            _ = weight * 2

    assert check(program) == []


def test_ops_left_out_by_the_lists_are_not_blamed(device):
    x = torch.ones(4, device=device)

    def program():
        y = torch.log(x - x)
        _ = torch.exp(-y)

    assert [one.name for one in check(program)] == ["torch.log"]
    assert check(program, ops="torch.exp") == []
    assert check(program, skip="torch.log") == []


def test_streams_and_threads_keep_their_calls_apart(device):
    module = torch.get_device_module(device)
    x = torch.ones(4, device=device)
    found = {}

    def program(name, function):
        side = module.Stream()
        with OpOverflowCheck(verbose=0) as tool:
            for number in range(20):
                with module.stream(side) if number % 3 else contextlib.nullcontext():
                    side.synchronize()
                    y = x * number
                    if number == 10:
                        function(y - y)
                    module.current_stream().synchronize()
        found[name] = [one.name for one in tool.found]

    threads = [
        threading.Thread(target=program, args=("log", torch.log)),
        threading.Thread(target=program, args=("reciprocal", torch.reciprocal)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {"log": ["torch.log"], "reciprocal": ["torch.reciprocal"]}


# ---- output --------------------------------------------------------------------------------------------------------


def test_verbose_0_prints_nothing(device, capsys):
    assert len(check(lambda: torch.ones(4, device=device) / 0, verbose=0)) == 1
    assert capsys.readouterr() == ("", "")


def test_verbose_2_shows_every_call_as_it_happens(device, capsys):
    x = torch.ones(4, device=device, requires_grad=True)
    with OpOverflowCheck(verbose=2):
        y = x * 2
        assert "torch.Tensor.mul outputs" in capsys.readouterr().out
        y.sum().backward()
        printed = capsys.readouterr().out
        assert "torch.Tensor.mul grad_inputs" in printed
        assert "torch.Tensor.sum inputs" in printed
        y.detach() / 0
        printed = capsys.readouterr().out
        assert "torch.Tensor.div outputs" in printed
        assert "OpOverflowCheck: torch.Tensor.div made Inf out of finite inputs, forward" in printed


def test_a_result_that_is_changed_in_place_and_not_returned_is_shown(device, capsys):
    x = torch.zeros(4, device=device)
    with OpOverflowCheck():
        x[1:3] = torch.full((2,), 1e30, device=device).double() * 1e30
    printed = capsys.readouterr().out
    assert "torch.Tensor.__setitem__ made Inf out of finite inputs" in printed
    assert "torch.Tensor.__setitem__ inputs[0] afterwards" in printed
    assert "changed since" in printed


# ---- statistics ----------------------------------------------------------------------------------------------------


def test_statistics_are_of_the_finite_elements(device):
    x = torch.tensor([[1.0, NAN, 3.0], [INF, -INF, 5.0]], device=device)
    found = statistics(x)
    assert (found.min, found.max, found.mean, found.nan, found.inf, found.first_bad) == (1.0, 5.0, 3.0, 1, 2, (0, 1))
    assert found.std == pytest.approx(math.sqrt(8 / 3))
    assert found.norm == pytest.approx(math.sqrt(35))


def test_statistics_of_nothing_finite(device):
    found = statistics(torch.full((2,), NAN, device=device))
    assert (found.min, found.norm, found.nan, found.first_bad) == (None, None, 2, (0,))
    found = statistics(torch.ones(0, device=device))
    assert (found.max, found.nan, found.inf, found.first_bad) == (None, 0, 0, None)


def test_statistics_are_exact_for_large_and_low_precision_tensors(device):
    x = torch.full((5_000_000,), 3.0, dtype=torch.bfloat16, device=device)
    x[-1] = -1.0
    found = statistics(x)
    assert (found.min, found.max) == (-1.0, 3.0)
    assert found.mean == pytest.approx(3 - 4 / 5e6, rel=1e-12)


def test_what_a_call_is_given_is_noted_with_its_versions():
    x, changed, weight = torch.ones(2), torch.ones(3).add_(1), nn.Parameter(torch.ones(4))
    for args, kwargs, versions in (
        ((), {}, []),
        ((1, None, "sum", torch.float16, changed), {"other": changed, "alpha": 2.0}, [1, 1]),
        ((weight, [x, changed, weight], ([x], weight)), {"weights": (changed,)}, [0, 0, 1, 0, 0, 0, 1]),
        (([torch.ones(2) for _ in range(9)], [weight] * 9), {}, [0] * 18),
        ((x, {"a": changed}), {}, [0, 1]),
        ((x, torch.eye(2).to_sparse()), {}, [0, 0]),
    ):
        checked = calls.CheckedCall(OpCall("op", None, args, kwargs, None, 0), None)
        overflow_tool._note_inputs(checked)
        assert list(checked.versions) == versions


def test_what_was_judged_is_not_held(device):
    """What is known of a tensor that was changed in place refers to the window that it was looked at in."""
    x = torch.ones(4, device=device)
    with OpOverflowCheck(verbose=0) as tool:
        for _ in range(2):  # an op that is seen for the first time is waited for
            x.add_(1)
            result = weakref.ref(x * 2)
        tool._settle(wait=True)
        gc.collect()
        assert result() is None


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_keeps_no_other_from_being_checked(device, capsys):
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)], device=device)
    with OpOverflowCheck() as tool:
        torch.log(torch.full((2,), -1.0, device=device))
        nested * 2
    assert [found.name for found in tool.found] == ["torch.log"]
    assert "could not" not in capsys.readouterr().err
