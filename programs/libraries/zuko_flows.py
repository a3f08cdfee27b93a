"""zuko: a neural spline flow, a masked autoregressive and a continuous one, trained by maximum likelihood."""

import torch
import zuko

device = "cuda" if torch.cuda.is_available() else "cpu"
draw = torch.Generator().manual_seed(0)
samples, context = torch.randn(16, 3, generator=draw).to(device), torch.randn(16, 2, generator=draw).to(device)
for kind in (zuko.flows.NSF, zuko.flows.MAF, zuko.flows.NICE):
    torch.manual_seed(0)
    flow = kind(3, 2, transforms=2, hidden_features=(16,)).to(device)
    optimizer = torch.optim.Adam(flow.parameters(), lr=1e-2)
    for _ in range(3):
        loss = -flow(context).log_prob(samples).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"{kind.__name__} loss {loss.item():.5f}")
    assert flow(context).rsample((4,)).is_cuda == torch.cuda.is_available()
