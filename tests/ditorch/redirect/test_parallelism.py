"""Ways to split a model between processes, as programs for CUDA do, each compared with one process.

Three processes: shares are uneven, and some process may get nothing. See tests/ranks.py.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import shutil
import tempfile
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from ditorch.backends.sim import SIM
from ditorch.redirect import Redirect

from ... import ranks

ATTENTION = "_scaled_dot_product_fused_attention_overrideable"
pytestmark = pytest.mark.skipif(
    not hasattr(torch.ops.aten, ATTENTION)
    or not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{ATTENTION}", "Meta"),
    reason="DTensor of this torch cannot plan with a chip's attention",
)

SIZE = 3
BOUND = True


def start_rank(rank):
    os.environ["DITORCH_SIM_DEVICES"] = str(SIZE)
    warnings.simplefilter("ignore", FutureWarning)  # PyTorch's own, about names that it uses itself
    SIM.start()
    Redirect(SIM)
    torch.cuda.set_device(rank)
    return "cuda"


@pytest.fixture(scope="module")
def results(tmp_path_factory, worker_id):
    return functools.partial(ranks.read, ranks.start(__name__, SIZE, "nccl", tmp_path_factory, worker_id))


def mesh():
    return dist.init_device_mesh("cuda", (SIZE,))


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def difference(some, others):
    return max((whole(one).float() - whole(other).float()).abs().max().item() for one, other in zip(some, others))


def message(function, *args, **kwargs):
    """What a call fails with; in every process alike."""
    try:
        function(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 (it is the result)
        return f"{type(error).__name__}: {error}"


# ---- context parallelism -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def options(balanced, rotation="allgather"):
    from torch.distributed.tensor.experimental import _attention

    before = _attention._cp_options.enable_load_balance
    _attention._cp_options.enable_load_balance = balanced
    _attention.set_rotate_method(rotation)
    try:
        yield
    finally:
        _attention._cp_options.enable_load_balance = before
        _attention.set_rotate_method("allgather")


def own_share(balanced, length, rank):
    if not balanced:
        return torch.arange(length).chunk(SIZE)[rank]
    chunks = torch.arange(length).chunk(2 * SIZE)
    return torch.cat([chunks[rank], chunks[-1 - rank]])


def context_parallel(
    rank, device, balanced=True, causal=True, keys=4, dtype=torch.float32, inside=True, length=4 * SIZE, **others
):
    """The largest difference of attention and its gradients to what one process computes."""
    from torch.distributed.tensor.experimental import context_parallel

    torch.manual_seed(0)
    tensors = [torch.randn(2, heads, length, 16, device=device).to(dtype) for heads in (4, keys, keys, 4)]
    arguments = {"is_causal": causal, "enable_gqa": keys != 4}
    share = own_share(balanced, length, rank).to(device)

    inputs = [tensor.clone().requires_grad_() for tensor in tensors[:3]]
    result = functional.scaled_dot_product_attention(*inputs, **arguments)
    (result * tensors[3]).sum().backward()
    expected = [tensor[:, :, share] for tensor in (result, *(tensor.grad for tensor in inputs))]
    weight = tensors.pop()[:, :, share]

    with contextlib.ExitStack() as stack:
        stack.enter_context(context_parallel(mesh(), buffers=tensors, buffer_seq_dims=[2] * 3))
        inputs = [tensor.clone().requires_grad_() for tensor in tensors]
        # looked up here: context_parallel puts another function in its place
        result = functional.scaled_dot_product_attention(*inputs, **{**arguments, **others})
        assert result.shape == inputs[0].shape
        if not inside:
            stack.close()
        (result * weight).sum().backward()
    return difference([result, *(tensor.grad for tensor in inputs)], expected)


def do_context_parallel(rank, device):
    found = {}
    for rotation in ("allgather", "alltoall"):
        with options(True, rotation):
            found[f"{rotation} balanced"] = context_parallel(rank, device)
            found[f"{rotation} shared keys"] = context_parallel(rank, device, keys=2)
            found[f"{rotation} float64"] = context_parallel(rank, device, dtype=torch.float64)
        with options(False, rotation):
            found[f"{rotation} unbalanced"] = context_parallel(rank, device, balanced=False)
            found[f"{rotation} not causal"] = context_parallel(rank, device, balanced=False, causal=False)
    found["bfloat16"] = context_parallel(rank, device, dtype=torch.bfloat16) / 1e4
    return found


def do_context_parallel_refuses(rank, device):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    attention = functools.partial(context_parallel, rank, device)
    refused = {
        "outside": message(attention, inside=False),
        "dropout": message(attention, dropout_p=0.5),
        "mask": message(attention, is_causal=False, attn_mask=torch.zeros(2, 4, 4, 12, device=device)),
    }
    with options(False):
        refused["dropout, not causal"] = message(attention, balanced=False, causal=False, dropout_p=0.5)
        with sdpa_kernel(SDPBackend.MATH):
            refused["math"] = message(attention, balanced=False, causal=False)
        refused["uneven"] = message(attention, balanced=False, causal=False, length=4 * SIZE + 1)
    return refused


def do_context_parallel_leaves_nothing_behind(rank, device):
    """After it, attention over tensors that are split along the sequence is plain again, backward too."""
    from torch.distributed.tensor import Shard

    context_parallel(rank, device)
    return attention_difference(device, Shard(2), is_causal=True)


def do_context_parallel_checks_the_kernel(rank, device):
    from ditorch import ring_attention

    forward = torch.ops.aten._scaled_dot_product_fused_attention_overrideable.default
    backward = torch.ops.aten._scaled_dot_product_fused_attention_overrideable_backward.default

    def with_another_statistic(*args):
        output, logsumexp, *others = forward(*args)
        return output, logsumexp.exp(), *others

    return message(ring_attention._check_kernel, with_another_statistic, backward, device, torch.float32, 16)


def test_context_parallel_equals_one_process(results):
    for found in results(do_context_parallel):
        assert {name: value for name, value in found.items() if not value < 1e-5} == {}


def test_what_cannot_be_a_ring_is_refused(results):
    for refused in results(do_context_parallel_refuses):
        assert "The backward pass of an attention that ran under context_parallel" in refused["outside"]
        assert "with a mask" in refused["math"]
        assert "cannot split a sequence of 13 evenly between 3 processes" in refused["uneven"]
        assert "ParallelismError: context_parallel works with fused" in refused["dropout, not causal"]
        assert all(refused.values())


def test_attention_after_context_parallel_is_plain(results):
    assert max(results(do_context_parallel_leaves_nothing_behind)) < 1e-5


def test_a_kernel_whose_parts_cannot_be_merged_is_refused(results):
    for refused in results(do_context_parallel_checks_the_kernel):
        assert "its attention kernel gives for parts of a sequence in torch.float32 cannot be merged" in refused


# ---- attention over tensors that are split -----------------------------------------------------------------------


def attention_difference(device, place, batch=4, heads=4, keys=4, mask=None, **arguments):
    from torch.distributed.tensor import Replicate, distribute_tensor

    torch.manual_seed(0)
    tensors = [torch.randn(batch, count, 6, 8, device=device) for count in (heads, keys, keys)]
    mask = None if mask is None else torch.randn(mask, device=device)

    def attention_and_gradients(tensors, mask):
        inputs = [tensor.clone().requires_grad_() for tensor in tensors]
        result = functional.scaled_dot_product_attention(*inputs, mask, enable_gqa=keys != heads, **arguments)
        result.square().sum().backward()
        return result.detach(), *(tensor.grad for tensor in inputs)

    parts = [distribute_tensor(tensor, mesh(), [place]) for tensor in tensors]
    part_of_mask = None if mask is None else distribute_tensor(mask, mesh(), [Replicate()])
    return difference(attention_and_gradients(parts, part_of_mask), attention_and_gradients(tensors, mask))


def do_attention_of_uneven_parts(rank, device):
    from torch.distributed.tensor import Replicate, Shard

    batch, heads, sequence, size = (Shard(dimension) for dimension in range(4))
    attention = functools.partial(attention_difference, device)
    return {
        "heads": attention(heads, is_causal=True),
        "fewer heads than processes": attention(heads, heads=2, keys=2),
        "one head": attention(heads, heads=1, keys=1),
        "batch": attention(batch, is_causal=True),
        "smaller batch than processes": attention(batch, batch=2),
        "shared keys": attention(heads, heads=6, keys=3),
        "shared keys, uneven": attention(heads, heads=4, keys=2),
        "sequence": attention(sequence, is_causal=True),
        "head size": attention(size, is_causal=True),
        "whole": attention(Replicate(), is_causal=True),
        "mask of all": attention(heads, mask=(6, 6)),
        "mask per head": attention(heads, mask=(1, 4, 6, 6)),
        "mask per batch and head": attention(batch, mask=(4, 4, 6, 6)),
        "mask per batch": attention(batch, mask=(4, 1, 6, 6)),
        "mask per head, with no batch": attention(heads, batch=3, heads=3, keys=3, mask=(3, 6, 6)),
    }


def test_attention_of_uneven_parts_equals_one_process(results):
    for found in results(do_attention_of_uneven_parts):
        assert {name: value for name, value in found.items() if not value < 1e-5} == {}


def do_rules_split_a_mask_like_what_it_belongs_to(rank, device):
    """A mask without a batch dimension begins with the heads. The simulated kernel takes none: a vendor's may."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    from ditorch import sharding

    query = distribute_tensor(torch.zeros(3, 3, 6, 8, device=device), mesh(), [Replicate()])
    mask = distribute_tensor(torch.zeros(3, 6, 6, device=device), mesh(), [Replicate()])
    places = {arguments[0]: arguments[3] for _, arguments in sharding._forward(query, query, query, mask)}
    return [str(places[place]) for place in (Replicate(), Shard(0), Shard(1))]


