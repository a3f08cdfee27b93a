"""schedulefree and heavyball: steps of optimizers that average weights, and of fused and preconditioned ones."""

import heavyball
import schedulefree
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)).to(device)
SCHEDULE_FREE = ("AdamWScheduleFree", "SGDScheduleFree", "RAdamScheduleFree", "AdamWScheduleFreeClosure")
HEAVY = ("AdamW", "ADOPT", "SOAP", "RMSprop", "AdEMAMix", "LaProp", "SFAdamW", "NAdam")
heavyball.utils.compile_mode = None
for library, names in ((schedulefree, SCHEDULE_FREE), (heavyball, HEAVY)):
    for name in names:
        torch.manual_seed(0)
        layer = torch.nn.Linear(4, 4).to(device)
        optimizer = getattr(library, name)(layer.parameters(), lr=1e-2)
        if hasattr(optimizer, "train"):
            optimizer.train()

        def step(layer=layer, optimizer=optimizer):
            optimizer.zero_grad()
            loss = layer(inputs).pow(2).sum()
            loss.backward()
            return loss

        for _ in range(3):
            if name.endswith("Closure"):
                optimizer.step(step)
            else:
                step()
                optimizer.step()
        if hasattr(optimizer, "eval"):
            optimizer.eval()
        print(f"{name} loss {layer(inputs).pow(2).sum().item():.5f}")
