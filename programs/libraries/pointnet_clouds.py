"""PointNet and PointNet++: classification and segmentation of clouds of points, farthest point sampling."""

import sys

import torch

sys.path.insert(0, "models")
import pointnet2_cls_ssg
import pointnet2_sem_seg
import pointnet_cls

device = "cuda" if torch.cuda.is_available() else "cpu"
points = torch.randn(4, 9, 640).to(device)
farthest_first = torch.randint


def deterministic(low, high, size, **others):
    """The first point of a sample is drawn on the device, which draws differently from the CPU."""
    return farthest_first(low, high, size).to(device) * 0


torch.randint = deterministic
for name, module, arguments, shape in (
    ("pointnet", pointnet_cls, {"k": 5, "normal_channel": False}, (4,)),
    ("pointnet++", pointnet2_cls_ssg, {"num_class": 5, "normal_channel": False}, (4,)),
    ("pointnet++ segmentation", pointnet2_sem_seg, {"num_classes": 5}, (4, 640)),
):
    torch.manual_seed(0)
    model, criterion = module.get_model(**arguments).to(device), module.get_loss().to(device)
    for layer in model.modules():
        if isinstance(layer, torch.nn.Dropout):
            layer.p = 0.0
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    target = (torch.arange(4 * 640).reshape(4, 640)[:, : shape[-1] if len(shape) == 2 else 1] % 5).squeeze(1).to(device)
    for _ in range(2):
        optimizer.zero_grad()
        seen = points if name.endswith("segmentation") else points[:, :3]
        prediction, features = model(seen)
        if name.endswith("segmentation"):
            loss = criterion(prediction.reshape(-1, 5), target.flatten(), features, torch.ones(5, device=device))
        else:
            loss = criterion(prediction, target, features)
        loss.backward()
        optimizer.step()
        print(f"{name} loss {loss.item():.5f}")
