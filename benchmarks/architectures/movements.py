"""Networks of tensors, data that move, words before transformers, whole numbers."""

from __future__ import annotations

import torch
from benchmarks.architectures.chunks import in_float32
from benchmarks.architectures.program import Program, normal, whole
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


class Networks(nn.Module):
    """Networks of tensors: trains and Tucker cores by einsum with many letters, Kronecker products, rank ones."""

    def __init__(self, bond: int = 3) -> None:
        super().__init__()
        shapes = [(1, 2, 3, bond), (bond, 3, 2, bond), (bond, 2, 2, 1)]
        self.cores = nn.ParameterList(normal(*shape, seed=seed) * 0.5 for seed, shape in enumerate(shapes))
        self.tucker, self.left, self.right = (
            nn.Parameter(normal(*shape) * 0.4) for shape in ((3, 3, 3), (12, 3), (12, 3))
        )
        self.pair, self.offset = nn.Bilinear(12, 4, 5), nn.Parameter(torch.zeros(5))
        self.small, self.other = nn.Parameter(normal(3, 2) * 0.3), nn.Parameter(normal(4, 2, seed=9) * 0.3)

    def loss(self, x: Tensor, z: Tensor, y: Tensor) -> Tensor:
        weight = torch.einsum("aipb,bjqc,ckra->ijkpqr", *self.cores).reshape(12, 12)
        hidden = torch.tanh(x @ weight.to(x.dtype))
        mixed = torch.einsum("abc,ia,jb->ijc", self.tucker, self.left, self.right)
        hidden = hidden + torch.tensordot(hidden, mixed, ([1], [0])).mean(-1)
        nested = torch.kron(self.small, torch.kron(self.other, self.small.mT.flatten()))[:, :12]
        hidden = hidden + hidden @ nested.mT.to(hidden.dtype)
        scores = self.pair(hidden.to(z.dtype), z) + torch.kron(self.small, self.other).sum()
        with in_float32(x):
            scores = torch.addbmm(
                scores.float(), hidden.float()[None], self.right.float() @ torch.ones(1, 3, 5, device=x.device)
            )
            rank = torch.addr(torch.zeros(12, 12, device=x.device), self.left.float()[:, 0], self.right.float()[:, 0])
            alone = torch.addmv(self.offset.float(), scores.mT, torch.inner(hidden.float(), rank[0]))
            chained = torch.linalg.multi_dot([hidden.float(), rank, self.left.float()])
            blocks = torch.block_diag(self.small.float(), self.other.float())
            solved = torch.linalg.tensorsolve(torch.eye(4, device=x.device).view(2, 2, 4) + 0.1, self.small.float()[:2])
            grown = torch.linalg.vander(torch.tanh(alone), N=3)
            norms = torch.vdot(alone, alone) + chained.square().mean() + blocks.norm() + solved.square().sum()
        return F.multi_margin_loss(scores, y, p=2) + 0.01 * norms + 1e-3 * grown.mean()


