"""GPyTorch: an exact Gaussian process fitted by its marginal likelihood, and a variational one with inducing points."""

import gpytorch
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.set_default_dtype(torch.float64)
inputs = torch.linspace(0, 1, 40, device=device)
targets = torch.sin(inputs * 6) + 0.1 * torch.cos(inputs * 50)


class Exact(gpytorch.models.ExactGP):
    def __init__(self, likelihood):
        super().__init__(inputs, targets, likelihood)
        self.mean = gpytorch.means.ConstantMean()
        self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel() + gpytorch.kernels.PeriodicKernel())

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))


class Sparse(gpytorch.models.ApproximateGP):
    def __init__(self):
        points = torch.linspace(0, 1, 8, device=device)[:, None]
        posterior = gpytorch.variational.CholeskyVariationalDistribution(8)
        super().__init__(
            gpytorch.variational.VariationalStrategy(self, points, posterior, learn_inducing_locations=True)
        )
        self.mean = gpytorch.means.LinearMean(1)
        self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))


likelihood = gpytorch.likelihoods.GaussianLikelihood().to(device)
model = Exact(likelihood).to(device)
for settings in ({"fast_computations": False}, {"fast_computations": True}):
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    fast = settings["fast_computations"]
    with gpytorch.settings.fast_computations(fast, fast, fast), gpytorch.settings.num_trace_samples(64):
        for _ in range(5):
            model.train()
            loss = -objective(model(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            print(f"exact loss {loss.item():.6f}")
        model.eval()
        likelihood.eval()
        with torch.no_grad(), gpytorch.settings.fast_pred_var():
            prediction = likelihood(model(torch.linspace(0, 2, 9, device=device)))
        print(
            f"mean result {prediction.mean.abs().mean().item():.5f}\nvariance result {prediction.variance.mean().item():.5f}"
        )

torch.manual_seed(0)
sparse, noise = Sparse().to(device), gpytorch.likelihoods.GaussianLikelihood().to(device)
bound = gpytorch.mlls.VariationalELBO(noise, sparse, num_data=40)
optimizer = torch.optim.Adam([*sparse.parameters(), *noise.parameters()], lr=0.1)
for _ in range(5):
    loss = -bound(sparse(inputs[:, None]), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if loss.isfinite():
        pass
print(f"finished result {float(loss.isfinite()):.1f}")
