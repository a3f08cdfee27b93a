"""Voices: speakers told apart, sources separated, texts read aloud, words heard under masks of the spectrum."""

from __future__ import annotations

import itertools
import math

import torch
from benchmarks.architectures.chunks import in_float32
from benchmarks.architectures.program import Program, normal, whole
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


class Speakers(nn.Module):
    """ECAPA-TDNN: scales within a layer, squeezed channels, statistics by attention, angles with a margin."""

    def __init__(self, width: int = 16, people: int = 6) -> None:
        super().__init__()
        self.first, self.bn = nn.Conv1d(12, width, 5, padding=2), nn.ModuleList(nn.BatchNorm1d(width) for _ in range(3))
        self.parts = nn.ModuleList(nn.Conv1d(4, 4, 3, padding=2, dilation=2, padding_mode="reflect") for _ in range(3))
        self.squeeze = nn.Sequential(nn.AdaptiveAvgPool1d(1), nn.Conv1d(width, 4, 1), nn.ReLU(), nn.Conv1d(4, width, 1))
        self.attention = nn.Sequential(nn.Conv1d(3 * width, 8, 1), nn.ReLU(), nn.Tanh(), nn.Conv1d(8, width, 1))
        self.fc, self.last = nn.Linear(2 * width, 12), nn.BatchNorm1d(12)
        self.people = nn.Parameter(nn.init.xavier_normal_(torch.empty(people, 12), gain=1))

    def loss(self, bands: Tensor, who: Tensor) -> Tensor:
        x = bands - bands.mean(dim=-1, keepdim=True)
        x = self.bn[0](F.relu(self.first(x)))
        pieces, made = torch.split(x, 4, 1), []
        for number, piece in enumerate(pieces[:-1]):
            made.append(F.relu(self.parts[number](piece if number == 0 else made[-1] + piece)))
        y = self.bn[1](torch.cat([*made, pieces[-1].to(made[0].dtype)], 1))
        x = x + y * torch.sigmoid(self.squeeze(y))
        length = x.shape[-1]
        spread = torch.sqrt(torch.var(x, dim=2, keepdim=True).clamp(min=1e-4))
        around = torch.cat((x, torch.mean(x, 2, True).repeat(1, 1, length), spread.repeat(1, 1, length)), dim=1)
        share = torch.softmax(self.attention(around).float(), dim=2).to(x.dtype)
        mean = torch.sum(x * share, dim=2)
        deviation = torch.sqrt((torch.sum(x.square() * share, dim=2) - mean.square()).clamp(min=1e-4, max=1e4))
        voice = self.last(self.fc(torch.cat((mean, deviation), 1).to(self.fc.weight.dtype)))
        with in_float32(voice):
            cosine = F.linear(F.normalize(voice.float()), F.normalize(self.people.float()))
            sine = torch.sqrt((1.0 - torch.mul(cosine, cosine)).clamp(0, 1))
            turned = cosine * math.cos(0.2) - sine * math.sin(0.2)
            turned = torch.where((cosine - math.cos(math.pi - 0.2)) > 0, turned, cosine - math.sin(math.pi - 0.2) * 0.2)
            onehot = torch.zeros_like(cosine)
            onehot.scatter_(1, who.view(-1, 1), 1)
            return F.cross_entropy(30 * ((onehot * turned) + ((1.0 - onehot) * cosine)), who)


