"""timm: training steps of a dozen architectures in channels last, with mixup, EMA and its own optimizers."""

import timm
import timm.data
import timm.loss
import timm.optim
import timm.utils
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
draw = torch.Generator().manual_seed(0)
NAMES = {
    "vit_tiny_patch16_224": {"img_size": 32, "depth": 2}, "convnextv2_atto": {}, "resnet10t": {},
    "efficientnet_b0": {}, "mobilenetv3_small_050": {}, "swin_tiny_patch4_window7_224":
    {"img_size": 32, "window_size": 4}, "mixer_s32_224": {"img_size": 32},
    "eva02_tiny_patch14_224": {"img_size": 28, "depth": 2}, "regnetx_002": {}, "maxvit_rmlp_pico_rw_256": {"img_size": 64},
    "coatnet_pico_rw_224": {"img_size": 64}, "ghostnet_050": {}, "xcit_nano_12_p16_224": {"img_size": 32},
}  # fmt: skip
for name, options in NAMES.items():
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=5, **options).to(device, memory_format=torch.channels_last)
    size = options.get("img_size", 32)
    images = torch.randn(4, 3, size, size, generator=draw).to(device, memory_format=torch.channels_last)
    labels = torch.tensor([0, 1, 2, 3], device=device)
    optimizer = timm.optim.create_optimizer_v2(model, opt="lamb", lr=1e-2)
    average = timm.utils.ModelEmaV3(model, decay=0.9)
    criterion = timm.loss.LabelSmoothingCrossEntropy()
    model.eval()  # no dropout: its numbers are the device's own
    for _ in range(2):
        loss = criterion(model(images), labels)
        loss.backward()
        timm.utils.dispatch_clip_grad(model.parameters(), 1.0, mode="agc")
        optimizer.step()
        optimizer.zero_grad()
        average.update(model)
        print(f"{name} loss {loss.item():.5f}")
    print(f"average result {sum(p.double().abs().sum() for p in average.module.parameters()).item():.4f}")
mixup = timm.data.Mixup(num_classes=5, mixup_alpha=1.0, cutmix_alpha=1.0)
images, targets = mixup(torch.ones(4, 3, 8, 8, device=device), torch.tensor([0, 1, 2, 3], device=device))
print(f"mixup result {targets.sum().item():.4f}")
