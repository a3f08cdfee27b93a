"""`ditorch demo`: three trainings that differ in their device only, and a summary that says what one kernel did."""

from __future__ import annotations

import itertools
import re
import threading

import pytest
import torch
from click.testing import CliRunner

import ditorch
from ditorch.backends import SIM
from ditorch.demo import GPT, batches, train
from ditorch.errors import FaultError
from ditorch.sim import faults
from ditorch_cli.demo import demo


@pytest.fixture
def run_demo(monkeypatch):
    monkeypatch.setattr(ditorch, "install", lambda: SIM)  # it has been started already, and stays out of this process
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments):
        before = set(threading.enumerate())
        result = CliRunner().invoke(demo, arguments, catch_exceptions=False)
        for thread in set(threading.enumerate()) - before:
            if not isinstance(thread, threading._DummyThread):
                thread.join(60)  # the one that draws the progress bars; rich does not wait for it
        return result

    return run


def test_shows_the_losses_and_blames_the_kernel(run_demo):
    result = run_demo("--steps", "3")
    assert result.exit_code == 0
    assert "A small GPT learns its own source code, 3 steps each, on the CPU and on sim." in result.output
    rows = re.findall(r"│ +(\d+) │ +(\S+) │ +(\S+) │ +(\S+) │ +(\S+) │", result.output)
    assert [int(step) for step, *_ in rows] == [1, 2, 3]
    assert all(reference == healthy for _, reference, healthy, _, _ in rows)
    assert rows[0][4] == "+0.0000"  # a backward kernel is broken: the first loss cannot know
    assert rows[2][4] != "+0.0000"
    assert "sim: every loss equals the CPU's." in result.output
    assert re.search(r"What was broken, in \d+ calls: aten.native_layer_norm_backward: tail=0.5", result.output)
    assert faults.active() == []


def test_breaks_the_kernel_that_it_is_told(run_demo):
    result = run_demo("--steps", "2", "--fault", "aten.gelu: zero")
    assert "What was broken, in 4 calls: aten.gelu: zero" in result.output


def test_a_kernel_that_fails_outright_is_part_of_the_story(run_demo):
    result = run_demo("--steps", "4", "--fault", "aten.gelu_backward: unimplemented, after=4")
    assert "sim, broken: stopped in step 3, NotImplementedError: Could not run 'aten::gelu_backward'" in result.output
    assert result.exit_code == 0


def test_says_a_mistake_in_the_fault_before_anything_runs(run_demo, monkeypatch):
    monkeypatch.setattr("ditorch.demo.train", lambda *_: pytest.fail("it trained"))
    with pytest.raises(FaultError, match="names no operator of PyTorch"):
        run_demo("--fault", "aten.softmaxx: nan")


def test_needs_a_step_at_least(run_demo):
    result = run_demo("--steps", "0")
    assert result.exit_code == 2
    assert "0 is not in the range x>=1" in result.output


def test_training_is_the_same_every_time():
    assert list(train("cpu", 2)) == list(train("cpu", 2))


def test_the_targets_are_the_next_tokens():
    for tokens, targets in itertools.islice(batches(size=3, length=5), 2):
        assert tokens.shape == targets.shape == (3, 5)
        assert torch.equal(tokens[:, 1:], targets[:, :-1])


def test_the_model_does_not_see_what_comes_later():
    model = GPT(vocabulary=16, width=16, heads=2, layers=1, length=8)
    tokens = torch.arange(8)[None]
    changed = tokens.clone()
    changed[0, -1] = 15
    assert torch.equal(model(tokens)[:, :-1], model(changed)[:, :-1])