class Sources(nn.Module):
    """Conv-TasNet and a dual path: masks on a learnt basis, overlap and add, the best of all permutations, SNRs."""

    def __init__(self, basis: int = 16) -> None:
        super().__init__()
        self.encoder = nn.Conv1d(1, basis, 8, stride=4, bias=False)
        self.decoder = nn.ConvTranspose1d(basis, 1, 8, stride=4, bias=False)
        self.norm, self.squeeze = nn.GroupNorm(1, basis, eps=1e-8), nn.Conv1d(basis, 8, 1)
        self.within, self.across = nn.LSTM(8, 8, batch_first=True, bidirectional=True), nn.GRU(8, 8, batch_first=True)
        self.wide, self.prelu = nn.Linear(16, 8), nn.PReLU()
        self.depth, self.mask = nn.Conv1d(8, 8, 3, padding=2, dilation=2, groups=8), nn.Conv1d(8, 2 * basis, 1)

    def dual(self, x: Tensor, chunk: int = 6) -> Tensor:
        count, width, length = x.shape
        pad = -length % (chunk // 2) + chunk // 2
        x = F.pad(x, (chunk // 2, pad))
        pieces = F.unfold(x.unsqueeze(2), (1, chunk), stride=(1, chunk // 2)).view(count, width, chunk, -1)
        rows = pieces.permute(0, 3, 2, 1).reshape(-1, chunk, width)
        rows = rows + self.wide(self.within(rows)[0])
        columns = rows.view(count, -1, chunk, width).transpose(1, 2).reshape(count * chunk, -1, width)
        columns = columns + self.across(columns)[0]
        pieces = columns.view(count, chunk, -1, width).permute(0, 3, 1, 2).flatten(1, 2)
        whole_length = (1, x.shape[-1])
        return F.fold(pieces, whole_length, (1, chunk), stride=(1, chunk // 2)).squeeze(2)[..., chunk // 2 : -pad]

    @staticmethod
    def ratio(made: Tensor, goal: Tensor) -> Tensor:
        made, goal = made - made.mean(-1, keepdim=True), goal - goal.mean(-1, keepdim=True)
        along = (made * goal).sum(-1, keepdim=True) * goal / (goal.pow(2).sum(-1, keepdim=True) + 1e-8)
        noise = made - along
        return 10 * torch.log10(along.pow(2).sum(-1) / (noise.pow(2).sum(-1) + 1e-8) + 1e-8)

    def loss(self, sources: Tensor) -> Tensor:
        mixture = sources.sum(1, keepdim=True)
        mixture = mixture / mixture.float().abs().amax(-1, keepdim=True).to(mixture.dtype)
        basis = F.relu(self.encoder(mixture))
        x = self.squeeze(self.norm(basis).to(basis.dtype))
        x = self.dual(x)
        x = x + self.depth(self.prelu(x))
        masks = F.relu(self.mask(x)).view(len(x), 2, -1, x.shape[-1])
        made = self.decoder((basis.unsqueeze(1) * masks).flatten(0, 1)).view(len(x), 2, -1)
        made = F.pad(made, (0, sources.shape[-1] - made.shape[-1]))
        with in_float32(sources):
            pairs = self.ratio(made.float().unsqueeze(1), sources.float().unsqueeze(2))
            orders = torch.tensor(list(itertools.permutations(range(2))), device=sources.device)
            onehot = torch.zeros(*orders.shape, 2, device=sources.device).scatter_(2, orders.unsqueeze(2), 1)
            total = torch.einsum("bij,pij->bp", pairs, onehot)
            best, which = total.max(1, keepdim=True)
            index = orders[which.squeeze(1)].unsqueeze(-1).expand(-1, -1, made.shape[-1])
            ordered = made.float().gather(1, index)
            zero = (ordered - sources.float()).square().mean()
        return -best.mean() / 2 / 10 + 0.1 * zero


class Aloud(nn.Module):
    """VITS: a posterior, a flow, the best monotone path in a loop, durations, what is long repeated, slices judged."""

    def __init__(self, width: int = 8, words: int = 20) -> None:
        super().__init__()
        self.words, self.width = nn.Embedding(words, 12), width
        self.text = nn.TransformerEncoderLayer(12, 2, 16, 0.0, batch_first=True)
        self.prior, self.posterior = nn.Conv1d(12, 2 * width, 1), nn.Conv1d(10, 2 * width, 5, padding=2)
        self.couple = nn.ModuleList(nn.Conv1d(width // 2, width // 2, 3, padding=1) for _ in range(2))
        self.wave = nn.Sequential(
            nn.Conv1d(width, 8, 3, padding=1), nn.LeakyReLU(0.1), nn.ConvTranspose1d(8, 1, 8, 4, 2)
        )
        self.duration = nn.Sequential(nn.Conv1d(12, 8, 3, padding=1), nn.ReLU(), nn.Conv1d(8, 1, 1))
        self.pitch = nn.Embedding(8, width)

    @staticmethod
    def path(value: Tensor, texts: Tensor, frames: Tensor) -> Tensor:
        """The best path that never goes back; a loop over frames, all texts at once."""
        count, length, total = value.shape
        at, kept = torch.arange(length, device=value.device), []
        state = torch.where(at == 0, value[:, :, 0], -1e9)
        for frame in range(1, total):
            moved = F.pad(state, (1, 0), value=-1e9)[:, :-1]
            kept.append(moved > state)
            state = torch.maximum(state, moved) + value[:, :, frame]
        path, index = torch.zeros_like(value), texts - 1
        for frame in range(total - 1, -1, -1):
            inside = (frame < frames).to(value.dtype)
            path[torch.arange(count, device=value.device), index, frame] = inside
            if frame:
                step = kept[frame - 1].gather(1, index[:, None]).squeeze(1) & (frame < frames)
                index = (index - step.long()).clamp_(min=0)
        return path

    def loss(self, words: Tensor, bands: Tensor, texts: Tensor, frames: Tensor, sound: Tensor) -> Tensor:
        inside = (torch.arange(words.shape[1], device=words.device) < texts[:, None]).unsqueeze(1)
        present = (torch.arange(bands.shape[2], device=words.device) < frames[:, None]).unsqueeze(1)
        seen = self.text(self.words(words), src_key_padding_mask=~inside.squeeze(1)).transpose(1, 2) * inside
        seen = seen.to(self.prior.weight.dtype)
        m_p, logs_p = (self.prior(seen) * inside).float().chunk(2, 1)
        m_q, logs_q = (self.posterior(bands) * present).float().chunk(2, 1)
        logs_q, logs_p = logs_q.clamp(-4, 2), logs_p.clamp(-4, 2)
        z = (m_q + torch.randn_like(m_q) * logs_q.exp()) * present
        z_p = z
        for layer in self.couple:
            a, b = z_p.chunk(2, 1)
            z_p = torch.flip(torch.cat([a, b + layer(a.to(seen.dtype)).float() * present], 1), [1])
        with torch.no_grad(), in_float32(z):
            inverse = torch.exp(-2 * logs_p)
            value = torch.sum(-0.5 * math.log(2 * math.pi) - logs_p, [1]).unsqueeze(-1)
            value = value + torch.matmul(inverse.transpose(1, 2), -0.5 * z_p**2)
            value = value + torch.matmul((m_p * inverse).transpose(1, 2), z_p)
            value = value + torch.sum(-0.5 * m_p**2 * inverse, [1]).unsqueeze(-1)
            path = self.path(value, texts, frames)
        with in_float32(z):
            m_p, logs_p = torch.matmul(m_p, path), torch.matmul(logs_p, path)
        kl = logs_p - logs_q - 0.5 + 0.5 * ((z_p - m_p) ** 2) * torch.exp(-2.0 * logs_p)
        kl = torch.sum(kl * present) / present.sum()
        long = path.sum(2)
        told = self.duration(seen.detach()).squeeze(1).float()
        duration = torch.sum((told - torch.log(long + 1e-6).clamp(min=-2)) ** 2 * inside.squeeze(1)) / inside.sum()
        repeats = torch.round(torch.exp(told.detach()).clamp(1, 3)).long() * inside.squeeze(1)
        spoken = nn.utils.rnn.pad_sequence(
            [torch.repeat_interleave(one, many, dim=0) for one, many in zip(seen.transpose(1, 2), repeats)], True
        )
        start = (torch.rand(len(z), device=z.device) * (frames - 5 + 1)).long()
        index = (start[:, None] + torch.arange(5, device=z.device))[:, None].expand(-1, self.width, -1)
        pitch = torch.bucketize(bands[:, 0].float().contiguous(), torch.linspace(-1.5, 1.5, 7, device=z.device))
        sliced = torch.gather(z + self.pitch(pitch).float().transpose(1, 2), 2, index)
        made = self.wave(sliced.to(seen.dtype)).squeeze(1).float()
        goal = torch.stack([one[at * 4 : at * 4 + 20] for one, at in zip(sound.float(), start.tolist())])
        made, goal = (torch.stft(one, 8, 4, window=torch.hann_window(8, device=z.device), return_complex=True) for one in (made, goal))  # fmt: skip # noqa: E501
        size = [torch.sqrt(torch.view_as_real(one).pow(2).sum(-1) + 1e-6) for one in (made, goal)]
        return kl + duration + F.l1_loss(size[0], size[1]) * 2 + 0.01 * spoken.float().square().mean()


class Heard(nn.Module):
    """Whisper, tuned: log-mel bands by stft, SpecAugment, a conformer's convolution, CTC and attention together."""

    def __init__(self, width: int = 16, words: int = 14) -> None:
        super().__init__()
        frequencies = torch.linspace(0, 8000, 17)
        mel = 2595 * torch.log10(1 + frequencies / 700)
        centres = torch.linspace(0, float(mel[-1]), 12)
        ramps = centres[:, None] - mel
        apart = centres.diff()
        down, up = -ramps[:-2] / apart[:-1, None], ramps[2:] / apart[1:, None]
        self.register_buffer("filters", torch.clamp(torch.minimum(down, up), min=0.0))
        self.conv1, self.conv2 = nn.Conv1d(10, width, 3, padding=1), nn.Conv1d(width, width, 3, 2, 1)
        self.point, self.depth = nn.Conv1d(width, 2 * width, 1), nn.Conv1d(width, width, 5, padding=2, groups=width)
        self.bn, self.ln, self.words = nn.BatchNorm1d(width), nn.LayerNorm(width), nn.Embedding(words, width)
        self.decoder = nn.TransformerDecoderLayer(width, 2, 32, 0.1, "gelu", batch_first=True, norm_first=True)
        self.ctc, self.out = nn.Linear(width, words), nn.Linear(width, words)

    def bands(self, sound: Tensor) -> Tensor:
        sound = F.pad(sound.float()[:, None], (0, 8), mode="reflect").squeeze(1)
        sound = torch.cat([sound[:, :1], sound[:, 1:] - 0.97 * sound[:, :-1]], 1)
        window = torch.hann_window(32, device=sound.device)
        seen = torch.stft(sound, 32, 8, window=window, return_complex=True)
        sizes = seen[..., :-1].abs() ** 2
        log = torch.clamp(self.filters.float() @ sizes, min=1e-10).log10()
        log = torch.maximum(log, log.amax((1, 2), keepdim=True) - 8.0)
        return (log + 4.0) / 4.0

    @staticmethod
    def augmented(x: Tensor) -> Tensor:
        count, bands, length = x.shape
        for size, most, dim in ((3, bands, 1), (4, length, 2)):
            wide = torch.randint(0, size, (count, 1), device=x.device)
            start = torch.rand(count, 1, device=x.device) * (most - wide)
            at = torch.arange(most, device=x.device)
            mask = (at >= start.floor()) & (at < start.floor() + wide)
            x = x.masked_fill(mask.unsqueeze(3 - dim), 0.0)
        return x

    def loss(self, sound: Tensor, words: Tensor) -> Tensor:
        with torch.no_grad(), in_float32(sound):
            bands = self.augmented(self.bands(sound))
        x = F.gelu(self.conv1(bands.to(self.conv1.weight.dtype)))
        x = F.gelu(self.conv2(x))
        x = x + F.silu(self.bn(self.depth(F.glu(self.point(x), dim=1))))
        x = self.ln(x.permute(0, 2, 1))
        likely = F.log_softmax(self.ctc(x).float(), -1).transpose(0, 1)
        lengths = torch.full((len(x),), len(likely), device=x.device)
        counts = words.ne(0).sum(1)
        ctc = F.ctc_loss(likely, words, lengths, counts, zero_infinity=True)
        given = F.pad(words, (1, 0), value=1)[:, :-1]
        bar = nn.Transformer.generate_square_subsequent_mask(words.shape[1], device=x.device)
        seen = self.decoder(self.words(given).to(x.dtype), x, tgt_mask=bar.to(x.dtype), tgt_is_causal=True)
        scores = self.out(seen).float()
        spoken = F.cross_entropy(scores.transpose(1, 2), words, ignore_index=0, label_smoothing=0.1)
        return 0.3 * ctc + 0.7 * spoken


def spoken() -> list[Tensor]:
    return [whole(19, 2, 6) + 1, normal(2, 10, 18), torch.tensor([6, 4]), torch.tensor([18, 13]), normal(2, 72, seed=5)]


PROGRAMS = (
    Program("speakers", "ninth", Speakers, lambda: [normal(5, 12, 14), whole(6, 5)]),
    Program("sources", "ninth", Sources, lambda: [normal(2, 2, 96)]),
    Program("read aloud", "ninth", Aloud, spoken),
    Program("heard", "ninth", Heard, lambda: [0.1 * normal(3, 320), (whole(12, 3, 6) + 2) * (torch.arange(6) < 5)]),
)