def test_rules_split_a_mask_like_what_it_belongs_to(results):
    assert results(do_rules_split_a_mask_like_what_it_belongs_to) == [["R", "R", "S(0)"]] * SIZE


# ---- training with uneven shards ---------------------------------------------------------------------------------


def small_model():
    torch.manual_seed(0)
    layers = nn.Linear(5, 7), nn.LayerNorm(7), nn.ReLU(), nn.Linear(7, 4, bias=False)
    return nn.Sequential(*layers).cuda()


def batches(rank):
    inputs = torch.randn(2 * SIZE, 5, generator=torch.Generator().manual_seed(1)).cuda()
    return inputs, inputs.chunk(SIZE)[rank]


def train(model, inputs, optimizer=None):
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        model(inputs).pow(2).mean().backward()
        optimizer.step()
    return [whole(parameter.detach()) for parameter in model.parameters()]


def do_fully_sharded(rank, device):
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    inputs, own = batches(rank)
    expected = train(small_model(), inputs)
    model = small_model()
    for layer in model:
        fully_shard(layer)
    found = {"fully_shard": difference(train(fully_shard(model) or model, own), expected)}

    model = FullyShardedDataParallel(small_model(), use_orig_params=True, device_id=rank)
    train(model, own)
    with FullyShardedDataParallel.summon_full_params(model):
        found["FullyShardedDataParallel"] = difference([p.detach() for p in model.parameters()], expected)
    return found


