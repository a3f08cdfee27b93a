"""fastai: a tabular learner and a convolutional one, fit_one_cycle, half precision, and the learning rate finder."""

import torch
from fastai.callback.all import *
from fastai.data.all import *
from fastai.learner import Learner
from fastai.metrics import accuracy
from fastai.optimizer import ranger
from fastai.torch_core import default_device

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
assert default_device().type == device
draw = torch.Generator().manual_seed(0)
images, labels = torch.randn(64, 3, 16, 16, generator=draw), torch.randint(0, 3, (64,), generator=draw)
data = [(image, label) for image, label in zip(images, labels)]
loaders = DataLoaders(
    DataLoader(data, bs=16, num_workers=0), DataLoader(data, bs=16, num_workers=0), device=default_device()
)
layers = torch.nn.Sequential(
    torch.nn.Conv2d(3, 8, 3),
    torch.nn.BatchNorm2d(8),
    torch.nn.ReLU(),
    torch.nn.AdaptiveAvgPool2d(1),
    torch.nn.Flatten(),
    torch.nn.Linear(8, 3),
)
learner = Learner(
    loaders, layers, loss_func=torch.nn.CrossEntropyLoss(), metrics=accuracy, opt_func=ranger, cbs=[GradientClip(1.0)]
)
with learner.no_bar(), learner.no_logging():
    learner.fit_one_cycle(3, 1e-2)
    for train, valid, right in learner.recorder.values:
        print(f"train loss {train:.5f}\nvalid loss {valid:.5f}\naccuracy result {right:.4f}")
    learner.to_fp16() if device == "cuda" else learner
    learner.fit(1, 1e-3)
    scores, targets = learner.get_preds()
assert torch.isfinite(scores).all()
