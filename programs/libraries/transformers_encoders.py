"""Encoders and encoder-decoders: a training step of each, with padding."""

import torch
from transformers import AutoConfig, AutoModelForMaskedLM, AutoModelForSeq2SeqLM

SMALL = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 64, "d_model": 32, "d_ff": 48, "d_kv": 8, "num_layers": 2, "num_heads": 4,
    "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 1, "dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4, "embedding_size": 16,
    "cls_token_id": 1, "sep_token_id": 2, "attention_window": 8, "block_size": 4, "num_random_blocks": 1,
}  # fmt: skip
MASKED = ("bert", "roberta", "distilbert", "albert", "electra", "deberta-v2", "modernbert", "longformer", "big_bird",
          "mpnet", "convbert", "fnet", "xlm-roberta", "nystromformer")  # fmt: skip
TRANSLATING = ("t5", "bart", "mbart", "pegasus", "marian", "m2m_100", "umt5", "led", "longt5")
device = "cuda" if torch.cuda.is_available() else "cpu"
tokens = torch.randint(3, 96, (2, 16), generator=torch.Generator().manual_seed(0)).to(device)
mask = torch.ones_like(tokens)
mask[0, 12:] = 0

for family in MASKED + TRANSLATING:
    torch.manual_seed(0)
    auto = AutoModelForMaskedLM if family in MASKED else AutoModelForSeq2SeqLM
    model = auto.from_config(AutoConfig.for_model(family, **SMALL)).eval().to(device)
    options = {} if family == "fnet" else {"attention_mask": mask}
    loss = model(input_ids=tokens, labels=tokens, **options).loss
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    print(f"{family} loss {loss.item():.5f}\n{family} gradient result {norm.item():.4f}")
