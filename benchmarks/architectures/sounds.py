"""Sound and time once more: oscillators, attention by location, samples as logistics, masks on spectra, warped time."""

from __future__ import annotations

import math
from typing import Any

import torch
from benchmarks.architectures.chunks import in_float32
from benchmarks.architectures.program import Program, normal, whole
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


class Synthesizer(nn.Module):
    """DDSP: phases by running sums, harmonics below Nyquist, noise through filters by FFT, spectra of many sizes."""

    def __init__(self, width: int = 24, harmonics: int = 12, bands: int = 9, rate: int = 1600, hop: int = 32) -> None:
        super().__init__()
        self.harmonics, self.rate, self.hop = harmonics, rate, hop
        self.f_in = nn.Sequential(nn.Linear(1, width), nn.LayerNorm(width), nn.LeakyReLU())
        self.l_in = nn.Sequential(nn.Linear(1, width), nn.LayerNorm(width), nn.LeakyReLU())
        self.gru = nn.GRU(2 * width, width, batch_first=True)
        self.out = nn.Linear(width + 2, harmonics + 1 + bands)
        self.reverb, self.wet = nn.Parameter(normal(1, 64) * 1e-2), nn.Parameter(torch.tensor(-2.0))
        self.register_buffer("times", torch.arange(64) / 64)

    @staticmethod
    def scaled(x: Tensor) -> Tensor:
        return 2 * torch.sigmoid(x) ** math.log(10) + 1e-7

    def noise(self, bands: Tensor) -> Tensor:
        impulse = torch.fft.irfft(torch.complex(bands, torch.zeros_like(bands)))
        size = impulse.shape[-1]
        impulse = torch.roll(impulse, size // 2, -1) * torch.hann_window(size, device=bands.device)
        impulse = torch.roll(F.pad(impulse, (0, self.hop - size)), -size // 2, -1)
        white = torch.rand(*impulse.shape[:2], self.hop, device=bands.device) * 2 - 1
        made = torch.fft.rfft(F.pad(white, (0, self.hop))) * torch.fft.rfft(F.pad(impulse, (self.hop, 0)))
        return torch.fft.irfft(made)[..., self.hop :].flatten(1)

    @staticmethod
    def distance(made: Tensor, goal: Tensor) -> Tensor:
        total = made.new_zeros(())
        for size in (128, 64, 32):
            window = torch.hann_window(size, device=made.device)
            a, b = (
                torch.stft(one, size, size // 4, size, window, normalized=True, return_complex=True).abs()
                for one in (made, goal)
            )
            total = total + (a - b).abs().mean() + ((a + 1e-7).log() - (b + 1e-7).log()).abs().mean()
        return total

    def loss(self, pitch: Tensor, loudness: Tensor, goal: Tensor) -> Tensor:
        hertz = 60 + 200 * torch.sigmoid(pitch.float()).unsqueeze(-1)
        logs = (12 * torch.log2(hertz / 440) + 69) / 127
        dtype = self.out.weight.dtype
        both = torch.cat([self.f_in(logs.to(dtype)), self.l_in(loudness.unsqueeze(-1).to(dtype))], -1)
        hidden = torch.cat([self.gru(both)[0], logs.to(dtype), loudness.unsqueeze(-1).to(dtype)], -1)
        with in_float32(pitch):
            made = self.scaled(self.out(hidden.to(dtype)).float())
            shares, level, bands = made.split([self.harmonics, 1, made.shape[-1] - self.harmonics - 1], -1)
            orders = torch.arange(1, self.harmonics + 1, device=hertz.device)
            shares = shares * ((hertz * orders < self.rate / 2).float() + 1e-4)
            shares = shares / shares.sum(-1, keepdim=True) * level
            fine = F.interpolate(shares.transpose(1, 2), scale_factor=float(self.hop), mode="linear").transpose(1, 2)
            fast = F.interpolate(hertz.transpose(1, 2), scale_factor=float(self.hop)).transpose(1, 2)
            phase = torch.cumsum(2 * math.pi * fast / self.rate, 1)
            sound = (torch.sin(phase * orders) * fine).sum(-1) + self.noise(0.1 * bands)
            echo = self.reverb.float() * torch.exp(-F.softplus(-self.wet.float()) * self.times.float() * 500)
            echo = F.pad(torch.cat([torch.ones_like(echo[:, :1]), echo[:, 1:]], 1), (0, sound.shape[1] - 64))
            size = 2 * sound.shape[1]
            wet = torch.fft.irfft(torch.fft.rfft(sound, size) * torch.fft.rfft(echo, size), size)[:, : sound.shape[1]]
            return self.distance(wet, goal.float())


class Speaker(nn.Module):
    """Tacotron 2: attention that sees where it was, zoneout, prenets that drop always, guided attention, stops."""

    def __init__(self, letters: int = 30, width: int = 20, bands: int = 8) -> None:
        super().__init__()
        self.embed = nn.Embedding(letters, width, padding_idx=0)
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)
        self.conv, self.norm = nn.Conv1d(width, width, 5, padding=2, bias=False), nn.BatchNorm1d(width, momentum=0.01)
        self.read = nn.LSTM(width, width // 2, batch_first=True, bidirectional=True)
        self.pre = nn.ModuleList((nn.Linear(bands, 12, bias=False), nn.Linear(12, 12, bias=False)))
        self.first, self.second = nn.LSTMCell(12 + width, 24), nn.LSTMCell(24 + width, 24)
        self.where, self.query = nn.Conv1d(2, 6, 5, padding=2, bias=False), nn.Linear(24, 16, bias=False)
        self.memory, self.place, self.energy = (nn.Linear(n, m, bias=False) for n, m in ((width, 16), (6, 16), (16, 1)))
        self.out, self.stop = nn.Linear(24 + width, bands), nn.Linear(24 + width, 1)
        self.post = nn.Sequential(nn.Conv1d(bands, 12, 5, padding=2), nn.Tanh(), nn.Conv1d(12, bands, 5, padding=2))

    def zoned(self, new: tuple[Tensor, Tensor], old: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        kept = [torch.bernoulli(torch.full_like(one, 0.1)) for one in new]
        a, b = (mask * before.to(now.dtype) + (1 - mask) * now for mask, before, now in zip(kept, old, new))
        return a, b

    def loss(self, letters: Tensor, lengths: Tensor, sound: Tensor, frames: Tensor) -> Tensor:
        x = F.dropout(F.relu(self.norm(self.conv(self.embed(letters).transpose(1, 2)))), 0.5).transpose(1, 2)
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        read, _ = nn.utils.rnn.pad_packed_sequence(self.read(packed)[0], batch_first=True, total_length=x.shape[1])
        keys, hidden = self.memory(read), torch.arange(x.shape[1], device=x.device) >= lengths[:, None]
        count, steps, _ = sound.shape
        shares = total = read.new_zeros(count, x.shape[1])
        one = two = (read.new_zeros(count, 24), read.new_zeros(count, 24))
        context, made, maps = read.new_zeros(count, read.shape[-1]), [], []
        for step in range(steps):
            before = sound[:, step - 1] if step else torch.zeros_like(sound[:, 0])
            for layer in self.pre:
                before = F.dropout(F.relu(layer(before)), 0.5, training=True)
            one = self.zoned(self.first(torch.cat([before, context.to(before.dtype)], -1), one), one)
            at = self.where(torch.stack([shares, total], 1)).transpose(1, 2)
            energy = self.energy(torch.tanh(self.query(one[0]).unsqueeze(1) + keys + self.place(at))).squeeze(-1)
            shares = energy.float().masked_fill(hidden, -float("inf")).softmax(-1).to(read.dtype)
            total = total + shares
            context = torch.bmm(shares.unsqueeze(1), read).squeeze(1)
            two = self.zoned(self.second(torch.cat([one[0], context.to(one[0].dtype)], -1), two), two)
            made.append(torch.cat([two[0], context.to(two[0].dtype)], -1))
            maps.append(shares)
        states, drawn = torch.stack(made, 1), torch.stack(maps, 1).float()
        coarse = self.out(states)
        fine = coarse + self.post(coarse.transpose(1, 2)).transpose(1, 2)
        seen = torch.arange(steps, device=x.device) < frames[:, None]
        spectrum = sum(((one - sound).float().square() * seen.unsqueeze(-1)).sum() for one in (coarse, fine))
        ends = (torch.arange(steps, device=x.device) == frames[:, None] - 1).float()
        stop = F.binary_cross_entropy_with_logits(
            self.stop(states).squeeze(-1).float(), ends, pos_weight=torch.tensor(5.0, device=x.device), reduction="none"
        )
        rows = torch.arange(steps, device=x.device)[:, None] / frames[:, None, None]
        columns = torch.arange(x.shape[1], device=x.device) / lengths[:, None, None]
        guide = 1 - torch.exp(-((columns - rows) ** 2) / (2 * 0.4**2))
        both = seen.unsqueeze(-1) & ~hidden.unsqueeze(1)
        return spectrum / seen.sum() / 8 + stop[seen].mean() + (drawn * guide)[both].mean()


class Samples(nn.Module):
    """WaveNet: mu-law, dilated gates, weight norm, a mixture of logistics, a queue that is generated from."""

    def __init__(self, width: int = 16, mixtures: int = 3) -> None:
        super().__init__()
        norm = nn.utils.parametrizations.weight_norm
        self.first, self.codes = norm(nn.Conv1d(1, width, 1)), nn.Embedding(256, width)
        self.gates = nn.ModuleList(norm(nn.Conv1d(width, 2 * width, 2, dilation=2**n)) for n in range(4))
        self.near = nn.ModuleList(nn.Conv1d(6, 2 * width, 1, bias=False) for _ in range(4))
        self.skips = nn.ModuleList(norm(nn.Conv1d(width, 2 * width, 1)) for _ in range(4))
        self.up = nn.ConvTranspose2d(1, 1, (3, 8), padding=(1, 2), stride=(1, 4))
        self.out, self.softmax = nn.Conv1d(width, 3 * mixtures, 1), nn.Conv1d(width, 256, 1)

    @staticmethod
    def mu_law(x: Tensor, mu: int = 255) -> Tensor:
        pressed = torch.sign(x) * torch.log1p(mu * x.abs()) / math.log1p(mu)
        return ((pressed + 1) / 2 * mu + 0.5).long().clamp(0, mu)

    def body(self, x: Tensor, near: Tensor) -> Tensor:
        total = torch.zeros_like(x)
        for number, (gate, beside, skip) in enumerate(zip(self.gates, self.near, self.skips)):
            wide = gate(F.pad(x, (2**number, 0))) + beside(near)
            a, b = wide.chunk(2, 1)
            out, more = skip(torch.tanh(a) * torch.sigmoid(b)).chunk(2, 1)
            total, x = total + more, (x + out) * math.sqrt(0.5)
        return F.relu(total)

    @staticmethod
    def logistic(told: Tensor, y: Tensor, classes: int = 65536) -> Tensor:
        shares, means, scales = told.float().transpose(1, 2).chunk(3, -1)
        scales = scales.clamp(min=-7.0)
        middle = y.float().unsqueeze(-1) - means
        inverse = torch.exp(-scales)
        above, below = inverse * (middle + 1 / (classes - 1)), inverse * (middle - 1 / (classes - 1))
        delta = torch.sigmoid(above) - torch.sigmoid(below)
        at = inverse * middle
        density = at - scales - 2 * F.softplus(at)
        inner = torch.where(delta > 1e-5, delta.clamp(min=1e-12).log(), density - math.log((classes - 1) / 2))
        left, right = above - F.softplus(above), -F.softplus(below)
        where = y.float().unsqueeze(-1)
        likely = torch.where(where < -0.999, left, torch.where(where > 0.999, right, inner))
        return -torch.logsumexp(likely + shares.log_softmax(-1), -1).mean()

    @torch.no_grad()
    def drawn(self, told: Tensor) -> Tensor:
        shares, means, scales = told.float().transpose(1, 2).chunk(3, -1)
        noise = torch.empty_like(shares).uniform_(1e-5, 1 - 1e-5)
        chosen = F.one_hot((shares - torch.log(-torch.log(noise))).argmax(-1), shares.shape[-1]).float()
        means, scales = (means * chosen).sum(-1), (scales.clamp(min=-7.0) * chosen).sum(-1)
        u = torch.empty_like(means).uniform_(1e-5, 1 - 1e-5)
        return (means + scales.exp() * (u.log() - (1 - u).log())).clamp(-1, 1)

    def loss(self, sound: Tensor, spectrum: Tensor) -> Tensor:
        near = F.leaky_relu(self.up(spectrum.unsqueeze(1)), 0.4).squeeze(1)
        sound = torch.tanh(sound)
        before = F.pad(sound[:, :-1], (1, 0)).unsqueeze(1)
        hidden = self.body(self.first(before), near)
        continuous = self.logistic(self.out(hidden), sound)
        codes = self.mu_law(sound.float())
        given = self.codes(F.pad(codes[:, :-1], (1, 0), value=127)).transpose(1, 2)
        told = self.softmax(self.body(given, near)).float()
        again = self.drawn(self.out(hidden))
        return continuous + F.cross_entropy(told, codes) + 0.01 * (again - sound.float()).abs().mean()


class Unmixed(nn.Module):
    """Hybrid Demucs: gated convolutions on waves and complex spectra, an LSTM between, masks, SDR by source."""

    def __init__(self, sources: int = 3, width: int = 8) -> None:
        super().__init__()
        self.sources = sources
        self.down = nn.ModuleList((nn.Conv1d(2, width, 8, 4, 2), nn.Conv1d(width, 2 * width, 8, 4, 2)))
        self.mix = nn.ModuleList((nn.Conv1d(width, 2 * width, 1), nn.Conv1d(2 * width, 4 * width, 1)))
        self.lstm, self.line = nn.LSTM(2 * width, 2 * width, 2, bidirectional=True), nn.Linear(4 * width, 2 * width)
        self.up = nn.ModuleList(
            (nn.ConvTranspose1d(2 * width, width, 8, 4, 2), nn.ConvTranspose1d(width, 2 * sources, 8, 4, 2))
        )
        self.bands = nn.Sequential(
            nn.Conv2d(4, width, (5, 3), padding=(2, 1)), nn.GroupNorm(2, width), nn.GELU(),
            nn.Conv2d(width, 4 * sources, 3, padding=1),
        )  # fmt: skip
        self.scale = nn.Parameter(torch.full((2 * width, 1), 1e-3))
        for layer in (*self.down, *self.up):  # Demucs rescales its first weights
            layer.weight.data /= (layer.weight.std().detach() / 0.1) ** 0.5

    def loss(self, sources: Tensor) -> Tensor:
        gain = 10 ** ((torch.rand(*sources.shape[:2], 1, 1, device=sources.device) * 2 - 1) * 6 / 20)
        sources = sources * gain.to(sources.dtype)
        sources = sources * (torch.randint(2, (len(sources), 1, 2, 1), device=sources.device) * 2 - 1)
        sources = sources[:, :, torch.randperm(2, device=sources.device)]
        mixture = sources.sum(1)
        mono = mixture.mean(1, keepdim=True)
        mean, spread = mono.mean(-1, keepdim=True), mono.std(-1, keepdim=True)
        x, kept = (mixture - mean) / (1e-5 + spread), []
        for down, mix in zip(self.down, self.mix):
            x = F.glu(mix(F.gelu(down(x))), 1)
            kept.append(x)
        inner = self.line(self.lstm(x.permute(2, 0, 1))[0]).permute(1, 2, 0)
        x = x + self.scale * inner
        x = F.gelu(self.up[0](x + kept[1]))
        waves = self.up[1](x + kept[0]).unflatten(1, (self.sources, 2))
        with in_float32(mixture):
            window = torch.hann_window(32, device=x.device)
            flat = mixture.float().flatten(0, 1)
            spectrum = torch.stft(flat, 32, 8, 32, window, center=True, return_complex=True, normalized=True)
            spectrum = spectrum.unflatten(0, mixture.shape[:2])
            parts = torch.view_as_real(spectrum).permute(0, 1, 4, 2, 3).flatten(1, 2)
        masks = self.bands(parts.to(mixture.dtype)).unflatten(1, (self.sources, 2, 2)).float()
        with in_float32(mixture):
            told = torch.view_as_complex(masks.permute(0, 1, 2, 4, 5, 3).contiguous()) * spectrum.unsqueeze(1)
            again = torch.istft(
                told.flatten(0, 2), 32, 8, 32, window, center=True, normalized=True, length=mixture.shape[-1]
            )
            made = waves.float() * spread.float().unsqueeze(1) + again.unflatten(0, told.shape[:3])
            goal = sources.float()
            sdr = 10 * torch.log10((goal.square().sum((2, 3)) + 1e-7) / ((goal - made).square().sum((2, 3)) + 1e-7))
            return F.l1_loss(made, goal) - 0.01 * sdr.mean()


class SoftWarp(torch.autograd.Function):
    """Soft DTW by diagonals, and its gradient by the recursion backwards."""

    @staticmethod
    def forward(ctx: Any, costs: Tensor, gamma: float) -> Tensor:
        count, rows, columns = costs.shape
        best = costs.new_full((count, rows + 2, columns + 2), math.inf)
        best[:, 0, 0] = 0
        for total in range(2, rows + columns + 1):
            i = torch.arange(max(1, total - columns), min(rows, total - 1) + 1, device=costs.device)
            j = total - i
            before = torch.stack([best[:, i - 1, j - 1], best[:, i - 1, j], best[:, i, j - 1]])
            best[:, i, j] = costs[:, i - 1, j - 1] - gamma * torch.logsumexp(-before / gamma, 0)
        ctx.save_for_backward(costs, best)
        ctx.gamma = gamma
        return best[:, rows, columns].clone()

    @staticmethod
    def backward(ctx: Any, *arrived: Tensor) -> tuple[Tensor | None, ...]:
        costs, best = ctx.saved_tensors
        rows, columns = costs.shape[1:]
        best = best.clone()
        best[:, :, -1] = best[:, -1] = -math.inf
        best[:, -1, -1] = best[:, -2, -2]
        wide = F.pad(costs, (1, 1, 1, 1))
        share = torch.zeros_like(best)
        share[:, -1, -1] = 1
        for i in range(rows, 0, -1):
            for j in range(columns, 0, -1):
                here = best[:, i, j]
                down = ((best[:, i + 1, j] - here - wide[:, i + 1, j]) / ctx.gamma).exp()
                right = ((best[:, i, j + 1] - here - wide[:, i, j + 1]) / ctx.gamma).exp()
                both = ((best[:, i + 1, j + 1] - here - wide[:, i + 1, j + 1]) / ctx.gamma).exp()
                share[:, i, j] = share[:, i + 1, j] * down + share[:, i, j + 1] * right + share[:, i + 1, j + 1] * both
        return arrived[0].view(-1, 1, 1) * share[:, 1:-1, 1:-1], None


class Warped(nn.Module):
    """Series told by a mixer and N-BEATS, judged by warped time; a controlled equation through missing values."""

    def __init__(self, past: int = 12, ahead: int = 6, width: int = 16) -> None:
        super().__init__()
        self.ahead = ahead
        self.time, self.across = nn.Linear(past, past), nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 3))
        self.norm = nn.BatchNorm1d(past)
        self.stack = nn.ModuleList(
            nn.Sequential(nn.Linear(past, width), nn.ReLU(), nn.Linear(width, 4 + 4)) for _ in range(2)
        )
        places = torch.linspace(0, 1, past + ahead)
        self.register_buffer("trend", torch.stack([places**n for n in range(4)]))
        waves = [f(2 * math.pi * n * places) for n in (1, 2) for f in (torch.sin, torch.cos)]
        self.register_buffer("season", torch.stack(waves))
        self.start, self.field = nn.Linear(4, 5), nn.Sequential(nn.Linear(5, 12), nn.Softplus(), nn.Linear(12, 20))
        self.read = nn.Linear(5, 3)

    def controlled(self, x: Tensor) -> Tensor:
        """A neural CDE along what was seen, by Heun's steps; gaps are filled by the last value."""
        steps = torch.arange(x.shape[1], device=x.device)
        seen = x.isfinite()
        last = torch.where(seen, steps[:, None], 0).cummax(1).values
        filled = x.nan_to_num(0.0).gather(1, last)
        path = torch.cat([steps.to(x.dtype).div(len(steps)).view(1, -1, 1).expand(len(x), -1, 1), filled], -1)
        state = self.start(path[:, 0])
        for step in range(1, x.shape[1]):
            change = (path[:, step] - path[:, step - 1]).unsqueeze(-1)
            slope = (torch.tanh(self.field(state)).unflatten(-1, (5, 4)) @ change.to(state.dtype)).squeeze(-1)
            again = (torch.tanh(self.field(state + slope)).unflatten(-1, (5, 4)) @ change.to(state.dtype)).squeeze(-1)
            state = state + 0.5 * (slope + again)
        return self.read(state)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        known = x.nan_to_num(0.0)
        mixed = known + F.relu(self.time(self.norm(known).transpose(1, 2))).transpose(1, 2)
        mixed = mixed + F.dropout(self.across(mixed), 0.1)
        rest, told = mixed.transpose(1, 2), x.new_zeros(len(x), 3, self.ahead)
        for block, basis in zip(self.stack, (self.trend, self.season)):
            back, forth = block(rest).chunk(2, -1)
            whole_ = basis.to(back.dtype)
            rest = rest - back @ whole_[:, : x.shape[1]]
            told = told + forth @ whole_[:, x.shape[1] :]
        told = told.transpose(1, 2) + self.controlled(x).unsqueeze(1)
        with in_float32(x):
            told, y = told.float(), y.float()
            costs = torch.cdist(told, y, compute_mode="donot_use_mm_for_euclid_dist").square()
            warped = SoftWarp.apply(costs, 0.5) / self.ahead
            smape = 200 * (told - y).abs() / (told.abs().detach() + y.abs()).clamp(min=1e-3)
            return warped.mean() + 0.01 * smape.mean()


def with_gaps() -> list[Tensor]:
    x = normal(4, 12, 3)
    return [x.masked_fill(normal(4, 12, 3, seed=7) > 1.0, math.nan), normal(4, 6, 3, seed=3)]


PROGRAMS = (
    Program("oscillators", "eleventh", Synthesizer, lambda: [normal(2, 8), normal(2, 8, seed=3), normal(2, 256) * 0.1]),
    Program(
        "where it was", "eleventh", Speaker,
        lambda: [whole(29, 3, 7) + 1, torch.tensor([7, 1, 4]), normal(3, 9, 8), torch.tensor([9, 3, 6])],
    ),
    Program("samples", "eleventh", Samples, lambda: [normal(2, 32) * 2, normal(2, 6, 8)]),
    Program("unmixed", "eleventh", Unmixed, lambda: [normal(3, 3, 2, 128) * 0.1]),
    Program("warped time", "eleventh", Warped, with_gaps),
)  # fmt: skip
