"""Runs of several ranks against one process: the batch split over them, or the layers, or both."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

import op_tools
from ditorch.sim import faults
from op_tools.compare_runs.comparison import compare
from op_tools.compare_runs.reading import Run
from op_tools.core.steps import STEPS
from op_tools.errors import CaptureError

WIDTH, INNER = 32, 64


class Net(nn.Module):
    """A layer whose inner part is on two ranks, or not: each has some columns of `up` and some rows of `down`."""

    def __init__(self, inner: slice) -> None:
        super().__init__()
        whole = nn.Linear(WIDTH, INNER), nn.LayerNorm(WIDTH), nn.Linear(INNER, WIDTH, bias=False)
        self.up, self.norm, self.down = whole
        self.up.weight.data, self.up.bias.data = whole[0].weight.data[inner], whole[0].bias.data[inner]
        self.down.weight.data = whole[2].weight.data[:, inner].contiguous()
        self.others = None  # what the other rank adds, where there is one

    def forward(self, x):
        y = self.down(functional.gelu(self.up(self.norm(x))))
        if self.others is not None:
            y.data.add_(self.others)
        return x + y


def train(device, rank, out, inner=slice(None), batch=slice(None), others=None):
    torch.manual_seed(0)
    STEPS.forget()
    net = Net(inner).to(device)
    net.others = others
    x = torch.randn(8, 5, WIDTH)[batch].to(device)
    os.environ["RANK"] = str(rank)
    try:
        with op_tools.OpCapture(mode="statistics", out=out, verbose=0):
            net(x).square().mean().backward()
    finally:
        del os.environ["RANK"]


def added(device, inner):
    """What a rank's part of the layer gives."""
    torch.manual_seed(0)
    net = Net(inner).to(device)
    x = torch.randn(8, 5, WIDTH).to(device)
    return (net(x) - x).detach()


