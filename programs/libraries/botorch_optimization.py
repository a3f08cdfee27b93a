"""BoTorch: a fitted Gaussian process, expected improvement and a batch of candidates by quasi Monte Carlo."""

import torch
from botorch.acquisition import LogExpectedImprovement, qLogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf
from botorch.sampling import SobolQMCNormalSampler
from gpytorch.mlls import ExactMarginalLogLikelihood

device = "cuda" if torch.cuda.is_available() else "cpu"
points = torch.rand(12, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(device)
values = -(points - 0.3).pow(2).sum(1, keepdim=True)
torch.manual_seed(0)
model = SingleTaskGP(points, values)
fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64, device=device)
print(f"posterior result {model.posterior(bounds).mean.sum().item():.3f}")
one, value = optimize_acqf(LogExpectedImprovement(model, values.max()), bounds, q=1, num_restarts=4, raw_samples=16)
print(f"distance result {(one - 0.3).norm().lt(0.1).double().item():.1f}")
sampler = SobolQMCNormalSampler(torch.Size([32]), seed=0)
several, value = optimize_acqf(
    qLogExpectedImprovement(model, values.max(), sampler), bounds, q=2, num_restarts=2, raw_samples=8
)
assert several.is_cuda == torch.cuda.is_available()
print(f"batch result {float(several.shape[0]):.1f}")
