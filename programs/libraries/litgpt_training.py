"""LitGPT: its GPT of several families, trained a few steps, with its chunked cross entropy."""

import torch
from litgpt import GPT, Config
from litgpt.utils import chunked_cross_entropy

device = "cuda" if torch.cuda.is_available() else "cpu"
tokens = torch.randint(0, 64, (2, 16), generator=torch.Generator().manual_seed(0)).to(device)
SMALL = {"block_size": 32, "padded_vocab_size": 64, "n_layer": 2, "n_head": 4, "n_embd": 32, "intermediate_size": 48}
for name in ("pythia-14m", "Llama-3.2-1B", "Gemma-2-2b", "Qwen2.5-0.5B", "Mixtral-8x7B-v0.1"):
    torch.manual_seed(0)
    groups = {"n_query_groups": 2, "head_size": 8} if name != "pythia-14m" else {}
    model = GPT(Config.from_name(name, **SMALL, **groups)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(2):
        loss = chunked_cross_entropy(model(tokens)[:, :-1], tokens[:, 1:], chunk_size=8)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"{name} loss {loss.item():.5f}")
