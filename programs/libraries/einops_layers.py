"""einops: rearrange, reduce, repeat, einsum, pack and the layers, also scripted, with gradients."""

import torch
from einops import einsum, pack, rearrange, reduce, repeat, unpack
from einops.layers.torch import EinMix, Rearrange, Reduce

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0)).to(device).requires_grad_()
torch.manual_seed(0)
mix = EinMix("b c h w -> b h w d", weight_shape="c d", bias_shape="d", c=3, d=5).to(device)
RESULTS = {
    "rearrange": rearrange(x, "b c (h p) (w q) -> b (h w) (p q c)", p=2, q=2),
    "reduce": reduce(x, "b c (h 2) (w 2) -> b c h w", "max"),
    "mean": reduce(x, "b c h w -> b c", "mean"),
    "prod": reduce(x, "b c h w -> b h", "prod"),
    "repeat": repeat(x, "b c h w -> b c (h 2) (w 3)"),
    "einsum": einsum(x, x, "b c h w, b c h v -> b c w v"),
    "mix": mix(x),
    "layers": torch.nn.Sequential(Rearrange("b c h w -> b (c h w)"), Reduce("b (c n) -> b c", "sum", c=3))(x),
}
packed, shapes = pack([x, x[:, :, 0]], "b c *")
RESULTS["unpacked"] = unpack(packed, shapes, "b c *")[0]
for name, value in RESULTS.items():
    weights = torch.linspace(0, 1, value.numel(), device=device).view(value.shape)
    (gradient,) = torch.autograd.grad((value * weights).sum(), x, retain_graph=True)
    print(f"{name} result {value.abs().sum().item():.5f}\n{name} gradient result {gradient.abs().sum().item():.5f}")
