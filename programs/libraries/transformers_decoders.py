"""One training step of decoder language models of many families."""

import torch
from transformers import AutoConfig, AutoModelForCausalLM

SMALL = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "head_dim": 8, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
FAMILIES = {
    "llama": {}, "mistral": {}, "qwen2": {}, "qwen3": {}, "gemma": {}, "gemma2": {"sliding_window": 8},
    "gemma3_text": {"sliding_window": 8}, "phi": {}, "phi3": {"rope_scaling": None}, "gpt_neox": {},

    "bloom": {}, "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32, "dropout": 0.0}, "starcoder2": {}, "olmo": {},
    "olmo2": {}, "granite": {}, "cohere": {}, "stablelm": {}, "gptj": {"rotary_dim": 4}, "smollm3": {}, "glm": {},
    "gpt_bigcode": {"n_embd": 32, "n_head": 4, "n_layer": 2},
    "mpt": {"d_model": 32, "n_heads": 4, "n_layers": 2, "expansion_ratio": 2},
    "codegen": {"n_embd": 32, "n_head": 4, "n_layer": 2, "rotary_dim": 4},
}  # fmt: skip
device = "cuda" if torch.cuda.is_available() else "cpu"
tokens = torch.randint(3, 96, (2, 16), generator=torch.Generator().manual_seed(0)).to(device)
mask = torch.ones_like(tokens)
mask[0, :4] = 0

for family, more in FAMILIES.items():
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **{**SMALL, **more})
    model = AutoModelForCausalLM.from_config(config).eval().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=device == "cuda")
    for _ in range(2):
        loss = model(tokens, attention_mask=mask, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        print(f"{family} loss {loss.item():.5f}")
