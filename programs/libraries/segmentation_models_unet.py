"""segmentation_models_pytorch: every decoder on a ResNet or a timm encoder, with its losses."""

import segmentation_models_pytorch as smp
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0)).to(device)
masks = (images[:, :1] > 0).long()
for kind in (
    smp.Unet,
    smp.UnetPlusPlus,
    smp.MAnet,
    smp.Linknet,
    smp.FPN,
    smp.PSPNet,
    smp.DeepLabV3,
    smp.DeepLabV3Plus,
    smp.UPerNet,
    smp.Segformer,
):
    torch.manual_seed(0)
    model = kind("resnet18", encoder_weights=None, classes=1).to(device).eval()
    loss = smp.losses.DiceLoss("binary")(model(images), masks) + smp.losses.SoftBCEWithLogitsLoss()(
        model(images), masks.float()
    )
    loss.backward()
    print(f"{kind.__name__} loss {loss.item():.5f}")
scores = model(images).detach()
for criterion in (
    smp.losses.JaccardLoss("binary"),
    smp.losses.FocalLoss("binary"),
    smp.losses.LovaszLoss("binary"),
    smp.losses.TverskyLoss("binary"),
    smp.losses.MCCLoss(),
):
    print(f"{type(criterion).__name__} loss {criterion(scores, masks).item():.5f}")
counts = smp.metrics.get_stats(scores.sigmoid(), masks, mode="binary", threshold=0.5)
print(f"IoU result {smp.metrics.iou_score(*counts, reduction='micro').item():.5f}")
