"""Healthy programs on chips of other makes: nobody is blamed. All of them: benchmarks/healthy_programs.py."""

from __future__ import annotations

import argparse
import collections
import contextlib
import io

import pytest
from benchmarks import architectures, healthy_programs
from benchmarks.healthy_programs import CHIPS, VARIANTS

from ..conftest import DEVICE

pytestmark = pytest.mark.skipif(DEVICE != "sim", reason="kernels are replaced on the simulated accelerator")
PROGRAMS = {program.name: program for program in architectures.ALL}


def test_there_are_many_programs_in_two_halves_and_nine_more_sets():
    halves = collections.Counter(program.half for program in architectures.ALL)
    assert len(PROGRAMS) == len(architectures.ALL)
    assert halves.keys() == {
        "tuned", "held-out", "fresh", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth",
        "eleventh",
    }  # fmt: skip
    assert min(halves["tuned"], halves["held-out"]) >= 25
    assert min(halves.values()) >= 12
    assert sum(name.startswith("transformers ") for name in PROGRAMS) >= 12


@pytest.mark.parametrize(
    ("program", "variant", "chip"), [("GNN", "autocast bfloat16", "other"), ("ranking", "checkpointed", "tf32")]
)
def test_a_healthy_program_is_left_alone(device, program, variant, chip):
    chosen = next(one for one in VARIANTS if one.name == variant)
    with contextlib.redirect_stderr(io.StringIO()):
        done = healthy_programs.run(PROGRAMS[program], chosen, chip, "cpu", device)
    assert (done.fails, done.alarms, done.is_same) == ("", [], True)
    assert done.calls > 100


def test_a_broken_kernel_is_no_healthy_program(device, monkeypatch):
    monkeypatch.setitem(CHIPS, "own", "aten.index_add: scale=1.01")
    done = healthy_programs.run(PROGRAMS["GNN"], VARIANTS[0], "own", "cpu", device)
    assert done.blamed
    assert {alarm.op.rstrip("_") for alarm in done.alarms} == {"torch.Tensor.index_add"}


def test_what_is_not_done_in_time_is_named(capsys):
    options = argparse.Namespace(
        device=DEVICE, half="tuned", only=["GNN"], variants=["float32"], chips=["own"], reference=["cpu"], jobs=1,
        seconds=0.0, dumps=None,
    )  # fmt: skip
    runs, left = healthy_programs.run_all(options)
    healthy_programs.details(runs, left, 1)
    assert "not done within the time: GNN, float32, own, cpu" in capsys.readouterr().out
