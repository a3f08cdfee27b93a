"""One training step of mixture-of-experts language models, by every implementation of the experts."""

import torch
from transformers import AutoConfig, AutoModelForCausalLM

SMALL = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2,
    "topk_group": 1, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
    "v_head_dim": 8, "first_k_dense_replace": 1, "bos_token_id": 1, "eos_token_id": 2, "output_router_logits": True,
}  # fmt: skip
DIFFERENT = {"deepseek_v3": {"num_key_value_heads": 4}}
device = "cuda" if torch.cuda.is_available() else "cpu"
tokens = torch.randint(3, 96, (2, 16), generator=torch.Generator().manual_seed(0)).to(device)

for family in ("mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v3", "olmoe", "gpt_oss", "granitemoe", "phimoe"):
    for experts in ("eager", "batched_mm", "grouped_mm"):
        torch.manual_seed(0)
        config = AutoConfig.for_model(family, **{**SMALL, **DIFFERENT.get(family, {})})
        try:
            model = AutoModelForCausalLM.from_config(config, experts_implementation=experts).to(device).eval()
        except (TypeError, ValueError) as error:
            assert "experts_implementation" in str(error) or "xperts" in str(error), error
            continue  # this release of transformers, or this family, has none of that name
        loss = model(tokens, labels=tokens).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        print(f"{family} {experts} loss {loss.item():.5f}\n{family} gradient result {norm.item():.4f}")
