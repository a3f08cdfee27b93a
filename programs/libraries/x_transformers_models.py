"""x-transformers: an autoregressive wrapper over many of its options, and an encoder-decoder."""

import torch
from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper, XTransformer

device = "cuda" if torch.cuda.is_available() else "cpu"
tokens = torch.randint(0, 50, (2, 24), generator=torch.Generator().manual_seed(0)).to(device)
OPTIONS = {
    "rotary": {"rotary_pos_emb": True}, "alibi": {"alibi_pos_bias": True, "alibi_num_heads": 2}, "flash": {"attn_flash": True},
    "rmsnorm, swiglu": {"use_rmsnorm": True, "ff_glu": True, "ff_swish": True}, "t5 bias": {"rel_pos_bias": True},
    "one kv head": {"attn_one_kv_head": True}, "memory": {"attn_num_mem_kv": 4}, "sandwich": {"sandwich_norm": True},
    "talking heads": {"attn_pre_talking_heads": True}, "qk norm": {"attn_qk_norm": True}, "shift": {"shift_tokens": 1},
    "sparse topk": {"attn_sparse_topk": 4},
}  # fmt: skip
for name, options in OPTIONS.items():
    torch.manual_seed(0)
    layers = Decoder(dim=32, depth=2, heads=4, attn_dim_head=8, **options)
    model = AutoregressiveWrapper(TransformerWrapper(num_tokens=50, max_seq_len=32, attn_layers=layers)).to(device)
    loss = model(tokens)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    print(f"{name} loss {loss.item():.5f}\n{name} gradient result {norm.item():.4f}")
written = model.generate(tokens[:, :4], 8, temperature=0.0)
print(f"greedy result {written.float().mean().item():.4f}")
torch.manual_seed(0)
translator = XTransformer(
    dim=32, enc_num_tokens=50, enc_depth=1, enc_heads=4, enc_max_seq_len=32, dec_num_tokens=50, dec_depth=1, dec_heads=4,
    dec_max_seq_len=32, tie_token_emb=True,
).to(device)  # fmt: skip
loss = translator(tokens, tokens, mask=torch.ones_like(tokens, dtype=torch.bool))
loss.backward()
print(f"encoder-decoder loss {loss.item():.5f}")
