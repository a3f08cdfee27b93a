"""Pieces of a rank's tensors that are digested on their own, so that sketches of all ranks add up to the whole's.

A sketch can be moved to where its tensor begins in the whole, but not taken apart. So what lies at several places
there, as [q; k; v] of a fused layer, is digested block by block; and what begins at no multiple of 16 along the last
dimension is digested with zeros before it. Where a tensor lies is told by itself (a DTensor), or by the user's table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from op_tools.device.sketch import PERIOD
from op_tools.output import process
from op_tools.settings import Cut
from op_tools.storage.blocks import MODEL, PIECE

Described = dict[str, Any]


class TensorPiece(NamedTuple):
    """Some places of one dimension of a tensor."""

    number: int  # of the tensor
    dimension: int
    begin: int
    length: int
    whole: list[int]  # the shape of what all ranks share
    start: list[int]  # where it begins there
    padding: int  # zeros that go before it, along the last dimension

    def cut_from(self, tensors: list[Tensor]) -> Tensor:
        part = tensors[self.number].detach().narrow(self.dimension, self.begin, self.length)
        if not self.padding:
            return part
        zeros = part.new_zeros((*part.shape[:-1], self.padding))
        return torch.cat([zeros, part], -1)

    def described(self, tensor: Described) -> Described:
        """With the zeros before it."""
        shape, start = list(tensor["shape"]), list(self.start)
        shape[self.dimension] = self.length
        shape[-1] += self.padding
        start[-1] -= self.padding
        place = f"{tensor['part']} {tensor['place']}".strip() + f" at {'x'.join(map(str, self.start))}"
        about = {name: tensor[name] for name in ("dtype", "device", "requires_grad")}
        return {**about, "part": PIECE, "place": place, "shape": shape, "whole": self.whole, "start": start}


class Pieces:
    """Finds them. `cuts`: the user's table."""

    def __init__(self, cuts: Sequence[Cut]) -> None:
        self._cuts = cuts

    def added_to(self, description: Described) -> list[TensorPiece]:
        """Those of the described tensors, which are described behind them."""
        found: list[TensorPiece] = []
        tensors = description["tensors"]
        for number, tensor in enumerate(list(tensors)):
            if "note" in tensor or 0 in tensor["shape"]:  # it is not digested
                continue
            module = tensor["place"] if description["op"] == MODEL else description["module"]
            for way, (pieces, is_guess) in enumerate(self._of(tensor, number, module)):
                about = {"of": number, "way": way, "pieces": len(pieces), "is_guess": is_guess and len(pieces) > 1}
                tensors += [{**piece.described(tensor), **about} for piece in pieces]
                found += pieces
        return found

    def _of(self, tensor: Described, number: int, module: str) -> Iterator[tuple[list[TensorPiece], bool]]:
        """The ways in which it can be a part of something; and whether only its size says so.

        What a module gives is used in others, and its gradients and weights in the optimizer.
        """
        if "whole" in tensor:
            yield list(_of_placed(tensor, number)), False
            return
        dimensions = len(tensor["shape"])
        cuts = [cut for cut in self._cuts if -dimensions <= cut.dimension < dimensions]
        cuts.sort(key=lambda cut: cut.pattern.search(module) is None)
        ways = {(cut.dimension % dimensions, cut.sizes): cut for cut in reversed(cuts)}
        for (dimension, sizes), cut in ways.items():
            yield list(_blocks(tensor, number, dimension, sizes)), cut.pattern.search(module) is None


def _of_placed(tensor: Described, number: int) -> Iterator[TensorPiece]:
    shape, start = tensor["shape"], tensor["start"]
    if padding := _padding(tensor, start):
        yield TensorPiece(number, len(shape) - 1, 0, shape[-1], tensor["whole"], start, padding)


def _padding(tensor: Described, start: list[int]) -> int:
    """Sketches can be moved by so many places of the last dimension; of complex numbers, that is another one."""
    return start[-1] % PERIOD if start and not tensor["dtype"].startswith("complex") else 0


def _blocks(tensor: Described, number: int, dimension: int, sizes: Sequence[int]) -> Iterator[TensorPiece]:
    """This rank's part of each block, cut as torch.chunk does; nothing where the sizes are not these."""
    shape, ranks, rank = tensor["shape"], process.world_size(), process.this_rank()
    starts = [min(-(-size // ranks) * rank, size) for size in sizes]
    lengths = [min(-(-size // ranks), size - start) for size, start in zip(sizes, starts)]
    if ranks == 1 or sum(lengths) != shape[dimension]:
        return
    whole = [sum(sizes) if at == dimension else size for at, size in enumerate(shape)]
    begin = block = 0
    for size, start, length in zip(sizes, starts, lengths):
        place = [block + start if at == dimension else 0 for at in range(len(shape))]
        if length:
            yield TensorPiece(number, dimension, begin, length, whole, place, _padding(tensor, place))
        begin, block = begin + length, block + size
