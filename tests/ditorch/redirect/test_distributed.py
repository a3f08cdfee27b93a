"""torch.distributed as programs written for CUDA use it, between two processes on the simulated accelerator."""

from __future__ import annotations

import warnings
from dataclasses import replace
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from ditorch.backends.sim import SIM
from ditorch.errors import BackendError
from ditorch.redirect import Redirect, precision, reductions
from ditorch.redirect.patch import Patches

# what a group without a backend has for the CPU: in torch 2.5 and older, gloo
HAS_ONE_DEFAULT = hasattr(dist.ProcessGroup, "_set_default_backend")


@pytest.mark.usefixtures("redirect")
@pytest.mark.parametrize(
    ("name", "means"),
    [
        ("nccl", {"sim": "simccl", "cpu": "simccl"}),
        ("NCCL", {"sim": "simccl", "cpu": "simccl"}),
        ("cuda:nccl,cpu:gloo", {"sim": "simccl", "cpu": "gloo"}),
        ("cpu:gloo,cuda:nccl", {"sim": "simccl", "cpu": "gloo"}),
        ("gloo", {"cpu": "gloo", "cuda": "gloo"}),
        ("undefined", {"sim": "simccl"} if HAS_ONE_DEFAULT else {"sim": "simccl", "cpu": "gloo"}),
    ],
)
def test_nccl_means_the_accelerators_collectives(name, means):
    config = dist.distributed_c10d.BackendConfig(dist.Backend(name))
    assert config.get_device_backend_map() == means


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("nccl", ["nccl", "cuda:nccl"]),
        ("cuda:nccl", ["cuda:nccl", "cuda:nccl"]),
        ("cpu:gloo,cuda:nccl", ["cpu:gloo,cuda:nccl", "cpu:gloo,cuda:nccl"]),
        ("gloo", ["gloo", "cpu:gloo,cuda:gloo"]),
        ("", ["undefined", "cuda:nccl" if HAS_ONE_DEFAULT else "cpu:gloo,cuda:nccl"]),
    ],
)
def test_a_group_says_what_the_program_asked_for(run_python, asked, said):
    program = f"""
        import torch, ditorch, torch.distributed as dist
        dist.init_process_group({asked!r} or None, store=dist.HashStore(), rank=0, world_size=1)
        print(dist.get_backend(), dist.get_backend_config())
        tensor = torch.ones(1, device="cuda")
        dist.all_reduce(tensor)
        dist.new_group(backend=dist.get_backend_config())
        dist.destroy_process_group()
    """
    assert run_python(program, DITORCH_BACKEND="sim", DITORCH_DISABLE_MOCK="0").stdout.split() == said


@pytest.mark.usefixtures("redirect")
def test_nccl_is_available():
    assert dist.is_nccl_available()


@pytest.mark.skipif(hasattr(dist, "ProcessGroupNCCL"), reason="this torch was built with NCCL")
@pytest.mark.usefixtures("redirect")
def test_options_for_nccl_can_be_made_and_groups_of_nccl_cannot():
    options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
    options.config.max_ctas = 4
    assert not isinstance(options, dist.ProcessGroupNCCL)
    with pytest.raises(BackendError, match=r"ProcessGroupNCCL does not exist on sim .*: it needs NCCL"):
        dist.ProcessGroupNCCL(None, 0, 1, options)


