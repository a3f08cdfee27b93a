"""nanochat: its GPT with value embeddings and sliding windows, Muon and AdamW, generation with a cache of keys."""

import torch
from nanochat.gpt import GPT, GPTConfig

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
config = GPTConfig(sequence_len=32, vocab_size=128, n_layer=4, n_head=2, n_kv_head=1, n_embd=64, window_pattern="SL")
torch.manual_seed(0)
with torch.device("meta"):
    model = GPT(config)
model.to_empty(device="cpu")
model.init_weights()
model.to(device)
optimizer = model.setup_optimizer()
tokens = (torch.arange(2 * 33).reshape(2, 33) * 11 % 128).to(device)
for _ in range(3):
    loss = model(tokens[:, :-1], tokens[:, 1:].contiguous())
    loss.backward()
    optimizer.step()
    model.zero_grad(set_to_none=True)
    print(f"loss {loss.item():.4f}")
model.eval()
print("result", sum(model.generate([1, 2, 3], 8, temperature=0)) / 8.0)
