"""DINOv2: student and teacher with masked patches, Sinkhorn-Knopp targets, DINO, iBOT and KoLeo losses."""

import copy

import torch
from dinov2.layers import DINOHead
from dinov2.loss import DINOLoss, KoLeoLoss, iBOTPatchLoss
from dinov2.models.vision_transformer import DinoVisionTransformer

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
student = DinoVisionTransformer(img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2, init_values=0.1)
heads, of_teacher = (DINOHead(32, 64, hidden_dim=32, bottleneck_dim=16) for _ in range(2))
of_teacher.load_state_dict(heads.state_dict())
teacher = torch.nn.ModuleList([copy.deepcopy(student), of_teacher]).to(device).requires_grad_(False)
student, heads = student.to(device), heads.to(device)
losses = [DINOLoss(64).to(device), iBOTPatchLoss(64).to(device), KoLeoLoss().to(device)]
parameters = [*student.parameters(), *heads.parameters()]
optimizer = torch.optim.AdamW(parameters, lr=1e-3)
images = torch.randn(4, 3, 32, 32).to(device)
masks = (torch.arange(4 * 16).reshape(4, 16) % 3 == 0).to(device)
for _ in range(2):
    with torch.no_grad():
        seen = teacher[0](images, is_training=True)
        of_class = losses[0].sinkhorn_knopp_teacher(teacher[1](seen["x_norm_clstoken"]), 0.07)
        of_patches = losses[1].softmax_center_teacher(teacher[1](seen["x_norm_patchtokens"]), 0.07)
    found = student(images, masks, is_training=True)
    loss = losses[0]([heads(found["x_norm_clstoken"])], [of_class])
    loss = loss + losses[1](heads(found["x_norm_patchtokens"]), of_patches, masks)
    loss = loss + 0.1 * losses[2](found["x_norm_clstoken"])
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(parameters, 3.0)
    optimizer.step()
    with torch.no_grad():
        torch._foreach_mul_(list(teacher[0].parameters()), 0.9)
        torch._foreach_add_(list(teacher[0].parameters()), list(student.parameters()), alpha=0.1)
    print(f"loss {loss.item():.4f}")
