"""vit-pytorch: a training step of many vision transformers."""

import torch
from vit_pytorch import SimpleViT, ViT
from vit_pytorch.cait import CaiT
from vit_pytorch.cct import CCT
from vit_pytorch.deepvit import DeepViT
from vit_pytorch.levit import LeViT
from vit_pytorch.max_vit import MaxViT
from vit_pytorch.pit import PiT
from vit_pytorch.t2t import T2TViT

device = "cuda" if torch.cuda.is_available() else "cpu"
images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)).to(device)
SIZES = {"image_size": 32, "num_classes": 5, "dim": 32, "depth": 2, "heads": 2, "mlp_dim": 48}
MODELS = {
    "ViT": lambda: ViT(patch_size=8, **SIZES),
    "SimpleViT": lambda: SimpleViT(patch_size=8, **SIZES),
    "DeepViT": lambda: DeepViT(patch_size=8, **SIZES),
    "CaiT": lambda: CaiT(patch_size=8, cls_depth=1, **SIZES),
    "CCT": lambda: CCT(img_size=32, embedding_dim=32, n_conv_layers=1, num_layers=2, num_heads=2, num_classes=5),
    "LeViT": lambda: LeViT(image_size=32, num_classes=5, stages=1, dim=32, depth=1, heads=2, mlp_mult=2),
    "PiT": lambda: PiT(patch_size=8, **{**SIZES, "depth": (1, 1)}),
    "T2T": lambda: T2TViT(image_size=32, num_classes=5, dim=32, depth=1, heads=2, mlp_dim=48, t2t_layers=((7, 4), (3, 2))),
    "MaxViT": lambda: MaxViT(num_classes=5, dim_conv_stem=8, dim=16, dim_head=8, depth=(1, 1), window_size=4),
}  # fmt: skip
for name, make in MODELS.items():
    torch.manual_seed(0)
    model = make().eval().to(device)
    loss = torch.nn.functional.cross_entropy(model(images), torch.tensor([1, 2], device=device))
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    print(f"{name} loss {loss.item():.5f}\n{name} gradient result {norm.item():.4f}")
