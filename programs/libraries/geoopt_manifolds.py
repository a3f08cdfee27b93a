"""geoopt: Riemannian Adam and SGD on the Poincaré ball, the sphere and the Stiefel manifold."""

import geoopt
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
start = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)).to(device)
for manifold in (geoopt.PoincareBall(), geoopt.Sphere(), geoopt.Stiefel(), geoopt.Lorentz()):
    for kind in (geoopt.optim.RiemannianAdam, geoopt.optim.RiemannianSGD):
        point = geoopt.ManifoldParameter(manifold.projx(start * 0.3), manifold=manifold)
        optimizer = kind([point], lr=1e-2)
        for _ in range(3):
            loss = (point - 0.1).pow(2).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"{manifold.name} {kind.__name__} loss {(point - 0.1).pow(2).sum().item():.5f}")
