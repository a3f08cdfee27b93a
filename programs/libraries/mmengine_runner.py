"""MMEngine's Runner: a model with its data preprocessor, mixed precision, a hook, evaluation, a checkpoint and resuming."""

import torch
from mmengine.evaluator import BaseMetric
from mmengine.model import BaseModel
from mmengine.runner import Runner

torch.manual_seed(0)
data = [(torch.randn(8), number % 3) for number in range(24)]


class Classifier(BaseModel):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 3))

    def forward(self, inputs, labels, mode):
        logits = self.layers(inputs)
        if mode == "loss":
            loss = torch.nn.functional.cross_entropy(logits, labels)
            print(f"loss {loss.item():.4f}")
            return {"loss": loss}
        return logits.argmax(1), labels


class Accuracy(BaseMetric):
    def process(self, data_batch, data_samples):
        found, labels = data_samples
        self.results.append({"right": (found == labels).sum().cpu(), "all": len(found)})

    def compute_metrics(self, results):
        return {"accuracy": sum(each["right"].item() for each in results) / sum(each["all"] for each in results)}


def runner(epochs, **options):
    loader = {
        "batch_size": 6,
        "dataset": data,
        "num_workers": 0,
        "sampler": {"type": "DefaultSampler", "shuffle": False},
    }
    loader["collate_fn"] = {"type": "default_collate"}
    torch.manual_seed(0)
    return Runner(
        Classifier(), "work", train_dataloader=loader, val_dataloader=loader, val_evaluator=[Accuracy()],
        train_cfg={"by_epoch": True, "max_epochs": epochs, "val_interval": 1}, val_cfg={}, log_level="ERROR",
        default_hooks={"checkpoint": {"type": "CheckpointHook", "interval": 1}}, randomness={"seed": 0},
        optim_wrapper={"optimizer": {"type": "SGD", "lr": 0.1, "momentum": 0.9}, "clip_grad": {"max_norm": 1.0}},
        **options,
    )  # fmt: skip


runner(2).train()
resumed = runner(3, resume=True)
resumed.train()
print(f"result {resumed.val_loop.run()['accuracy']:.4f}")
