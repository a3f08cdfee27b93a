"""I-JEPA: a predictor of masked blocks in the space of a target encoder, in bfloat16 autocast."""

import copy
from functools import partial

import torch
from src.masks.utils import apply_masks
from src.models.vision_transformer import VisionTransformer, vit_predictor
from src.utils.tensors import repeat_interleave_batch

device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
norm = partial(torch.nn.LayerNorm, eps=1e-6)
encoder = VisionTransformer(
    img_size=[32], patch_size=8, embed_dim=32, depth=2, num_heads=2, mlp_ratio=4, qkv_bias=True, norm_layer=norm
)
predictor = vit_predictor(num_patches=16, embed_dim=32, predictor_embed_dim=16, depth=2, num_heads=2).to(device)
target = copy.deepcopy(encoder).to(device).requires_grad_(False)
encoder = encoder.to(device)
optimizer = torch.optim.AdamW([*encoder.parameters(), *predictor.parameters()], lr=1e-3)
images = torch.randn(4, 3, 32, 32).to(device)
context = [torch.arange(8).repeat(4, 1).to(device)]
blocks = [torch.tensor([9, 10, 13]).repeat(4, 1).to(device), torch.tensor([11, 14, 15]).repeat(4, 1).to(device)]
for _ in range(3):
    with torch.autocast(device.type, torch.bfloat16):
        with torch.no_grad():
            wanted = torch.nn.functional.layer_norm(target(images), (32,))
            wanted = repeat_interleave_batch(apply_masks(wanted, blocks), 4, repeat=1)
        found = predictor(encoder(images, context), context, blocks)
        loss = torch.nn.functional.smooth_l1_loss(found, wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for old, new in zip(target.parameters(), encoder.parameters()):
            old.data.mul_(0.9).add_(0.1 * new.detach().data)
    print(f"loss {loss.item():.4f}")
