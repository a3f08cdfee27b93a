"""StyleGAN2-ADA: generator and discriminator with adaptive augmentation, R1 and path length; its plugins need nvcc."""

import torch
from training.augment import AugmentPipe
from training.networks import Discriminator, Generator

device = torch.device("cuda")
torch.manual_seed(0)
generator = Generator(
    z_dim=16, c_dim=0, w_dim=16, img_resolution=16, img_channels=3, mapping_kwargs={"num_layers": 2},
    synthesis_kwargs={"channel_base": 256, "channel_max": 16, "num_fp16_res": 0},
).to(device)  # fmt: skip
judge = Discriminator(c_dim=0, img_resolution=16, img_channels=3, channel_base=256, channel_max=16, num_fp16_res=0).to(
    device
)
z = torch.randn(4, 16, generator=torch.Generator().manual_seed(0)).to(device)
real = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(1)).to(device).requires_grad_()
made = generator(z, None, noise_mode="const")
loss = torch.nn.functional.softplus(-judge(made, None)).mean()
loss.backward()
print(f"generator loss {loss.item():.4f}")
scores = judge(real, None)
(gradient,) = torch.autograd.grad(scores.sum(), real, create_graph=True)
penalty = gradient.square().sum([1, 2, 3]).mean()
(torch.nn.functional.softplus(-scores).mean() + penalty).backward()
print(f"penalty loss {penalty.item():.4f}")
styles = generator.mapping(z, None)
image = generator.synthesis(styles, noise_mode="const")
(path,) = torch.autograd.grad(image.sum(), styles, create_graph=True)
path.square().sum().backward()
print(f"path loss {path.square().sum().item():.3f}")
augmented = AugmentPipe(xflip=1, rotate90=1, xint=1, scale=1, rotate=1, aniso=1, brightness=1, contrast=1, hue=1).to(
    device
)(made.detach())
assert augmented.isfinite().all()
