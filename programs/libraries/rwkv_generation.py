"""rwkv: scripted inference of RWKV-4 in one go and token by token, by several strategies of placing layers."""

import os

import torch

os.environ["RWKV_CUDA_ON"] = "0"  # kernels that are compiled by nvcc
from rwkv.model import RWKV

WIDTH, WORDS = 32, 50
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
weights = {"emb.weight": torch.randn(WORDS, WIDTH), "head.weight": torch.randn(WORDS, WIDTH) / 4}
norms = ["blocks.0.ln0", "ln_out", *(f"blocks.{layer}.ln{number}" for layer in range(2) for number in (1, 2))]
for name in norms:
    weights |= {f"{name}.weight": torch.ones(WIDTH), f"{name}.bias": torch.zeros(WIDTH)}
for layer in range(2):
    att, ffn = f"blocks.{layer}.att", f"blocks.{layer}.ffn"
    weights |= {f"{att}.time_decay": torch.randn(WIDTH), f"{att}.time_first": torch.randn(WIDTH)}
    for name in (
        f"{att}.time_mix_k",
        f"{att}.time_mix_v",
        f"{att}.time_mix_r",
        f"{ffn}.time_mix_k",
        f"{ffn}.time_mix_r",
    ):
        weights[name] = torch.rand(1, 1, WIDTH)
    for name in ("key", "value", "receptance", "output"):
        weights[f"{att}.{name}.weight"] = torch.randn(WIDTH, WIDTH) / 6
    weights[f"{ffn}.key.weight"] = torch.randn(4 * WIDTH, WIDTH) / 6
    weights[f"{ffn}.value.weight"] = torch.randn(WIDTH, 4 * WIDTH) / 12
    weights[f"{ffn}.receptance.weight"] = torch.randn(WIDTH, WIDTH) / 6
torch.save(weights, "rwkv.pth")

for strategy in (
    f"{device} fp32",
    f"{device} fp32i8",
    f"{device} fp32 *1 -> cpu fp32",
    f"{device} fp32 *0+ -> {device} bf16",
):
    model = RWKV(model="rwkv", strategy=strategy, verbose=False)
    whole, state = model.forward([1, 5, 9, 2, 7], None)
    state, tokens = None, [1, 5, 9, 2, 7]
    for token in tokens:
        found, state = model.forward([token], state)
    for _ in range(4):
        tokens.append(int(found.float().argmax()))
        found, state = model.forward([tokens[-1]], state)
    name = strategy.replace("cuda", "device")
    print(f"{name}: whole result {whole.float().norm().item():.3f}")
    print(f"{name}: token by token result {found.float().norm().item():.3f}")
    print(f"{name}: tokens result {sum(token * place for place, token in enumerate(tokens))}.0")