def do_clipped_gradients_of_shards(rank, device):
    from torch.distributed.fsdp import fully_shard

    inputs, own = batches(rank)
    one, model = small_model(), small_model()
    fully_shard(model)
    norms = []
    for each, data in ((one, inputs), (model, own)):
        each(data).pow(2).mean().backward()
        norms.append(whole(nn.utils.clip_grad_norm_(each.parameters(), 0.1)))
    gradients = [[parameter.grad for parameter in each.parameters()] for each in (model, one)]
    return {"norm": (norms[0] - norms[1]).abs().item(), "gradients": difference(*gradients)}


def do_split_optimizer(rank, device):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    inputs, own = batches(rank)
    model = DistributedDataParallel(small_model(), device_ids=[rank])
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01)
    return {"ZeRO-1": difference(train(model, own, optimizer), train(small_model(), inputs))}


def do_tensor_parallel(rank, device):
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    inputs, _ = batches(rank)
    torch.manual_seed(0)
    one = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 4)).cuda()
    model = copy.deepcopy(one)
    parallelize_module(model, mesh(), {"0": ColwiseParallel(use_local_output=False), "2": RowwiseParallel()})
    return {"TP": difference(train(model, inputs), train(one, inputs))}


def do_sequence_and_loss_parallel(rank, device):
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        loss_parallel,
        parallelize_module,
    )

    torch.manual_seed(0)
    one = nn.Sequential(nn.Embedding(10, 6), nn.LayerNorm(6), nn.Linear(6, 10, bias=False)).cuda()
    model = copy.deepcopy(one)
    tokens = torch.randint(0, 10, (2, 6)).cuda()
    plan = {
        "0": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "1": SequenceParallel(),
        "2": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
    }
    parallelize_module(model, mesh(), plan)
    losses = []
    for each, context in ((one, contextlib.nullcontext()), (model, loss_parallel())):
        with context:
            loss = functional.cross_entropy(each(tokens).flatten(0, 1), tokens.flatten())
            loss.backward()
        losses.append(whole(loss.detach()))
    gradients = [[parameter.grad for parameter in each.parameters()] for each in (model, one)]
    return {"loss": (losses[0] - losses[1]).abs().item(), "gradients": difference(*gradients)}


