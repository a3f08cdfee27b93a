"""bitsandbytes: a layer of 4-bit weights, whose kernels are NVIDIA's alone."""

import bitsandbytes
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
layer = bitsandbytes.nn.Linear4bit(64, 64, compute_dtype=torch.float32).to(device)
print(f"result {layer(torch.ones(2, 64, device=device)).abs().mean().item():.4f}")
