"""torchsde: a stochastic differential equation, its adjoint, with a Brownian motion made on the device."""

import torch
import torchsde

device = "cuda" if torch.cuda.is_available() else "cpu"


class Equation(torch.nn.Module):
    noise_type, sde_type = "diagonal", "ito"

    def __init__(self):
        super().__init__()
        self.drift, self.noise = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)

    def f(self, time, state):
        return self.drift(state)

    def g(self, time, state):
        return 0.01 * self.noise(state).sigmoid()


torch.manual_seed(0)
equation = Equation().to(device)
start = torch.ones(64, 3, device=device)
times = torch.linspace(0, 1, 5, device=device)
paths = torchsde.sdeint(equation, start, times, method="milstein", dt=0.05)
print(f"mean result {paths[-1].mean().item():.2f}")
motion = torchsde.BrownianInterval(
    0.0, 1.0, size=(64, 3), device=device, entropy=7, levy_area_approximation="space-time"
)
paths = torchsde.sdeint_adjoint(equation, start, times, bm=motion, dt=0.05)
paths.mean().backward()
print(f"gradient result {equation.drift.bias.grad.sum().item():.2f}")
