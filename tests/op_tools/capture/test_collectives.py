"""OpCapture saves what a collective gave, once it has completed; two processes, each on a device of its own."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

import op_tools
from ditorch import sim
from op_tools.storage import store

from ... import ranks

SIZE = 2


def start_rank(rank):
    sim.start()
    torch.sim.set_device(rank)
    return f"sim:{rank}"


def captured(run, **arguments):
    """What was captured of the collectives in `run`: name, what went in and what came out, and the note."""
    folder = Path(tempfile.mkdtemp())
    with op_tools.OpCapture(out=folder, verbose=0, **arguments) as tool:
        run()
    assert not tool._collectives._works
    found = []
    for place in sorted(store.find_captures(folder), key=lambda one: int(one.parent.name)):
        call, note = store.load(place), store.load_note(place)
        if "c10d" in call.name:
            gave = None if call.output is None else listed(call.output.args[0])
            found.append((call.name.rpartition(".")[2], listed(call.input.args), gave, note.get("ranks"), note["rank"]))
    return found


def listed(value):
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {key: listed(part) for key, part in value.items()}
    return [listed(part) for part in value if isinstance(part, (torch.Tensor, list))] if value is not None else None


def do_all_reduce(rank, device):
    tensor = torch.full((2,), rank + 1.0, device=device)
    return captured(lambda: dist.all_reduce(tensor))


def do_all_gather(rank, device):
    tensor = torch.full((1,), rank + 1.0, device=device)
    parts = [torch.zeros(1, device=device) for _ in range(SIZE)]
    return captured(lambda: dist.all_gather(parts, tensor))


def do_asynchronous(rank, device):
    """The program changes the tensor right after it has waited."""
    tensor = torch.full((2,), rank + 1.0, device=device)

    def run():
        work = dist.all_reduce(tensor, async_op=True)
        work.wait()
        tensor.zero_()

    return captured(run)


def do_asynchronous_and_never_waited_for(rank, device):
    tensor = torch.full((2,), rank + 1.0, device=device)
    works = []

    def run():
        works.append(dist.all_reduce(tensor, async_op=True))
        dist.barrier()
        while not works[0].is_completed():
            pass

    return captured(run)


def do_in_an_order_of_its_own(rank, device):
    """Each process begins with another group: who waits at once, waits for ever."""
    groups = [dist.new_group([0, 1]) for _ in range(2)]
    tensors = [torch.full((1,), rank + 1.0, device=device) for _ in groups]

    def run():
        order = range(2) if rank == 0 else reversed(range(2))
        for work in [dist.all_reduce(tensors[one], group=groups[one], async_op=True) for one in order]:
            work.wait()

    return captured(run)


def do_functional(rank, device):
    tensor = torch.full((2,), rank + 1.0, device=device)
    found = captured(lambda: functional.all_reduce(tensor, "sum", dist.group.WORLD))
    return [one for one in found if one[0] == "all_reduce"]


def do_group(rank, device):
    group = dist.new_group([1])
    tensor = torch.full((2,), rank + 1.0, device=device)
    return captured(lambda: dist.all_reduce(tensor, group=group)) if rank == 1 else None


def do_statistics(rank, device):
    folder = Path(tempfile.mkdtemp())
    tensor = torch.full((2,), rank + 1.0, device=device)
    with op_tools.OpCapture(out=folder, verbose=0, mode="statistics"):
        dist.all_reduce(tensor)
        dist.all_reduce(tensor, async_op=True).wait()
    return [(record.part, record.place, record.mean) for record in op_tools.read_statistics(folder)]


def do_the_way_back(rank, device):
    original = dist.Work.wait
    captured(lambda: dist.all_reduce(torch.zeros(1, device=device)))
    return dist.Work.wait is original


# ---- the tests ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def results(tmp_path_factory, worker_id):
    return functools.partial(ranks.read, ranks.start(__name__, SIZE, "simccl", tmp_path_factory, worker_id))


def test_what_went_in_and_what_came_out(results):
    for rank, found in enumerate(results(do_all_reduce)):
        assert found == [["all_reduce", [[rank + 1.0] * 2], {"tensor": [3.0, 3.0]}, [0, 1], rank]]


def test_lists_of_tensors(results):
    for found in results(do_all_gather):
        assert found[0][2]["tensor_list"] == [[1.0], [2.0]]


def test_a_collective_that_is_waited_for_later(results):
    for found in results(do_asynchronous):
        assert found[0][2] == {"tensor": [3.0, 3.0]}


def test_a_collective_that_nobody_waits_for(results):
    for found in results(do_asynchronous_and_never_waited_for):
        assert found[0][2] == {"tensor": [3.0, 3.0]}


def test_nobody_waits_in_the_programs_place(results):
    for found in results(do_in_an_order_of_its_own):
        assert [gave for _, _, gave, _, _ in found] == [{"tensor": [3.0]}] * 2


def test_functional_collectives(results):
    for found in results(do_functional):
        assert found[0][2] == [3.0, 3.0]
        assert found[0][3] == [0, 1]


def test_the_ranks_are_those_of_the_group(results):
    _, found = results(do_group)
    assert found[0][2:] == [{"tensor": [2.0, 2.0]}, [1], 1]


def test_statistics(results):
    for found in results(do_statistics):
        outputs = [(place, mean) for part, place, mean in found if part == "output"]
        assert [mean for _, mean in outputs] == [3.0, 6.0]


def test_torch_is_as_it_was(results):
    assert all(results(do_the_way_back))
