"""Ranks that hold several blocks of a tensor, as [q; k; v] of a fused layer, or parts that begin anywhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import op_tools
from ditorch.sim import faults
from op_tools.compare_runs.calls import Kind
from op_tools.compare_runs.comparison import compare
from op_tools.compare_runs.reading import Run
from op_tools.core.steps import STEPS

WIDTH, KEYS, CLASSES = 32, 16, 37
# queries of all heads, keys and values of fewer; the classes are 19 and 18
TABLE = "qkv=-1:32+16+16, qkv=0:32+16+16, head=-1:37, head=0:37"


def own(tensor, sizes, rank):
    """A rank's part of each block."""
    return tensor if rank is None else torch.cat([block.chunk(2)[rank] for block in tensor.split(sizes)])


class Net(nn.Module):
    def __init__(self, rank):
        super().__init__()
        self.qkv, self.head = nn.Linear(WIDTH, WIDTH + 2 * KEYS), nn.Linear(WIDTH, CLASSES)
        for layer, sizes in ((self.qkv, (WIDTH, KEYS, KEYS)), (self.head, (CLASSES,))):
            layer.weight.data = own(layer.weight.data, sizes, rank).contiguous()
            layer.bias.data = own(layer.bias.data, sizes, rank).contiguous()

    def forward(self, x):
        return self.qkv(x).tanh(), self.head(x)


@pytest.fixture
def run(device, monkeypatch):
    """One process (`ranks` is 1), or two that share the layers."""
    if device != "sim":
        pytest.skip("breaks kernels of the simulated device")

    def run(name, ranks, table=TABLE, fault=""):
        monkeypatch.setenv("WORLD_SIZE", str(ranks))
        injection = faults.inject(fault, device) if fault else None
        for rank in range(ranks):
            monkeypatch.setenv("RANK", str(rank))
            STEPS.forget()
            torch.manual_seed(0)
            net = Net(rank if ranks > 1 else None).to(device)
            optimizer = torch.optim.SGD(net.parameters(), 0.1, foreach=True)
            x = torch.randn(4, 6, WIDTH).to(device)
            with op_tools.OpCapture(mode="statistics", out=name, shards=table, verbose=0):
                for _ in range(2):
                    mixed, classes = net(x)
                    (mixed.square().sum() + classes.square().sum()).backward()
                    optimizer.step()
                    optimizer.zero_grad()
        if injection is not None:
            injection.remove()
        return Run(Path(name))

    return run


def furthest(found, module):
    return next(row.distance for row in found.modules if row.module == module)


def test_blocks_and_odd_parts_add_up_to_the_whole(run):
    one, two = run("one", 1), run("two", 2)
    for found in (compare(one, two), compare(two, one)):
        assert found.guilty == []
        assert [before for before in found.before if before.what == "weights"] == []
        for module in ("qkv", "head", ""):  # the optimizer is in none
            assert furthest(found, module) < 1e-5
    without = compare(one, run("without", 2, table=None))
    assert furthest(without, "qkv") > 0.5, "the blocks lie in another order"


@pytest.mark.parametrize(
    ("fault", "phase"), [("aten.addmm: noise=1e-3", "forward"), ("aten.mm: scale=1.01", "backward")]
)
def test_a_broken_call_on_blocks_is_named(run, fault, phase):
    first = compare(run("one", 1), run("two", 2, fault=fault)).first_divergence
    assert first is not None
    assert (first.op, first.phase, first.kind) == ("torch.nn.functional.linear", phase, "guilty")
    assert first.module == ("qkv" if phase == "forward" else "head")


def test_every_number_of_the_whole_is_known(run):
    """Also of the classes, whose second part begins at 19."""
    one, two = run("one", 1), run("two", 2)
    from op_tools.compare_runs.joining import all_ranks, joined

    [(_, calls), *_] = one.steps((0, 0))
    [(_, shared), *_] = all_ranks([two.steps((rank, 0)) for rank in range(2)])
    for module in ("qkv", "head"):
        call, other = (next(c for c in some if c.site.module == module) for some in (calls, shared))
        found = joined(call, other).outputs["output"].numbers
        for place, (number, right) in enumerate(zip(found, call.outputs["output"].numbers)):
            assert place == 3 or number == pytest.approx(right, abs=1e-5), "but for the checksum"


def test_pieces_are_no_tensors_of_the_run(run):
    run("one", 1), run("two", 2)
    one, two = (list(op_tools.read_statistics(name)) for name in ("one", "two"))
    assert len(two) == 2 * len(one)
    assert {record.part for record in two} == {record.part for record in one}


def test_sizes_that_do_not_fit_are_left_alone(run):
    run("two", 2, table="qkv=-1:100")
    assert b'"piece"' not in b"".join(file.read_bytes() for file in Path("two").rglob("*.pack"))


def test_a_dtensor_that_begins_at_an_odd_place_is_kept_with_its_start():
    from op_tools.capture.pieces import Pieces

    tensor = {"part": "output", "place": "", "shape": [4, 18], "dtype": "float32", "device": "cpu"}
    placed = {"requires_grad": False, "whole": [4, 37], "start": [0, 19], "placements": ["S(1)"]}
    description = {"op": "f", "module": "", "tensors": [{**tensor, **placed}]}
    (piece,) = Pieces(()).added_to(description)
    assert (piece.start, piece.padding) == ([0, 19], 3)
    kind = Kind(json.loads(json.dumps(description["tensors"][1])))
    assert (kind.of, kind.shape, kind.start) == (0, (4, 21), (0, 16))
    assert piece.cut_from([torch.ones(4, 18)]).sum(0).tolist() == [0.0] * 3 + [4.0] * 18
