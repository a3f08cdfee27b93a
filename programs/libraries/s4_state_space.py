"""S4 and S4D: state spaces by complex kernels and FFT, convolution and recurrence."""

import sys

import torch

sys.path.insert(0, "models/s4")
from s4 import S4Block
from s4d import S4D

device = "cuda" if torch.cuda.is_available() else "cpu"
sequence = torch.randn(2, 8, 32).to(device)
for name, build in (
    ("s4", lambda: S4Block(8, l_max=32, d_state=8, dropout=0.0)),
    ("s4 diagonal", lambda: S4Block(8, l_max=32, d_state=8, mode="diag", init="diag-lin", dropout=0.0)),
    ("s4 both ways", lambda: S4Block(8, l_max=32, d_state=8, bidirectional=True, dropout=0.0)),
    ("s4d", lambda: S4D(8, d_state=8)),
):
    torch.manual_seed(0)
    model = build().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(2):
        optimizer.zero_grad()
        result, _ = model(sequence)
        loss = (result - sequence.roll(1, -1)).square().mean()
        loss.backward()
        optimizer.step()
        print(f"{name} loss {loss.item():.5f}")
