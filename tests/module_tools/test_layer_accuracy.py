"""Accuracy layer by layer, as scripts in the field ask for it: a benchmark, a second run, a comparison."""

from __future__ import annotations

import csv

import pytest
import torch
from torch import nn

from ditorch.sim import faults
from module_tools import CompLayerAcc
from module_tools.cmp_accuracy import compare_accuracy
from op_tools.errors import CaptureError, SettingError


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)

    def forward(self, x, *, scale):
        return x + self.down(torch.relu(self.up(self.norm(x)))) * scale


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, 8)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(8, 10)
        self.unused = nn.Linear(2, 2)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, scale=torch.full((), 0.5, device=x.device))
        return {"logits": self.head(x)}


def model(device):
    torch.manual_seed(1)
    return Net().to(device)


def step(net, device):
    tokens = torch.arange(12, device=device).reshape(3, 4) % 10
    loss = net(tokens)["logits"].square().mean()
    loss.backward()
    return loss.item(), [None if each.grad is None else each.grad.cpu() for each in net.parameters()]


def record(device, folder, is_benchmark, **options):
    recorder = CompLayerAcc(model(device), is_benchmark, data_path=folder, **options)
    net = recorder.insert_hook()
    found = step(net, device)
    recorder.remove_hook()
    return found


def test_recording_changes_nothing(device, tmp_path):
    plain = step(model(device), device)
    recorded = record(device, tmp_path, True)
    assert recorded[0] == plain[0]
    for one, other in zip(recorded[1], plain[1]):
        assert (one is None and other is None) or torch.equal(one, other)


def test_the_files_are_where_scripts_look_for_them(device, tmp_path):
    record(device, tmp_path, True)
    folder = tmp_path / "rank0" / "expected"
    everything = (folder / "modules_full_name.txt").read_text().split()
    assert everything[:3] == ["Net", "Net.embedding", "Net.blocks"]
    ran = (folder / "modules_full_name_run.txt").read_text().split()
    assert ran[:3] == ["Net.embedding", "Net.blocks.0.norm", "Net.blocks.0.up"]
    assert "Net.unused" in everything
    assert "Net.unused" not in ran
    forward = torch.load(folder / "forward" / "Net.blocks.0.up.pt", weights_only=True)
    assert forward["layer_name"] == "Net.blocks.0.up"
    assert (forward["input"][0].shape, forward["output"].shape) == ((3, 4, 8), (3, 4, 16))
    backward = torch.load(folder / "backward" / "Net.blocks.0.up.pt", weights_only=True)
    assert (backward["grad_input"][0].shape, backward["grad_output"][0].shape) == ((3, 4, 8), (3, 4, 16))


def test_gradients_of_a_layer_are_its_own_share(device, tmp_path):
    """The input of a block flows round it, too: the block's own share includes both ways, the norm's does not."""
    record(device, tmp_path, True)
    folder = tmp_path / "rank0" / "expected" / "backward"
    block, norm = (torch.load(folder / f"Net.blocks.1{part}.pt", weights_only=True) for part in ("", ".norm"))
    around = block["grad_output"][0]
    torch.testing.assert_close(block["grad_input"][0], around + norm["grad_input"][0])
    assert block["grad_input"][1] is None  # the scale
    assert set(norm["grad_parameters"]) == {"weight", "bias"}


def test_a_healthy_device_is_close_to_the_cpu(device, tmp_path, capsys):
    record("cpu", tmp_path, True)
    record(device, tmp_path, False)
    results = compare_accuracy(tmp_path)
    assert {row["what"].split()[0].partition("[")[0] for row in results} == {"output", "grad_input", "grad_parameters"}
    assert all(row["allclose"] for row in results)
    out = capsys.readouterr().out
    assert out.startswith("CompLayerAcc: 11 layers compared, 0 not close (atol 0.001, rtol 0.001)\n")
    assert "layer_accuracy.csv saved" in out


def test_the_first_wrong_layer_is_named(device, tmp_path, capsys):
    record(device, tmp_path, True)
    with faults.inject("aten.addmm: scale=1.05, after=2, phase=forward", device):
        record(device, tmp_path, False)
    results = compare_accuracy(tmp_path)
    out = capsys.readouterr().out
    wrong = [row for row in results if not row["allclose"]]
    assert out.splitlines()[1].startswith(
        f"the first to look at: {wrong[0]['layer']}, output is off by 0.05 of its size"
    )
    with open(results.files[0], newline="") as file:
        assert [row["layer"] for row in csv.DictReader(file) if row["allclose"] == "False"] == [
            row["layer"] for row in wrong
        ]


def test_a_wrong_layer_does_not_spoil_the_next_where_inputs_are_fixed(device, tmp_path):
    record(device, tmp_path, True)

    def wrong_layers(**options):
        with faults.inject("aten.native_layer_norm: scale=1.05", device):
            record(device, tmp_path, False, **options)
        rows = [row for row in compare_accuracy(tmp_path) if not row["allclose"]]
        return {row["layer"] for row in rows if row["what"].startswith("output")}, {row["layer"] for row in rows}

    free, _ = wrong_layers()
    fixed, with_gradients = wrong_layers(is_fixed_input=True)
    assert "Net.head" in free
    assert fixed == {"Net.blocks.0.norm", "Net.blocks.1.norm"}
    # the gradients of the norms, which are wrong by what forward has kept for them, flow out of their blocks, too
    assert with_gradients == {f"Net.blocks.{number}{part}" for number in (0, 1) for part in ("", ".norm")}


@pytest.mark.parametrize(
    ("folder", "said"),
    [("none", "holds nothing that CompLayerAcc wrote"), ("half", r"real holds no layers .* is_dump_benchmark=False")],
)
def test_what_is_missing_is_said(device, tmp_path, folder, said):
    if folder == "half":
        record("cpu", tmp_path / folder, True)
    with pytest.raises(CaptureError, match=said):
        compare_accuracy(tmp_path / folder)


def test_fixed_inputs_need_a_benchmark(tmp_path):
    with pytest.raises(SettingError, match=r"needs a benchmark, and there is none in .*rank0/expected"):
        CompLayerAcc(nn.Linear(2, 2), False, True, tmp_path)
    with pytest.raises(SettingError, match="is for the second run"):
        CompLayerAcc(nn.Linear(2, 2), True, True, tmp_path)


def test_a_folder_that_cannot_be_written_ends_no_training(capsys):
    recorder = CompLayerAcc(nn.Linear(2, 2), True, data_path="/proc/nothing")
    recorder.insert_hook()(torch.ones(1, 2)).sum().backward()
    assert "CompLayerAcc cannot write /proc/nothing" in capsys.readouterr().err
