"""hqq: layers of 8, 4, 3, 2 and 1 bits, their output, gradients through them."""

import torch
from hqq.core.quantize import BaseQuantizeConfig, HQQBackend, HQQLinear

device = "cuda" if torch.cuda.is_available() else "cpu"
inputs = torch.randn(4, 64, generator=torch.Generator().manual_seed(0)).to(device)


def layer(bits, axis=1):
    torch.manual_seed(0)
    config = BaseQuantizeConfig(nbits=bits, group_size=16, axis=axis)
    return HQQLinear(torch.nn.Linear(64, 32), config, compute_dtype=torch.float32, device=device)


for bits in (8, 4, 3, 2, 1):
    for axis in (0, 1):
        found = layer(bits, axis)(inputs)
        print(f"{bits} bits, axis {axis}: result {found.abs().mean().item():.5f}")
for backend in (HQQBackend.PYTORCH, HQQBackend.PYTORCH_BACKPROP):
    HQQLinear.set_backend(backend)
    tracked = inputs.clone().requires_grad_()
    layer(4)(tracked).square().sum().backward()
    print(f"{backend.name}: gradient result {tracked.grad.abs().mean().item():.5f}")
again = HQQLinear(None, None, compute_dtype=torch.float32, device=device)
again.load_state_dict(layer(4).state_dict())
print(f"loaded result {again(inputs).abs().mean().item():.5f}")
