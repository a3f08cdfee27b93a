"""OpObserve prints every call, in the contract's tables."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

import op_tools
from op_tools.output import messages


def observed(capsys, device, function, **options):
    with op_tools.OpObserve(**options):
        function()
    text = capsys.readouterr().out
    assert re.search(r"data_ptr", text)
    text = re.sub(r"forward_id: \d+", "forward_id: N", text)
    # addresses have as many digits as the memory is large
    text = re.sub(r" +\d{9,} +", " ADDRESS ", text)
    text = re.sub(r" +data_ptr +", " data_ptr ", text)
    text = re.sub(r"\+-{11,}\+(-+\+)?$", "+-+", text, flags=re.MULTILINE)
    return text.replace(f"{device}:0", "DEV:0").replace(__file__, "FILE")


def test_the_tables_are_those_of_the_contract(capsys, device):
    x = torch.ones(2, 3, device=device, requires_grad=True)
    text = observed(capsys, device, lambda: (x * 2).mean([-1], keepdim=True).sum().backward())
    names = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("|")]
    names = [name for name in names if name != "name"]
    assert names == [
        "torch.Tensor.mul inputs[0]",
        "torch.Tensor.mul inputs[1]",
        "torch.Tensor.mul outputs",
        "torch.Tensor.mean inputs[0]",
        "torch.Tensor.mean inputs [1][0]",
        "torch.Tensor.mean inputs keepdim",
        "torch.Tensor.mean outputs",
        "torch.Tensor.sum inputs",
        "torch.Tensor.sum outputs",
        "torch.Tensor.sum grad_outputs",
        "torch.Tensor.sum grad_inputs",
        "torch.Tensor.mean grad_outputs",
        "torch.Tensor.mean grad_inputs",
        "torch.Tensor.mul grad_outputs",
        "torch.Tensor.mul grad_inputs",
    ]
    header = next(line for line in text.splitlines() if re.match(r"\| +name +\|", line))
    assert [cell.strip() for cell in header.strip("|").split("|")] == [
        "name",
        "shape",
        "stride",
        "numel",
        "dtype",
        "device",
        "requires_grad",
        "layout",
        "data_ptr",
        "value",
    ]
    row = next(line for line in text.splitlines() if "mul inputs[0]" in line)
    assert [cell.strip() for cell in row.strip("|").split("|")][1:8] == [
        "(2, 3)",
        "(3, 1)",
        "6",
        "float32",
        "DEV:0",
        "True",
        "torch.strided",
    ]
    assert text.startswith("apply OpObserveHook on torch.Tensor.mul\n\n\n\ntorch.Tensor.mul    forward_id: N\nFILE:")


def test_columns_that_are_empty_for_all_rows_are_left_out(capsys, device):
    x = torch.ones(2, 3, device=device)
    text = observed(capsys, device, lambda: x + x)
    assert " value " not in text


def test_every_call_is_printed_with_its_own_addresses(capsys, device):
    tensors = [torch.ones(2, 3, device=device) for _ in range(4)]
    with op_tools.OpObserve():
        for tensor in tensors:
            tensor + 1
    text = capsys.readouterr().out
    for tensor in tensors:
        row = next(line for line in text.splitlines() if f" {tensor.data_ptr()} " in line)
        assert "torch.Tensor.add inputs[0]" in row
    for table in re.findall(r"(?:^[+|].*\n)+", text, flags=re.MULTILINE):
        assert len({len(line) for line in table.splitlines()}) == 1, table


def test_the_inputs_are_shown_as_they_were_before_an_in_place_op(capsys, device):
    weight = torch.ones(3, device=device, requires_grad=True)
    x = torch.ones(3, device=device)
    text = observed(capsys, device, lambda: x.mul_(weight))
    row = next(line for line in text.splitlines() if "mul_ inputs[0]" in line)
    assert "False" in row
    row = next(line for line in text.splitlines() if "mul_ outputs" in line)
    assert "True" in row


def test_long_lists_and_odd_values(capsys, device):
    tensors = [torch.ones(2, device=device) for _ in range(20)]
    text = observed(capsys, device, lambda: torch._foreach_add(tensors, 1))
    assert "torch._foreach_add inputs [0][19]" in text
    assert "torch._foreach_add outputs [0][19]" in text
    text = observed(capsys, device, lambda: tensors[0][None, 1:, ...])
    assert "slice(1, None, None)" in text
    assert "Ellipsis" in text


@torch.library.custom_op("op_tools_tests::labelled", mutates_args=())
def labelled(x: torch.Tensor, label: str) -> torch.Tensor:
    return x + 1


def test_percent_signs_in_values_survive(capsys, device):
    x = torch.ones(2, device=device)
    with op_tools.OpObserve():
        for _ in range(2):
            torch.ops.op_tools_tests.labelled(x, "100%s %d %%")
    assert capsys.readouterr().out.count(" 100%s %d %% ") == 2


def test_a_call_that_fails_is_shown_with_its_error(capsys, device):
    with pytest.raises(RuntimeError), op_tools.OpObserve():
        torch.ones(2, device=device) + torch.ones(3, device=device)
    text = capsys.readouterr().out
    assert "raised RuntimeError" in text
    assert "torch.Tensor.add inputs[1]" in text
    assert "outputs" not in text.partition("torch.Tensor.add    forward_id")[2]


def test_the_module_stands_in_the_heading(capsys, device):
    model = nn.Sequential(nn.Linear(2, 2)).to(device)
    text = observed(capsys, device, lambda: model(torch.ones(1, 2, device=device)))
    assert "torch.nn.functional.linear    forward_id: N    0\n" in text


def test_a_list_in_the_environment(capsys, device, monkeypatch):
    monkeypatch.setenv("OP_OBSERVE_LIST", "torch.Tensor.exp")
    x = torch.ones(2, device=device)
    text = observed(capsys, device, lambda: x.exp().sin())
    assert "skip OpObserveHook on torch.Tensor.sin" in text
    assert "torch.Tensor.sin inputs" not in text


def test_a_terminal_that_is_gone_does_not_end_training(capsys, device, monkeypatch):
    class Gone:
        def write(self, text):
            raise BrokenPipeError(32, "Broken pipe")

    x = torch.ones(2, device=device)
    with monkeypatch.context() as context:
        context.setattr("sys.stdout", Gone())
        with op_tools.OpObserve(), op_tools.OpTimeMeasure():
            y = x.exp().sin()
    assert torch.equal(y.cpu(), x.cpu().exp().sin())
    complaints = capsys.readouterr().err.splitlines()
    assert complaints == [
        "op_tools: what the tools say cannot be printed ([Errno 32] Broken pipe); training goes on",
    ]


def test_the_same_is_shown_with_and_without_the_c_helper(capsys, device, monkeypatch):
    x = torch.ones(2, 3, device=device, requires_grad=True)
    empty = torch.ones(0, device=device)

    def program():
        y = x.reshape(torch.Size([3, 2])).to(torch.float64)
        values, _ = y.sort(descending=True)
        torch._foreach_add([values[:, 1:], values.t()], [2, 0.5])
        torch.clamp(values, min=-1e30, max=None).sum([-1], keepdim=True).sum().backward()
        torch.cat([empty, x.detach().view(-1)])

    shown = []
    for native in ("0", "1", "0"):
        monkeypatch.setenv("OP_TOOLS_NATIVE", native)
        messages.forget()
        shown.append(observed(capsys, device, program))
    assert shown[0] == shown[1] == shown[2]
    assert "-1e+30" in shown[0]
    assert "torch.float64" in shown[0]


def test_nothing_is_printed_at_verbose_0(capsys, device):
    x = torch.ones(2, device=device, requires_grad=True)
    with op_tools.OpObserve(verbose=0):
        (x * 2).sum().backward()
        with pytest.raises(RuntimeError):
            x + torch.ones(3, device=device)
    captured = capsys.readouterr()
    assert captured.out + captured.err == ""
