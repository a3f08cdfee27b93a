"""Captum: what a small network looks at, by seven methods."""

import torch
from captum.attr import DeepLift, GuidedGradCam, IntegratedGradients, LayerGradCam, Occlusion, Saliency

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(4, 3)
)
images = torch.randn(2, 3, 8, 8).to(device)
model = model.to(device)
METHODS = {
    "integrated gradients": lambda: IntegratedGradients(model).attribute(images, target=1),
    "DeepLift": lambda: DeepLift(model).attribute(images, target=1),
    "saliency": lambda: Saliency(model).attribute(images, target=1),
    "occlusion": lambda: Occlusion(model).attribute(images, (3, 4, 4), target=0),
    "layer GradCAM": lambda: LayerGradCam(model, model[0]).attribute(images, target=0),
    "guided GradCAM": lambda: GuidedGradCam(model, model[0]).attribute(images, target=0),
}
for name, method in METHODS.items():
    print(f"{name} result {method().abs().sum().item():.5f}")
