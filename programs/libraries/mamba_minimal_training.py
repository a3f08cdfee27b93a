"""mamba-minimal: training steps of its selective scan written in PyTorch."""

import torch
from model import Mamba, ModelArgs

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = Mamba(ModelArgs(d_model=32, n_layer=2, vocab_size=64)).to(device)
tokens = torch.randint(0, 64, (2, 16), generator=torch.Generator().manual_seed(0)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(3):
    loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1]).transpose(1, 2), tokens[:, 1:])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"training loss {loss.item():.5f}")
