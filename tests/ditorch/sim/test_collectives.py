"""Collectives between two processes, each on a device of its own: see tests/ranks.py."""

from __future__ import annotations

import functools
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ditorch import sim

from ... import ranks

SIZE = 2
ATTENTION = "_scaled_dot_product_fused_attention_overrideable"
KNOWS_SHAPE_OF_ATTENTION = hasattr(torch.ops.aten, ATTENTION) and torch._C._dispatch_has_kernel_for_dispatch_key(
    f"aten::{ATTENTION}", "Meta"
)


# ---- what the processes do: (rank, device) -> something for JSON -------------------------------------------------


def do_all_reduce(rank, device):
    tensor = torch.full((3,), rank + 1.0, device=device)
    dist.all_reduce(tensor)
    largest = torch.tensor([rank, -rank], device=device)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return tensor.tolist(), largest.tolist(), str(tensor.device)


def do_all_reduce_of_a_view(rank, device):
    base = torch.full((2, 2), rank + 1.0, device=device)
    dist.all_reduce(base[1])
    return base.tolist()


def do_all_reduce_of_a_sparse_tensor(rank, device):
    with torch.sparse.check_sparse_tensor_invariants(True):
        tensor = torch.sparse_coo_tensor([[rank, 2]], [1.0, 2.0], (3,), device=device)
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    return tensor.to_dense().tolist(), str(tensor.device)


def do_sparse_gradients_in_data_parallel(rank, device):
    embedding = nn.Embedding(4, 2, sparse=True).to(device)
    with torch.no_grad():
        embedding.weight.fill_(1)
    model = DistributedDataParallel(embedding, device_ids=[rank])
    model(torch.tensor([rank, 3], device=device)).sum().backward()
    gradient = embedding.weight.grad
    return gradient.to_dense()[:, 0].tolist(), str(gradient.device), str(gradient.layout)


def do_reduce(rank, device):
    tensor = torch.full((2,), rank + 1.0, device=device)
    dist.reduce(tensor, dst=1)
    return tensor.tolist() if rank == 1 else None


def do_averages(rank, device):
    from torch.distributed import _functional_collectives as functional

    own = torch.tensor([1.0, 2.0], device=device) * (rank + 1)
    everywhere, at_one, part, whole = own.clone(), own.clone(), torch.zeros(1, device=device), own.int()
    dist.all_reduce(everywhere, op=dist.ReduceOp.AVG)
    dist.reduce(at_one, 1, op=dist.ReduceOp.AVG)
    dist.reduce_scatter_tensor(part, own, op=dist.ReduceOp.AVG)
    dist.all_reduce(whole, op=dist.ReduceOp.AVG)
    waited = functional.all_reduce(own, "avg", dist.group.WORLD) + 0
    return [tensor.tolist() for tensor in (everywhere, at_one, part, whole, waited)]


def do_broadcast(rank, device):
    tensor = torch.full((2,), float(rank), device=device)
    dist.broadcast(tensor, src=1)
    return tensor.tolist()


def do_all_gather(rank, device):
    parts = [torch.zeros(2, device=device) for _ in range(SIZE)]
    dist.all_gather(parts, torch.full((2,), float(rank), device=device))
    return [part.tolist() for part in parts]


def do_all_gather_into_tensor(rank, device):
    whole = torch.zeros(2 * SIZE, device=device)
    dist.all_gather_into_tensor(whole, torch.full((2,), float(rank), device=device))
    return whole.tolist()


def do_reduce_scatter_tensor(rank, device):
    part = torch.zeros(2, device=device)
    dist.reduce_scatter_tensor(part, torch.arange(4.0, device=device) * (rank + 1))
    return part.tolist()


def do_waiting_twice(rank, device):
    part = torch.zeros(1, device=device)
    work = dist.reduce_scatter_tensor(part, torch.arange(2.0, device=device), async_op=True)
    work.wait()
    part += 5
    work.wait()
    return part.tolist()


