"""Trainer on GPT-2: plain, fp16, bf16 with gradient checkpointing; evaluation, a checkpoint and training from there."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer, TrainingArguments

tokens = torch.randint(0, 64, (32, 12), generator=torch.Generator().manual_seed(0))
data = [{"input_ids": text, "labels": text} for text in tokens]


def train(name, steps=4, resume=False, **options):
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
        eos_token_id=0, bos_token_id=0,
    )  # fmt: skip
    arguments = TrainingArguments(
        name, max_steps=steps, per_device_train_batch_size=8, logging_steps=1, learning_rate=1e-2, save_steps=2,
        report_to="none", disable_tqdm=True, use_cpu=not torch.cuda.is_available(), **options,
    )  # fmt: skip
    trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=data, eval_dataset=data)
    trainer.remove_callback(PrinterCallback)
    trainer.train(resume_from_checkpoint=resume)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return [*losses, trainer.evaluate()["eval_loss"]]


for name, losses in {
    "plain": train("plain"),
    "resumed": train("plain", steps=6, resume=True),
    "bf16, checkpointing": train("bf16", bf16=True, gradient_checkpointing=True),
}.items():
    for loss in losses:
        print(f"{name} loss {loss:.4f}")
if torch.cuda.is_available():  # the CPU has no fp16 training
    losses = train("fp16", steps=8, fp16=True)
    assert losses[-1] < losses[0], losses
