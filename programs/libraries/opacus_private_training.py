"""Opacus: gradients of every sample, clipped and with noise, of layers of many kinds; its accountants."""

import torch
from opacus import PrivacyEngine
from opacus.grad_sample import GradSampleModule
from opacus.layers import DPLSTM
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"
generator = torch.Generator().manual_seed(0)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.last = DPLSTM(4, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, x):
        return self.last(self.lstm(x)[0][:, -1])


def convolutional():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(4 * 36, 8),
        nn.LayerNorm(8),
        nn.Linear(8, 3),
    )


def embedded():
    return nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(20, 3))


for name, build, inputs in (
    ("convolutional", convolutional, torch.randn(16, 1, 8, 8, generator=generator)),
    ("recurrent", Recurrent, torch.randn(16, 5, 4, generator=generator)),
    ("embedded", embedded, torch.randint(10, (16, 5), generator=generator)),
):
    labels = torch.randint(3, (16,), generator=generator)
    torch.manual_seed(0)
    model = build()
    for mode in ("hooks", "functorch"):
        samples = GradSampleModule(model.to(device), force_functorch=mode == "functorch")
        nn.functional.cross_entropy(samples(inputs.to(device)), labels.to(device)).backward()
        norms = sum(parameter.grad_sample.square().sum().item() for parameter in samples.parameters())
        print(f"{name} {mode} result {norms:.4f}")
        model = samples.to_standard_module()
        model.zero_grad()
    torch.manual_seed(0)
    model = build().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(inputs, labels), batch_size=8)
    engine = PrivacyEngine(accountant="rdp")
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=optimizer,
        data_loader=loader,
        noise_multiplier=0.0,
        max_grad_norm=1.0,
        poisson_sampling=False,
    )
    for data, label in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(data.to(device)), label.to(device))
        loss.backward()
        optimizer.step()
        print(f"{name} loss {loss.item():.5f}")
