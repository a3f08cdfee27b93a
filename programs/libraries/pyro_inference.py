"""Pyro: stochastic variational inference, NUTS, enumeration in a mixture, and a normalizing flow."""

import pyro
import pyro.distributions as dist
import torch
from pyro.distributions.transforms import affine_autoregressive
from pyro.infer import MCMC, NUTS, SVI, Trace_ELBO, TraceEnum_ELBO
from pyro.infer.autoguide import AutoDiagonalNormal
from pyro.optim import ClippedAdam

device = "cuda" if torch.cuda.is_available() else "cpu"
data = (3 + torch.randn(200, generator=torch.Generator().manual_seed(0))).to(device)


def model(data):
    mean = pyro.sample("mean", dist.Normal(torch.zeros((), device=device), 10.0))
    with pyro.plate("data", len(data)):
        pyro.sample("x", dist.Normal(mean, 1.0), obs=data)


def mixture(data):
    places = pyro.param("places", torch.tensor([1.0, 4.0], device=device))
    with pyro.plate("data", len(data)):
        which = pyro.sample(
            "which", dist.Categorical(torch.tensor([0.5, 0.5], device=device)), infer={"enumerate": "parallel"}
        )
        pyro.sample("x", dist.Normal(places[which], 1.0), obs=data)


pyro.set_rng_seed(0)
guide = AutoDiagonalNormal(model)
steps = SVI(model, guide, ClippedAdam({"lr": 0.1}), Trace_ELBO(num_particles=4))
for _ in range(150):
    steps.step(data)
print(f"variational mean result {guide.median()['mean'].item():.1f}")
chain = MCMC(NUTS(model), num_samples=40, warmup_steps=40, disable_progbar=True)
chain.run(data)
print(f"NUTS mean result {chain.get_samples()['mean'].mean().item():.1f}")
pyro.clear_param_store()
exact = SVI(mixture, lambda data: None, ClippedAdam({"lr": 0.1}), TraceEnum_ELBO(max_plate_nesting=1))
for _ in range(5):
    print(f"enumerated loss {exact.step(data):.3f}")
torch.manual_seed(0)
flow = dist.TransformedDistribution(
    dist.Normal(torch.zeros(2, device=device), torch.ones(2, device=device)), [affine_autoregressive(2).to(device)]
)
print(f"flow loss {-flow.log_prob(data.view(100, 2)).mean().item():.5f}")
for law in (dist.Gamma(2.0, 3.0), dist.Beta(2.0, 3.0), dist.StudentT(4.0), dist.VonMises(0.5, 2.0), dist.Poisson(3.0)):
    law = type(law)(
        *(torch.tensor(float(getattr(law, name)), device=device) for name in law.arg_constraints if name != "logits")
    )
    sample = law.sample((2000,))
    print(
        f"{type(law).__name__} result {law.log_prob(torch.ones((), device=device) * 0.5 if not isinstance(law, dist.Poisson) else torch.ones((), device=device)).item():.5f}"
    )
    assert sample.is_cuda == torch.cuda.is_available()
    assert sample.float().mean().isfinite()
