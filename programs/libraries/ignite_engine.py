"""PyTorch-Ignite: a supervised trainer and evaluator with measures, checkpoints and an average of weights."""

import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.handlers import Checkpoint, DiskSaver, EMAHandler, TerminateOnNan
from ignite.metrics import Accuracy, ConfusionMatrix, Loss, Precision, Recall, RunningAverage

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3)).to(device)
features = torch.randn(64, 8)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(features, features[:, :3].argmax(1)), batch_size=16)
criterion = torch.nn.CrossEntropyLoss()
trainer = create_supervised_trainer(model, torch.optim.Adam(model.parameters(), lr=1e-2), criterion, device=device)
evaluator = create_supervised_evaluator(
    model, device=device, metrics={"accuracy": Accuracy(), "loss": Loss(criterion), "precision": Precision(average=True),
                                   "recall": Recall(average=True), "confusion": ConfusionMatrix(3)},
)  # fmt: skip
RunningAverage(output_transform=lambda value: value).attach(trainer, "running")
trainer.add_event_handler(Events.ITERATION_COMPLETED, TerminateOnNan())
average = EMAHandler(model, momentum=0.1)
average.attach(trainer)
trainer.add_event_handler(
    Events.EPOCH_COMPLETED, Checkpoint({"model": model}, DiskSaver("checkpoints", require_empty=False))
)


@trainer.on(Events.EPOCH_COMPLETED)
def show(engine):
    measured = evaluator.run(loader).metrics
    for name in ("accuracy", "loss", "precision", "recall"):
        print(f"{name} result {measured[name]:.5f}")
    print(f"running loss {engine.state.metrics['running']:.5f}")


trainer.run(loader, max_epochs=3)
print(f"average result {sum(p.double().abs().sum() for p in average.ema_model.parameters()).item():.4f}")
