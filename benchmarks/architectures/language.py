"""Models of sequences: attention of many kinds, experts, scans, recurrent layers."""

from __future__ import annotations

import math

import torch
from benchmarks.architectures.program import Program, normal, whole
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from ditorch.demo.gpt import GPT

WORDS, WIDTH, HEADS = 48, 32, 4


def tokens(batch: int = 3, length: int = 20) -> list[Tensor]:
    return [whole(WORDS, batch, length, seed=1), whole(WORDS, batch, length, seed=2)]


def split_heads(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def joined_heads(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


class Encoder(nn.Module):
    """BERT: torch's own encoder with padding, dropout and gelu; masked words are guessed."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH, padding_idx=0), nn.Embedding(32, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, 0.1, F.gelu, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(WIDTH)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        padding = x == 0
        hidden = self.words(x) + self.places.weight[: x.shape[1]]
        hidden = self.norm(self.layers(hidden, src_key_padding_mask=padding))
        scores = hidden @ self.words.weight.t()
        target = torch.where(y % 3 == 0, y, -100)
        return F.cross_entropy(scores.flatten(0, 1), target.flatten(), ignore_index=-100, label_smoothing=0.1)


class RelativeAttention(nn.Module):
    """T5's: a bias by distance, no scale."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.bias = nn.Embedding(16, HEADS)

    def forward(self, x: Tensor, memory: Tensor, is_causal: bool) -> Tensor:
        query, key, value = (split_heads(part, HEADS) for part in (self.query(x), self.key(memory), self.value(memory)))
        rows, columns = (torch.arange(one.shape[1], device=x.device) for one in (x, memory))
        distance = columns[None] - rows[:, None]
        near = (distance.abs().float() + 1).log2().long().clamp(max=7) + 8 * (distance > 0)
        scores = query @ key.transpose(-1, -2) + self.bias(near).permute(2, 0, 1)
        if is_causal:
            scores = scores.masked_fill(distance > 0, torch.finfo(scores.dtype).min)
        weights = F.dropout(F.softmax(scores.float(), -1).type_as(scores), 0.1, self.training)
        return self.out(joined_heads(weights @ value))


class RootMeanSquareNorm(nn.Module):
    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        variance = x.float().pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + 1e-6)).to(self.weight.dtype)


class EncoderDecoder(nn.Module):
    """T5: relative positions, gated gelu, shared embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.encoder, self.decoder, self.cross = (RelativeAttention() for _ in range(3))
        self.norms = nn.ModuleList(RootMeanSquareNorm() for _ in range(4))
        self.gate, self.up, self.down = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        source = self.words(x)
        source = source + self.encoder(self.norms[0](source), self.norms[0](source), is_causal=False)
        target = self.words(F.pad(y[:, :-1], (1, 0)))
        target = target + self.decoder(self.norms[1](target), self.norms[1](target), is_causal=True)
        target = target + self.cross(self.norms[2](target), source, is_causal=False)
        normal = self.norms[3](target)
        target = target + self.down(F.gelu(self.gate(normal), approximate="tanh") * self.up(normal))
        scores = F.linear(target * WIDTH**-0.5, self.words.weight)
        return F.cross_entropy(scores.view(-1, WORDS), y.reshape(-1))


class Grouped(nn.Module):
    """Llama: rotary positions, grouped heads, gated silu."""

    def __init__(self, experts: nn.Module | None = None) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.query, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.key, self.value = (nn.Linear(WIDTH, WIDTH // 2, bias=False) for _ in range(2))
        self.first, self.second, self.last = (RootMeanSquareNorm() for _ in range(3))
        self.gate, self.up = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.experts = experts
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.words(x)
        cosine, sine = rotation(x.shape[1], WIDTH // HEADS, x.device)
        for _ in range(2):  # the layers share their weights
            normal = self.first(hidden)
            query = turned(split_heads(self.query(normal), HEADS), cosine, sine)
            key = turned(split_heads(self.key(normal), HEADS // 2), cosine, sine)
            value = split_heads(self.value(normal), HEADS // 2)
            key, value = (part.repeat_interleave(2, 1) for part in (key, value))
            hidden = hidden + self.out(joined_heads(F.scaled_dot_product_attention(query, key, value, is_causal=True)))
            normal = self.second(hidden)
            gated = (
                self.down(F.silu(self.gate(normal)) * self.up(normal)) if self.experts is None else self.experts(normal)
            )
            hidden = hidden + gated
        return self.head(self.last(hidden))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        scores = self(x)
        return (
            F.cross_entropy(scores.float().flatten(0, 1), y.flatten())
            + 1e-4 * scores.float().logsumexp(-1).pow(2).mean()
        )


def rotation(length: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    frequency = 10000.0 ** (-torch.arange(0, width, 2, device=device).float() / width)
    angle = torch.outer(torch.arange(length, device=device).float(), frequency)
    angle = torch.cat([angle, angle], -1)
    return angle.cos(), angle.sin()


def turned(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    left, right = x.chunk(2, -1)
    return x * cosine.to(x.dtype) + torch.cat([-right, left], -1) * sine.to(x.dtype)


class GroupedExperts(nn.Module):
    """A mixture of experts in one grouped product: tokens sorted by expert."""

    def __init__(self, experts: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, WIDTH, 2 * WIDTH) * 0.1)
        self.down = nn.Parameter(torch.randn(experts, 2 * WIDTH, WIDTH) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, -2)
        weights, chosen = F.softmax(self.router(flat).float(), -1).topk(2, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        order = chosen.flatten().argsort(stable=True)
        rows = order // 2
        ends = torch.bincount(chosen.flatten(), minlength=self.up.shape[0]).cumsum(0).to(torch.int32)
        low = flat[rows].bfloat16()
        hidden = F.silu(F.grouped_mm(low, self.up.bfloat16(), offs=ends))
        made = F.grouped_mm(hidden, self.down.bfloat16(), offs=ends).float()
        made = made * weights.flatten()[order].unsqueeze(-1)
        return torch.zeros_like(flat, dtype=torch.float32).index_add(0, rows, made).to(x.dtype).view_as(x)


class LoopedExperts(nn.Module):
    """A mixture of experts as a loop: Mixtral's first form, with a loss for balance."""

    def __init__(self, experts: int = 3) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH)) for _ in range(experts)
        )

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, -2)
        weights, chosen = torch.topk(self.router(flat).softmax(-1, dtype=torch.float), 2)
        mask = F.one_hot(chosen, len(self.experts)).permute(2, 1, 0)
        made = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            place, rows = torch.where(mask[number])
            made.index_add_(0, rows, (expert(flat[rows]) * weights[rows, place, None]).to(made.dtype))
        return made.view_as(x)


