"""When TrainingWatch alerts, and when it does not."""

from __future__ import annotations

import json
import math
import random
import time

import pytest
import torch
from torch import nn

from op_tools.core.steps import STEPS
from op_tools.errors import SettingError
from op_tools.settings import WATCH_RULES
from op_tools.watch import TrainingWatch
from op_tools.watch.against import Against
from op_tools.watch.rules import RuleChecker
from op_tools.watch.statistics import StepStatistics, Table

from .training import model, steps_in, train, written


def table(norm=1.0, zeros=0.0, nonfinite=0):
    return Table(["a", "b"], [50, 50], [0.0, 0.0], [norm / 10, norm / 10], [norm, norm], [zeros, 0.0], [nonfinite, 0])


def curve(losses, norms=None, **rules):
    """The alerts about a loss, and about norms of gradients."""
    judge = RuleChecker({**WATCH_RULES, **rules}, None)
    found = []
    for step, loss in enumerate(losses):
        tables = {} if norms is None else {"gradients": table(norms[step])}
        found += judge.alerts(StepStatistics(step, 0.0, loss, tables=tables))
    return [(alert.step, alert.rule) for alert in found]


def noisy(steps, seed=0, noise=0.05, start=7.0, end=2.0, speed=40):
    """A loss that falls fast, then slowly."""
    numbers = random.Random(seed)  # noqa: S311 - no secrets
    return [end + (start - end) * math.exp(-step / speed) + numbers.gauss(0, noise) for step in range(steps)]


def test_a_loss_that_falls_with_noise_is_healthy():
    for seed in range(20):
        assert curve(noisy(300, seed, noise=0.02 * (seed + 1))) == []


def test_a_spike_is_told_once_and_again_after_it_is_over():
    losses = noisy(200)
    for step in (60, 100, 101, 102, 150, 151):
        losses[step] += 4.0
    assert curve(losses) == [(101, "spike"), (151, "spike")], "one step alone is a batch with wild data"
    assert curve(losses, spike=1000.0) == []


def test_nothing_is_judged_in_the_first_steps():
    assert curve([2.0, 2.1, 50.0, 2.0]) == []


def test_a_gradient_norm_beyond_the_usual():
    losses, norms = noisy(120), [math.exp(random.Random(step).gauss(0, 0.3)) for step in range(120)]  # noqa: S311
    assert curve(losses, norms) == []
    norms[90] = 60.0
    assert curve(losses, norms) == [(90, "norm")]


def test_a_loss_that_is_nan_is_told_once(device, tmp_path, capsys):
    def spoil(step, net):
        if step == 2:
            with torch.no_grad():
                net[2][1].weight[0, 0] = math.nan

    with TrainingWatch(out=tmp_path, verbose=0) as watch:
        train(device, 5, spoil=spoil)
    (alert,) = watch.results
    assert (alert["step"], alert["rule"], alert["module"]) == (2, "nan", "2.1")
    assert "activations (first in 2.1, 2 modules)" in alert["text"]
    assert "loss" in alert["text"]
    assert "op_tools: ALERT at step 2: NaN or Inf in activations" in capsys.readouterr().err
    (line,) = written(tmp_path, "alerts.jsonl")
    assert line["schema"] == "ditorch.alert/1"
    assert line["value"] == "nan"
    assert {"host", "rank", "pid", "time", "step", "rule", "kind", "module", "limit", "text"} <= set(line)
    assert steps_in(tmp_path)[2]["loss"] == "nan"


def test_an_alert_has_the_next_step_looked_at(device, tmp_path):
    def spoil(step, net):
        if step == 2:
            with torch.no_grad():
                net[3].weight[0, 0] = math.nan
        time.sleep(0.05 if step > 2 else 0)  # until the thread has judged

    with TrainingWatch(out=tmp_path, verbose=0, every=100) as watch:
        train(device, 8, spoil=spoil)
    first, second = watch.results
    assert (first["step"], first["kind"], first["module"]) == (2, "loss", "")
    assert (second["kind"], second["module"]) == ("activations", "0"), "the optimizer has spread it by then"
    looked_at = [row["step"] for row in steps_in(tmp_path) if "weights" in row]
    assert looked_at[:2] == [0, second["step"]]


def test_infinities_that_come_to_nothing_are_no_alarm():
    judge = RuleChecker(WATCH_RULES, None)
    masked = StepStatistics(0, 0.0, 2.0, tables={"activations": table(nonfinite=5)})
    assert list(judge.alerts(masked)) == []
    unknown = StepStatistics(1, 0.0, None, tables={"activations": table(nonfinite=5)})
    assert [alert.kind for alert in judge.alerts(unknown)] == ["activations"]


def test_steps_that_the_scaler_leaves_out_are_no_alarm_until_there_are_many():
    judge = RuleChecker(WATCH_RULES, None)
    alerts = []
    for step in range(12):
        left_out = StepStatistics(step, 0.0, math.inf, was_left_out=True, tables={"gradients": table(nonfinite=3)})
        alerts += judge.alerts(left_out)
    assert [(alert.step, alert.text[:27]) for alert in alerts] == [(9, "GradScaler has left out 10 ")]


def test_what_was_told_is_not_told_again_because_some_steps_are_not_looked_at():
    judge = RuleChecker(WATCH_RULES, None)
    alerts = []
    for step in range(8):
        tables = {"activations": table(nonfinite=5)} if step % 4 == 0 else {}
        alerts += judge.alerts(StepStatistics(step, 0.0, math.nan, tables=tables))
    assert [alert.step for alert in alerts] == [0]