def _worker(rank, store, results):
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
        reductions.apply(patches, replace(SIM, lacks_reductions=("AVG",)))
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
            base = torch.empty(2, device="cuda")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # it is deprecated, and used
                dist._reduce_scatter_base(base, value(), op=dist.ReduceOp.AVG)
            plain = value()
            dist.all_reduce(plain)
            together, part_together = value(), torch.empty(2, device="cuda")
            with dist._coalescing_manager():
                dist.all_reduce(together, op=dist.ReduceOp.AVG)
            with dist._coalescing_manager():
                dist.reduce_scatter_tensor(part_together, value(), op=dist.ReduceOp.AVG)
            averages = (tensor, later, future, part, base, together, part_together)
            return [t[0].item() for t in (*averages, plain)] == [1.5] * len(averages) + [3.0]
        finally:
            patches.undo()

    def averages_are_brought_to_one_process():
        patches = Patches()
        reductions.apply(patches, replace(SIM, lacks_reductions=("AVG",)))
        half = torch.distributed._make_nccl_premul_sum(0.5)
        try:
            tensor, later, premultiplied = value(), value(), value()
            dist.reduce(tensor, 1, op=dist.ReduceOp.AVG)
            dist.reduce(later, dst=1, op=dist.ReduceOp.AVG, async_op=True).wait()
            dist.reduce(premultiplied, dst=1, op=half)
            return [t[0].item() for t in (tensor, later, premultiplied)] == [1.5 if rank == 1 else 1.0] * 3
        finally:
            patches.undo()

    def what_a_process_gives_to_reduce_stays_as_it_is():
        tensor, later = value(), value()
        dist.reduce(tensor, 0)
        work = dist.reduce(later, 0, async_op=True)
        work.wait()
        return [tensor[0].item(), later[0].item()] == [3.0 if rank == 0 else 2.0] * 2

    def averages_of_sixteen_bit_tensors_in_float32():
        patches = precision.applied(["all_reduce", "reduce", "reduce_scatter"])
        try:
            large = torch.full(
                (2,), 40_000.0 + 1_024 * rank, dtype=torch.float16, device="cuda"
            )  # the sum is too large
            everywhere, here, part, later = (large.clone() for _ in range(4))
            dist.all_reduce(everywhere, dist.ReduceOp.AVG)
            dist.reduce(here, 1, dist.ReduceOp.AVG)
            dist.reduce_scatter_tensor(part[:1], large, dist.ReduceOp.AVG)
            dist.reduce(later, 1, dist.ReduceOp.AVG, async_op=True).wait()
            brought = 40_512.0 if rank == 1 else 40_000.0
            return [t[0].item() for t in (everywhere, here, part, later)] == [40_512.0, brought, 40_512.0, brought]
        finally:
            patches.undo()

    def averages_of_whole_numbers_are_whole():
        tensor, later = torch.tensor([rank, -rank, 7], device="cuda"), torch.tensor([5 + rank], device="cuda")
        dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
        dist.all_reduce(later, op=dist.ReduceOp.AVG, async_op=True).wait()
        return [*tensor.tolist(), *later.tolist()] == [0, 0, 7, 5]

    def premultiplied_sums_are_emulated():
        half = torch.distributed._make_nccl_premul_sum(0.5)
        tensor, later, part, parts = value(), value(), torch.empty(2, device="cuda"), torch.empty(2, device="cuda")
        whole = value()
        dist.all_reduce(tensor, op=half)
        dist.all_reduce(later, half, async_op=True).wait()
        dist.reduce_scatter_tensor(part, whole, op=half)
        dist.reduce_scatter(parts, list(whole.chunk(2)), op=half)
        return whole[0].item() == rank + 1 and [t[0].item() for t in (tensor, later, part, parts)] == [1.5] * 4

    def fully_sharded_with_a_gradient_factor():
        from torch.distributed import fsdp

        model = torch.nn.Linear(4, 1, bias=False, device="cuda")
        if hasattr(fsdp, "fully_shard"):  # torch 2.6 and newer
            fsdp.fully_shard(model)
        if not hasattr(model, "set_gradient_divide_factor"):  # torch 2.8 and newer
            return True
        model.set_gradient_divide_factor(1.0)
        model(value()).sum().backward()
        return model.weight.grad.full_tensor()[0].tolist() == [3.0] * 4

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

    def options_of_nccl():
        group = dist.new_group([0, 1], backend="nccl", pg_options=dist.ProcessGroupNCCL.Options())
        dist.distributed_c10d._set_pg_timeout(timedelta(minutes=1), group)
        tensor = value()
        dist.all_reduce(tensor, group=group)
        return tensor[0].item() == 3

    def group_of_the_device_alone():
        group = dist.new_group([0, 1], backend="cuda:nccl")
        tensor = value()
        dist.all_reduce(tensor, group=group)
        return tensor[0].item() == 3

    def random_tensors_of_a_mesh():
        try:
            from torch.distributed.tensor import Shard, distribute_tensor
        except ImportError:  # torch 2.4
            from torch.distributed._tensor import Shard, distribute_tensor

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

    def coalesced(device, async_ops):
        sums, parts = [value(), value() + 1], [torch.zeros(8, device="cuda") for _ in range(2)]
        for collective in (
            lambda: [dist.all_reduce(tensor) for tensor in sums],
            lambda: [dist.all_gather_into_tensor(tensor, value()) for tensor in parts],
        ):
            with dist._coalescing_manager(device=device, async_ops=async_ops) as together:
                collective()
            if async_ops:
                together.wait()
        return [tensor[0].item() for tensor in sums] == [3, 5] and all(tensor[-1].item() == 2 for tensor in parts)

    def coalescing():
        return all(coalesced(where, later) for where in (None, device) for later in (False, True))

    def coalescing_of_sends_and_receives():
        received = [torch.zeros(4, device="cuda") for _ in range(2)]
        for tensor, async_ops in zip(received, (False, True)):
            with dist._coalescing_manager(device=device, async_ops=async_ops) as together:
                dist.isend(value(), 1 - rank)
                dist.irecv(tensor, 1 - rank)
            if async_ops:
                together.wait()
        return all(tensor[0].item() == 2 - rank for tensor in received)

    checks = (
        average_is_emulated,
        averages_are_brought_to_one_process,
        what_a_process_gives_to_reduce_stays_as_it_is,
        averages_of_sixteen_bit_tensors_in_float32,
        averages_of_whole_numbers_are_whole,
        premultiplied_sums_are_emulated,
        fully_sharded_with_a_gradient_factor,
        coalescing,
        coalescing_of_sends_and_receives,
        pipeline,
        subgroup,
        options_of_nccl,
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
    assert len(outcomes) == 2 * 15
    assert {outcome for _, _, outcome in outcomes} == {"ok"}, outcomes


def test_sixteen_bit_tensors_are_reduced_in_float32_where_the_user_asks(run_python):
    program = """
        import warnings, torch, ditorch, torch.distributed as dist
        from torch.utils._python_dispatch import TorchDispatchMode
        from torch.utils._pytree import tree_flatten

        class Seen(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                if function.namespace == "c10d":
                    tensors = filter(torch.is_tensor, tree_flatten(args)[0])
                    print(function._schema.name, {each.dtype for each in tensors})
                return function(*args, **(kwargs or {}))

        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
        half, brain, whole, single = (
            torch.full((4,), 3, dtype=dtype, device="cuda")
            for dtype in (torch.float16, torch.bfloat16, torch.int32, torch.float32)
        )
        part, later = torch.empty_like(half), half.clone()
        with Seen():
            dist.all_reduce(half, op=dist.ReduceOp.AVG)
            work = dist.all_reduce(later, async_op=True)
            assert work.get_future().wait()[0] is later and work.result()[0] is later
            dist.reduce_scatter_tensor(part, brain)
            dist.reduce_scatter(part, [half])
            for left_alone in (lambda: dist.reduce(half, 0), lambda: dist.all_reduce(half, dist.ReduceOp.MAX)):
                left_alone()
            dist.all_reduce(whole)
            dist.all_reduce(single)
        assert [each[0].item() for each in (half, brain, part, later, whole, single)] == [3] * 6
        assert (half.dtype, part.dtype, brain.dtype) == (torch.float16, torch.float16, torch.bfloat16)
        ditorch.uninstall()
    """
    done = run_python(
        program,
        DITORCH_BACKEND="sim",
        DITORCH_DISABLE_MOCK="0",
        DITORCH_FLOAT32_COLLECTIVES="all_reduce, reduce_scatter",
    )
    assert "ditorch: 16-bit tensors are reduced in float32 by all_reduce, reduce_scatter\n" in done.stderr
    # Gloo of torch 2.4 cannot scatter a list: its sum is made by another collective
    said = done.stdout.replace("reduce_scatter_ {torch.float32}\nc10d::allreduce_", "reduce_scatter_")
    assert said.splitlines() == [
        "c10d::allreduce_ {torch.float32}",
        "c10d::allreduce_ {torch.float32}",
        "c10d::_reduce_scatter_base_ {torch.float32}",
        "c10d::reduce_scatter_ {torch.float32}",
        "c10d::reduce_ {torch.float16}",
        "c10d::allreduce_ {torch.float16}",
        "c10d::allreduce_ {torch.int32}",
        "c10d::allreduce_ {torch.float32}",
    ]


def test_what_is_not_reduced_in_float32_is_said(run_python):
    program = """
        import torch, ditorch, torch.distributed as dist
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
        torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2).bfloat16().cuda())
        with dist._coalescing_manager():
            dist.all_reduce(torch.ones(2, dtype=torch.float16, device="cuda"))
        ditorch.uninstall()
    """
    done = run_python(program, DITORCH_BACKEND="sim", DITORCH_DISABLE_MOCK="0", DITORCH_FLOAT32_COLLECTIVES="all")
    assert (
        "does not reach the gradients of DistributedDataParallel, which are reduced in C++: give it a hook"
        in done.stderr
    )
    assert "all_reduce inside a _coalescing_manager stays in torch.float16" in done.stderr


def test_gradients_are_timed_without_a_warning(run_python):
    program = """
        import torch, ditorch, torch.distributed as dist
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64).cuda(), device_ids=[0])
        for _ in range(3):
            model(torch.ones(8, 64, device="cuda")).sum().backward()
        said = model._get_ddp_logging_data()
        print(said["avg_forward_compute_time"] > 0, said["avg_backward_compute_time"] > 0)
        dist.destroy_process_group()
    """
    done = run_python(program, DITORCH_BACKEND="sim", DITORCH_DISABLE_MOCK="0")
    assert "ime stats" not in done.stderr  # are "only collected for CPU and CUDA devices" where a device has no timer
    assert done.stdout.split() == ["True", "True"]


@pytest.mark.skipif(not hasattr(dist.Work, "block_current_stream"), reason="a release without it")
def test_a_stream_that_cannot_wait_for_work_has_it_waited_for(run_python):
    program = """
        import torch, ditorch, torch.distributed as dist
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
        tensor = torch.full((3,), 2.0, device="cuda")
        work = dist.all_reduce(tensor, async_op=True)
        work.block_current_stream()
        print(work.is_completed(), (tensor + 1).tolist())
        dist.destroy_process_group()
    """
    assert run_python(program, DITORCH_BACKEND="sim", DITORCH_DISABLE_MOCK="0").stdout == "True [3.0, 3.0, 3.0]\n"


@pytest.mark.skipif(not hasattr(dist.ProcessGroup, "_set_default_backend"), reason="this torch asks by name in C++")
@pytest.mark.parametrize("asked", ["nccl", "cpu:gloo,cuda:nccl", ""])
def test_a_group_knows_its_default_collectives_as_with_nccl(run_python, asked):
    program = f"""
        import torch, ditorch
        import torch.distributed as dist
        dist.init_process_group({asked or None!r}, store=dist.HashStore(), rank=0, world_size=1)
        print(dist.group.WORLD.name())
        dist.destroy_process_group()  # it asks the default collectives for hooks
    """
    done = run_python(program, DITORCH_BACKEND="sim", DITORCH_DISABLE_MOCK="0")
    assert "undefined" not in done.stdout
    assert "No backend of type" not in done.stderr