class Scan(nn.Module):
    """Mamba: a causal convolution by channel, and a scan with steps that depend on the input."""

    def __init__(self, states: int = 4) -> None:
        super().__init__()
        self.words, self.states = nn.Embedding(WORDS, WIDTH), states
        self.inner = nn.Linear(WIDTH, 2 * WIDTH)
        self.convolution = nn.Conv1d(WIDTH, WIDTH, 4, padding=3, groups=WIDTH)
        self.steps, self.mixed = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * states)
        self.decay = nn.Parameter(torch.log(torch.arange(1.0, states + 1)).repeat(WIDTH, 1))
        self.out = nn.Linear(WIDTH, WORDS)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        inner, gate = self.inner(self.words(x)).chunk(2, -1)
        inner = F.silu(self.convolution(inner.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        step = F.softplus(self.steps(inner))
        into, out = self.mixed(inner).split(self.states, -1)
        kept = torch.exp(step.unsqueeze(-1) * -self.decay.float().exp())
        added = (step * inner).unsqueeze(-1) * into.unsqueeze(2)
        state = torch.zeros_like(added[:, 0])
        made = []
        for place in range(x.shape[1]):
            state = kept[:, place] * state + added[:, place]
            made.append((state * out[:, place, None]).sum(-1))
        hidden = torch.stack(made, 1) * F.silu(gate)
        return F.cross_entropy(self.out(hidden).flatten(0, 1), y.flatten())


class LinearAttention(nn.Module):
    """RWKV and its like: sums that go on from word to word, in logarithms."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.key, self.value, self.receptance = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.mix = nn.Parameter(torch.rand(WIDTH))
        self.decay = nn.Parameter(torch.linspace(-3, 1, WIDTH))
        self.out = nn.Linear(WIDTH, WORDS)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        hidden = self.words(x)
        before = F.pad(hidden, (0, 0, 1, -1))
        mixed = torch.lerp(before, hidden, torch.sigmoid(self.mix).to(hidden.dtype))
        key, value = self.key(mixed), self.value(mixed)
        places = torch.arange(x.shape[1], device=x.device)[:, None] * F.softplus(self.decay)
        weights = torch.logcumsumexp(key.float() + places, 1)
        sums = torch.cumsum(torch.exp((key + places).float().clamp(max=20)) * value, 1) * torch.exp(-weights)
        hidden = hidden + torch.sigmoid(self.receptance(mixed)) * torch.tanh(sums)
        return F.nll_loss(F.log_softmax(self.out(hidden), -1).flatten(0, 1), y.flatten())


class Speech(nn.Module):
    """An LSTM in both directions on pieces of sound, with CTC."""

    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Conv1d(8, WIDTH, 3, stride=2, padding=1)
        self.lstm = nn.LSTM(WIDTH, 16, 2, batch_first=True, bidirectional=True, dropout=0.2)
        self.out = nn.Linear(WIDTH, 12)

    def loss(self, sound: Tensor, words: Tensor) -> Tensor:
        hidden = F.hardtanh(self.front(sound.transpose(1, 2))).transpose(1, 2)
        scores = F.log_softmax(self.out(self.lstm(hidden)[0]), -1).transpose(0, 1)
        lengths = torch.full((len(sound),), scores.shape[0], dtype=torch.long)
        return F.ctc_loss(
            scores.float(),
            words + 1,
            lengths.to(words.device),
            torch.full_like(lengths, words.shape[1]).to(words.device),
        )


class Translation(nn.Module):
    """A GRU with packed sequences, and a decoder that looks back by additive attention."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.encoder = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.decoder = nn.GRUCell(2 * WIDTH, WIDTH)
        self.look, self.ask, self.score = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)
        self.out = nn.Linear(WIDTH, WORDS)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        lengths = torch.arange(x.shape[1], x.shape[1] - len(x), -1)
        packed = nn.utils.rnn.pack_padded_sequence(self.words(x), lengths, batch_first=True)
        memory, _ = nn.utils.rnn.pad_packed_sequence(self.encoder(packed)[0], batch_first=True)
        state, losses = torch.zeros_like(memory[:, 0]), []
        keys = self.look(memory)
        for place in range(4):
            weights = F.softmax(self.score(torch.tanh(keys + self.ask(state).unsqueeze(1))), 1)
            context = (weights * memory).sum(1)
            state = self.decoder(
                torch.cat([self.words(y[:, place]).to(context.dtype), context], -1), state.to(context.dtype)
            )
            losses.append(F.cross_entropy(self.out(state), y[:, place + 1]))
        return torch.stack(losses).mean()


class Convolutions(nn.Module):
    """A temporal convolutional net with weight norm, dilation and gated units; CE by class probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, max_norm=5.0)
        layers = (nn.Conv1d(WIDTH, 2 * WIDTH, 3, dilation=step, padding=step) for step in (1, 2, 4))
        self.layers = nn.ModuleList(nn.utils.parametrizations.weight_norm(layer) for layer in layers)
        self.out = nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, WORDS))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        hidden = self.words(x).transpose(1, 2)
        for layer in self.layers:
            hidden = hidden + F.dropout1d(F.glu(layer(hidden), 1), 0.1, self.training)
        scores = self.out(hidden.transpose(1, 2)).flatten(0, 1)
        target = F.softmax(F.one_hot(y.flatten(), WORDS).float() * 4, -1)
        return F.cross_entropy(scores, target) + F.kl_div(F.log_softmax(scores, -1), target, reduction="batchmean")


class Rewriter(nn.Module):
    """nn.Transformer with its masks, relu and post-norm, sinusoidal places."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.transformer = nn.Transformer(WIDTH, 2, 1, 1, 2 * WIDTH, dropout=0.1, batch_first=True)
        self.out = nn.Linear(WIDTH, WORDS)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        cosine, sine = rotation(x.shape[1], WIDTH, x.device)
        mask = nn.Transformer.generate_square_subsequent_mask(y.shape[1], device=y.device)
        hidden = self.transformer(
            self.words(x) * math.sqrt(WIDTH) + sine, self.words(y) + cosine, tgt_mask=mask, tgt_is_causal=True
        )
        return F.cross_entropy(self.out(hidden).flatten(0, 1), y.flatten())


class DroppingGPT(nn.Module):
    """A small GPT with dropout inside of its attention."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(32, WIDTH)
        self.norm, self.mixed, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.perceptron = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1)
        )

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        hidden = self.words(x) + self.places(torch.arange(x.shape[1], device=x.device))
        query, key, value = (split_heads(one, HEADS) for one in self.mixed(self.norm(hidden)).chunk(3, -1))
        seen = F.scaled_dot_product_attention(
            query, key, value, is_causal=True, dropout_p=0.1 if self.training else 0.0
        )
        hidden = hidden + self.out(joined_heads(seen))
        hidden = hidden + self.perceptron(self.norm(hidden))
        return F.cross_entropy(F.linear(hidden, self.words.weight).flatten(0, 1), y.flatten())


PROGRAMS = (
    Program("GPT", "tuned", lambda: GPT(WORDS, WIDTH, HEADS, 2, 32), tokens),
    Program("GPT with dropout", "held-out", DroppingGPT, tokens),
    Program("BERT", "tuned", Encoder, tokens),
    Program("T5", "held-out", EncoderDecoder, tokens),
    Program("Llama", "tuned", Grouped, tokens),
    Program("experts, grouped", "tuned", lambda: Grouped(GroupedExperts()), tokens),
    Program("experts, looped", "held-out", lambda: Grouped(LoopedExperts()), tokens),
    Program("Mamba", "held-out", Scan, lambda: tokens(2, 12)),
    Program("RWKV", "tuned", LinearAttention, tokens),
    Program("LSTM with CTC", "held-out", Speech, lambda: [normal(3, 24, 8), whole(11, 3, 4)]),
    Program("GRU translation", "tuned", Translation, lambda: tokens(3, 10)),
    Program("convolutions over words", "held-out", Convolutions, tokens),
    Program("nn.Transformer", "tuned", Rewriter, lambda: tokens(3, 12)),
)
