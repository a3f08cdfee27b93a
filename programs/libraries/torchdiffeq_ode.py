"""torchdiffeq: a neural ODE by the adjoint method, with every solver."""

import torch
from torchdiffeq import odeint, odeint_adjoint, odeint_event

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


class Field(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))

    def forward(self, time, state):
        return self.layers(state**3)


field = Field().to(device)
start = torch.tensor([[2.0, 0.0]], device=device)
times = torch.linspace(0, 1, 10, device=device)
optimizer = torch.optim.RMSprop(field.parameters(), lr=1e-2)
for _ in range(3):
    loss = odeint_adjoint(field, start, times, method="dopri5").sub(1).abs().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"adjoint loss {loss.item():.6f}")
for method in ("dopri8", "bosh3", "adaptive_heun", "euler", "midpoint", "rk4", "explicit_adams", "implicit_adams"):
    print(f"{method} result {odeint(field, start, times, method=method)[-1].abs().sum().item():.4f}")
when, _ = odeint_event(
    lambda time, state: -torch.ones_like(state), torch.ones(1, device=device), torch.zeros((), device=device),
    event_fn=lambda time, state: state.sum() - 0.5, odeint_interface=odeint,
)  # fmt: skip
print(f"event result {when.item():.4f}")
