"""An image classifier on one GPU with mixed precision, written for CUDA. It knows nothing of ditorch:

ditorch run examples/train_amp.py
"""

import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    assert torch.cuda.is_available(), "this program needs a GPU"
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = True
    device = torch.device("cuda:0")
    print(f"{torch.cuda.device_count()} GPUs, training on {device}")

    labels = torch.randint(0, 4, (128,))
    images = torch.randn(128, 3, 16, 16) + labels.view(-1, 1, 1, 1)
    loader = DataLoader(TensorDataset(images, labels), batch_size=32, shuffle=True, num_workers=2, pin_memory=True)

    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
        nn.Dropout(0.1), nn.Linear(256, 4),
    ).cuda()  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    scaler = torch.amp.GradScaler("cuda")
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for epoch in range(4):
        correct = 0
        for batch, target in loader:
            batch = batch.to(device, non_blocking=True)
            target = target.cuda(non_blocking=True)
            with torch.autocast("cuda", dtype=torch.float16):
                output = model(batch)
                loss = nn.functional.cross_entropy(output, target)
            optimizer.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            correct += (output.argmax(1) == target).sum().item()
        print(f"epoch {epoch}: loss {loss.item():.3f}, {correct} of 128 right")
    end.record()
    torch.cuda.synchronize()
    assert begin.elapsed_time(end) > 0
    assert torch.cuda.max_memory_allocated() > 0
    assert loss.is_cuda
    assert correct > 64

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cuda_checkpoint.pt"
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
        saved = torch.load(path, map_location="cuda:0", weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    print(f"checkpoint restored on {next(model.parameters()).device}")


if __name__ == "__main__":
    main()