def test_a_loss_that_stays_nan_is_an_alarm_whatever_the_scaler_does():
    """A scale can make a loss infinite, never NaN: no smaller one will mend it."""
    judge = RuleChecker(WATCH_RULES, None)
    alerts = []
    for step in range(4):
        tables = {"activations": table(nonfinite=5), "gradients": table(nonfinite=3)}
        alerts += judge.alerts(StepStatistics(step, 0.0, math.nan, was_left_out=True, tables=tables))
    assert [(alert.step, alert.kind) for alert in alerts] == [(1, "activations")]
    assert "loss" in alerts[0].text


def test_weights_with_nan_are_an_alarm_even_then():
    judge = RuleChecker(WATCH_RULES, None)
    left_out = StepStatistics(0, 0.0, math.inf, was_left_out=True, tables={"weights": table(nonfinite=3)})
    assert [alert.kind for alert in judge.alerts(left_out)] == ["weights"]


def test_the_scaler_on_the_device(device, tmp_path):
    """Gradients and losses are told as they are without it; a step with an Inf is no alarm."""
    net = model(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler(device, init_scale=1024.0)
    expected = []
    with TrainingWatch(out=tmp_path, verbose=0) as watch:
        for step in range(4):
            x = torch.randn(12, 8).to(device) * (math.inf if step == 1 else 1)
            loss = net(x).square().mean()
            scaler.scale(loss).backward()
            norm = math.sqrt(sum((one.grad / scaler.get_scale()).square().sum().item() for one in net.parameters()))
            expected.append((loss.item(), norm))
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    rows = steps_in(tmp_path)
    assert [row.get("left_out", False) for row in rows] == [False, True, False, False]
    for number in (0, 2, 3):
        assert (rows[number]["loss"], rows[number]["gradient_norm"]) == pytest.approx(expected[number], rel=1e-4)
    assert [row["scale"] for row in rows] == [1024, 1024, 512, 512]
    assert list(watch.results) == []


def test_a_dead_layer(device, tmp_path):
    def spoil(step, net):
        if step == 2:
            with torch.no_grad():
                net[0].bias.fill_(-1000)

    with TrainingWatch(out=tmp_path, verbose=0, rules="dead=5,norm=off,spike=off") as watch:
        train(device, 12, spoil=spoil)
    alerts = {(alert["step"], alert["kind"], alert["module"]) for alert in watch.results}
    assert alerts == {(6, "activations", "1"), (6, "gradients", "0")}


def test_layers_that_begin_with_zeros_or_are_frozen_are_healthy(device, tmp_path):
    net = model(device)
    nn.init.zeros_(net[3].weight)
    nn.init.zeros_(net[3].bias)
    net[0].requires_grad_(False)
    with TrainingWatch(out=tmp_path, verbose=0, rules="dead=3") as watch:
        train(device, 10, net)
    assert list(watch.results) == []


def test_a_loss_that_parts_from_another_run(device, tmp_path):
    with TrainingWatch(out=tmp_path / "good", verbose=0):
        train(device, 60)
    for factor, expected in ((1.0, []), (1.5, ["parting"])):

        def spoil(step, net, factor=factor):
            if step == 10:
                net[3].weight.data.mul_(factor * 4 if factor > 1 else 1)

        STEPS.forget()  # as in a new process
        out = tmp_path / f"bad{factor}"
        rules = "spike=off,norm=off"
        with TrainingWatch(out=out, verbose=0, against=tmp_path / "good", rules=rules) as watch:
            train(device, 60, spoil=spoil)
        assert [alert["rule"] for alert in watch.results] == expected


def test_two_healthy_runs_with_other_rounding_do_not_part(tmp_path):
    folder = tmp_path / "watch_result" / "h-rank0-pid1"
    folder.mkdir(parents=True)
    other = noisy(400, seed=1)
    lines = [json.dumps({"step": step, "loss": loss}) for step, loss in enumerate(other)]
    (folder / "steps.jsonl").write_text("\n".join([*lines, '{"step": 400, "lo']))
    against = Against(tmp_path, 0, 0.05)
    parted = [against.parted(step, loss) for step, loss in enumerate(noisy(400, seed=2))]
    assert parted == [None] * 400


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rules": "spikes=3"}, "there is no rule spikes; these are: nan, spike, norm, dead, parting, ranks"),
        ({"rules": "spike=-1"}, "spike=-1: it must be a number above 0, or off"),
        ({"rules": "dead=often"}, "dead=often: it must be a number above 0, or off"),
        ({"against": "nowhere"}, "OP_WATCH_AGAINST=nowhere cannot be compared with: it does not exist"),
        ({"against": 3.5}, r"against=3\.5 cannot be used: it must be the folder of a run"),
        ({"every": 0}, "it must be a whole number above 0"),
        ({"to": "email"}, "it must be tensorboard or wandb, or both"),
        ({"on_alert": "ftp://x"}, "an address must begin with http:// or https://"),
        ({"on_alert": "http://"}, "and name a host"),
        ({"disk": "much"}, "disk"),
        ({"ops": "torch.add"}, "TrainingWatch does not take these arguments"),
    ],
)
def test_what_cannot_be_used_is_said(arguments, message):
    with pytest.raises(SettingError, match=message):
        TrainingWatch(**arguments).start()


def test_an_empty_folder_has_no_losses(tmp_path):
    with pytest.raises(SettingError, match="it has no loss of rank 0; make it with `ditorch run --watch` or --losses"):
        TrainingWatch(against=tmp_path).start()
