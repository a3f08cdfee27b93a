"""Trains a small GPT on a text, written for CUDA: mixed precision, checkpoints, one GPU or several.

python train_gpt.py --steps 20
torchrun --nproc_per_node=2 train_gpt.py --steps 20
python train_gpt.py --steps 40 --resume checkpoint.pt
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Characters(Dataset):
    """Pieces of a text, and the same shifted by one character."""

    def __init__(self, text, length):
        self.tokens = torch.tensor(list(text.encode("ascii", "ignore")))
        self.length = length

    def __len__(self):
        return (len(self.tokens) - 1) // self.length

    def __getitem__(self, index):
        begin = index * self.length
        piece = self.tokens[begin : begin + self.length + 1]
        return piece[:-1], piece[1:]


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / (width // self.heads) ** 0.5
        mask = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        weights = torch.softmax(scores.masked_fill(~mask, float("-inf")), dim=-1)
        return self.project((weights @ v).transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.down(F.gelu(self.up(self.mlp_norm(x))))


class GPT(nn.Module):
    def __init__(self, length, width=64, heads=4, layers=2, characters=128):
        super().__init__()
        self.token = nn.Embedding(characters, width)
        self.position = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, characters, bias=False)

    def forward(self, tokens):
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def save(path, step, model, optimizer, scaler):
    state = {
        "step": step,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scaler": scaler.state_dict(),
    }
    torch.save(state, path)


def load(path, device, model, optimizer, scaler):
    """The step at which to go on."""
    state = torch.load(path, map_location=device, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    scaler.load_state_dict(state["scaler"])
    return state["step"]


def batches(loader, sampler, first):
    """Batches without end; those before step `first` have been seen."""
    step, epoch = 0, 0
    while True:
        if sampler is not None:
            sampler.set_epoch(epoch)
        for batch in loader:
            if step >= first:
                yield batch
            step += 1
        epoch += 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--text", type=Path, default=Path(__file__))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint.pt"))
    parser.add_argument("--resume", type=Path)
    options = parser.parse_args()

    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
    torch.cuda.set_device(device)
    if ranks > 1:
        dist.init_process_group("nccl")
    torch.manual_seed(0)

    data = Characters(options.text.read_text(), options.length)
    sampler = DistributedSampler(data) if ranks > 1 else None
    loader = DataLoader(data, options.batch_size, sampler=sampler, pin_memory=True, drop_last=True)
    model = GPT(options.length).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)
    first = load(options.resume, device, model, optimizer, scaler) if options.resume else 0
    train = DistributedDataParallel(model, device_ids=[device.index]) if ranks > 1 else model

    for step, (tokens, targets) in zip(range(first, options.steps), batches(loader, sampler, first)):
        tokens, targets = tokens.to(device, non_blocking=True), targets.to(device, non_blocking=True)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(train(tokens).flatten(0, 1), targets.flatten())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        if rank == 0 and (step + 1) % 5 == 0:
            print(f"step {step + 1:3d}  loss {loss.item():.4f}  gradients {norm.item():.3f}")

    if rank == 0:
        save(options.checkpoint, options.steps, model, optimizer, scaler)
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
