"""Data-parallel training with nccl, written for two CUDA GPUs, in processes of its own. It knows nothing of ditorch:

ditorch run examples/train_ddp.py
"""

import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def worker(rank: int, size: int, port: int) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=size)
    torch.manual_seed(rank)  # DDP gives all the weights of rank 0
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))
    model = nn.SyncBatchNorm.convert_sync_batchnorm(model).cuda(rank)
    model = DistributedDataParallel(model, device_ids=[rank], output_device=rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(20):
        data = torch.randn(16, 8, device=f"cuda:{rank}")
        loss = nn.functional.mse_loss(model(data), data.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    total = loss.detach().clone()
    dist.all_reduce(total, op=dist.ReduceOp.AVG)
    weights = [torch.empty_like(model.module[0].weight) for _ in range(size)]
    dist.all_gather(weights, model.module[0].weight.detach())
    assert all(torch.equal(weights[0], other) for other in weights)
    dist.barrier(device_ids=[rank])
    if rank == 0:
        print(f"{size} GPUs agree on the weights, mean loss {total.item():.3f}")
    dist.destroy_process_group()


def main() -> None:
    assert torch.cuda.device_count() >= 2, "this program needs two GPUs"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(worker, args=(2, port), nprocs=2)


if __name__ == "__main__":
    main()
