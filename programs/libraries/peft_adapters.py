"""peft: LoRA, DoRA, AdaLoRA, IA3, prompt and prefix tuning, LoHa, OFT; merged and saved."""

import tempfile

import torch
from peft import (
    AdaLoraConfig,
    IA3Config,
    LoHaConfig,
    LoraConfig,
    OFTConfig,
    PeftModel,
    PrefixTuningConfig,
    PromptTuningConfig,
    VeraConfig,
    get_peft_model,
)
from transformers import LlamaConfig, LlamaForCausalLM

device = "cuda" if torch.cuda.is_available() else "cpu"
tokens = torch.randint(3, 64, (2, 12), generator=torch.Generator().manual_seed(0)).to(device)
LAYERS = {"task_type": "CAUSAL_LM", "target_modules": ["q_proj", "v_proj"]}
WAYS = {
    "LoRA": LoraConfig(r=4, **LAYERS),
    "DoRA": LoraConfig(r=4, use_dora=True, **LAYERS),
    "rsLoRA": LoraConfig(r=4, use_rslora=True, init_lora_weights="pissa", **LAYERS),
    "AdaLoRA": AdaLoraConfig(init_r=4, target_r=2, total_step=10, **LAYERS),
    "VeRA": VeraConfig(r=4, **LAYERS),
    "IA3": IA3Config(feedforward_modules=[], **LAYERS),
    "LoHa": LoHaConfig(r=4, **LAYERS),
    "OFT": OFTConfig(oft_block_size=4, **LAYERS),
    "prompt": PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4),
    "prefix": PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4),
}


def base():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=64, pad_token_id=0,
    )  # fmt: skip
    return LlamaForCausalLM(config).to(device)


for name, config in WAYS.items():
    model = get_peft_model(base(), config)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    for _ in range(3):
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"{name} loss {loss.item():.5f}")
    if name in ("LoRA", "DoRA"):
        folder = tempfile.mkdtemp()
        model.save_pretrained(folder)
        again = PeftModel.from_pretrained(base(), folder).merge_and_unload()
        print(f"{name} merged loss {again(input_ids=tokens, labels=tokens).loss.item():.5f}")
