"""Conditional flow matching: three kinds of paths, optimal transport in batches, an ODE from noise to data, a U-Net."""

import torch
from torchcfm import conditional_flow_matching as cfm
from torchcfm.models import MLP
from torchcfm.models.unet import UNetModel
from torchdiffeq import odeint

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
for kind in (
    cfm.ConditionalFlowMatcher,
    cfm.VariancePreservingConditionalFlowMatcher,
    cfm.ExactOptimalTransportConditionalFlowMatcher,
):
    torch.manual_seed(0)
    draw = torch.Generator().manual_seed(0)  # the paths draw, too, on the device
    model = MLP(dim=2, time_varying=True, w=32).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    matcher = kind(sigma=0.0)
    for _ in range(2):
        start, end = torch.randn(32, 2, generator=draw).to(device), (torch.randn(32, 2, generator=draw) + 4).to(device)
        time = torch.linspace(0.01, 0.99, 32).to(device)
        if kind is cfm.ExactOptimalTransportConditionalFlowMatcher:
            distance = matcher.ot_sampler.get_map(start, end)
            print(f"result {float(abs(distance).max()):.5f}")
        else:
            _, at, flow = matcher.sample_location_and_conditional_flow(start, end, t=time)
            loss = (model(torch.cat([at, time[:, None]], -1)) - flow).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"{kind.__name__} loss {loss.item():.5f}")
with torch.no_grad():
    points = torch.randn(16, 2, generator=draw).to(device)
    path = odeint(
        lambda t, x: model(torch.cat([x, t.expand(len(x), 1)], -1)),
        points,
        torch.linspace(0, 1, 5, device=device),
        atol=1e-4,
    )
print(f"result {path[-1].mean().item():.5f}")
torch.manual_seed(0)
unet = UNetModel(
    dim=(3, 16, 16), num_channels=32, num_res_blocks=1, channel_mult=(1, 2), num_heads=2, attention_resolutions="8"
).to(device)
loss = unet(torch.rand(2).to(device), torch.randn(2, 3, 16, 16).to(device)).square().mean()
loss.backward()
print(f"loss {loss.item():.5f} {sum(p.grad.abs().sum().item() for p in unet.parameters()):.3f}")
