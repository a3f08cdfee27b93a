"""Fully sharded training with a device mesh, written for CUDA, started by torchrun. It knows nothing of ditorch:

torchrun --nproc_per_node=2 -m ditorch run examples/train_fsdp2.py
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor


def main() -> None:
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("cuda:nccl,cpu:gloo")
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4)).cuda()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    assert all(isinstance(parameter, DTensor) for parameter in model.parameters())

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(rank)
    losses = []
    for _ in range(20):
        data = torch.randn(32, 16, device="cuda")
        loss = nn.functional.mse_loss(model(data).float(), data[:, :4])
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    assert losses[-1] < losses[0]

    sharded = distribute_tensor(torch.arange(8.0, device="cuda"), mesh, [Shard(0)])
    assert (sharded * 2).full_tensor().tolist() == [0, 2, 4, 6, 8, 10, 12, 14]
    if rank == 0:
        print(f"{mesh}: loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
