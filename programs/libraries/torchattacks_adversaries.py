"""torchattacks: adversarial pictures by a dozen attacks on one network."""

import torch
import torchattacks
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 49, 5)).to(device).eval()
pictures, labels = torch.rand(4, 3, 16, 16).to(device), torch.tensor([0, 1, 2, 3]).to(device)
for attack in (
    torchattacks.FGSM(model),
    torchattacks.BIM(model, steps=3),
    torchattacks.PGD(model, steps=3, random_start=False),
    torchattacks.PGDL2(model, steps=3, random_start=False),
    torchattacks.CW(model, steps=4),
    torchattacks.DeepFool(model, steps=4),
    torchattacks.MIFGSM(model, steps=3),
    torchattacks.TIFGSM(model, steps=3, diversity_prob=0.0),
    torchattacks.NIFGSM(model, steps=3),
    torchattacks.SINIFGSM(model, steps=2),
    torchattacks.EADL1(model, max_iterations=10),
    torchattacks.FAB(model, norm="Linf", steps=2, n_classes=5),
):
    adversaries = attack(pictures, labels)
    difference = (adversaries - pictures).abs()
    print(f"{attack.attack} result {difference.mean().item() * 100:.5f}")
