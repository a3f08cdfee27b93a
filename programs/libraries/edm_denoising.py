"""EDM: three preconditioned U-Nets and their losses, and denoising."""

import torch
from training.loss import EDMLoss, VELoss, VPLoss
from training.networks import EDMPrecond, VEPrecond, VPPrecond

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
random_normal, random_uniform = torch.randn, torch.rand
torch.randn_like = lambda tensor: random_normal(tensor.shape).to(tensor.device)  # drawn on the CPU
torch.randn = lambda *shape, device=None: random_normal(*shape).to(device)
torch.rand = lambda *shape, device=None: random_uniform(*shape).to(device)
images, labels = torch.randn(2, 3, 16, 16).to(device), torch.eye(4)[:2].to(device)
small = {"model_channels": 16, "channel_mult": [1, 2], "num_blocks": 1, "attn_resolutions": [8]}
for precondition, criterion, kind in (
    (EDMPrecond, EDMLoss, "SongUNet"),
    (VEPrecond, VELoss, "DhariwalUNet"),
    (VPPrecond, VPLoss, "SongUNet"),
):
    torch.manual_seed(0)
    model = precondition(16, 3, label_dim=4, model_type=kind, **small).train().requires_grad_(True)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(random_normal(parameter.shape) * 0.02)
    for layer in model.modules():
        if hasattr(layer, "dropout"):
            layer.dropout = 0
    model.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(2):
        optimizer.zero_grad(set_to_none=True)
        loss = criterion()(model, images, labels).sum().mul(1 / 2)
        loss.backward()
        optimizer.step()
        print(f"{kind} loss {loss.item():.3f}")
    with torch.no_grad():
        sigma = torch.as_tensor(2.0, device=device)
        denoised = model(images * 2, model.round_sigma(sigma), labels)
    print(f"result {denoised.abs().mean().item():.4f}")
