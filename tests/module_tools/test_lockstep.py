"""`ditorch run --modules … --inputs-from …`: each module shows its own error, and nothing is carried."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

import op_tools
from ditorch.sim import faults
from module_tools.lockstep import Lockstep
from op_tools.core.steps import STEPS
from op_tools.errors import SettingError
from op_tools.output import messages


@pytest.fixture(autouse=True)
def _fresh(monkeypatch, tmp_path):
    for name in list(os.environ):
        if name.startswith("OP_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("OP_TOOLS_VERBOSE", "0")
    monkeypatch.chdir(tmp_path)
    messages.forget()
    STEPS.forget()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up = nn.LayerNorm(16), nn.Linear(16, 16)

    def forward(self, x, *, scale=1.0):
        return x + functional.gelu(self.up(self.norm(x))) * scale


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        for block in self.blocks:
            x = block(x, scale=0.5)
        return self.head(torch.softmax(x, -1))


def train(device, steps=1):
    torch.manual_seed(0)
    STEPS.forget()
    model = Model().to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        loss = criterion(model(torch.randn(5, 16).to(device)), torch.arange(5, device=device) % 4)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        op_tools.step()
    return losses


def run(device, out, modules=r"blocks\.\d", inputs_from=None, steps=None, train_steps=1):
    lockstep = Lockstep(modules, inputs_from and Path(inputs_from), steps, Path(out)).start()
    try:
        losses = train(device, train_steps)
    finally:
        lockstep.stop()
    return lockstep.results, losses


def not_close(results):
    return {row["layer"] for row in results if not row["allclose"]}


def test_only_the_module_that_is_wrong_differs_forward_and_backward(device):
    call = nn.Module.__call__
    _, healthy = run("cpu", "good")
    assert healthy == train("cpu")  # recording changes nothing
    # the second block's norm only: the fault is carried by everything behind it, and is not seen there
    with faults.inject("aten.native_layer_norm: scale=1.2, after=1, every=3", device):
        found, _ = run(device, "bad", inputs_from="good")
        assert not_close(found) == {"Model.blocks.1"}
    assert "output" in {row["what"] for row in found if not row["allclose"]}
    assert {row["layer"] for row in found} == {f"Model.blocks.{number}" for number in range(3)}
    with faults.inject("aten.gelu_backward: scale=1.2, after=1, every=3", device):
        found, _ = run(device, "worse", inputs_from="good")
    assert not_close(found) == {"Model.blocks.1"}
    assert all(row["what"].startswith("grad") for row in found if not row["allclose"])
    found, _ = run(device, "healthy", inputs_from="good")
    assert not_close(found) == set()
    assert Path("bad/modules/rank0/own_errors.csv").is_file()
    assert nn.Module.__call__ is call


def test_what_is_computed_between_the_chosen_modules_is_seen_as_it_arrives(device):
    run("cpu", "good", ".*")
    with faults.inject("aten.gelu: scale=1.2, after=1, every=3", device):
        found, _ = run(device, "bad", ".*", "good")
    wrong = [row for row in found if not row["allclose"]]
    assert {(row["layer"], row["what"]) for row in wrong} == {("Model.blocks.1", "output")}
    with faults.inject("aten._softmax: scale=1.2", device):
        found, _ = run(device, "between", "head|blocks.2", "good")
    wrong = [row for row in found if not row["allclose"]]
    assert {(row["layer"], row["what"][:13]) for row in wrong} == {
        ("Model.head", "arrived input"),
        ("Model.blocks.2", "arrived grad_"),  # what softmax gave is what its backward computes with
    }
    with faults.inject("aten.gelu_backward: scale=1.2, after=1, every=3", device):
        found, _ = run(device, "worse", ".*", "good")
    wrong = [row for row in found if not row["allclose"]]
    assert {(row["layer"], row["what"][:12]) for row in wrong} == {("Model.blocks.1.up", "arrived grad")}
    with faults.inject("aten.native_layer_norm: scale=1.2", device):
        found, _ = run(device, "first", "blocks.1.(norm|up)", "good")
    wrong = [(row["layer"], row["what"].startswith("arrived")) for row in found if not row["allclose"]]
    assert wrong[0] == ("Model.blocks.1.norm", False), "what a module makes of it comes first"
    assert ("Model.blocks.1.up", True) in wrong


def test_more_steps_each_by_itself(device):
    chosen = "Model,head,blocks.1.norm"
    run("cpu", "good", chosen, steps=range(2), train_steps=3)
    with faults.inject("aten.addmm: scale=1.5, after=7", device):  # four products a step: the head's in the second
        found, _ = run(device, "bad", chosen, "good", range(3), train_steps=2)
    assert {row["layer"] for row in found} == {
        f"Model{path}{at}" for path in ("", ".head", ".blocks.1.norm") for at in ("", "@1.0")
    }
    assert {row["layer"] for row in found if row["what"] == "output" and not row["allclose"]} == {"Model.head@1.0"}


def test_what_is_missing_is_said(device, capsys):
    run("cpu", "good", modules="head")
    found, _ = run(device, "bad", modules=r"head|blocks\.0", inputs_from="good")
    assert "leaves the inputs of Model.blocks.0 as they are" in capsys.readouterr().err
    assert [row["what"] for row in found.not_looked_at] == ["Model.blocks.0"]
    Path("good/modules/rank0/expected/forward/Model.head.pt").write_bytes(b"damaged")
    found, _ = run(device, "worse", modules="head", inputs_from="good")
    assert "cannot be used" in found.not_looked_at[0]["reason"]
    run("cpu", "none", modules="heads")
    assert "no module is called so (OP_TOOLS_MODULES): there are Model, Model.blocks," in capsys.readouterr().err
    with pytest.raises(SettingError, match="holds no modules: make it with `ditorch run --modules PATTERNS`"):
        run("cpu", "x", inputs_from="nowhere")
    with pytest.raises(SettingError, match="OP_TOOLS_MODULES=\\(\\( cannot be used"):
        run("cpu", "x", modules="((")
    with pytest.raises(SettingError, match="OP_TOOLS_MODULES is empty"):
        run("cpu", "x", modules=" , ")
