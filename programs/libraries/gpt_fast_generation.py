"""gpt-fast: its Llama with a static key-value cache, generation and int8 weights."""

import torch
from generate import generate
from model import ModelArgs, Transformer
from quantize import WeightOnlyInt8QuantHandler

device = "cuda" if torch.cuda.is_available() else "cpu"


def model(seed):
    torch.manual_seed(seed)
    made = Transformer(
        ModelArgs(block_size=64, vocab_size=96, n_layer=2, n_head=4, dim=32, intermediate_size=48, n_local_heads=2)
    )
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return made.to(device).eval()


def logits(model, prompt):
    with torch.device(device):
        model.setup_caches(max_batch_size=1, max_seq_length=64)
    position = torch.arange(len(prompt), device=device)
    with torch.no_grad():
        return model(prompt[None], position)


prompt = torch.tensor([3, 5, 7, 11, 13], device=device)
large = model(0)
print(f"logits result {logits(large, prompt).abs().mean().item():.5f}")
torch.manual_seed(0)
written, _ = generate(
    large,
    prompt,
    12,
    batch_size=1,
    interactive=False,
    draft_model=None,
    callback=lambda token: None,
    temperature=0.01,
    top_k=1,
)
print(f"written result {written.float().pow(2).mean().item():.3f}")
quantizer = WeightOnlyInt8QuantHandler(large.to(torch.float32))
state = quantizer.create_quantized_state_dict()
int8 = quantizer.convert_for_runtime().to(device)
int8.load_state_dict(state)
print(f"int8 result {logits(int8.to(device), prompt).abs().mean().item():.3f}")
