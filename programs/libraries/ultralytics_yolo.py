"""Ultralytics: YOLO11 and RT-DETR made from their configuration, trained by YOLO.train on pictures, and predicting."""

import numpy
import torch
from PIL import Image
from ultralytics import YOLO

device = 0 if torch.cuda.is_available() else "cpu"
from pathlib import Path

root = Path("data").absolute()
random = numpy.random.default_rng(0)
for part in ("train", "val"):
    (root / "images" / part).mkdir(parents=True)
    (root / "labels" / part).mkdir(parents=True)
    for number in range(8):
        Image.fromarray(random.integers(0, 255, (64, 64, 3), dtype=numpy.uint8)).save(
            root / "images" / part / f"{number}.png"
        )
        (root / "labels" / part / f"{number}.txt").write_text(f"{number % 2} 0.5 0.5 0.4 0.6\n")
(root / "data.yaml").write_text(f"path: {root}\ntrain: images/train\nval: images/val\nnames: {{0: cat, 1: dog}}\n")
model = YOLO("yolo11n.yaml")
torch.manual_seed(0)
model.train(
    data=str(root / "data.yaml"), epochs=1, imgsz=64, batch=4, device=device, workers=0, amp=False, plots=False, seed=0,
    mosaic=0, hsv_h=0, hsv_s=0, hsv_v=0, translate=0, scale=0, fliplr=0, erasing=0, optimizer="SGD", val=True, verbose=False,
)  # fmt: skip
losses = model.trainer.tloss  # a tensor or, in newer releases, a dictionary
for value in losses.values() if isinstance(losses, dict) else losses:
    print(f"final loss {float(value):.4f}")
[found] = model.predict(root / "images/val/0.png", device=device, imgsz=64, conf=0.0001, verbose=False)
assert found.boxes.xyxy.is_cuda == torch.cuda.is_available()
print(f"boxes result {float(len(found.boxes) > 0):.1f}")
