"""diffusers: a DDPM's training step, DDIM and DPM-Solver sampling, a latent pipeline with VAE and text, EMA, DiT."""

import torch
from diffusers import (
    AutoencoderKL,
    DDIMScheduler,
    DDPMScheduler,
    DiTTransformer2DModel,
    DPMSolverMultistepScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    FluxTransformer2DModel,
    UNet2DConditionModel,
    UNet2DModel,
)
from diffusers.training_utils import EMAModel

device = "cuda" if torch.cuda.is_available() else "cpu"
draw = torch.Generator().manual_seed(0)
images = torch.randn(2, 3, 16, 16, generator=draw).to(device)
noise = torch.randn(2, 3, 16, 16, generator=draw).to(device)

torch.manual_seed(0)
unet = UNet2DModel(
    sample_size=16, block_out_channels=(16, 32), layers_per_block=1, norm_num_groups=8, attention_head_dim=8,
    down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
).to(device)  # fmt: skip
scheduler = DDPMScheduler(num_train_timesteps=50)
optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-3)
average = EMAModel(unet.parameters())
for _ in range(3):
    times = torch.tensor([3, 40], device=device)
    loss = torch.nn.functional.mse_loss(unet(scheduler.add_noise(images, noise, times), times).sample, noise)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    average.step(unet.parameters())
    print(f"DDPM loss {loss.item():.5f}")

unet.eval()
for kind in (DDIMScheduler, DPMSolverMultistepScheduler, EulerDiscreteScheduler):
    sampler = kind(num_train_timesteps=50)
    sampler.set_timesteps(4, device=device)
    sample = noise.clone() * sampler.init_noise_sigma
    with torch.no_grad():
        for time in sampler.timesteps:
            sample = sampler.step(unet(sampler.scale_model_input(sample, time), time).sample, time, sample).prev_sample
    print(f"{kind.__name__} result {sample.abs().mean().item():.5f}")

torch.manual_seed(0)
vae = AutoencoderKL(
    block_out_channels=(16, 16), norm_num_groups=8, latent_channels=4, sample_size=16,
    down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
).to(device)  # fmt: skip
conditional = UNet2DConditionModel(
    sample_size=8, in_channels=4, out_channels=4, block_out_channels=(16, 32), layers_per_block=1, norm_num_groups=8,
    cross_attention_dim=24, attention_head_dim=8, down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
    up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
).to(device)  # fmt: skip
conditional.enable_gradient_checkpointing()
vae.enable_slicing()
latents = vae.encode(images).latent_dist.mode()
words = torch.randn(2, 5, 24, generator=draw).to(device)
loss = conditional(latents, torch.tensor([3, 40], device=device), words).sample.pow(2).mean()
loss.backward()
print(f"latent loss {loss.item():.6f}\ndecoded result {vae.decode(latents).sample.abs().mean().item():.5f}")

torch.manual_seed(0)
dit = (
    DiTTransformer2DModel(
        num_attention_heads=2, attention_head_dim=8, in_channels=4, num_layers=2, sample_size=8, num_embeds_ada_norm=10
    )
    .to(device)
    .eval()
)
out = dit(
    latents.detach(), timestep=torch.tensor([1, 2], device=device), class_labels=torch.tensor([1, 2], device=device)
)
print(f"DiT result {out.sample.abs().mean().item():.6f}")
torch.manual_seed(0)
flux = FluxTransformer2DModel(
    in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=8, num_attention_heads=2,
    joint_attention_dim=24, pooled_projection_dim=16, axes_dims_rope=(2, 2, 4),
).to(device)  # fmt: skip
flow = FlowMatchEulerDiscreteScheduler()
flow.set_timesteps(3, device=device)
sample = torch.randn(1, 16, 4, generator=draw).to(device)
with torch.no_grad():
    for time in flow.timesteps:
        speed = flux(
            hidden_states=sample, timestep=time.expand(1) / 1000, encoder_hidden_states=words[:1],
            pooled_projections=torch.ones(1, 16, device=device), img_ids=torch.zeros(16, 3, device=device),
            txt_ids=torch.zeros(5, 3, device=device),
        ).sample  # fmt: skip
        sample = flow.step(speed, time, sample).prev_sample
print(f"Flux result {sample.abs().mean().item():.5f}")