def do_all_to_all_single(rank, device):
    received = torch.zeros(2, device=device)
    dist.all_to_all_single(received, torch.tensor([10.0, 11.0], device=device) + 10 * rank)
    return received.tolist()


def do_gather(rank, device):
    parts = [torch.zeros(1, device=device) for _ in range(SIZE)] if rank == 0 else None
    dist.gather(torch.full((1,), float(rank + 5), device=device), parts, dst=0)
    return [part.tolist() for part in parts] if rank == 0 else None


def do_scatter(rank, device):
    parts = [torch.full((1,), float(i + 7), device=device) for i in range(SIZE)] if rank == 0 else None
    received = torch.zeros(1, device=device)
    dist.scatter(received, parts, src=0)
    return received.tolist()


def do_send_and_receive(rank, device):
    tensor = torch.full((2,), 4.0, device=device)
    if rank == 0:
        dist.send(tensor, dst=1)
    else:
        tensor.zero_()
        dist.recv(tensor, src=0)
    return tensor.tolist()


def do_batch_isend_irecv(rank, device):
    sent, received = torch.full((2,), float(rank), device=device), torch.full((2,), 9.0, device=device)
    other = 1 - rank
    work = dist.batch_isend_irecv([dist.P2POp(dist.isend, sent, other), dist.P2POp(dist.irecv, received, other)])
    for item in work:
        item.wait()
    return received.tolist()


def do_objects(rank, device):
    gathered = [None] * SIZE
    dist.all_gather_object(gathered, {"rank": rank})
    shared = ["from zero"] if rank == 0 else [None]
    dist.broadcast_object_list(shared, src=0)
    scattered = [None]
    dist.scatter_object_list(scattered, ["a", "b"] if rank == 0 else None, src=0)
    return gathered, shared, scattered


def do_asynchronous_work(rank, device):
    tensor = torch.full((2,), rank + 1.0, device=device)
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    future = dist.all_reduce(tensor.clone(), async_op=True).get_future()
    (result,) = future.wait()
    return work.is_completed(), tensor.tolist(), str(result.device) == device, result.tolist()


def do_new_group(rank, device):
    alone = [dist.new_group([i]) for i in range(SIZE)][rank]
    both = dist.new_group([0, 1])
    tensor = torch.full((1,), rank + 1.0, device=device)
    dist.all_reduce(tensor, group=alone)
    before = tensor.tolist()
    dist.all_reduce(tensor, group=both)
    return before, tensor.tolist(), dist.get_backend(both)


def do_host_tensors(rank, device):
    tensor = torch.full((2,), rank + 1.0)
    dist.all_reduce(tensor)
    return tensor.tolist(), tensor.device.type


def do_bfloat16(rank, device):
    tensor = torch.full((2,), rank + 1.0, device=device, dtype=torch.bfloat16)
    dist.all_reduce(tensor)
    return tensor.tolist(), str(tensor.dtype)


def do_float8(rank, device):
    """What only travels is bytes; sums of them are refused, as by NCCL."""
    own = torch.tensor([rank + 1.0, 0.5], device=device).to(torch.float8_e4m3fn)
    whole, parts = torch.zeros(4, device=device).to(own.dtype), [torch.zeros_like(own) for _ in range(SIZE)]
    dist.all_gather_into_tensor(whole, own)
    dist.all_gather(parts, own)
    dist.broadcast(own, src=1)
    (sent,) = dist.broadcast(own, src=1, async_op=True).get_future().wait()
    with pytest.raises(RuntimeError, match="Invalid scalar type"):
        dist.all_reduce(own)
    return whole.float().tolist(), parts[1].float().tolist(), own.float().tolist(), str(sent.dtype)


def do_parts_of_different_sizes(rank, device):
    """NCCL takes them in all_gather and all_to_all, gloo does not."""
    gathered = [torch.zeros(i + 1, device=device) for i in range(SIZE)]
    dist.all_gather(gathered, torch.full((rank + 1,), rank + 1.0, device=device))
    received = [torch.zeros(i + 1, 2, device=device) for i in range(SIZE)]
    dist.all_to_all(received, [torch.full((rank + 1, 2), 10.0 * rank + i, device=device) for i in range(SIZE)])
    with pytest.raises(RuntimeError, match="the list needs one tensor per process, and the one of this process"):
        dist.all_gather(gathered, torch.zeros(5, device=device))
    return [tensor.tolist() for tensor in gathered + received]


