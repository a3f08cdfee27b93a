"""One step's figures on the host: what the device computed of each tensor, put together by module."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from op_tools.device import moments
from op_tools.watch.looks import Label, Looks

FIGURES = ("mean", "rms", "absmax", "zeros", "nonfinite")
LOSS, SCALE, FOUND_INF = "loss", "scale", "found_inf"
ACTIVATIONS, GRADIENTS, WEIGHTS = "activations", "gradients", "weights"
UNSCALED_GRADIENTS = "unscaled gradients"  # that are taken when the optimizer steps
STATE = "state."  # before its name: state.exp_avg
_SCALARS = (LOSS, SCALE, FOUND_INF)


@dataclass
class Table:
    """Of one kind: for each module how many elements there are, and the figures of all of them together."""

    modules: list[str]
    count: list[int]
    mean: list[float]
    rms: list[float]
    absmax: list[float]
    zeros: list[float]  # the share of elements
    nonfinite: list[int]  # elements

    def norm(self) -> float:
        """Of all modules together."""
        return math.sqrt(sum(count * rms * rms for count, rms in zip(self.count, self.rms)))


@dataclass
class StepStatistics:
    """`step` is a training step, `time` when it ended. What is not known is None."""

    step: int
    time: float
    loss: float | None = None
    scale: float | None = None  # GradScaler's
    was_left_out: bool = False  # by GradScaler, because of an Inf
    checksum: int | None = None  # of the weights that every rank has
    tables: dict[str, Table] = field(default_factory=dict)
    changed: int = 0  # tensors that were changed in place before they could be looked at
    out_of_memory: int = 0

    @property
    def gradient_norm(self) -> float | None:
        table = self.tables.get(GRADIENTS)
        return None if table is None else table.norm()

    def scalars(self) -> Iterator[tuple[str, float]]:
        """Few figures of the whole."""
        if self.loss is not None:
            yield LOSS, self.loss
        for kind, table in self.tables.items():
            if kind != ACTIVATIONS:
                yield f"{kind}/norm", table.norm()


def read(step: int, time: float, was_left_out: bool, batches: Iterable[Looks]) -> StepStatistics:
    """Waits for the numbers."""
    found = StepStatistics(step, time, was_left_out=was_left_out)
    labels: list[Label] = []
    numbers, bits = [torch.empty(0, len(moments.COLUMNS), dtype=torch.float64, device="cpu")], []
    for batch in batches:
        rows = batch.numbers()
        found.changed += batch.changed
        found.out_of_memory += batch.out_of_memory
        if rows:
            some, some_bits = moments.read(rows[0])
            numbers.append(some)
            bits += some_bits.tolist()
            labels += batch.labels()
    found.checksum = _checksum(labels, bits)
    _fill(found, labels, torch.cat(numbers))
    return found


def _fill(found: StepStatistics, labels: list[Label], numbers: Tensor) -> None:
    by_kind: dict[str, list[int]] = {}
    for place, label in enumerate(labels):
        by_kind.setdefault(label.kind, []).append(place)
    scalars = {kind: numbers[by_kind.pop(kind), 0].tolist() for kind in _SCALARS if kind in by_kind}
    found.scale = scalars[SCALE][-1] if SCALE in scalars else None
    found.was_left_out |= any(map(bool, scalars.get(FOUND_INF, ())))
    if LOSS in scalars:  # micro-batches of one step are usually divided by their number
        found.loss = sum(scalars[LOSS]) / (found.scale or 1.0)
    if found.scale:
        places = by_kind.get(GRADIENTS, [])
        numbers[places, :3] /= torch.tensor([found.scale, found.scale**2, found.scale], dtype=torch.float64)
    late = by_kind.pop(UNSCALED_GRADIENTS, [])
    if late:
        by_kind[GRADIENTS] = by_kind.get(GRADIENTS, []) + late
    for kind in sorted(by_kind, key=_order):
        places = by_kind[kind]
        found.tables[kind] = _table([labels[place] for place in places], numbers[places])


def _order(kind: str) -> tuple[int, str]:
    """As the step goes."""
    known = (ACTIVATIONS, GRADIENTS, WEIGHTS)
    return (known.index(kind) if kind in known else len(known)), kind


def _table(labels: list[Label], numbers: Tensor) -> Table:
    """Modules stand in the order in which they came."""
    places: dict[str, int] = {}
    index = torch.tensor([places.setdefault(label.module, len(places)) for label in labels], device="cpu")
    counts = torch.tensor([label.elements for label in labels], dtype=torch.float64, device="cpu")
    total = _added(counts, index, len(places))
    sums, squares, nonzero, nonfinite = (_added(numbers[:, column], index, len(places)) for column in (0, 1, 3, 4))
    largest = torch.zeros(len(places), dtype=torch.float64, device="cpu")
    largest.scatter_reduce_(0, index, numbers[:, 2], "amax")
    return Table(
        list(places),
        [int(count) for count in total.tolist()],
        (sums / total).tolist(),
        (squares / total).sqrt().tolist(),
        largest.tolist(),
        (1 - nonzero / total).clamp(min=0).tolist(),
        [int(count) for count in nonfinite.tolist()],
    )


def _added(values: Tensor, index: Tensor, length: int) -> Tensor:
    return torch.zeros(length, dtype=torch.float64, device="cpu").index_add_(0, index, values)


def _checksum(labels: list[Label], bits: list[int]) -> int | None:
    """It differs where one bit of a replicated weight does."""
    own = [bit for label, bit in zip(labels, bits) if label.is_replicated]
    return sum(bit * (2 * place + 1) for place, bit in enumerate(own)) % 2**64 if own else None
