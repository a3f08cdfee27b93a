"""flash-linear-attention: its Triton kernels beside its own plain versions, with gradients."""

import torch
from fla.ops.gla import fused_recurrent_gla
from fla.ops.linear_attn import chunk_linear_attn
from fla.ops.retention import chunk_retention
from fla.ops.simple_gla import fused_recurrent_simple_gla

torch.manual_seed(0)
shape = (1, 32, 2, 16)  # batch, time, heads, size
query, key, value = (torch.randn(shape).cuda().requires_grad_() for _ in range(3))
gate = torch.nn.functional.logsigmoid(torch.randn(shape)).cuda()
for name, attention in (
    ("linear", lambda: chunk_linear_attn(query, key, value, normalize=False)),
    ("retention", lambda: chunk_retention(query, key, value)),
    ("gated", lambda: fused_recurrent_gla(query, key, value, gate)),
    ("simple gated", lambda: fused_recurrent_simple_gla(query, key, value, gate[..., 0])),
):
    result = attention()[0]
    gradients = torch.autograd.grad(result.float().square().mean(), (query, key, value))
    print(f"{name} result {result.float().abs().mean().item():.4f}")
    for gradient in gradients:
        print(f"{name} gradient result {gradient.abs().mean().item():.5f}")
