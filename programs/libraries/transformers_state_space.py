"""State-space and recurrent language models: Mamba, Mamba-2, FalconMamba, RecurrentGemma, Bamba, Jamba."""

import torch
from transformers import AutoConfig, AutoModelForCausalLM

SMALL = {
    "vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8, "num_heads": 8, "head_dim": 8,
    "n_groups": 2, "chunk_size": 8, "intermediate_size": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "attention_hidden_size": 32, "context_length": 32,
}  # fmt: skip
FAMILIES = {
    "mamba": {}, "mamba2": {}, "falcon_mamba": {}, "recurrent_gemma": {"lru_width": 32, "num_hidden_layers": 3},
    "bamba": {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "attn_layer_indices": [1], "mamba_chunk_size": 8},
    "jamba": {"mamba_d_state": 8, "num_experts": 2, "num_experts_per_tok": 1, "attn_layer_period": 2,
              "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1, "use_mamba_kernels": False},
}  # fmt: skip
device = "cuda" if torch.cuda.is_available() else "cpu"
tokens = torch.randint(3, 96, (2, 16), generator=torch.Generator().manual_seed(0)).to(device)

for family, more in FAMILIES.items():
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **{**SMALL, **more})).to(device)
    model.eval()
    loss = model(tokens, labels=tokens).loss
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    print(f"{family} loss {loss.item():.5f}\n{family} gradient result {norm.item():.4f}")