def do_times_of_data_parallel(rank, device):
    """Its statistics are kept without a warning; they appear after 10 iterations."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = DistributedDataParallel(nn.Linear(2, 1).to(device), device_ids=[rank])
        for _ in range(11):
            model(torch.ones(1, 2, device=device)).sum().backward()
        return model._get_ddp_logging_data().get("avg_backward_compute_time", 0) > 0


def do_mixed_devices(rank, device):
    try:
        dist.all_gather([torch.zeros(1), torch.zeros(1)], torch.zeros(1, device=device))
    except RuntimeError as error:
        return str(error)


def do_barrier(rank, device):
    dist.barrier()
    return True


def small_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))


def train(model, inputs):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        model(inputs).pow(2).mean().backward()
        optimizer.step()
    return [parameter.detach().cpu() for parameter in model.parameters()]


def do_data_parallel(rank, device):
    inputs = torch.arange(32.0).view(8, 4) / 10
    expected = train(small_model().to(device), inputs.to(device))

    model = small_model()
    if rank == 1:
        nn.init.zeros_(model[0].weight)  # the first process' weights win
    parallel = DistributedDataParallel(model.to(device), device_ids=[rank])
    trained = train(parallel, inputs[rank * 4 : rank * 4 + 4].to(device))
    torch.testing.assert_close(trained, expected)
    return [parameter.flatten().tolist() for parameter in trained]


def do_data_parallel_in_float16(rank, device):
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    model = DistributedDataParallel(nn.Linear(2, 1, bias=False).to(device), device_ids=[rank])
    model.register_comm_hook(None, fp16_compress_hook)
    model(torch.full((1, 2), rank + 1.0, device=device)).sum().backward()
    return model.module.weight.grad.tolist()


def do_captured_all_reduce(rank, device):
    x, graph = torch.zeros(2, device=device), torch.sim.SIMGraph()
    with torch.sim.graph(graph, stream=torch.sim.Stream(device)):
        y = x + rank
        work = dist.all_reduce(y, async_op=True)
        work.wait()
        z = y * 10
    found = []
    for number in (1.0, 2.0):
        x.fill_(number)
        graph.replay()
        found.append(z.tolist())
    return found


def do_captured_data_parallel(rank, device):
    """Forward and backward of DistributedDataParallel in one graph, or of modules that are graphs themselves."""
    inputs = (torch.arange(32.0).view(8, 4) / 10)[rank * 4 : rank * 4 + 4].to(device)
    plain = DistributedDataParallel(small_model().to(device), device_ids=[rank])
    expected = train(plain, inputs)

    side = torch.sim.Stream(device)
    with torch.sim.stream(side):
        parallel = DistributedDataParallel(small_model().to(device), device_ids=[rank])
        for _ in range(11):
            parallel(inputs).sum().backward()
        parallel.zero_grad(set_to_none=True)
    static, graph = inputs.clone(), torch.sim.SIMGraph()
    with torch.sim.graph(graph, stream=side):
        parallel(static).pow(2).mean().backward()
    plain.load_state_dict(parallel.state_dict())
    static.mul_(0.5)
    plain.zero_grad()
    plain(static).pow(2).mean().backward()
    graph.replay()
    same = [torch.equal(p.grad, q.grad) for p, q in zip(plain.parameters(), parallel.parameters())]
    return same, [parameter.flatten().tolist() for parameter in expected]


def do_attention_of_distributed_tensors(rank, device):
    """Attention over tensors that are split between the processes, forward and backward, against one process' own."""
    if not KNOWS_SHAPE_OF_ATTENTION:
        return None
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = dist.init_device_mesh("sim", (SIZE,))
    torch.manual_seed(0)
    batch, heads = Shard(0), Shard(1)
    query, mask = torch.randn(2, 4, 8, 16, device=device), torch.randn(2, 1, 8, 8, device=device)
    cases = {  # where query, key and value lie, how many heads share a key, and more
        "heads": (heads, 4, {"is_causal": True}),
        "batch": (batch, 4, {"is_causal": True}),
        "whole": (Replicate(), 4, {"is_causal": True}),
        "heads with a mask": (heads, 4, {"attn_mask": mask}),
        "batch with a mask": (batch, 4, {"attn_mask": mask}),
        "heads that share keys": (heads, 2, {"enable_gqa": True}),
        "heads that share one key": (heads, 1, {"enable_gqa": True}),
    }
    differences, split = {}, {}
    for name, (place, keys, options) in cases.items():
        whole = [query, torch.randn(2, keys, 8, 16, device=device), torch.randn(2, keys, 8, 16, device=device)]
        parts = [distribute_tensor(tensor, mesh, [place]) for tensor in whole]
        whole_results = attention_and_gradients(whole, options)
        if "attn_mask" in options:
            options = {"attn_mask": distribute_tensor(mask, mesh, [Replicate()])}
        results = attention_and_gradients(parts, options)
        split[name] = [str(tensor.placements[0]) for tensor in results]
        differences[name] = max(
            (part.full_tensor() - one).abs().max().item() for part, one in zip(results, whole_results)
        )
    return differences, split


