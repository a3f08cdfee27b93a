"""kornia: filters, geometry, colours, features, losses and augmentation, and their gradients."""

import kornia
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
images = torch.rand(2, 3, 32, 40, generator=torch.Generator().manual_seed(0)).to(device).requires_grad_()
turn = torch.tensor([[0.9, -0.2, 3.0], [0.2, 0.9, -2.0]], device=device).expand(2, 2, 3)
home = torch.cat([turn, torch.tensor([[[0.0, 0.0, 1.0]]], device=device).expand(2, 1, 3)], 1)
STEPS = {
    "blur": lambda x: kornia.filters.gaussian_blur2d(x, (5, 5), (1.5, 1.5)),
    "sobel": kornia.filters.sobel,
    "canny": lambda x: kornia.filters.canny(x)[0],
    "median": lambda x: kornia.filters.median_blur(x, (3, 3)),
    "bilateral": lambda x: kornia.filters.bilateral_blur(x, (3, 3), 0.1, (1.5, 1.5)),
    "unsharp": lambda x: kornia.filters.unsharp_mask(x, (3, 3), (1.0, 1.0)),
    "laplacian": lambda x: kornia.filters.laplacian(x, 3),
    "affine": lambda x: kornia.geometry.warp_affine(x, turn, (32, 40)),
    "perspective": lambda x: kornia.geometry.warp_perspective(x, home, (32, 40)),
    "rotate": lambda x: kornia.geometry.rotate(x, torch.tensor([30.0, -10.0], device=device)),
    "pyramid": lambda x: kornia.geometry.pyrdown(x),
    "resize": lambda x: kornia.geometry.resize(x, (16, 20), antialias=True),
    "elastic": lambda x: kornia.geometry.transform.elastic_transform2d(x, torch.ones(2, 2, 32, 40, device=device) * 0.1),
    "lab": kornia.color.rgb_to_lab, "hsv": kornia.color.rgb_to_hsv, "yuv": kornia.color.rgb_to_yuv,
    "equalize": kornia.enhance.equalize, "clahe": lambda x: kornia.enhance.equalize_clahe(x),
    "histogram": lambda x: kornia.enhance.histogram(x.flatten(1), torch.linspace(0, 1, 8, device=device), torch.tensor(0.1, device=device)),
    "zca": lambda x: kornia.enhance.zca_whiten(x[..., :4, :4]),
    "dilation": lambda x: kornia.morphology.dilation(x, torch.ones(3, 3, device=device)),
    "harris": lambda x: kornia.feature.harris_response(x[:, :1]),
    "ssim": lambda x: kornia.losses.ssim_loss(x, x.roll(1, 3), 5),
    "distance": lambda x: kornia.contrib.distance_transform((x > 0.9).float()),
    "dice": lambda x: kornia.losses.dice_loss(x, (x[:, 0] > 0.5).long()),
    "focal": lambda x: kornia.losses.focal_loss(x, (x[:, 0] > 0.5).long(), 0.5),
}  # fmt: skip
for name, step in STEPS.items():
    out = step(images)
    print(f"{name} result {out.double().abs().mean().item():.5f}")
    if out.requires_grad:
        (gradient,) = torch.autograd.grad(out.sum(), images, allow_unused=True)
        if gradient is not None:
            print(f"{name} gradient result {gradient.double().abs().mean().item():.4f}")
torch.manual_seed(0)
augment = kornia.augmentation.AugmentationSequential(
    kornia.augmentation.RandomHorizontalFlip(p=1.0), kornia.augmentation.RandomAffine(20.0, p=1.0),
    kornia.augmentation.ColorJitter(0.1, 0.1, 0.1, 0.1, p=1.0), kornia.augmentation.RandomErasing(p=1.0),
    kornia.augmentation.RandomMixUpV2(p=1.0), data_keys=["input"],
)  # fmt: skip
assert augment(images.detach()).is_cuda == torch.cuda.is_available()
