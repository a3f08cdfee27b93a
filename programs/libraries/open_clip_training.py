"""OpenCLIP: CLIP and CoCa from configuration, the contrastive loss, in float32 and bfloat16."""

import open_clip
import torch
from open_clip.loss import ClipLoss, SigLipLoss
from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg

device = "cuda" if torch.cuda.is_available() else "cpu"
draw = torch.Generator().manual_seed(0)
images = torch.randn(4, 3, 32, 32, generator=draw).to(device)
tokens = torch.randint(1, 90, (4, 12), generator=draw).to(device)
vision = CLIPVisionCfg(layers=2, width=32, head_width=8, patch_size=8, image_size=32)
words = CLIPTextCfg(context_length=12, vocab_size=100, width=32, heads=4, layers=2)
for criterion in (ClipLoss(), SigLipLoss()):
    torch.manual_seed(0)
    model = CLIP(16, vision, words, init_logit_bias=-1.0).to(device)
    model.set_grad_checkpointing()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(3):
        out = model(images, tokens)
        loss = criterion(*out[:3]) if isinstance(criterion, ClipLoss) else criterion(*out)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"{type(criterion).__name__} loss {loss.item():.5f}")
with torch.autocast(device, dtype=torch.bfloat16), torch.no_grad():
    similarity = model.encode_image(images, normalize=True) @ model.encode_text(tokens, normalize=True).T
print(f"similarity result {similarity.float().abs().mean().item():.2f}")
torch.manual_seed(0)
model, _, _ = open_clip.create_model_and_transforms("RN50", device=device)
print(f"ResNet result {model.encode_image(torch.ones(1, 3, 224, 224, device=device)).abs().mean().item():.4f}")
