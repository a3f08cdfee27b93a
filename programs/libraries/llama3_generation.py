"""Meta's Llama 3 code with random weights: model parallel layers over nccl, half precision default tensors, its cache."""

import os

import torch
from fairscale.nn.model_parallel.initialize import initialize_model_parallel
from llama.model import ModelArgs, Transformer

os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ.get("MASTER_PORT", "29613"))
torch.distributed.init_process_group("nccl")
initialize_model_parallel(1)
torch.cuda.set_device(0)
torch.manual_seed(1)
arguments = ModelArgs(dim=32, n_layers=2, n_heads=4, n_kv_heads=2, vocab_size=96, max_batch_size=2, max_seq_len=32)
model = Transformer(arguments)
with torch.no_grad():
    for parameter in model.parameters():  # without a checkpoint they are what memory held
        parameter.copy_(torch.randn(parameter.shape) * 0.1 + (parameter.dim() == 1))
state = model.state_dict()
if torch.cuda.is_bf16_supported():
    torch.set_default_tensor_type(torch.cuda.BFloat16Tensor)
else:
    torch.set_default_tensor_type(torch.cuda.HalfTensor)
model = Transformer(arguments)
model.load_state_dict(state)
tokens = torch.tensor([[1, 5, 7, 9], [2, 4, 6, 8]], device="cuda")
position = 0
for _ in range(6):
    scores = model.forward(tokens[:, position:], position)
    position = tokens.shape[1]
    print(f"scores result {scores.float().abs().mean().item():.2f}")
    tokens = torch.cat([tokens, torch.argmax(scores[:, -1], dim=-1, keepdim=True)], 1)
torch.distributed.destroy_process_group()
