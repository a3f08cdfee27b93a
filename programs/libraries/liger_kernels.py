"""Liger's Triton kernels: norms, rotary embedding, activations, losses, and a Llama that uses them, with gradients."""

import torch
from liger_kernel.transformers import (
    LigerCrossEntropyLoss,
    LigerFusedLinearCrossEntropyLoss,
    LigerRMSNorm,
    liger_rotary_pos_emb,
)
from liger_kernel.transformers import functional as liger

torch.manual_seed(0)
hidden, weight = (torch.randn(*shape).cuda().requires_grad_() for shape in ((12, 32), (40, 32)))
target = (torch.arange(12) * 5 % 40).cuda()


def show(name, result, *inputs):
    gradients = torch.autograd.grad(result.float().square().sum(), inputs)
    print(f"{name} result {result.float().abs().sum().item():.4f}")
    for gradient in gradients:
        print(f"{name} gradient result {gradient.abs().sum().item():.4f}")


norm = LigerRMSNorm(32).cuda()
show("rms norm", norm(hidden * 1.0), hidden, norm.weight)
show("layer norm", liger.liger_layer_norm(hidden, weight[0], weight[1], 1e-5), hidden, weight)
show("swiglu", liger.liger_swiglu(hidden * 1.0, hidden.flip(0) * 1.0), hidden)
show("geglu", liger.liger_geglu(hidden * 1.0, hidden.flip(0) * 1.0), hidden)
show("softmax", liger.liger_softmax(hidden * 1.0), hidden)
show("cross entropy", LigerCrossEntropyLoss(label_smoothing=0.1)(hidden @ weight.T, target), hidden, weight)
show("fused cross entropy", LigerFusedLinearCrossEntropyLoss()(weight, hidden, target), hidden, weight)
logits, other = torch.log_softmax(hidden @ weight.T, -1), torch.log_softmax((hidden @ weight.T).detach() * 0.5, -1)
show("jensen shannon", liger.liger_jsd(logits, other), hidden)
query, key = (torch.randn(1, heads, 8, 16).cuda().requires_grad_() for heads in (4, 2))
angles = torch.arange(8)[:, None] / 100 ** (torch.arange(8) / 8)
cosine, sine = (f(torch.cat([angles, angles], -1))[None].cuda() for f in (torch.cos, torch.sin))
turned, _ = liger_rotary_pos_emb(query * 1.0, key * 1.0, cosine, sine)
show("rotary", turned, query)