class Attention(nn.Module):
    """Heads of size 4, from tensors of shape (batch, sequence, width)."""

    def __init__(self, heads):
        super().__init__()
        width = 4 * heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x):
        split = [layer(x).unflatten(-1, (-1, 4)).transpose(1, 2) for layer in (self.query, self.key, self.value)]
        mixed = functional.scaled_dot_product_attention(*split, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


def attention_and_data(heads, length=12):
    torch.manual_seed(0)
    return Attention(heads).cuda(), torch.randn(2, length, 4 * heads).cuda()


def do_tensor_parallel_attention(rank, device):
    """A head for each process, and four heads for three of them."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    found = {}
    for heads in (SIZE, SIZE + 1):
        one, data = attention_and_data(heads)
        model = copy.deepcopy(one)
        plan = {name: ColwiseParallel(use_local_output=False) for name in ("query", "key", "value")}
        parallelize_module(model, mesh(), {**plan, "out": RowwiseParallel()})
        try:
            found[f"{heads} heads"] = difference(train(model, data), train(one, data))
        except Exception as error:  # noqa: BLE001 (it is the result)
            found[f"{heads} heads"] = f"{type(error).__name__}: {error}"
    return found


def test_tensor_parallel_attention_is_right_or_refused(results):
    for found in results(do_tensor_parallel_attention):
        assert found["3 heads"] < 1e-5
        uneven = found["4 heads"]
        assert "not evenly divisible" in uneven or "uneven" in uneven if isinstance(uneven, str) else uneven < 1e-5


def do_two_dimensions_of_shards(rank, device):
    """FSDP2 beside tensor parallelism, and hybrid shards: along either dimension nothing divides evenly."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    inputs, own = batches(rank)
    torch.manual_seed(0)
    one = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 4)).cuda()
    expected = train(copy.deepcopy(one), inputs)
    found = {}
    for shape, data in (((SIZE, 1), own), ((1, SIZE), inputs)):
        whole_mesh = dist.init_device_mesh("cuda", shape, mesh_dim_names=("data", "tensor"))
        model = copy.deepcopy(one)
        plan = {"0": ColwiseParallel(use_local_output=False), "2": RowwiseParallel()}
        parallelize_module(model, whole_mesh["tensor"], plan)
        fully_shard(model, mesh=whole_mesh["data"])
        found[f"FSDP and TP, {shape}"] = difference(train(model, data), expected)
        hybrid = copy.deepcopy(one)
        fully_shard(hybrid, mesh=whole_mesh)
        found[f"hybrid, {shape}"] = difference(train(hybrid, own), expected)
    return found


def do_context_parallel_inside_fully_sharded(rank, device):
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.experimental import context_parallel

    one, data = attention_and_data(heads=2)
    model = copy.deepcopy(one)
    one(data).pow(2).mean().backward()
    fully_shard(model)
    with options(True), context_parallel(mesh(), buffers=[data], buffer_seq_dims=[1]):
        model(data).pow(2).mean().backward()
    gradients = [[parameter.grad for parameter in each.parameters()] for each in (model, one)]
    return {"CP and FSDP": difference(*gradients)}


