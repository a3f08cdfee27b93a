"""xLSTM: blocks of sLSTM and mLSTM, a language model, step by step and in parallel."""

import torch
from xlstm import (
    FeedForwardConfig,
    mLSTMBlockConfig,
    mLSTMLayerConfig,
    sLSTMBlockConfig,
    sLSTMLayerConfig,
    xLSTMLMModel,
    xLSTMLMModelConfig,
)

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
config = xLSTMLMModelConfig(
    vocab_size=50,
    mlstm_block=mLSTMBlockConfig(mlstm=mLSTMLayerConfig(conv1d_kernel_size=4, qkv_proj_blocksize=4, num_heads=2)),
    slstm_block=sLSTMBlockConfig(
        slstm=sLSTMLayerConfig(
            backend="vanilla", num_heads=2, conv1d_kernel_size=4, bias_init="powerlaw_blockdependent"
        ),
        feedforward=FeedForwardConfig(proj_factor=1.3, act_fn="gelu"),
    ),
    context_length=16,
    num_blocks=2,
    embedding_dim=32,
    slstm_at=[1],
)
model = xLSTMLMModel(config)
model.reset_parameters()
model = model.to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
tokens = (torch.arange(2 * 17).reshape(2, 17) * 7 % 50).to(device)
for _ in range(2):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.5f}")
with torch.no_grad():
    state = None
    for position in range(4):
        logits, state = model.step(tokens[:, position : position + 1], state=state)
print(f"result {logits.abs().mean().item():.5f}")
