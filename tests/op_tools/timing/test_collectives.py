"""OpTimeMeasure times every collective, whoever calls it; two processes, each on a device of its own."""

from __future__ import annotations

import csv
import functools
import json
import tempfile
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.nn.parallel import DistributedDataParallel

import op_tools
from ditorch import sim
from op_tools.core.call import OpCall
from op_tools.core.where import here
from op_tools.timing.collectives import Collective

from ... import ranks

SIZE = 2
LATE = 0.2  # s that the second process comes later
KEY = "ADInplaceOrView"


def start_rank(rank):
    sim.start()
    torch.sim.set_device(rank)
    return f"sim:{rank}"


def short(name):
    """torch.distributed.distributed_c10d.all_reduce is all_reduce."""
    return name.rpartition("c10d")[2].partition(".")[2]


def measured(run, folder=None, **arguments):
    """Rows of the collectives in `run`: name, ms, and whether they have a line of the program."""
    folder = folder or tempfile.mkdtemp()
    with op_tools.OpTimeMeasure(out=folder, **{"verbose": 0, **arguments}) as tool:
        run()
    found = []
    for path in Path(folder).rglob("*.csv"):
        for row in csv.DictReader(path.read_text().splitlines()):
            if "c10d" in row["name"]:
                found.append((short(row["name"]), float(row["forward_elasped"]), bool(row["where"])))
    summed = {short(row["op"]): row["calls"] for row in tool.results if "c10d" in row["op"]}
    assert summed == {name: sum(one[0] == name for one in found) for name, _, _ in found}
    return found


