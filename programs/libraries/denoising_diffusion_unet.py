"""denoising-diffusion-pytorch: Gaussian diffusion's training loss, DDIM sampling, and a 1-D diffusion."""

import torch
from denoising_diffusion_pytorch import GaussianDiffusion, GaussianDiffusion1D, Unet, Unet1D

device = "cuda" if torch.cuda.is_available() else "cpu"
draw = torch.Generator().manual_seed(0)
images = torch.rand(2, 3, 16, 16, generator=draw).to(device)
torch.manual_seed(0)
unet = Unet(dim=8, dim_mults=(1, 2), flash_attn=True).to(device)
diffusion = GaussianDiffusion(unet, image_size=16, timesteps=20, sampling_timesteps=4).to(device)
noise = torch.randn(2, 3, 16, 16, generator=draw).to(device)
optimizer = torch.optim.Adam(unet.parameters(), lr=1e-3)
for _ in range(3):
    loss = diffusion.p_losses(diffusion.normalize(images), torch.tensor([3, 12], device=device), noise=noise)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"2-D loss {loss.item():.5f}")
sample = diffusion.sample(batch_size=2)
assert sample.is_cuda == torch.cuda.is_available()
assert sample.isfinite().all()
torch.manual_seed(0)
line = GaussianDiffusion1D(Unet1D(dim=8, dim_mults=(1, 2), channels=4), seq_length=16, timesteps=20).to(device)
loss = line.p_losses(
    images.view(2, 4, -1)[..., :16], torch.tensor([3, 12], device=device), noise=noise.view(2, 4, -1)[..., :16]
)
loss.backward()
print(f"1-D loss {loss.item():.5f}")
