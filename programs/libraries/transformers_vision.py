"""Vision models: a training step of each on random images."""

import torch
from transformers import AutoConfig, AutoModelForImageClassification, AutoModelForSemanticSegmentation

SMALL = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32,
    "patch_size": 8, "num_labels": 5,
}  # fmt: skip
CLASSIFYING = {
    "vit": {}, "dinov2": {}, "beit": {}, "ijepa": {},
    "swin": {"embed_dim": 16, "depths": [1, 1], "num_attention_heads": [2, 2], "window_size": 2, "patch_size": 4, "num_hidden_layers": 2},
    "swinv2": {"embed_dim": 16, "depths": [1, 1], "num_attention_heads": [2, 2], "window_size": 2, "patch_size": 4, "num_hidden_layers": 2},
    "convnext": {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2, "patch_size": 4},
    "convnextv2": {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2, "patch_size": 4},
    "resnet": {"hidden_sizes": [16, 32], "depths": [1, 1], "embedding_size": 16},
    "mobilenet_v2": {},
    "pvt": {"hidden_sizes": [16, 16, 32, 32], "depths": [1] * 4, "num_attention_heads": [1, 1, 2, 2], "patch_size": 4},
    "poolformer": {"hidden_sizes": [16, 16, 32, 32], "depths": [1] * 4, "patch_size": 7},
    "focalnet": {"embed_dim": 16, "depths": [1, 1], "hidden_sizes": [16, 32], "focal_levels": [1, 1],
                 "focal_windows": [3, 3], "patch_size": 4},
}  # fmt: skip
SEGMENTING = {
    "segformer": {"hidden_sizes": [16, 16, 32, 32], "depths": [1] * 4, "num_attention_heads": [1, 1, 2, 2],
                  "decoder_hidden_size": 16, "patch_sizes": [7, 3, 3, 3]},
    "mobilevit": {"hidden_sizes": [16, 16, 16], "neck_hidden_sizes": [8, 8, 8, 8, 8, 8, 16], "patch_size": 2},
}  # fmt: skip
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.backends.cudnn.benchmark = True
images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)).to(device)
labels = torch.tensor([1, 3], device=device)

for family, more in {**CLASSIFYING, **SEGMENTING}.items():
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **{**SMALL, **more})
    auto = AutoModelForImageClassification if family in CLASSIFYING else AutoModelForSemanticSegmentation
    try:
        model = auto.from_config(config).eval().to(device)
    except ValueError as error:
        assert "Unrecognized configuration class" in str(error)
        continue
    target = labels if family in CLASSIFYING else labels[:, None, None].expand(2, 32, 32).contiguous()
    loss = model(images, labels=target).loss
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    print(f"{family} loss {loss.item():.5f}\n{family} gradient result {norm.item():.4f}")