def training(rank, device, steps=3):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to(device)
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(steps):
        loss = model(torch.randn(4, 8, generator=generator).to(device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [parameter.tolist() for parameter in model.parameters()]


def has_kernel():
    return torch._C._dispatch_has_kernel_for_dispatch_key("c10d::allreduce_", KEY)


def do_distributed_data_parallel(rank, device):
    plain = training(rank, device)
    trained = []
    during = []
    rows = measured(lambda: (trained.append(training(rank, device)), during.append(has_kernel())))
    return {"rows": rows, "same": trained == [plain], "during": during, "after": has_kernel()}


def do_late(rank, device):
    """The second process comes later: the first one's call returns at once, and its collective lasts until then."""
    tensor = torch.ones(4, device=device)
    store = dist.distributed_c10d._get_default_store()

    def run():
        if rank == 1:
            store.wait(["begun"])
            time.sleep(LATE)
        work = dist.all_reduce(tensor, async_op=True)
        if rank == 0:
            store.set("begun", "")
        work.wait()

    return measured(run)


def do_at_level_two(rank, device):
    return measured(lambda: dist.all_reduce(torch.ones(4, device=device)), verbose=2)


def do_functional(rank, device):
    return measured(lambda: functional.all_reduce(torch.ones(4, device=device), "sum", dist.group.WORLD).sum())


def do_dtensor(rank, device):
    from torch.distributed.tensor import DTensor, Partial, Replicate, init_device_mesh

    mesh = init_device_mesh("sim", (SIZE,))
    part = DTensor.from_local(torch.ones(4, device=device), mesh, [Partial()])
    return measured(lambda: part.redistribute(mesh, [Replicate()]).to_local().sum())


def do_fully_shard(rank, device):
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import init_device_mesh

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to(device)
    fully_shard(model, mesh=init_device_mesh("sim", (SIZE,)))
    return measured(lambda: model(torch.ones(2, 8, device=device)).sum().backward())


def do_without_an_end(rank, device):
    """The tool is stopped while the second process is still on its way."""
    store = dist.distributed_c10d._get_default_store()
    tool = op_tools.OpTimeMeasure(out=tempfile.mkdtemp(), verbose=0).start()
    if rank == 1:
        store.wait(["stopped"])
    work = dist.all_reduce(torch.ones(4, device=device), async_op=True)
    if rank == 0:
        tool.stop()
        store.set("stopped", "")
    work.wait()
    tool.stop()
    return tool.results.not_looked_at


def do_on_the_cpu(rank, device):
    return measured(lambda: dist.all_reduce(torch.ones(4)))


def do_send(rank, device):
    """gloo has no future for it: its time is that of the call."""
    tensor = torch.ones(4, device=device)
    return measured(lambda: dist.send(tensor, 1) if rank == 0 else dist.recv(tensor, 0))


def do_chosen_ops(rank, device):
    def run():
        torch.sum(functional.all_reduce(torch.ones(4, device=device), "sum", dist.group.WORLD))
        dist.broadcast(torch.ones(4, device=device), 0)

    return measured(run, ops="c10d.allreduce_")


def do_trace(rank, device):
    """Collectives have a track of their own, on which none overlaps another."""

    def run():
        works = [dist.all_reduce(torch.ones(100_000, device=device), async_op=True) for _ in range(5)]
        for work in works:
            work.wait()

    folder = tempfile.mkdtemp()
    measured(run, folder)
    (path,) = Path(folder).rglob("*.json")
    events = json.loads(path.read_text())
    (track,) = [one["tid"] for one in events if one["name"] == "thread_name" and one["args"]["name"] == "collectives"]
    times = sorted(
        (one["ts"], one["ts"] + one["dur"]) for one in events if one.get("ph") == "X" and one["tid"] == track
    )
    return {"events": len(times), "apart": all(a[1] <= b[0] + 0.01 for a, b in zip(times, times[1:]))}


def do_on_a_stream_that_waits(rank, device):
    """As NCCL does: the future is done at once, and calls from a stream that waits for the collective."""
    before = torch.ones(1000, 1000, device=device)
    call = OpCall("c10d.allreduce_", dist.all_reduce, (), {}, here(), 0)
    collective = Collective(call, "", torch.device(device))
    before @ before
    with torch.sim.stream(torch.sim.Stream()):
        collective.note_end()
    torch.sim.synchronize()
    began, ended = collective.read()
    return [collective.end is not None, collective.has_ended(), began <= ended]


# ---- the tests ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def results(tmp_path_factory, worker_id):
    return functools.partial(ranks.read, ranks.start(__name__, SIZE, "simccl", tmp_path_factory, worker_id))


def names(rows):
    return [name for name, _, _ in rows]


def test_ddp_calls_its_collectives_in_cpp_and_they_are_timed(results):
    for found in results(do_distributed_data_parallel):
        assert names(found["rows"]).count("allreduce_") >= 3  # one for each step, and one bucket
        assert all(time > 0 for _, time, _ in found["rows"])


def test_training_is_the_same(results):
    assert all(found["same"] for found in results(do_distributed_data_parallel))


def test_nothing_stands_before_collectives_that_nobody_measures(results):
    for found in results(do_distributed_data_parallel):
        assert (found["during"], found["after"]) == ([True], False)


def test_a_collective_lasts_until_the_last_process_has_come(results):
    first, second = results(do_late)
    ((name, lasted, has_line),) = first
    assert (name, has_line) == ("all_reduce", True)
    assert lasted > LATE * 1e3
    assert names(second) == ["all_reduce"]


def test_at_level_two_each_is_shown_when_it_returns(results):
    for found in results(do_at_level_two):
        assert names(found) == ["all_reduce"]


def test_functional_collectives(results):
    for found in results(do_functional):
        assert "all_reduce" in names(found)
        assert names(found).count("allreduce_") <= 1


def test_dtensors(results):
    for found in results(do_dtensor):
        assert {"all_reduce", "allreduce_"} & set(names(found))


def test_fully_shard(results):
    for found in results(do_fully_shard):
        assert any("gather" in name for name in names(found))
        assert any("reduce_scatter" in name for name in names(found))


def test_the_devices_own_time_counts_where_it_tells_the_end(results):
    assert results(do_on_a_stream_that_waits) == [[True, True, True]] * SIZE


def test_collectives_on_the_cpu_are_left_alone(results):
    assert results(do_on_the_cpu) == [[], []]


def test_a_collective_without_a_future_is_timed_by_its_call(results):
    first, second = results(do_send)
    assert (names(first), names(second)) == (["send"], ["recv"])


def test_a_collective_that_has_not_ended_is_told(results):
    first, second = results(do_without_an_end)
    assert first == [{"what": "collectives", "calls": 1, "reason": "they had not ended when the tool stopped"}]
    assert second == []


def test_chosen_ops(results):
    for found in results(do_chosen_ops):
        assert names(found) == ["allreduce_"]


def test_a_track_of_their_own(results):
    assert results(do_trace) == [{"events": 5, "apart": True}] * SIZE
