"""torchtune: LoRA on Llama 3.1 with checkpointing and a chunked loss, DPO, Qwen2, a cache of keys for generation."""

import torch
from torchtune.generation import generate
from torchtune.models import llama3_1, qwen2
from torchtune.modules import TransformerSelfAttentionLayer
from torchtune.modules.loss import LinearCrossEntropyLoss
from torchtune.modules.peft import get_adapter_params, set_trainable_params
from torchtune.rlhf.loss import DPOLoss
from torchtune.training import set_activation_checkpointing

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
size = {"vocab_size": 64, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "embed_dim": 32, "max_seq_len": 64}
tokens = (torch.arange(2 * 17).reshape(2, 17) * 7 % 64).to(device)


def filled(model):
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.1 + (parameter.dim() == 1))
    return model.to(device)


model = filled(
    llama3_1.lora_llama3_1(["q_proj", "v_proj", "output_proj"], lora_rank=4, lora_alpha=8, **size, intermediate_dim=64)
)
set_trainable_params(model, get_adapter_params(model))
set_activation_checkpointing(model, auto_wrap_policy={TransformerSelfAttentionLayer})
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
criterion = LinearCrossEntropyLoss(num_output_chunks=4)
criterion.set_model_output(model)
for _ in range(3):
    loss = criterion(model(tokens[:, :-1]), tokens[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.5f}")
probabilities = [torch.randn(4).to(device) for _ in range(4)]
loss, chosen, rejected = DPOLoss(beta=0.1)(*probabilities)
print(f"loss {loss.mean().item():.5f}")
model = filled(qwen2.qwen2(**size, intermediate_dim=64, attn_dropout=0.0, norm_eps=1e-6, rope_base=1e4)).eval()
with device:
    model.setup_caches(batch_size=1, dtype=torch.float32, decoder_max_seq_len=24)
generated, logits = generate(model, tokens[0, :6], max_generated_tokens=6, top_k=1)
print(f"result {generated.sum().item() / 8.0}\nresult {logits.abs().mean().item():.4f}")