def attention_and_gradients(tensors, options):
    inputs = [tensor.clone().requires_grad_() for tensor in tensors]
    result = nn.functional.scaled_dot_product_attention(*inputs, **options)
    result.square().sum().backward()
    return result.detach(), *(tensor.grad for tensor in inputs)


def do_attention_of_a_reshaped_distributed_tensor(rank, device):
    if not KNOWS_SHAPE_OF_ATTENTION:
        return None
    from torch.distributed.tensor import Shard, distribute_tensor

    def gradient(tensor):
        tensor.requires_grad_()
        query = tensor.reshape(2, 4, 8, 16)
        nn.functional.scaled_dot_product_attention(query, query, query).square().sum().backward()
        return tensor.grad

    torch.manual_seed(0)
    values = torch.randn(2, 4 * 8 * 16, device=device)
    parts = gradient(distribute_tensor(values, dist.init_device_mesh("sim", (SIZE,)), [Shard(1)]))
    return (parts.full_tensor() - gradient(values.clone())).abs().max().item()


# ---- the two processes -------------------------------------------------------------------------------------------


def start_rank(rank):
    sim.start()
    torch.sim.set_device(rank)
    return f"sim:{rank}"


@pytest.fixture(scope="module")
def results(tmp_path_factory, worker_id):
    return functools.partial(ranks.read, ranks.start(__name__, SIZE, "simccl", tmp_path_factory, worker_id))


@pytest.mark.parametrize(
    ("function", "first", "second"),
    [
        (do_all_reduce, [[3, 3, 3], [1, 0], "sim:0"], [[3, 3, 3], [1, 0], "sim:1"]),
        (do_all_reduce_of_a_view, [[1, 1], [3, 3]], [[2, 2], [3, 3]]),
        (do_all_reduce_of_a_sparse_tensor, [[1, 1, 4], "sim:0"], [[1, 1, 4], "sim:1"]),
        (
            do_sparse_gradients_in_data_parallel,
            [[0.5, 0.5, 0, 1], "sim:0", "torch.sparse_coo"],
            [[0.5, 0.5, 0, 1], "sim:1", "torch.sparse_coo"],
        ),
        (do_reduce, None, [3, 3]),
        (do_averages, *([[1.5, 3], kept, part, [1, 3], [1.5, 3]] for kept, part in (([1, 2], [1.5]), ([1.5, 3], [3])))),
        (do_broadcast, [1, 1], [1, 1]),
        (do_all_gather, [[0, 0], [1, 1]], [[0, 0], [1, 1]]),
        (do_all_gather_into_tensor, [0, 0, 1, 1], [0, 0, 1, 1]),
        (do_reduce_scatter_tensor, [0, 3], [6, 9]),
        (do_waiting_twice, [5], [7]),
        (do_all_to_all_single, [10, 20], [11, 21]),
        (do_gather, [[5], [6]], None),
        (do_scatter, [7], [8]),
        (do_send_and_receive, [4, 4], [4, 4]),
        (do_batch_isend_irecv, [1, 1], [0, 0]),
        (do_barrier, True, True),
        (do_bfloat16, [[3, 3], "torch.bfloat16"], [[3, 3], "torch.bfloat16"]),
    ],
    ids=lambda value: value.__name__[3:] if callable(value) else "",
)
def test_a_collective_gives_every_process_its_result(results, function, first, second):
    assert results(function) == [first, second]