def do_reductions_of_uneven_shards(rank, device):
    """What only NCCL has, made of sums, under FSDP2: averages of 16 bits in float32, premultiplied sums."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    from ditorch.redirect import precision

    inputs, own = batches(rank)
    found = {}
    one = small_model()
    one(inputs).pow(2).mean().backward()
    wanted = [parameter.grad for parameter in one.parameters()]
    patches = precision.applied(["all_reduce", "reduce_scatter"])
    try:
        model = small_model()
        fully_shard(model, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.bfloat16))
        model(own).pow(2).mean().backward()
        found["bfloat16"] = difference([p.grad for p in model.parameters()], wanted) / 1e3
    finally:
        patches.undo()
    model = small_model()
    fully_shard(model)
    if hasattr(model, "set_gradient_divide_factor"):  # torch 2.8 and newer
        model.set_gradient_divide_factor(2.0)
        model(own).pow(2).mean().backward()
        doubled = [2 * whole(p.grad) / SIZE for p in model.parameters()]
        found["divided by two"] = difference(doubled, wanted)
    return found


def do_collectives_of_uneven_parts(rank, device):
    sizes = [1, 4, 2]
    parts = [torch.full((size,), 10.0 * rank + index, device=device) for index, size in enumerate(sizes)]
    gathered = [torch.empty(size, device=device) for size in sizes]
    own = torch.full((sizes[rank],), float(rank), device=device)
    dist.all_gather(gathered, own)
    received = torch.empty(SIZE * sizes[rank], device=device)
    dist.all_to_all_single(received, torch.cat(parts), [sizes[rank]] * SIZE, sizes)
    together = [torch.full((size,), rank + 1.0, device=device) for size in (SIZE, 4 * SIZE)]
    scattered = [torch.empty(size, device=device) for size in (1, 4)]
    with dist._coalescing_manager():
        for output, given in zip(scattered, together):
            dist.reduce_scatter_tensor(output, given, op=dist.ReduceOp.AVG)
    expected = [
        *(torch.full((size,), float(index), device=device) for index, size in enumerate(sizes)),
        torch.cat([torch.full((sizes[rank],), 10.0 * sender + rank, device=device) for sender in range(SIZE)]),
        *(torch.full_like(output, 2.0) for output in scattered),
    ]
    return {"collectives": difference([*gathered, received, *scattered], expected)}


def do_checkpoint_of_uneven_shards(rank, device):
    from torch.distributed import checkpoint
    from torch.distributed.fsdp import fully_shard

    place = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(place, 0)
    saved, loaded = small_model(), small_model()
    fully_shard(saved)
    train(saved, batches(rank)[1])
    checkpoint.save({"model": saved.state_dict()}, checkpoint_id=place[0])
    fully_shard(loaded)
    state = {"model": loaded.state_dict()}
    checkpoint.load(state, checkpoint_id=place[0])
    loaded.load_state_dict(state["model"])
    dist.barrier()
    if rank == 0:
        shutil.rmtree(place[0])
    return {"checkpoint": difference(*([p.detach() for p in each.parameters()] for each in (saved, loaded)))}


def do_synchronized_batch_norm_of_uneven_batches(rank, device):
    torch.manual_seed(0)
    sizes = [2, 3, 4]
    inputs, weight = torch.randn(9, 6, 3, device=device), torch.randn(9, 6, 3, device=device)
    one, given = nn.BatchNorm1d(6).cuda(), inputs.clone().requires_grad_()
    (one(given) * weight).sum().backward()
    model = nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm1d(6)).cuda()
    model = DistributedDataParallel(model, device_ids=[rank])
    own = inputs.split(sizes)[rank].clone().requires_grad_()
    (model(own) * weight.split(sizes)[rank]).sum().backward()
    expected = [given.grad.split(sizes)[rank], one.running_mean, one.running_var, one.weight.grad / SIZE]
    found = [own.grad, model.module.running_mean, model.module.running_var, model.module.weight.grad]
    return {"batch norm": difference(found, expected)}


@pytest.mark.parametrize(
    "function",
    [
        do_fully_sharded,
        do_clipped_gradients_of_shards,
        do_split_optimizer,
        do_tensor_parallel,
        do_sequence_and_loss_parallel,
        do_two_dimensions_of_shards,
        do_context_parallel_inside_fully_sharded,
        do_reductions_of_uneven_shards,
        do_collectives_of_uneven_parts,
        do_checkpoint_of_uneven_shards,
        do_synchronized_batch_norm_of_uneven_batches,
    ],
    ids=lambda function: function.__name__[3:],
)
def test_training_with_uneven_shards_equals_one_process(results, function):
    for found in results(function):
        assert {name: value for name, value in found.items() if not value < 1e-5} == {}


# ---- groups and what is asked of them ----------------------------------------------------------------------------


def sum_of_ranks(group, rank):
    tensor = torch.full((1,), float(rank), device="cuda")
    dist.all_reduce(tensor, group=group)
    return tensor.item()


def do_groups_of_a_bound_group(rank, device):
    """The default group is bound to a device: PyTorch splits it then, which only NCCL can."""
    flat = dist.init_device_mesh("cuda", (1, SIZE), mesh_dim_names=("outer", "inner"))
    others = [dist.init_device_mesh("cuda", (SIZE,)).get_group(), dist.new_group(list(range(SIZE)))]
    part = dist.split_group(split_ranks=[[0, 2], [1]])
    alone = dist.split_group(parent_pg=part, split_ranks=[[0]])  # the first process of each part
    none = dist.split_group(split_ranks=[[0, 2]])
    return {
        "mesh": [sum_of_ranks(flat.get_group(name), rank) for name in ("outer", "inner")],
        "others": [sum_of_ranks(group, rank) for group in others],
        "part": sum_of_ranks(part, rank),
        "part of a part": None if alone is None else dist.get_process_group_ranks(alone),
        "outside": none is None,
        "no empty part": message(dist.split_group, split_ranks=[[], [0, 1, 2]]),
        "names": [str(dist.get_backend(group)) for group in (None, part, flat.get_group("inner"))],
    }


def test_a_bound_group_can_be_split(results):
    first, second, third = results(do_groups_of_a_bound_group)
    assert [found["mesh"] for found in (first, second, third)] == [[0, 3], [1, 3], [2, 3]]
    assert [found["others"] for found in (first, second, third)] == [[3, 3]] * SIZE
    assert [found["part"] for found in (first, second, third)] == [2, 1, 2]
    assert [found["part of a part"] for found in (first, second, third)] == [[0], [1], None]
    assert [found["outside"] for found in (first, second, third)] == [False, True, False]
    assert "the split group cannot be empty" in first["no empty part"]


def test_a_group_is_called_what_the_program_called_it(results):
    assert [found["names"] for found in results(do_groups_of_a_bound_group)] == [["nccl"] * 3] * SIZE


def do_compressed_gradients(rank, device):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    found = []
    for hook in (default_hooks.bf16_compress_hook, default_hooks.bf16_compress_wrapper(default_hooks.allreduce_hook)):
        model = DistributedDataParallel(nn.Linear(2, 1, bias=False).cuda(), device_ids=[rank])
        model.register_comm_hook(None, hook)
        model(torch.full((1, 2), rank + 1.0, device=device)).sum().backward()
        found.append(model.module.weight.grad.tolist())
    return found


def test_gradients_can_be_compressed_to_bfloat16(results):
    assert results(do_compressed_gradients) == [[[[2, 2]], [[2, 2]]]] * SIZE


def do_gradients_of_low_rank(rank, device):
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    model = DistributedDataParallel(nn.Linear(4, 4, bias=False).cuda(), device_ids=[rank])
    state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=1)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    found = []
    for _ in range(4):  # from the third on, gradients are products of two matrices
        model.zero_grad()
        model(torch.full((1, 4), rank + 1.0, device=device)).sum().backward()
        found.append(model.module.weight.grad)
    return [(gradient - 2).abs().max().item() < 1e-5 for gradient in found]


def test_gradients_can_be_compressed_by_power_iteration(results):
    assert results(do_gradients_of_low_rank) == [[True] * 4] * SIZE


def do_symmetric_memory(rank, device):
    from torch.distributed import _symmetric_memory

    x = torch.zeros(4, device=device)
    return [
        message(_symmetric_memory.rendezvous, x, dist.group.WORLD),
        message(torch.ops.symm_mem.one_shot_all_reduce, x, "sum", "0"),
        message(torch.ops.symm_mem.fused_matmul_reduce_scatter, x[None], x[:, None], "sum", 0, "0"),
    ]


def test_symmetric_memory_is_refused_in_clear_words(results):
    names = "distributed._symmetric_memory.rendezvous", "ops.symm_mem.one_shot", "ops.symm_mem.fused_matmul"
    for refused in results(do_symmetric_memory):
        for name, text in zip(names, refused):
            assert f"MissingOnBackendError: torch.{name}" in text
            assert ": sim (simulated accelerator) has no symmetric memory" in text
