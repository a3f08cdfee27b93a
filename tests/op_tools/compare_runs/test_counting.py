"""Training steps are counted as a user counts them; what runs before and after them has a name."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from ditorch_cli.compare import command


def compared(*arguments):
    done = CliRunner().invoke(command, [*map(str, arguments), "--json"])
    assert done.stdout, done.stderr or repr(done.exception)
    found = json.loads(done.stdout)
    return found["counts"]["steps"], [(one["when"], one["step"]) for one in found["outside_steps"]], found


def text(*arguments):
    return CliRunner().invoke(command, [*map(str, arguments)]).stdout


def test_what_runs_after_the_last_step_is_no_step(record):
    good, bad = record("good", evaluates=["after"]), record("bad", evaluates=["after"])
    steps, outside, found = compared(good, bad)
    assert (steps, outside) == (2, [("after the last step", 2)])
    assert found["outside_steps"][0]["calls"] == 8
    said = text(good, bad)
    calls = found["counts"]["calls"]
    assert f"no divergence: {calls} calls in 2 steps and after the last step agree within rounding" in said
    assert f"{calls} calls compared in 2 steps and after the last step, 1 rank(s);" in said


def test_a_fault_after_the_last_step_is_told_so(record):
    good = record("good", evaluates=["after"])
    bad = record("bad", "aten.tanh: scale=1.1, after=2", evaluates=["after"])
    _, _, found = compared(good, bad)
    assert found["first_divergence"]["step"] == 2, "the number that --steps takes"
    said = text(good, bad)
    assert "after the last step (2), rank 0: torch.Tensor.tanh" in said
    assert "2 (after)" in said


def test_what_runs_before_the_first_step_is_no_step_where_the_program_counts(record):
    good, bad = (record(name, evaluates=["before", "after"]) for name in ("good", "bad"))
    steps, outside, _ = compared(good, bad)
    assert (steps, outside) == (2, [("before the first step", 0), ("after the last step", 3)])
    assert "in 2 steps, before the first step and after the last step" in text(good, bad)


def test_steps_without_anything_around_them(record):
    assert compared(record("good"), record("bad"))[:2] == (2, [])


def test_ops_without_a_backward_are_counted_by_what_the_run_has_told(record):
    """Of ops that have none, nothing in the statistics tells where training ended."""
    for name in ("good", "bad"):
        run = record(name, ops="torch._foreach_lerp_")
        assert compared(run, run)[:2] == (2, []), "a step each, as far as can be told"
    for name, ended in (("good", 1.0), ("bad", None)):
        (Path(name) / "processes").mkdir()
        record_of_process = {"schema": "ditorch.process/1", "rank": 0, "steps": 1, "ended": ended}
        (Path(name) / "processes" / "vm-rank0-pid1.json").write_text(json.dumps(record_of_process))
    assert compared("bad", "bad")[:2] == (2, []), "it was killed: the record may be older than the statistics"
    assert compared("good", "bad")[:2] == (1, [("after the last step", 1)])


def test_steps_that_one_run_lacks_are_named_whichever_it_is(record):
    long, short = record("long", train_steps=5, evaluates=["after"]), record("short", train_steps=1)
    told = [
        "rank 0: steps 1 to 4 are only in long",
        "rank 0: what ran after the last step (5) is only in long",
    ]
    for runs in ((long, short), (short, long)):
        steps, outside, found = compared(*runs)
        assert (steps, outside) == (1, [])
        assert found["not_comparable"] == told


def test_a_program_that_trains_nothing_has_no_step(record):
    good, bad = (record(name, train_steps=0, evaluates=["after"]) for name in ("good", "bad"))
    assert "8 calls in 1 step agree" in text(good, bad), "nobody has told that nothing was trained"
    for run in (good, bad):
        (run / "processes").mkdir()
        record_of_process = {"schema": "ditorch.process/1", "rank": 0, "steps": 0, "ended": 1.0}
        (run / "processes" / "vm-rank0-pid1.json").write_text(json.dumps(record_of_process))
    assert compared(good, bad)[:2] == (0, [("without a training step", 0)])
    assert "8 calls without a training step agree" in text(good, bad)
