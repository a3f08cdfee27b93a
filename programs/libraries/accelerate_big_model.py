"""accelerate's big model inference: a device map over two devices and the CPU, layers moved in as they are needed."""

import torch
from accelerate import cpu_offload, dispatch_model, infer_auto_device_map, init_empty_weights
from transformers import GPT2Config, GPT2LMHeadModel

cuda = torch.cuda.is_available()
torch.manual_seed(0)
config = GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=4, n_head=2)
with init_empty_weights():
    assert GPT2LMHeadModel(config).lm_head.weight.is_meta
tokens = torch.arange(12)[None]
model = GPT2LMHeadModel(config).eval()
state = {name: value.clone() for name, value in model.state_dict().items()}
if cuda:
    blocks = {f"transformer.h.{i}": 0 if i < 2 else torch.cuda.device_count() - 1 for i in range(3)}
    model = dispatch_model(
        model,
        {"transformer.wte": 0, "transformer.wpe": 0, "transformer.drop": 0, **blocks, "transformer.h.3": "cpu",
         "transformer.ln_f": 0, "lm_head": 0},
    )  # fmt: skip
print(f"result {model(tokens).logits.abs().mean().item():.6f}")
whole = GPT2LMHeadModel(config).eval()
whole.load_state_dict(state)
if cuda:
    assert set(infer_auto_device_map(whole, max_memory={0: 20_000, "cpu": 10**9}).values()) & {"cpu", 0}
    cpu_offload(whole, execution_device=torch.device("cuda"))
print(f"result {whole(tokens).logits.abs().mean().item():.6f}")
