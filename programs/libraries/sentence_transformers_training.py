"""sentence-transformers: a model made of modules, trained with a contrastive loss, searched and compared."""

import tempfile
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer, losses, util
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

folder = Path(tempfile.mkdtemp())
words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"a the red blue old cat dog house sees likes".split()]
tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
).save_pretrained(folder)
torch.manual_seed(0)
BertModel(
    BertConfig(vocab_size=len(words), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
               hidden_dropout_prob=0, attention_probs_dropout_prob=0)
).save_pretrained(folder)  # fmt: skip
encoder = Transformer(str(folder))
model = SentenceTransformer(modules=[encoder, Pooling(32)], device="cuda" if torch.cuda.is_available() else "cpu")
pairs = (["a red cat", "the old dog sees", "a blue house"], ["the red cat", "a dog sees", "the old house"])
loss = losses.MultipleNegativesRankingLoss(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(4):
    batch = [
        {key: value.to(model.device) for key, value in model.tokenize(texts).items() if torch.is_tensor(value)}
        for texts in pairs
    ]
    value = loss(batch, labels=None)
    value.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"contrastive loss {value.item():.5f}")
vectors = model.encode(pairs[0] + pairs[1], convert_to_tensor=True, normalize_embeddings=True, batch_size=2)
print(f"similarity result {util.cos_sim(vectors, vectors).sum().item():.4f}")
hits = util.semantic_search(vectors[:3], vectors[3:], top_k=2)
print(f"search result {sum(hit['score'] for hit in hits[0]):.5f}")
print(f"mined result {float(len(util.paraphrase_mining(model, pairs[0] + pairs[1]))):.1f}")
