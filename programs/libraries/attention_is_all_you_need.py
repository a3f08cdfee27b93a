"""The Transformer of the paper: encoder and decoder, warm-up of the learning rate, label smoothing, a beam search."""

import torch
from transformer.Models import Transformer
from transformer.Optim import ScheduledOptim
from transformer.Translator import Translator

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
model = Transformer(
    30,
    30,
    src_pad_idx=1,
    trg_pad_idx=1,
    d_word_vec=32,
    d_model=32,
    d_inner=64,
    n_layers=2,
    n_head=2,
    d_k=16,
    d_v=16,
    dropout=0.0,
).to(device)
for layer in model.modules():
    if isinstance(layer, torch.nn.Dropout):  # that of attention is not to be set
        layer.p = 0.0
optimizer = ScheduledOptim(torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9), 2.0, 32, 10)
source = (torch.arange(2 * 10).reshape(2, 10) * 7 % 26 + 4).to(device)
target = source.flip(1).clone()
for _ in range(4):
    optimizer.zero_grad()
    logits = model(source, target[:, :-1])
    loss = torch.nn.functional.cross_entropy(logits, target[:, 1:].flatten(), ignore_index=1, label_smoothing=0.1)
    loss.backward()
    optimizer.step_and_update_lr()
    print(f"loss {loss.item():.5f}")
translator = Translator(model, 3, 8, src_pad_idx=1, trg_pad_idx=1, trg_bos_idx=2, trg_eos_idx=3).to(device)
print("result", sum(translator.translate_sentence(source[:1])) / 8.0)