HALVES = (slice(0, INNER // 2), slice(INNER // 2, INNER))
BATCHES = (slice(0, 4), slice(4, 8))
RANKS = {"one": 1, "batch": 2, "layers": 2, "grid": 4}  # grid: two replicas, each on two ranks that follow each other


@pytest.fixture
def runs(device):
    """One process, and several ranks of either kind, which a fault may have struck."""
    if device != "sim":
        pytest.skip("breaks kernels of the simulated device")

    def run(kind, name, fault=""):
        injection = faults.inject(fault, device) if fault else None
        for rank in range(RANKS[kind]):
            if kind == "batch":
                train(device, rank, name, batch=BATCHES[rank])
            elif kind == "grid":
                batch, inner = BATCHES[rank // 2], HALVES[rank % 2]
                train(device, rank, name, inner, batch, added(device, HALVES[1 - rank % 2])[batch])
            elif kind == "layers":
                train(device, rank, name, HALVES[rank], others=added(device, HALVES[1 - rank]))
            else:
                train(device, rank, name)
        if injection is not None:
            injection.remove()
        return Run(Path(name))

    return run


@pytest.mark.parametrize("kind", ["batch", "layers", "grid"])
def test_healthy_ranks_blame_nobody(runs, kind):
    one, several = runs("one", "one"), runs(kind, "several")
    alone = compare(one, one)
    for found in (compare(one, several), compare(several, one)):
        assert found.guilty == []
        assert found.before == []
        assert found.events == alone.events > 8
        assert found.ranks == list(range(RANKS[kind]))
        assert max(row.distance for row in found.modules) < 1e-5, "all that the one process has is put together"


FAULTS = [
    ("aten.gelu: noise=1e-2", "torch.nn.functional.gelu", "forward"),
    ("aten.addmm: scale=1.02", "torch.nn.functional.linear", "forward"),
    ("aten.native_layer_norm: noise=1e-2", "torch.nn.functional.layer_norm", "forward"),
    ("aten.gelu_backward: noise=1e-2", "torch.nn.functional.gelu", "backward"),
]


@pytest.mark.parametrize("kind", ["batch", "layers", "grid"])
def test_a_broken_call_of_the_ranks_is_named(runs, kind):
    one = runs("one", "one")
    for number, (fault, op, phase) in enumerate(FAULTS):
        found = compare(one, runs(kind, f"two{number}", fault))
        first = found.first_divergence
        assert first is not None, fault
        assert (first.op, first.phase, first.kind) == (op, phase, "guilty"), fault


def test_a_table_tells_along_which_dimension(runs):
    one, two = runs("one", "one"), runs("layers", "two")
    right = compare(one, two, shards=[("up", -1)])
    wrong = compare(one, two, shards=[("up", 0)])
    assert right.guilty == wrong.guilty == []
    assert right.modules != wrong.modules, "what does not fit is not compared"
    both = compare(one, two, shards=[("up", -1), ("up", 0)])
    assert both.modules == compare(one, two).modules, "what the layer gives, and its weight"
    line = "the ranks' tensors do not add up to those of one process, such as of torch.nn.functional.linear in up (1)"
    assert [line in found.not_comparable for found in (both, right, wrong)] == [False, True, True]


def test_replicas_are_told_by_the_parameters_or_by_the_user(runs):
    one = runs("one", "one")
    told = {kind: compare(one, runs(kind, kind)).replicas for kind in ("batch", "layers", "grid")}
    assert told == {"batch": 2, "layers": 1, "grid": 2}
    grid = Run(Path("grid"))
    assert compare(one, grid, replicas=2).modules == compare(one, grid).modules
    with pytest.raises(CaptureError, match="4 ranks cannot be 3 replicas of the model, each on as many ranks"):
        compare(one, grid, replicas=3)


def test_a_rank_may_have_no_part_of_a_layer(runs, device):
    one = runs("one", "one")
    for rank, inner in enumerate((slice(0, 0), slice(None))):
        train(device, rank, "uneven", inner, others=added(device, slice(None)) if rank == 0 else None)
    found = compare(one, Run(Path("uneven")))
    assert found.guilty == []
    assert found.ranks == [0, 1]


def test_the_command_tells_how_many_replicas_there_are(runs):
    from click.testing import CliRunner

    from ditorch_cli.compare import command

    runs("one", "one"), runs("grid", "grid")
    done = CliRunner().invoke(command, ["one", "grid"])
    assert "4 rank(s) (2 replicas of the model); only in the first run 0, only" in done.output
    assert done.exit_code == 0
    assert json.loads(CliRunner().invoke(command, ["grid", "one", "--json"]).output)["replicas"] == 2
    assert CliRunner().invoke(command, ["one", "grid", "--replicas", "3"]).exit_code == 2


def test_a_table_tells_along_which_dimension_the_ranks_of_a_replica_cut(runs):
    one, grid = runs("one", "one"), runs("grid", "grid")
    right, wrong = (compare(one, grid, shards=[("up", dimension)]) for dimension in (-1, 1))
    assert right.guilty == wrong.guilty == []
    assert right.modules != wrong.modules, "what does not fit is not compared"


def test_ranks_compared_in_processes_give_the_same(runs):
    from op_tools.compare_runs import report

    good, bad = runs("batch", "good"), runs("batch", "bad", "aten.gelu: noise=1e-2")
    found = report.as_json(compare(good, bad))
    assert found == report.as_json(compare(good, bad, jobs=2))
    assert (found["first_divergence"]["op"], found["ranks"]) == ("torch.nn.functional.gelu", [0, 1])
    assert found["counts"]["steps"] == 1, "both ranks have the same one"


def test_a_shard_that_makes_no_sense_is_named(device):
    from click.testing import CliRunner

    from ditorch_cli.compare import command

    for text in ("up", "up=x", "(=1"):
        done = CliRunner().invoke(command, ["a", "b", "--shard", text])
        assert done.exit_code == 2
        assert "is no PATTERN=DIMENSION" in done.output


CLUSTER = """
import os, subprocess, sys
from ray.cluster_utils import Cluster

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
for _ in range(2):
    cluster.add_node(num_cpus=1)
code = subprocess.run(sys.argv[1:], env={**os.environ, "RAY_ADDRESS": cluster.address}).returncode
cluster.shutdown()
sys.exit(code)
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_cluster_gives_the_results_of_one_machine(runs, tmp_path):
    if importlib.util.find_spec("ray") is None:  # not imported here: it changes the environment
        pytest.skip("there is no Ray")
    runs("batch", "good"), runs("batch", "bad", "aten.gelu: noise=1e-2")
    command = [sys.executable, "-c", "import ditorch_cli; ditorch_cli.main()", "compare", "good", "bad", "--json"]
    (tmp_path / "cluster.py").write_text(CLUSTER)
    on_cluster = [sys.executable, str(tmp_path / "cluster.py"), *command, "--engine", "ray"]
    here, there = (
        subprocess.run(one, capture_output=True, text=True, check=False, timeout=800) for one in (command, on_cluster)
    )
    assert (here.returncode, there.returncode) == (1, 1), there.stderr[-3000:]
    assert json.loads(here.stdout) == {**json.loads(there.stdout), "runs": json.loads(here.stdout)["runs"]}


def test_ray_is_an_extra(runs, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    run = runs("one", "one")
    with pytest.raises(CaptureError, match=r'needs Ray: pip install "ditorch\[ray\]"'):
        compare(run, run, engine="ray")
