"""torch.distributed as programs written for CUDA use it, between two processes on the simulated accelerator."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from ditorch.backends.sim import SIM
from ditorch.redirect import Redirect
from ditorch.redirect.distributed import _emulate_average
from ditorch.redirect.patch import Patches


@pytest.mark.usefixtures("redirect")
@pytest.mark.parametrize(
    ("name", "means"),
    [
        ("nccl", {"sim": "simccl", "cpu": "simccl"}),
        ("NCCL", {"sim": "simccl", "cpu": "simccl"}),
        ("cuda:nccl,cpu:gloo", {"sim": "simccl", "cpu": "gloo"}),
        ("cpu:gloo,cuda:nccl", {"sim": "simccl", "cpu": "gloo"}),
        ("gloo", {"cpu": "gloo", "cuda": "gloo"}),
    ],
)
def test_nccl_means_the_accelerators_collectives(name, means):
    config = dist.distributed_c10d.BackendConfig(dist.Backend(name))
    assert config.get_device_backend_map() == means


@pytest.mark.usefixtures("redirect")
def test_nccl_is_available():
    assert dist.is_nccl_available()


def _worker(rank, store, results):
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    SIM.start()
    Redirect(SIM)
    torch.cuda.set_device(rank)
    device = torch.device("cuda", rank)
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=2, device_id=device)

    def value():
        return torch.full((4,), rank + 1.0, device="cuda")

    def average_is_emulated():
        patches = Patches()
        _emulate_average(patches)
        try:
            tensor = value()
            dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
            later = value()
            work = dist.all_reduce(later, dist.ReduceOp.AVG, async_op=True)
            work.wait()
            work.wait()
            future = value()
            dist.all_reduce(future, op=dist.ReduceOp.AVG, async_op=True).get_future().wait()
            part = torch.empty(2, device="cuda")
            dist.reduce_scatter(part, list(value().chunk(2)), op=dist.ReduceOp.AVG)
            plain = value()
            dist.all_reduce(plain)
            return [t[0].item() for t in (tensor, later, future, part, plain)] == [1.5, 1.5, 1.5, 1.5, 3.0]
        finally:
            patches.undo()

    def pipeline():
        tensor = value()
        if rank == 0:
            dist.send(tensor, 1)
            return True
        dist.recv(tensor, 0)
        return tensor[0].item() == 1

    def subgroup():
        group = dist.new_group([0, 1], backend="nccl")
        tensor = value()
        dist.all_reduce(tensor, group=group)
        return tensor[0].item() == 3

    def group_of_the_device_alone():
        group = dist.new_group([0, 1], backend="cuda:nccl")
        tensor = value()
        dist.all_reduce(tensor, group=group)
        return tensor[0].item() == 3

    def random_tensors_of_a_mesh():
        from torch.distributed.tensor import Shard, distribute_tensor

        mesh = dist.init_device_mesh("cuda", (2,))
        torch.manual_seed(0)
        tensor = distribute_tensor(torch.zeros(8, device="cuda"), mesh, [Shard(0)])
        whole = torch.nn.init.normal_(tensor).full_tensor()
        return len(whole.unique()) == 8  # each process drew its own part

    def tensor_parallel():
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        mesh = dist.init_device_mesh("cuda", (2,))
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4)).cuda()
        data = torch.ones(2, 4, device="cuda")
        expected = model(data)
        model = parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        return torch.allclose(model(data), expected, atol=1e-6)

    checks = (
        average_is_emulated,
        pipeline,
        subgroup,
        group_of_the_device_alone,
        random_tensors_of_a_mesh,
        tensor_parallel,
    )
    for check in checks:
        try:
            outcome = "ok" if check() else "wrong"
        except Exception as error:  # noqa: BLE001 (it is the report)
            outcome = f"{type(error).__name__}: {error}"
        results.put((rank, check.__name__, outcome))
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.slow
def test_collectives_between_two_processes(tmp_path):
    context = mp.get_context("spawn")
    results = context.SimpleQueue()
    mp.start_processes(_worker, (str(tmp_path / "store"), results), nprocs=2, start_method="spawn")
    outcomes = []
    while not results.empty():
        outcomes.append(results.get())
    assert len(outcomes) == 12
    assert {outcome for _, _, outcome in outcomes} == {"ok"}, outcomes
