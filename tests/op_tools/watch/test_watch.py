"""TrainingWatch: what it keeps of each step, and that training is the same with it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from op_tools.core.steps import STEPS
from op_tools.watch import TrainingWatch

from .training import batch, model, named, steps_in, train, written


def test_each_step_has_figures_by_module(device, tmp_path):
    seen = {}

    def look(step, net):
        if step == 3:
            seen["weights"] = [one.weight.detach().cpu().clone() for one in (net[0], net[3])]

    with TrainingWatch(out=tmp_path, verbose=0) as watch:
        losses = train(device, 4, spoil=look)
    rows = steps_in(tmp_path)
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert [row["loss"] for row in rows] == pytest.approx(losses, rel=1e-5)
    modules = named(tmp_path)
    assert modules["weights"] == ["0", "2.0", "2.1", "3"] == modules["gradients"] == modules["state.exp_avg"]
    assert modules["activations"] == ["0", "1", "2.0", "2.1", "3"], "containers give what their last module gave"
    after_step_2 = rows[2]["weights"]["absmax"]
    assert after_step_2[3] >= seen["weights"][1].abs().max().item() * 0.999
    assert rows[2]["activations"]["zeros"][1] > 0.2, "ReLU"
    assert rows[2]["gradient_norm"] > 0
    assert watch.results.calls == 4
    assert list(watch.results) == []
    assert written(tmp_path)[0]["schema"] == "ditorch.watch/1"


def test_figures_are_those_of_torch(device, tmp_path):
    net = nn.Linear(4, 3, device=device)
    x = torch.randn(5, 4).to(device)
    with TrainingWatch(out=tmp_path, verbose=0):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        result = net(x)
        result.square().mean().backward()
        gradients = torch.cat([net.weight.grad.flatten(), net.bias.grad]).cpu()
        nn.utils.clip_grad_norm_(net.parameters(), 1e-3)
        optimizer.step()
    (row,) = steps_in(tmp_path)
    weights = torch.cat([net.weight.detach().flatten(), net.bias.detach()]).cpu()
    for kind, values in (("activations", result.detach().cpu()), ("gradients", gradients), ("weights", weights)):
        figures = row[kind]
        assert figures["mean"][0] == pytest.approx(values.mean().item(), rel=2e-3, abs=1e-6)
        assert figures["rms"][0] == pytest.approx(values.square().mean().sqrt().item(), rel=2e-3)
        assert figures["absmax"][0] == pytest.approx(values.abs().max().item(), rel=2e-3)
        assert figures["zeros"] == figures["nonfinite"] == [0]
    assert row["gradient_norm"] == pytest.approx(gradients.norm().item(), rel=1e-5), "before they were clipped"
    assert named(tmp_path)["weights"] == ["Linear"]


def test_training_is_the_same_to_the_last_bit(device, tmp_path):
    plain = train(device, 6)
    with TrainingWatch(out=tmp_path, verbose=0):
        assert train(device, 6) == plain
    assert train(device, 6) == plain


class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(144, 2)
        )

    def forward(self, x):
        return self.net(x).mul_(2)


def test_results_that_are_changed_in_place_are_seen_as_they_were(device, tmp_path):
    net = InPlace().to(device)
    seen = []
    net.net[1].register_forward_hook(lambda module, given, result: seen.append(result.detach().cpu().clone()))
    with TrainingWatch(out=tmp_path, verbose=0) as watch:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        net(torch.randn(2, 1, 8, 8).to(device)).square().sum().backward()
        optimizer.step()
    (row,) = steps_in(tmp_path)
    place = named(tmp_path)["activations"].index("net.1")
    assert row["activations"]["rms"][place] == pytest.approx(seen[0].square().mean().sqrt().item(), rel=2e-3)
    assert row["activations"]["zeros"][place] == 0
    left = {one["what"]: one["calls"] for one in watch.results.not_looked_at}
    assert left["activations"] == 1, "the last layer's, by mul_"


def test_accumulated_gradients_and_their_losses(device, tmp_path):
    net = model(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    expected = []
    with TrainingWatch(out=tmp_path, verbose=0):
        for step in range(2):
            losses = []
            for part in range(3):
                x, y = batch(device, 10 * step + part)
                loss = nn.functional.cross_entropy(net(x), y) / 3
                loss.backward()
                losses.append(loss.item())
            norms = [one.grad.norm().item() ** 2 for one in net.parameters()]
            expected.append((sum(losses), math.sqrt(sum(norms))))
            optimizer.step()
            optimizer.zero_grad(set_to_none=bool(step))
    rows = steps_in(tmp_path)
    assert [(row["loss"], row["gradient_norm"]) for row in rows] == [pytest.approx(one, rel=1e-4) for one in expected]
    counts = [line["count"] for line in written(tmp_path) if line.get("kind") == "activations"]
    assert counts[0][0] == 3 * 12 * 16


def test_checkpointing_is_not_counted_twice(device, tmp_path):
    net = model(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with TrainingWatch(out=tmp_path, verbose=0):
        for reentrant in (False, True):
            x, _ = batch(device)
            x.requires_grad_()
            torch.utils.checkpoint.checkpoint(net, x, use_reentrant=reentrant).square().mean().backward()
            optimizer.step()
    counts = [line["count"] for line in written(tmp_path) if line.get("kind") == "activations"]
    assert counts == [[12 * 16, 12 * 16, 12 * 16, 12 * 16, 12 * 4]]
    assert len(steps_in(tmp_path)) == 2


def test_evaluation_is_left_alone(device, tmp_path):
    net = model(device)
    with TrainingWatch(out=tmp_path, verbose=0):
        train(device, 1, net)
        net.eval()
        with torch.no_grad():
            net(torch.full((3, 8), math.inf).to(device))
        net.train()
        train(device, 1, net)
    assert [sum(row["activations"]["nonfinite"]) for row in steps_in(tmp_path)] == [0, 0]


def test_every_third_step(device, tmp_path):
    with TrainingWatch(out=tmp_path, verbose=0, every=3):
        train(device, 5)
    rows = steps_in(tmp_path)
    assert ["gradients" in row for row in rows] == [True, False, False, True, False]
    assert ["activations" in row for row in rows] == ["weights" in row for row in rows]
    assert all("loss" in row for row in rows)


def test_it_stops_and_starts_again(device, tmp_path):
    watch = TrainingWatch(out=tmp_path, verbose=0)
    for _ in range(2):
        watch.start()
        train(device, 2)
        watch.stop()
    assert watch.results.calls == 2
    assert len(steps_in(tmp_path)) == 4


def test_a_run_that_goes_on_counts_on(device, tmp_path):
    net = model(device)
    optimizer = torch.optim.AdamW(net.parameters())
    train(device, 5, net, optimizer)
    saved = net.state_dict(), optimizer.state_dict()
    again = model(device)
    again.load_state_dict(saved[0])
    resumed = torch.optim.AdamW(again.parameters())
    resumed.load_state_dict(saved[1])
    STEPS.forget()  # as a new process
    with TrainingWatch(out=tmp_path, verbose=0):
        train(device, 2, again, resumed)
    assert [row["step"] for row in steps_in(tmp_path)] == [5, 6]


def test_the_file_does_not_grow_beyond_its_limit(device, tmp_path):
    with TrainingWatch(out=tmp_path, verbose=0, disk=20_000):
        train(device, 60)
    rows = steps_in(tmp_path)
    assert len(rows) == 60
    assert all("loss" in row for row in rows)
    with_modules = [row["step"] for row in rows if "weights" in row]
    assert with_modules[:4] == [0, 1, 2, 3]
    assert 8 < len(with_modules) < 40
    assert sum(map(len, map(str, rows))) < 40_000


def test_a_sparse_gradient_and_tied_weights(device, tmp_path):
    embedding = nn.Embedding(10, 4, sparse=True)
    head = nn.Linear(4, 10, bias=False)
    net = nn.Sequential(embedding, head)
    optimizer = torch.optim.SparseAdam(embedding.parameters())
    with TrainingWatch(out=tmp_path, verbose=0):
        net(torch.tensor([1, 2, 1])).square().mean().backward()
        optimizer.step()
    (row,) = steps_in(tmp_path)
    assert named(tmp_path)["gradients"] == ["0", "1"]
    assert row["gradients"]["rms"][0] > 0


def test_compiled_code_is_the_same_and_seen_as_a_whole(tmp_path):
    def compiled():
        torch._dynamo.reset()
        net = model("cpu")
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        return train("cpu", 3, torch.compile(net, backend="eager", fullgraph=True), optimizer)

    plain = compiled()
    with TrainingWatch(out=tmp_path, verbose=0) as watch:
        assert compiled() == plain
    torch._dynamo.reset()
    assert named(tmp_path)["activations"] == ["Sequential"]
    assert named(tmp_path)["gradients"] == ["0", "2.0", "2.1", "3"]
    assert "modules inside of compiled code" in watch.results.not_looked_at[0]["reason"]


def test_it_watches_the_whole_run_where_other_tools_look_at_some_steps(tmp_path, monkeypatch):
    monkeypatch.setenv("OP_TOOLS_STEPS", "2:3")
    with TrainingWatch(out=tmp_path, verbose=0):
        losses = train("cpu", 5)
    assert [row["loss"] for row in steps_in(tmp_path)] == pytest.approx(losses)


def test_only_the_steps_that_it_is_told_to(tmp_path):
    with TrainingWatch(out=tmp_path, verbose=0, steps="2:3"):
        train("cpu", 5)
    assert [row["step"] for row in steps_in(tmp_path) if "loss" in row] == [2]


def test_a_fused_optimizer_leaves_steps_out_itself(tmp_path):
    net = model("cpu")
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
    with TrainingWatch(out=tmp_path, verbose=0) as watch:
        for step in range(3):
            loss = net(torch.randn(4, 8) * (math.inf if step == 1 else 1)).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert [row.get("left_out", False) for row in steps_in(tmp_path)] == [False, True, False]
    assert list(watch.results) == []
