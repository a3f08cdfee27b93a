"""Training on the device gives what training on the CPU gives."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from ditorch.demo import GPT


def train(device, steps=20, **options):
    """The losses of a small GPT that learns random tokens by heart."""
    torch.manual_seed(0)
    model = GPT(vocabulary=50, width=32, heads=2, length=16).to(device)
    tokens = torch.randint(0, 50, (4, 17)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast(device, **options):
            loss = model.loss(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_a_gpt_learns_with_exactly_the_cpus_losses():
    # before torch 2.6 a device has no attention kernel of its own
    with nullcontext() if hasattr(torch, "accelerator") else sdpa_kernel(SDPBackend.MATH):
        device, host = train("sim", enabled=False), train("cpu", enabled=False)
    assert device == host
    assert device[-1] < device[0] / 2


def test_a_gpt_trains_alike_in_bfloat16():
    device, host = (train(name, steps=5, dtype=torch.bfloat16) for name in ("sim", "cpu"))
    assert device == pytest.approx(host, rel=0.02)  # CPU and accelerators autocast different operators


def test_training_is_repeatable():
    assert train("sim", steps=3, enabled=False) == train("sim", steps=3, enabled=False)


@pytest.fixture
def gpt2(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    transformers = pytest.importorskip("transformers")

    def make(device):
        torch.manual_seed(0)
        configuration = transformers.GPT2Config(
            n_layer=2, n_head=2, n_embd=32, vocab_size=100, n_positions=64, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
            bos_token_id=99, eos_token_id=99,
        )  # fmt: skip
        return transformers.GPT2LMHeadModel(configuration).to(device)

    return make


def train_and_generate(model, device):
    tokens = torch.arange(40).view(2, 20).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(input_ids=tokens, attention_mask=torch.ones_like(tokens), labels=tokens).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    prompt = tokens[:, :5]
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0, "attention_mask": torch.ones_like(prompt)}
    return losses, model.eval().generate(prompt, **options).tolist()


def test_a_transformers_gpt2_trains_and_generates_as_on_the_cpu(gpt2):
    losses, text = train_and_generate(gpt2("sim"), "sim")
    host_losses, host_text = train_and_generate(gpt2("cpu"), "cpu")
    assert losses == pytest.approx(host_losses, abs=1e-6)
    assert losses[-1] < losses[0]
    assert text == host_text
    assert len(text[0]) == 10
