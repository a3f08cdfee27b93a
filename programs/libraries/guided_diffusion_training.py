"""Guided diffusion: a class-conditional U-Net with learned variances in float16 weights, a classifier, DDIM steps."""

import numpy
import torch
from guided_diffusion.fp16_util import MixedPrecisionTrainer
from guided_diffusion.resample import create_named_schedule_sampler
from guided_diffusion.script_util import create_classifier, create_model_and_diffusion, model_and_diffusion_defaults

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
numpy.random.seed(0)
options = {
    **model_and_diffusion_defaults(),
    "image_size": 64, "num_channels": 32, "num_res_blocks": 1, "channel_mult": "1,2", "class_cond": True,
    "learn_sigma": True, "diffusion_steps": 20, "timestep_respacing": "ddim4", "use_checkpoint": True, "num_heads": 2,
    "resblock_updown": True,
}  # fmt: skip
model, diffusion = create_model_and_diffusion(**options)
with torch.no_grad():
    for parameter in model.parameters():  # the last layers begin with zeros
        parameter.add_(torch.randn(parameter.shape) * 0.02)
model.to(device)
trainer = MixedPrecisionTrainer(model=model, use_fp16=False)
optimizer = torch.optim.AdamW(trainer.master_params, lr=1e-3)
images, noise = torch.randn(2, 3, 64, 64).to(device), torch.randn(2, 3, 64, 64).to(device)
labels = torch.tensor([3, 7], device=device)
sampler = create_named_schedule_sampler("uniform", diffusion)
for _ in range(2):
    steps, weights = sampler.sample(2, device)
    trainer.zero_grad()
    losses = diffusion.training_losses(model, images, steps, model_kwargs={"y": labels}, noise=noise)
    loss = (losses["loss"] * weights).mean()
    trainer.backward(loss)
    trainer.optimize(optimizer)
    print(f"loss {loss.item():.5f}")
torch.manual_seed(1)
classifier = create_classifier(64, False, 32, 1, "32", True, True, "attention").to(device)


def gradient(x, t, y=None):
    with torch.enable_grad():
        x = x.detach().requires_grad_(True)
        chosen = torch.log_softmax(classifier(x, t), -1)[range(len(x)), y]
        return torch.autograd.grad(chosen.sum(), x)[0]


sample = diffusion.ddim_sample_loop(
    model, (2, 3, 64, 64), noise=noise, model_kwargs={"y": labels}, cond_fn=gradient, device=device
)
print(f"result {sample.abs().mean().item():.4f}")
