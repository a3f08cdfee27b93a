"""Trains a small GPT for two steps, in one process or several: `parallel_program.py one|batch|fsdp|tensor`."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

import ditorch

ditorch.install()
WIDTH, HEADS, VOCAB, LENGTH, BATCH = 64, 4, 96, 12, 4


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.proj = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        b, s, _ = x.shape
        y = self.norm1(x)
        q, k, v = (layer(y).view(b, s, -1, WIDTH // HEADS).transpose(1, 2) for layer in (self.q, self.k, self.v))
        scores = (q @ k.transpose(-1, -2)) * (WIDTH // HEADS) ** -0.5
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, s, -1)
        x = x + self.proj(mixed)
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tok = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tok(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def parallel(model: Model, kind: str) -> nn.Module:
    if kind == "batch":
        return nn.parallel.DistributedDataParallel(model)
    if kind == "fsdp":
        from torch.distributed.fsdp import fully_shard

        for block in model.blocks:
            fully_shard(block)
        return fully_shard(model)
    if kind == "tensor":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        mesh = init_device_mesh("cuda", (2,))
        for block in model.blocks:
            columns = dict.fromkeys(("q", "k", "v", "up"), ColwiseParallel())
            parallelize_module(block, mesh, {**columns, "proj": RowwiseParallel(), "down": RowwiseParallel()})
    return model


def main() -> None:
    kind = sys.argv[1]
    rank = int(os.environ.get("RANK", "0"))
    torch.set_num_threads(1)
    torch.cuda.set_device(0)
    if kind != "one":
        dist.init_process_group("nccl")
    torch.manual_seed(0)
    model = parallel(Model().cuda(), kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    for step in range(2):
        ids = torch.randint(VOCAB, (BATCH, LENGTH), generator=torch.Generator().manual_seed(step))
        if kind in ("batch", "fsdp"):
            ids = ids.chunk(2)[rank]
        ids = ids.cuda()
        loss = functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"loss {loss.item():.6f}")
    if kind != "one":
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
