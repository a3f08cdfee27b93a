"""torchao: int8 weights, int8 activations, 8-bit AdamW, float8 training."""

import torch
from torchao.float8 import convert_to_float8_training
from torchao.optim import AdamW8bit
from torchao.quantization import Int8DynamicActivationInt8WeightConfig, Int8WeightOnlyConfig, quantize_

device = "cuda" if torch.cuda.is_available() else "cpu"
inputs = torch.randn(32, 64, generator=torch.Generator().manual_seed(0)).to(device, torch.bfloat16)


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 64, bias=False), torch.nn.Linear(64, 64, bias=False)).to(
        device, torch.bfloat16
    )


for config in (Int8WeightOnlyConfig(), Int8DynamicActivationInt8WeightConfig()):
    quantized = model()
    quantize_(quantized, config)
    with torch.no_grad():
        print(f"{type(config).__name__} result {quantized(inputs).float().abs().mean().item():.4f}")
layers = model().float()
optimizer = AdamW8bit(layers.parameters(), lr=1e-2)
for _ in range(3):
    loss = layers(inputs.float()).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"8-bit AdamW loss {loss.item():.5f}")
if device == "cuda":  # the CPU has no float8 training
    layers = convert_to_float8_training(model())
    layers(inputs).float().pow(2).mean().backward()
