"""e3nn: tensor products and spherical harmonics that keep rotations, a gate and a norm."""

import torch
from e3nn import nn, o3

device = "cuda" if torch.cuda.is_available() else "cpu"
draw = torch.Generator().manual_seed(0)
features, edges = torch.randn(5, 10, generator=draw).to(device), torch.randn(5, 3, generator=draw).to(device)
torch.manual_seed(0)
product = o3.FullyConnectedTensorProduct("4x0e+2x1o", "1x0e+1x1o", "4x0e+2x1o").to(device)
harmonics = o3.spherical_harmonics("0e+1o", edges, True)
out = product(features, harmonics)
out.pow(2).sum().backward()
print(f"product result {out.abs().sum().item():.5f}\nharmonics result {harmonics.abs().sum().item():.5f}")
print(f"gradient result {product.weight.grad.abs().sum().item():.4f}")
linear = o3.Linear("4x0e+2x1o", "3x0e+1x1o").to(device)
print(f"linear result {linear(features).abs().sum().item():.5f}")
norm = nn.BatchNorm("4x0e+2x1o").to(device)
print(f"norm result {norm(features).abs().sum().item():.4f}")
