"""DETR with a ResNet-50 of random weights: the Hungarian matcher, its losses, a training step and post-processing."""

from pathlib import Path

import torch
import torchvision
from hubconf import detr_resnet50
from models.detr import PostProcess, SetCriterion
from models.matcher import HungarianMatcher
from util.misc import nested_tensor_from_tensor_list

# DETR's backbone wants torchvision's weights: random ones, where torch.hub would have put them.
weights_folder = Path(torch.hub.get_dir()) / "checkpoints"
weights_folder.mkdir(parents=True, exist_ok=True)
torch.manual_seed(0)
torch.save(torchvision.models.resnet50().state_dict(), weights_folder / "resnet50-0676ba61.pth")

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = detr_resnet50(pretrained=False, num_classes=5)
model = model.to(device).eval()
weights = {"loss_ce": 1, "loss_bbox": 5, "loss_giou": 2}
criterion = SetCriterion(5, HungarianMatcher(1, 5, 2), weights, 0.1, ["labels", "boxes", "cardinality"]).to(device)
draw = torch.Generator().manual_seed(0)
images = [torch.randn(3, 64, 96, generator=draw).to(device), torch.randn(3, 80, 64, generator=draw).to(device)]
targets = [
    {
        "labels": torch.tensor([1, 3], device=device),
        "boxes": torch.tensor([[0.5, 0.5, 0.2, 0.3], [0.3, 0.6, 0.2, 0.2]], device=device),
    },
    {"labels": torch.tensor([0], device=device), "boxes": torch.tensor([[0.4, 0.4, 0.5, 0.5]], device=device)},
]
out = model(nested_tensor_from_tensor_list(images))
losses = criterion(out, targets)
total = sum(losses[name] * weight for name, weight in weights.items())
total.backward()
norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
for name in weights:
    print(f"{name} loss {losses[name].item():.4f}")
print(f"gradient result {norm.item():.3f}")
boxes = PostProcess()(out, torch.tensor([[64, 96], [80, 64]], device=device))
print(f"boxes result {boxes[0]['scores'].sum().item():.4f}")
