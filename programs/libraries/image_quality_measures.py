"""piq and pytorch-msssim: measures of the quality of a picture, and their gradients."""

import piq
import torch
from pytorch_msssim import ms_ssim, ssim

device = "cuda" if torch.cuda.is_available() else "cpu"
draw = torch.Generator().manual_seed(0)
one = torch.rand(1, 3, 192, 192, generator=draw).to(device).requires_grad_()
other = torch.rand(1, 3, 192, 192, generator=draw).to(device)
MEASURES = {
    "SSIM": lambda: ssim(one, other, data_range=1),
    "MS-SSIM": lambda: ms_ssim(one, other, data_range=1),
    "FSIM": lambda: piq.fsim(one, other),
    "VIF": lambda: piq.vif_p(one, other),
    "GMSD": lambda: piq.gmsd(one, other),
    "VSI": lambda: piq.vsi(one, other),
    "HaarPSI": lambda: piq.haarpsi(one, other),
    "MDSI": lambda: piq.mdsi(one, other),
    "total variation": lambda: piq.total_variation(one),
}
for name, measure in MEASURES.items():
    value = measure()
    (gradient,) = torch.autograd.grad(value.sum(), one)
    print(f"{name} result {value.item():.5f}\n{name} gradient result {gradient.abs().sum().item():.3f}")