class Copies(nn.Module):
    """Data that move: scattered slices and diagonals, reductions by index, split and tiled rows."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first, self.last, self.table = (
            nn.Linear(width, 2 * width),
            nn.Linear(2 * width, 4),
            nn.Parameter(normal(6, 2 * width)),
        )

    def loss(self, x: Tensor, groups: Tensor, y: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x)).to(self.table.dtype)
        index = groups[:, None].expand_as(hidden)
        most = self.table.scatter_reduce(0, index, hidden, "amax", include_self=False)
        mean = self.table.scatter_reduce(0, index, hidden, "mean", include_self=True)
        product = (0.2 * self.table + 1).index_reduce(0, groups, 1 + 0.1 * hidden, "prod")
        least = self.table.index_reduce(0, groups, hidden, "amin", include_self=False)
        length = torch.bincount(groups.sort().values, minlength=6)
        parts = torch.segment_reduce(hidden.float()[groups.argsort(stable=True)], "mean", lengths=length, initial=0.0)
        square = torch.diagonal_scatter(most[:, :6], mean.diagonal()[:6] * 2)
        square = torch.select_scatter(square, product[:, 0], 1, 2).index_fill(1, groups[:2], 0.5)
        wide = torch.as_strided_scatter(least, square[:2, :3].contiguous(), (2, 3), (5, 2), 1)
        upper, lower = wide.vsplit(2)
        left, right = torch.hsplit(torch.cat([upper, lower]), 2)
        folded = torch.column_stack([left, right.roll(1, 0), torch.tril(square)]).tile(1, 2)
        stacked = torch.dstack([folded, folded.rot90(2)]).movedim(-1, 0)
        ordered = (
            stacked.msort()
            .unfold(1, 3, 2)
            .amax(-1)
            .take_along_dim(torch.zeros(2, 1, 1, dtype=torch.long, device=x.device), 1)
        )
        masked = hidden.masked_scatter(hidden < 0, hidden.abs().detach())
        put = torch.put(masked, groups * 3, masked.flatten()[: len(groups)] * 0.5, accumulate=True)
        crossed = (
            torch.cartesian_prod(parts[:3, 0], parts[:3, 1]).prod(-1).sum() + torch.combinations(parts[:, 2], 2).std()
        )
        scores = self.last(put.to(self.last.weight.dtype)).float()
        return (
            F.cross_entropy(scores, y)
            + 0.1 * ordered.float().mean()
            + 0.01 * crossed
            + 0.01 * wide.float().square().mean()
        )


class OldWords(nn.Module):
    """Words before transformers: packed rows, a softmax by clusters, one mask for all steps, gates over time."""

    def __init__(self, words: int = 40, width: int = 10) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width, padding_idx=0)
        self.rows = nn.LSTM(width, width, bidirectional=True, batch_first=True, proj_size=4)
        self.kernel = nn.Parameter(normal(3, 8, 2 * width) * 0.2)
        self.output = nn.AdaptiveLogSoftmaxWithLoss(width, words, [8, 20], div_value=2.0, head_bias=True)
        self.far = nn.TripletMarginWithDistanceLoss(distance_function=nn.CosineSimilarity(), swap=True)

    def loss(self, words: Tensor, lengths: Tensor) -> Tensor:
        x = self.words(words)
        mask = torch.bernoulli(torch.full_like(x[:, :1], 0.8)) / 0.8
        packed = nn.utils.rnn.pack_padded_sequence(x * mask, lengths.cpu(), batch_first=True, enforce_sorted=False)
        states, _ = nn.utils.rnn.pad_packed_sequence(self.rows(packed)[0], batch_first=True)
        kernel = self.kernel.to(states.dtype)
        mixed = F.glu(
            torch.conv_tbc(states.transpose(0, 1).contiguous(), kernel, torch.zeros_like(kernel[0, 0]), 1), -1
        )
        flat, wanted = mixed.transpose(0, 1).flatten(0, 1)[:-1], words[:, : mixed.shape[0]].reshape(-1)[1:]
        with in_float32(x):
            likely = self.output(flat.to(self.output.head.weight.dtype), wanted)
        first, second, third = flat.float()[:9].view(3, 3, -1)
        apart = self.far(first, second, third) + F.cosine_embedding_loss(
            first, second, torch.tensor([1, -1, 1], device=x.device)
        )
        counts = F.poisson_nll_loss(flat.float().mean(-1), wanted.float(), full=True)
        soft = F.soft_margin_loss(flat.float()[:, 0], torch.where(wanted % 2 > 0, 1.0, -1.0))
        active = states.float().square().mean() + (states[:, 1:] - states[:, :-1]).float().square().mean()
        return likely.loss.float() + 0.1 * (apart + counts + soft + active)


class Codes(nn.Module):
    """Whole numbers: bits shifted and counted, divisors, sets, codes of Morton, hashes, exact counts."""

    def __init__(self, rows: int = 31, width: int = 6) -> None:
        super().__init__()
        self.rows, self.near, self.top = nn.Embedding(rows, width), nn.Parameter(normal(4, width)), nn.Linear(width, 3)

    def loss(self, places: Tensor, y: Tensor) -> Tensor:
        x, z = places.unbind(-1)
        code = sum(((x >> bit) & 1) << (2 * bit) | ((z >> bit) & 1) << (2 * bit + 1) for bit in range(4))
        mixed = torch.bitwise_xor(code * 73856093, torch.bitwise_left_shift(z + 1, 5)) % 31
        ones = sum((code >> bit) & 1 for bit in range(8))
        shared = torch.gcd(x + 1, z + 1).float() / torch.lcm(x + 1, z + 1)
        row, column = torch.unravel_index(mixed, (6, 6))
        there = torch.isin(mixed, torch.arange(0, 31, 2, device=x.device)).logical_xor(ones % 2 == 0).logical_not()
        rest = torch.floor_divide(x * 7 - z, 3) + torch.fmod(x - z, 3) + torch.trunc(torch.true_divide(x, 3)).long()
        most, least = torch.fmax(x, z), torch.fmin(x, z)
        counts = torch.histc(mixed.float(), 8, 0, 31) / len(x) + torch.count_nonzero(there) * 0.01
        upper = torch.triu_indices(6, 6, device=x.device)
        pairs = (row[upper[0]] == column[upper[1]]).sum() * 0.01
        weight = torch.log1p(shared + ones + rest.abs() + most - least).masked_fill(there, 0.5)
        hidden = self.rows(mixed) * weight[:, None].to(self.rows.weight.dtype)
        hidden = torch.renorm(hidden.float(), 2, 0, 1.5)
        pull = torch.cdist(hidden, self.near.float(), p=1).min(1).values
        area = torch.trapezoid(pull.sort().values, dx=0.1) + torch.cumulative_trapezoid(pull)[-1] * 0.1
        spread = torch.nanquantile(torch.where(there, torch.nan, pull), 0.5).nan_to_num() + torch.dist(
            hidden[0], hidden[1], 3
        )
        return (
            F.cross_entropy(self.top(hidden.to(self.top.weight.dtype)).float(), y)
            + 0.1 * (area + spread)
            + counts.var()
            + pairs
        )


PROGRAMS = (
    Program("tensor networks", "seventh", Networks, lambda: [normal(9, 12), normal(9, 4), whole(5, 9)]),
    Program("copies", "seventh", Copies, lambda: [normal(14, 8), whole(6, 14), whole(4, 14)]),
    Program("old words", "seventh", OldWords, lambda: [1 + whole(39, 3, 7), torch.tensor([7, 4, 6])]),
    Program("codes", "seventh", Codes, lambda: [whole(16, 20, 2), whole(3, 20)]),
)
