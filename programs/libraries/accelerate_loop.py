"""accelerate: a loop with gradient accumulation, clipping, a scheduler, gather_for_metrics and saved state."""

import tempfile

import torch
from accelerate import Accelerator

accelerator = Accelerator(gradient_accumulation_steps=2)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.GELU(), torch.nn.LayerNorm(32), torch.nn.Linear(32, 4))
features = torch.randn(70, 8)
loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(features, features[:, :4].argmax(1)), batch_size=16, shuffle=False
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
for epoch in range(3):
    right = 0
    for inputs, targets in loader:
        with accelerator.accumulate(model):
            scores = model(inputs)
            loss = torch.nn.functional.cross_entropy(scores, targets)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        found, wanted = accelerator.gather_for_metrics((scores.argmax(1), targets))
        right += (found == wanted).sum().item()
    print(f"epoch {epoch} loss {loss.item():.6f}\naccuracy result {right / 70:.4f}")
    if epoch == 1:
        folder = tempfile.mkdtemp()
        accelerator.save_state(folder)
accelerator.load_state(folder)
with torch.no_grad():
    print(f"restored loss {torch.nn.functional.cross_entropy(model(inputs), targets).item():.6f}")
print(f"learning rate result {scheduler.get_last_lr()[0]:.6f}")