def test_objects_travel(results):
    gathered = [{"rank": 0}, {"rank": 1}]
    assert results(do_objects) == [[gathered, ["from zero"], ["a"]], [gathered, ["from zero"], ["b"]]]


def test_asynchronous_work_completes_and_its_future_holds_device_tensors(results):
    assert results(do_asynchronous_work) == [[True, [3, 3], True, [6, 6]]] * 2


def test_a_new_group_has_its_own_members(results):
    assert results(do_new_group) == [[[1], [3], "simccl"], [[2], [3], "simccl"]]


def test_host_tensors_travel_in_the_same_group(results):
    assert results(do_host_tensors) == [[[3, 3], "cpu"]] * 2


def test_8_bit_floats_travel(results):
    for result in results(do_float8):
        assert result == [[1, 0.5, 2, 0.5], [2, 0.5], [2, 0.5], "torch.float8_e4m3fn"]


def test_parts_may_have_different_sizes(results):
    first, second = results(do_parts_of_different_sizes)
    assert first == [[1], [2, 2], [[0, 0]], [[10, 10], [10, 10]]]
    assert second == [[1], [2, 2], [[1, 1]], [[11, 11], [11, 11]]]


def test_data_parallel_keeps_times_without_a_warning(results):
    assert results(do_times_of_data_parallel) == [True, True]


def test_tensors_on_different_devices_do_not_mix_in_a_collective(results):
    for rank, message in enumerate(results(do_mixed_devices)):
        assert "Expected all tensors to be on the same device" in message
        assert f"sim:{rank} and cpu" in message


def test_data_parallel_training_equals_one_process_on_the_whole_batch(results):
    first, second = results(do_data_parallel)
    assert first == second
    assert any(any(values) for values in first)


def test_data_parallel_gradients_can_be_compressed(results):
    assert results(do_data_parallel_in_float16) == [[[1.5, 1.5]]] * 2


def test_a_collective_in_a_graph_runs_in_each_replay(results):
    assert results(do_captured_all_reduce) == [[[30.0, 30.0], [50.0, 50.0]]] * 2


def test_data_parallel_gradients_are_reduced_in_each_replay(results):
    for same, _ in results(do_captured_data_parallel):
        assert same
        assert all(same)


@pytest.mark.skipif(not KNOWS_SHAPE_OF_ATTENTION, reason="DTensor of this torch cannot plan with a chip's attention")
def test_attention_of_distributed_tensors_equals_one_process(results):
    for differences, split in results(do_attention_of_distributed_tensors):
        assert {name: value for name, value in differences.items() if not value < 1e-5} == {}
        # nothing was gathered that need not be
        assert set(split["heads"]) == set(split["heads with a mask"]) == set(split["heads that share keys"]) == {"S(1)"}
        assert set(split["batch"]) == set(split["batch with a mask"]) == {"S(0)"}


@pytest.mark.skipif(not KNOWS_SHAPE_OF_ATTENTION, reason="DTensor of this torch cannot plan with a chip's attention")
def test_gradients_of_attention_are_laid_out_like_its_inputs(results):
    assert max(results(do_attention_of_a_reshaped_distributed_tensor)) < 1e-5
