"""Two real processes against one: data-parallel, FSDP2 and tensor-parallel runs of the same model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from op_tools.compare_runs.comparison import compare
from op_tools.compare_runs.reading import Run

PROGRAM = Path(__file__).with_name("parallel_program.py")
MAIN = [sys.executable, "-c", "from ditorch_cli import main; main()"]
RANKS = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]


def record(folder: Path, kind: str, fault: str = "") -> Run:
    environment = {**os.environ, "DITORCH_BACKEND": "sim", "DITORCH_FAULTS": fault}
    launcher = [sys.executable] if kind == "one" else RANKS
    command = [*MAIN, "run", "--capture=statistics", "--out", str(folder), "--", *launcher, str(PROGRAM), kind]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "could not deal with" not in done.stderr
    return Run(folder)


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    return record(tmp_path_factory.mktemp("runs") / "one", "one")


FAULTS = {
    "batch": ("aten.gelu: noise=1e-2", "torch.nn.functional.gelu", "forward"),
    "fsdp": ("aten.native_layer_norm_backward: scale=1.05", "torch.nn.functional.layer_norm", "backward"),
    "tensor": ("aten.mm: scale=1.02", "torch.nn.functional.linear", "forward"),
}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", list(FAULTS))
def test_two_processes_against_one(one, kind, tmp_path):
    two = record(tmp_path / "two", kind)
    assert two.ranks == [0, 1]
    for found in (compare(one, two), compare(two, one)):
        assert (found.guilty, found.first_divergence) == ([], None)
        assert [difference for difference in found.before if difference.moves_numbers] == []
        assert found.calls > 80
        assert found.steps >= 2
        layers = {f"blocks.{number}.{name}" for number in (0, 1) for name in ("q", "k", "v", "proj", "up", "down")}
        assert layers <= {row.module for row in found.modules}
    fault, op, phase = FAULTS[kind]
    first = compare(one, record(tmp_path / "bad", kind, fault)).first_divergence
    assert first is not None
    assert (first.op, first.phase, first.kind, first.step) == (op, phase, "guilty", 0)
    model = json.loads((tmp_path / "two" / "manifest.json").read_text())["model"]
    assert {"name", "part", "shape", "dtype", "checksum"} == set(model[0])
