"""MONAI: 3-D networks, losses, sliding-window inference and measures of medical segmentation."""

import torch
from monai.inferers import sliding_window_inference
from monai.losses import DiceCELoss, FocalLoss, TverskyLoss
from monai.metrics import DiceMetric, compute_iou
from monai.networks.nets import UNETR, BasicUNet, DynUNet, SegResNet, UNet
from monai.transforms import AsDiscrete, Compose, RandGaussianNoise, ScaleIntensity

device = "cuda" if torch.cuda.is_available() else "cpu"
draw = torch.Generator().manual_seed(0)
volume = torch.rand(1, 1, 32, 32, 32, generator=draw).to(device)
labels = (volume > 0.6).long()
NETS = {
    "UNet": lambda: UNet(3, 1, 2, (4, 8, 16), (2, 2), num_res_units=1),
    "BasicUNet": lambda: BasicUNet(3, 1, 2, features=(4, 4, 8, 8, 16, 4)),
    "SegResNet": lambda: SegResNet(3, 8, 1, 2, blocks_down=(1, 1), blocks_up=(1,)),
    "DynUNet": lambda: DynUNet(3, 1, 2, [3, 3, 3], [1, 2, 2], [2, 2], filters=[4, 8, 16]),
    "UNETR": lambda: UNETR(1, 2, (32, 32, 32), feature_size=4, hidden_size=24, mlp_dim=32, num_heads=2),
}
for name, make in NETS.items():
    torch.manual_seed(0)
    net = make().to(device).eval()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for _ in range(2):
        loss = DiceCELoss(to_onehot_y=True, softmax=True)(net(volume), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"{name} loss {loss.item():.5f}")
    if name == "UNet":
        scores = sliding_window_inference(
            torch.rand(1, 1, 40, 40, 40, generator=draw).to(device), (32, 32, 32), 2, net, mode="gaussian"
        )
        print(f"sliding window result {scores.abs().mean().item():.5f}")
scores = net(volume).detach()
for criterion in (FocalLoss(to_onehot_y=True), TverskyLoss(to_onehot_y=True, softmax=True)):
    print(f"{type(criterion).__name__} loss {criterion(scores, labels).item():.5f}")
found = AsDiscrete(argmax=True, to_onehot=2)(scores[0])
wanted = AsDiscrete(to_onehot=2)(labels[0])
dice = DiceMetric(include_background=False)
dice([found], [wanted])
print(
    f"dice result {dice.aggregate().item():.5f}\nIoU result {compute_iou(found[None], wanted[None]).nanmean().item():.5f}"
)
prepared = Compose([ScaleIntensity(), RandGaussianNoise(prob=0.0)])(volume[0])
print(f"prepared result {prepared.mean().item():.5f}")
