"""Compiled models of sequences: attention with masks and caches, experts, recurrences, models of transformers."""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
from benchmarks.compiled.program import Chosen, Programs, Step, state_of
from torch import Tensor, nn
from torch.nn import functional

PROGRAMS = Programs()
WIDTH, HEADS, WORDS, LENGTH = 32, 4, 48, 12


def words(chosen: Chosen, size: int = 2, length: int = LENGTH) -> Tensor:
    return chosen.to(torch.randint(WORDS, (size, length)))


def rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), -1)


class Attention(nn.Module):
    """Queries of four heads, keys of two, rotated."""

    def __init__(self, masked: bool = False) -> None:
        super().__init__()
        self.masked = masked
        self.query, self.keys = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH)
        angles = torch.outer(torch.arange(64.0), 1.0 / 10_000 ** (torch.arange(4) / 4))
        self.register_buffer("cosine", angles.cos(), persistent=False)
        self.register_buffer("sine", angles.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        size, length, _ = x.shape
        query = self.query(x).view(size, length, HEADS, -1).transpose(1, 2)
        key, value = self.keys(x).view(size, length, HEADS, -1).transpose(1, 2).chunk(2, 1)
        query = rotated(query, self.cosine[:length], self.sine[:length])
        key = rotated(key, self.cosine[:length], self.sine[:length])
        key, value = key.repeat_interleave(2, 1), value.repeat_interleave(2, 1)
        if self.masked:
            mask = torch.ones(length, length, device=x.device, dtype=torch.bool).tril(3).triu(-3)
            mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        else:
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(size, length, WIDTH))


class Tied(nn.Module):
    """A language model whose head is its embedding."""

    def __init__(self, masked: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH, padding_idx=0)
        self.attention, self.norm = Attention(masked), nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        hidden = self.embedding(tokens)
        hidden = hidden + self.attention(self.norm(hidden))
        logits = self.head(hidden)
        if targets is None:
            return logits[:, [-1]], None
        return logits, functional.cross_entropy(logits.view(-1, WORDS), targets.view(-1), ignore_index=3)


