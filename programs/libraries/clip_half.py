"""OpenAI's CLIP with random weights: half precision weights on the GPU as clip.load gives them, and its training loss."""

import torch
from clip.model import CLIP, convert_weights

device = "cuda" if torch.cuda.is_available() else "cpu"
draw = torch.Generator().manual_seed(0)
images, tokens = (
    torch.randn(3, 3, 32, 32, generator=draw).to(device),
    torch.randint(1, 90, (3, 12), generator=draw).to(device),
)
labels = torch.arange(3, device=device)
for vision in (2, (1, 1, 1, 1)):
    torch.manual_seed(0)
    model = CLIP(32, 32, vision, 64 if vision == 2 else 8, 8, 12, 100, 32, 4, 2).to(device)
    pictures, words = model(images, tokens)
    loss = (torch.nn.functional.cross_entropy(pictures, labels) + torch.nn.functional.cross_entropy(words, labels)) / 2
    loss.backward()
    print(f"{vision} loss {loss.item():.5f}")
    convert_weights(model)
    if vision == 2:
        print(f"half result {model.encode_text(tokens).float().abs().mean().item():.3f}")
    if device == "cuda":
        assert model.encode_image(images.half()).dtype == torch.float16
