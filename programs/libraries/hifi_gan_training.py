"""HiFi-GAN: a vocoder against discriminators of many periods and scales, weight norm removed for inference."""

import json
from pathlib import Path

import torch
from env import AttrDict

from models import (
    Generator,
    MultiPeriodDiscriminator,
    MultiScaleDiscriminator,
    discriminator_loss,
    feature_loss,
    generator_loss,
)

device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
settings = AttrDict({**json.loads(Path("config_v3.json").read_text()), "upsample_initial_channel": 32})
torch.manual_seed(0)
generator = Generator(settings).to(device)
critics = [MultiPeriodDiscriminator().to(device), MultiScaleDiscriminator().to(device)]
for each in critics:
    each.discriminators = each.discriminators[:2]
optimizers = [
    torch.optim.AdamW(parameters, settings.learning_rate, betas=[settings.adam_b1, settings.adam_b2])
    for parameters in (generator.parameters(), [p for each in critics for p in each.parameters()])
]
mel, audio = torch.randn(1, 80, 8).to(device), torch.randn(1, 1, 8 * 256).to(device)
for _ in range(2):
    made = generator(mel)
    optimizers[1].zero_grad()
    of_critics = sum(discriminator_loss(*each(audio, made.detach())[:2])[0] for each in critics)
    of_critics.backward()
    optimizers[1].step()
    optimizers[0].zero_grad()
    loss = torch.nn.functional.l1_loss(audio, made) * 45
    for each in critics:
        _, judged, real, fake = each(audio, made)
        loss = loss + feature_loss(real, fake) + generator_loss(judged)[0]
    loss.backward()
    optimizers[0].step()
    print(f"loss {loss.item():.5f}\nloss of critics {of_critics.item():.5f}")
generator.eval().remove_weight_norm()
with torch.no_grad():
    print(f"result {generator(mel).abs().mean().item():.6f}")
