"""Generation with Llama: greedy, beams, contrastive penalties, static and offloaded caches, assisted, and 16 bit."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=128, pad_token_id=0, bos_token_id=1, eos_token_id=2,
)  # fmt: skip
model = LlamaForCausalLM(config).eval().to(device)
assistant = LlamaForCausalLM(config).eval().to(device)
tokens = torch.randint(3, 96, (2, 6), generator=torch.Generator().manual_seed(0)).to(device)
mask = torch.ones_like(tokens)
mask[0, :2] = 0

WAYS = {
    "greedy": {},
    "beams": {"num_beams": 4, "num_return_sequences": 2},
    "penalties": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "min_new_tokens": 4},
    "static cache": {"cache_implementation": "static", "disable_compile": True},
    "without cache": {"use_cache": False},
}
for name, options in WAYS.items():
    written = model.generate(tokens, attention_mask=mask, max_new_tokens=12, do_sample=False, **options)
    print(f"{name} result {written.float().pow(2).mean().item():.3f}")
offloaded = {"cache_implementation": "offloaded"} if device == "cuda" else {}  # the CPU has nowhere to put it
written = model.generate(tokens, attention_mask=mask, max_new_tokens=12, do_sample=False, **offloaded)
print(f"offloaded cache result {written.float().pow(2).mean().item():.3f}")
written = model.generate(tokens[1:], max_new_tokens=12, do_sample=False, assistant_model=assistant)
print(f"assisted result {written.float().pow(2).mean().item():.3f}")
torch.manual_seed(0)
sampled = model.generate(tokens, attention_mask=mask, max_new_tokens=12, do_sample=True, top_k=20, top_p=0.9)
assert sampled.shape == (2, 18)
for dtype in (torch.bfloat16, torch.float16):
    scores = model.to(dtype)(tokens, attention_mask=mask).logits
    print(f"{dtype} result {scores.float().abs().mean().item():.4f}")
