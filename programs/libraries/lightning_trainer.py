"""Lightning: Trainer on the GPU with validation, checkpoints, accumulation, early stopping and mixed precision."""

import pytorch_lightning as lightning
import torch
from pytorch_lightning.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint, StochasticWeightAveraging
from pytorch_lightning.loggers import CSVLogger

cuda = torch.cuda.is_available()


class Model(lightning.LightningModule):
    def __init__(self, width=16):
        super().__init__()
        self.save_hyperparameters()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(8, width), torch.nn.BatchNorm1d(width), torch.nn.Linear(width, 1)
        )

    def training_step(self, batch, index):
        assert batch[0].is_cuda == cuda
        loss = self.layers(batch[0]).sub(batch[0].sum(1, keepdim=True)).pow(2).mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, index):
        self.log("validation", self.layers(batch[0]).pow(2).mean())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=24)]


def train(precision, *callbacks, **options):
    lightning.seed_everything(0, verbose=False)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(64, 8)), batch_size=8)
    trainer = lightning.Trainer(
        accelerator="gpu" if cuda else "cpu", devices=1, precision=precision, max_epochs=3, enable_progress_bar=False,
        enable_model_summary=False, logger=CSVLogger("logs"), gradient_clip_val=1.0, log_every_n_steps=1,
        callbacks=[ModelCheckpoint("checkpoints", monitor="validation"), LearningRateMonitor(), *callbacks], **options,
    )  # fmt: skip
    model = Model()
    trainer.fit(model, data, data)
    for name in ("loss", "validation"):
        print(f"{precision} {name} result {trainer.callback_metrics[name].item():.5f}")
    return trainer, model, data


trainer, model, data = train("32-true", EarlyStopping("validation", patience=5))
loaded = Model.load_from_checkpoint(trainer.checkpoint_callback.best_model_path)
[metrics] = trainer.validate(loaded, data, verbose=False)
print(f"restored result {metrics['validation']:.5f}")
train("bf16-mixed", accumulate_grad_batches=2)
train("32-true", StochasticWeightAveraging(1e-2))