@PROGRAMS("tied weights, causal attention")
def tied(chosen: Chosen) -> Step:
    model = chosen.to(Tied())
    compiled = chosen.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2, fused=chosen.device != "sim")

    def step() -> list[Tensor]:
        tokens = words(chosen)
        _, loss = compiled(tokens, tokens.roll(-1, 1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            last, _ = compiled(tokens)
        return [*state_of(loss, model), last]

    return step


@PROGRAMS("masked attention under autocast")
def masked(chosen: Chosen) -> Step:
    model = chosen.to(Tied(masked=True))
    compiled = chosen.compile(model, fullgraph=True)

    def step() -> list[Tensor]:
        tokens = words(chosen)
        model.zero_grad()
        with torch.autocast(chosen.device, torch.bfloat16):
            logits, loss = compiled(tokens, tokens.roll(-1, 1))
        loss.backward()
        return [*state_of(loss, model), logits.detach()]

    return step


class Cache(nn.Module):
    """Keys and values of what has been said, in buffers that are written in place."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.keys, self.head = (
            nn.Embedding(WORDS, WIDTH),
            nn.Linear(WIDTH, 2 * WIDTH),
            nn.Linear(WIDTH, WORDS),
        )
        self.register_buffer("key_cache", torch.zeros(1, LENGTH, WIDTH))
        self.register_buffer("value_cache", torch.zeros(1, LENGTH, WIDTH))

    def forward(self, token: Tensor, place: Tensor) -> Tensor:
        hidden = self.embedding(token)
        key, value = self.keys(hidden).chunk(2, -1)
        self.key_cache.index_copy_(1, place, key)
        self.value_cache[:, place] = value
        scores = (hidden @ self.key_cache.mT) / WIDTH**0.5
        scores = scores.masked_fill(torch.arange(LENGTH, device=token.device) > place, float("-inf"))
        return self.head(scores.softmax(-1) @ self.value_cache)


@PROGRAMS("generation with a cache")
def generation(chosen: Chosen) -> Step:
    model = chosen.to(Cache()).eval()
    decode = chosen.compile(model, mode=None, fullgraph=True)

    @torch.no_grad()
    def step() -> list[Tensor]:
        token, found = words(chosen, 1, 1), []
        for place in range(4):
            logits = decode(token, torch.tensor([place], device=chosen.device))
            chances = (logits[:, -1] / 0.8).softmax(-1)
            token = torch.multinomial(chances, 1)
            found.append(token)
        return [*found, logits, model.key_cache.clone(), model.value_cache.clone()]

    return step


class Experts(nn.Module):
    """Two of four experts for each token, gathered by a loop as it is often written."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 4, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH)) for _ in range(4)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        flat = x.flatten(0, 1)
        chances = self.router(flat).softmax(-1, dtype=torch.float32)
        weights, chosen = chances.topk(2, -1)
        weights = (weights / weights.sum(-1, keepdim=True)).to(x.dtype)
        result = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            token, slot = torch.where(chosen == number)
            result.index_add_(0, token, expert(flat[token]) * weights[token, slot, None])
        share = functional.one_hot(chosen, 4).float().mean((0, 1))
        return result.view_as(x), (share * chances.mean(0)).sum() * 4


@PROGRAMS("experts")
def experts(chosen: Chosen) -> Step:
    model = chosen.to(Experts())
    compiled = chosen.compile(model)

    def step() -> list[Tensor]:
        model.zero_grad()
        x = chosen.to(torch.randn(2, LENGTH, WIDTH))
        output, balance = compiled(x)
        loss = (output - x).square().mean() + 0.01 * balance
        loss.backward()
        return state_of(loss, model)

    return step


class Recurrent(nn.Module):
    """An LSTM and a cell in a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.cell, self.head = nn.GRUCell(WIDTH, WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, x: Tensor) -> Tensor:
        output, (state, _) = self.lstm(x)
        state = state[0]
        for moment in output.unbind(1)[:3]:
            state = self.cell(moment, state)
        return self.head(state)


@PROGRAMS("recurrent")
def recurrent(chosen: Chosen) -> Step:
    model = chosen.to(Recurrent())
    compiled = chosen.compile(model)

    def step() -> list[Tensor]:
        model.zero_grad()
        x = chosen.to(torch.randn(3, 5, WIDTH))
        loss = functional.cross_entropy(compiled(x), words(chosen, 3, 1).flatten())
        loss.backward()
        return state_of(loss, model)

    return step


@PROGRAMS("flex attention", cannot=("sim",))  # torch lets no other device
def flexible(chosen: Chosen) -> Step:
    from torch.nn.attention.flex_attention import flex_attention

    slopes = chosen.to(torch.tensor([0.5, 0.25, 0.125, 0.0625]))

    def leaning(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return torch.where(query >= key, score - slopes[head] * (query - key), -float("inf"))

    class Flexible(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            parts = self.mix(x).view(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4).unbind(0)
            return self.out(flex_attention(*parts, score_mod=leaning).transpose(1, 2).flatten(2))

    model = chosen.to(Flexible())
    compiled = chosen.compile(model)

    def step() -> list[Tensor]:
        with torch.no_grad():
            return [compiled(chosen.to(torch.randn(2, 16, WIDTH)))]

    return step


@PROGRAMS("the encoder of torch.nn, bag of words")
def encoder(chosen: Chosen) -> Step:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 48, dropout=0.1, batch_first=True, norm_first=True)
            self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.bag, self.head = nn.EmbeddingBag(WORDS, WIDTH, mode="mean"), nn.Linear(WIDTH, 5)

        def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
            hidden = self.layers(x, mask=nn.Transformer.generate_square_subsequent_mask(LENGTH, device=x.device))
            return self.head(hidden.mean(1) + self.bag(tokens))

    model = chosen.to(Encoder())
    compiled = chosen.compile(model)

    def step() -> list[Tensor]:
        model.zero_grad()
        x = chosen.to(torch.randn(2, LENGTH, WIDTH))
        loss = functional.cross_entropy(compiled(x, words(chosen)), chosen.to(torch.tensor([1, 4])))
        loss.backward()
        return state_of(loss, model)

    return step


def _of_transformers(kind: str, config: str, **options: Any) -> Any:
    def make(chosen: Chosen) -> Step:
        import transformers

        sizes = {
            "vocab_size": WORDS,
            "hidden_size": WIDTH,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": HEADS,
            "max_position_embeddings": 64,
        }
        model = chosen.to(getattr(transformers, kind)(getattr(transformers, config)(**{**sizes, **options})))
        model.forward = chosen.compile(model.forward)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

        def step() -> list[Tensor]:
            tokens = words(chosen)
            optimizer.zero_grad()
            loss = model(input_ids=tokens, labels=tokens).loss
            loss.backward()
            optimizer.step()
            return state_of(loss, model)

        return step

    return make


if importlib.util.find_spec("transformers") is not None:
    PROGRAMS("transformers Llama")(_of_transformers("LlamaForCausalLM", "LlamaConfig", num_key_value_heads=2))
    PROGRAMS("transformers BERT")(_of_transformers("BertForMaskedLM", "BertConfig"))
    PROGRAMS("transformers Mixtral")(
        _of_transformers("MixtralForCausalLM", "MixtralConfig", num_key_value_heads=2, num_local_experts=4)
    )
