"""pytorch-metric-learning: eight losses, a miner and their gradients."""

import torch
from pytorch_metric_learning import losses, miners

device = "cuda" if torch.cuda.is_available() else "cpu"
vectors = torch.randn(16, 8, generator=torch.Generator().manual_seed(0)).to(device).requires_grad_()
labels = torch.arange(4, device=device).repeat(4)
torch.manual_seed(0)
for criterion in (
    losses.TripletMarginLoss(), losses.ContrastiveLoss(), losses.NTXentLoss(), losses.ArcFaceLoss(4, 8),
    losses.ProxyAnchorLoss(4, 8), losses.MultiSimilarityLoss(), losses.CircleLoss(), losses.SupConLoss(),
):  # fmt: skip
    loss = criterion.to(device)(vectors, labels)
    (gradient,) = torch.autograd.grad(loss, vectors)
    print(f"{type(criterion).__name__} loss {loss.item():.5f}\ngradient result {gradient.abs().sum().item():.5f}")
pairs = miners.MultiSimilarityMiner()(vectors, labels)
print(f"mined loss {losses.TripletMarginLoss()(vectors, labels, pairs).item():.5f}")
