"""llm.c's two programs: GPT-2 and Llama 3 with rotary embedding, fused AdamW, weights and gradients written to files."""

import pathlib

import torch
import train_gpt2
import train_llama3

device = "cuda" if torch.cuda.is_available() else "cpu"
tokens = (torch.arange(2 * 17).reshape(2, 17) * 7 % 60).to(device)
inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
train_gpt2.FLASH = 1
gpt2 = train_gpt2.GPT(train_gpt2.GPTConfig(block_size=32, vocab_size=50257, n_layer=2, n_head=2, n_embd=16))
llama = train_llama3.LlamaConfig(
    block_size=32, vocab_size=60, n_layer=2, n_head=4, n_kv_head=2, n_embd=32, multiple_of=16, use_kv=False
)
torch.manual_seed(0)
for name, model in (("gpt2", gpt2), ("llama", train_llama3.LLaMA(llama))):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.1 + (parameter.dim() == 1))
    model = model.to(device).train()
    if name == "llama":
        model.freqs_cis = model.freqs_cis.to(device)  # no buffer; its main makes it there by default
    optimizer = model.configure_optimizers(0.1, 1e-3, (0.9, 0.95), device, 0)
    for _ in range(3):
        logits, loss = model(inputs, targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print(f"{name} loss {loss.item():.5f}\n{name} norm result {norm.item():.4f}")
    if name == "gpt2":
        train_gpt2.write_model(model, "weights.bin", dtype="bfloat16")
        train_gpt2.write_state(model, inputs, targets, logits, loss, "state.bin")
        print(f"result {sum(pathlib.Path('weights.bin').read_bytes()) / 1e3:.0f}.0")
