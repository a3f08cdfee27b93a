"""The page of a long run: curves of the whole and by module, alerts, and what lies under the time line."""

from __future__ import annotations

import json
import math

import torch
from torch import nn

import op_tools
from ditorch_report import contents, page, watch
from ditorch_report.run_folder import RunFolder
from op_tools.core.steps import STEPS
from op_tools.monitor import ProcessMonitor
from op_tools.watch import TrainingWatch

from . import browser
from .runs import Block


def watched(folder, steps=6):
    """A run that meets NaN in its fourth step, with times and samples of memory."""
    STEPS.forget()  # as in a new process
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block(), nn.Linear(8, 3)).to("sim")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tools = (
        ProcessMonitor(0.01, out=folder),
        TrainingWatch(out=folder, verbose=0, every=1),
        op_tools.OpTimeMeasure(out=folder, verbose=0),
    )
    with tools[0], tools[1], tools[2]:
        for step in range(steps):
            if step == 3:
                model[1].up.weight.data[0, 0] = math.nan
            nn.functional.cross_entropy(model(torch.randn(4, 8).to("sim")), torch.randint(3, (4,)).to("sim")).backward()
            optimizer.step()
            optimizer.zero_grad()
    return folder


def test_curves_and_alerts_are_read(tmp_path, device):
    found, pieces = watch.read(RunFolder(watched(tmp_path)))
    (process,) = found["processes"]
    assert process["step"] == list(range(6))
    assert process["loss"][2] > 0
    assert process["loss"][3] is None
    assert [(row["step"], row["rule"], row["module"]) for row in found["alerts"]] == [(3, "nan", "1.up")]
    assert set(process["kinds"]) == {"activations", "gradients", "weights"}
    weights = pieces[process["kinds"]["weights"]]
    assert weights["modules"] == ["0.norm", "0.up", "1.norm", "1.up", "2"]
    assert weights["count"][1] == 72
    assert all(value > 0 for value in weights["rms"][1][:3])
    assert len(weights["zeros"]) == 5


def test_files_that_are_cut_or_of_others_are_read_as_far_as_they_go(tmp_path):
    folder = tmp_path / "watch_result" / "h-rank3-pid9"
    folder.mkdir(parents=True)
    assert watch.read(RunFolder(tmp_path)) == (None, {})
    lines = [
        {"schema": "ditorch.watch/1", "host": "<b>", "rank": 3, "pid": 9, "sharded": True},
        {"kind": "weights", "modules": ["a", "b"], "count": [1, 2]},
        {"step": 0, "time": 1.0, "loss": "inf", "weights": {"rms": [1.0, "nan"], "absmax": None}},
        {"kind": "weights", "modules": ["b", "c"]},
        {"step": 1, "time": 2.0, "loss": 2.0, "weights": {"rms": [3.0, 4.0]}},
        ["no", "object"],
        {"step": "x", "loss": {}},
    ]
    (folder / "steps.jsonl").write_text("\n".join(map(json.dumps, lines)) + '\n{"step": 2, "lo')
    (folder / "alerts.jsonl").write_text('{"rule": "nan", "step": 1}\n{"rule": ')
    found, pieces = watch.read(RunFolder(tmp_path))
    (process,) = found["processes"]
    assert (process["rank"], process["sharded"], process["step"]) == (3, True, [0, 1, 0])
    assert process["loss"] == [1e300, 2.0, None]
    curves = pieces["watch0.weights"]
    assert curves["modules"] == ["a", "b", "c"]
    assert curves["rms"] == [[1, None], [None, 3], [None, 4]]
    assert [row["rule"] for row in found["alerts"]] == ["nan"]
    page.page(contents.of([tmp_path]))


def test_a_long_run_stays_small(tmp_path):
    folder = tmp_path / "watch_result" / "h-rank0-pid9"
    folder.mkdir(parents=True)
    modules = [f"blocks.{number}.mlp" for number in range(200)]
    figures = {name: [0.01234 * (place % 7 + 1) for place in range(200)] for name in ("rms", "absmax", "mean", "zeros")}
    with open(folder / "steps.jsonl", "w") as file:
        for kind in ("weights", "gradients"):
            file.write(json.dumps({"kind": kind, "modules": modules, "count": [9] * 200}) + "\n")
        for step in range(1500):
            row = {"step": step, "time": step, "loss": 2 + math.sin(step)}
            file.write(json.dumps({**row, "weights": figures, "gradients": figures} if step % 2 else row) + "\n")
    assert len(page.page(contents.of([tmp_path]))) < 5_000_000


def test_the_page(tmp_path, device):
    """Curves, alerts and modules, by search and deep link, in both languages; memory under the time line."""
    folder = watched(tmp_path)
    page.write(contents.of([folder]), folder / "report.html")
    with browser.chromium() as chromium:
        reader = browser.Reader(chromium, (folder / "report.html").as_uri())
        shown = reader.open()
        assert reader.text(".verdict h1").startswith("NaN or Inf in activations (first in 1.up")
        assert "Alert in step 3" in shown.locator(".verdict .kicker").text_content()
        reader.go("watch")
        assert "1 alert in 6 steps" in reader.text(".lead")
        assert "NaN or Inf in activations (first in 1.up" in reader.text()
        shown.wait_for_selector(".chart canvas")
        assert shown.locator("h2").all_inner_texts() == ["Alerts", "Loss", "Gradient norm", "By module"]
        shown.fill("#search-modules", "norm")
        shown.select_option("#watch-kind", "weights")
        shown.select_option("#watch-figure", "absmax")
        shown.wait_for_selector("text=2 of 5 modules")
        assert shown.locator("tbody tr th").all_inner_texts()[-2:] == ["0.norm", "1.norm"]
        assert reader.fits()
        link = shown.url.partition(".html")[2]
        reader.open(link)
        assert shown.input_value("#search-modules") == "norm"
        assert shown.input_value("#watch-kind") == "weights"
        assert "2 of 5 modules" in reader.text()
        reader.go("speed")
        shown.wait_for_selector(".chart.under canvas")
        assert "Host memory" in shown.locator("h3").all_inner_texts()
        reader.close()
        reader = browser.Reader(
            chromium, (folder / "report.html").as_uri(), dark=True, language="zh-CN", size=browser.PHONE
        )
        reader.open("#watch")
        assert "梯度范数" in reader.text()
        assert "均方根" in reader.text("#watch-figure")
        assert reader.fits()
        reader.close()
