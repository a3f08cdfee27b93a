"""pytorch-optimizer: steps of a dozen optimizers."""

import pytorch_optimizer
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)).to(device)
for name in (
    "Lamb",
    "AdaBelief",
    "SOAP",
    "Shampoo",
    "ADOPT",
    "Prodigy",
    "Adan",
    "Lion",
    "Tiger",
    "CAME",
    "Adai",
    "StableAdamW",
):
    torch.manual_seed(0)
    layer = torch.nn.Linear(4, 4).to(device)
    optimizer = getattr(pytorch_optimizer, name)(layer.parameters())
    for _ in range(3):
        loss = layer(inputs).pow(2).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{name} loss {layer(inputs).pow(2).sum().item():.5f}")
