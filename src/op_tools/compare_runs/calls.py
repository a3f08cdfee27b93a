"""What a run's statistics tell of one call: its tensors before, after, and in backward."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from op_tools.device import sketch
from op_tools.storage.blocks import MODEL, PIECE, STEP

if TYPE_CHECKING:
    from op_tools.storage.blocks import Lines

# numel, NaN, infinities, checksum, min, max, mean, std, norm, then the sketch, relative to the norm
Numbers = tuple[Any, ...]
NUMEL, NAN, INF, CHECKSUM, MIN, MAX, MEAN, STD, NORM = range(9)
SKETCH = slice(9, None)
_WRAPPERS = {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}


# how far rounding moves a tensor: about half of the last place, or what the statistics' own sums are off by
_SUMS = 2.0**-22  # of statistics that a kernel adds up in float32
UNITS = {"float64": _SUMS, "float32": _SUMS, "complex64": _SUMS, "complex128": _SUMS}
UNITS.update({"bfloat16": 2.0**-9, "float16": 2.0**-12, "complex32": 2.0**-12})
UNITS.update({"float8_e4m3fn": 2.0**-5, "float8_e4m3fnuz": 2.0**-5, "float8_e5m2": 2.0**-4, "float8_e5m2fnuz": 2.0**-4})


class Kind:
    """What is the same for a tensor at each call of one place in the program."""

    __slots__ = (
        "dtype", "group", "is_float", "is_guessed", "is_summand", "name", "norms", "numel", "of", "part", "pieces",
        "place", "real_shape", "requires_grad", "shape", "start", "unit", "way", "whole",
    )  # fmt: skip

    def __init__(self, described: dict[str, Any]) -> None:
        self.part = str(described["part"])
        self.place = place = str(described["place"])
        if self.part in ("parameter", "buffer"):
            self.place = place = plain_module(place)
        self.name = f"{self.part}{place}" if place.startswith("[") or not place else f"{self.part} {place}"
        self.requires_grad = bool(described.get("requires_grad", False))
        self.shape = tuple(int(size) for size in described["shape"])
        self.dtype = str(described["dtype"])
        self.is_float = self.dtype in UNITS
        self.unit = UNITS.get(self.dtype, 0.0)
        self.real_shape = (*self.shape, 2) if self.dtype.startswith("complex") else self.shape
        self.numel = max(math.prod(self.real_shape), 1)
        self.norms = _norms(self.real_shape)
        # of a DTensor's part, or a piece: the shape of the whole, where it begins there, whether ranks have summands
        whole = described.get("whole")
        self.whole = None if whole is None else tuple(int(size) for size in whole)
        self.start = tuple(int(place) for place in described.get("start", ()))
        self.is_summand = any(str(one).startswith(("P", "_Norm", "Partial")) for one in described.get("placements", ()))
        # of a piece: the number of its tensor, in which way that is cut, into how many, whether only its size says so
        self.of = int(described["of"]) if self.part == PIECE else -1
        self.way = int(described.get("way", 0))
        self.pieces = int(described.get("pieces", 1))
        self.is_guessed = bool(described.get("is_guess", False))
        # of ops on lists: the number in the list, by which results belong to arguments
        found = re.search(r"\[(\d+)\]$", place)
        self.group = int(found[1]) if found else -1


def _norms(shape: tuple[int, ...]) -> tuple[float, float, float, float]:
    """By which profiles and moments are divided, so that they are no larger than the distance."""
    rows, columns = (max(size, 1) for size in sketch.matrix(shape))

    def of_ramp(length: int) -> float:
        return math.sqrt((length * length - 1) / (12 * length)) if length > 1 else math.inf

    return math.sqrt(columns), math.sqrt(rows), of_ramp(columns) * math.sqrt(rows), of_ramp(rows) * math.sqrt(columns)


class Distance:
    """`told` is a good guess; `at_most` one that is rarely too low, where there is no pattern in the difference.

    Infinite where one has NaN that the other has not; None where they cannot be compared: other shapes, no numbers.
    """

    __slots__ = ("at_most", "told")

    def __init__(self, told: float, at_most: float) -> None:
        self.told = told
        self.at_most = at_most


class Seen:
    """One tensor: a line of its step's numbers, or numbers that were put together from several ranks'."""

    __slots__ = ("_numbers", "apart", "checksum", "key", "kind", "lines", "norm", "other", "pieces", "row")

    def __init__(self, kind: Kind, lines: Lines | None, row: int, checksum: int, norm: float) -> None:
        self.kind = kind
        self.lines = lines
        self.row = row
        self.checksum = checksum
        self.key = checksum  # by which it is known again: what is put together has that of the first rank's part
        self.norm = norm
        self._numbers: Numbers | None = None
        self.pieces: Sequence[Seen] = ()  # of a rank's part, where it cannot be moved to its place in one
        # a tensor of the other run, and how far apart they are; where that is known
        self.other: Seen | None = None
        self.apart: Distance | None = None

    @classmethod
    def of(cls, kind: Kind, numbers: Numbers) -> Seen:
        made = cls(kind, None, -1, numbers[CHECKSUM], numbers[NORM])
        made._numbers = numbers
        return made

    @property
    def numbers(self) -> Numbers:
        if self._numbers is None:
            assert self.lines is not None
            whole, numbers, sketch = (part[self.row].tolist() for part in self.lines)
            self._numbers = (*whole[-4:], *numbers, *sketch)
        return self._numbers


class KeptSeen(Seen):
    """One tensor whose elements are known: its file, and its number among the tensors there."""

    __slots__ = ("file", "number")

    def __init__(self, kind: Kind, numbers: Numbers, file: str, number: int) -> None:
        super().__init__(kind, None, -1, numbers[CHECKSUM], numbers[NORM])
        self._numbers = numbers
        self.file = file
        self.number = number


class Site:
    """A place in the program: the op, its source line and module, and the tensors of one part of it."""

    __slots__ = ("is_list", "is_outside", "is_recomputed", "key", "kinds", "module", "op", "source")

    def __init__(self, described: dict[str, Any]) -> None:
        self.op, self.source = str(described["op"]), str(described["source"])
        self.module = plain_module(str(described["module"]))
        self.is_recomputed = bool(described.get("recomputed", False))
        self.is_list = "_foreach_" in self.op
        self.is_outside = self.op in (MODEL, STEP)  # no call: what comes to the ops from outside
        self.kinds = [Kind(tensor) for tensor in described["tensors"]]
        # by this, calls of two runs are the same: no path of a machine, and no line number, which an edit moves
        self.key = "\n".join((self.op, self.module, plain_source(self.source), str(self.is_recomputed)))


class Backward:
    """One backward pass of a call."""

    __slots__ = ("inputs", "order", "outputs")

    def __init__(self, order: int) -> None:
        self.order = order
        self.inputs: dict[str, Seen] = {}  # gradients of the inputs: what it gives
        self.outputs: dict[str, Seen] = {}  # gradients of the outputs: what it is given


class Call:
    """One call of one op. `order` is that of its results, or of its arguments where there are none."""

    __slots__ = ("backwards", "id", "inputs", "order", "outputs", "parts", "site", "step")

    def __init__(self, site: Site, id: int, step: int) -> None:
        self.site = site
        self.id = id
        self.step = step
        self.order = 0
        self.inputs: dict[str, Seen] = {}
        self.outputs: dict[str, Seen] = {}
        self.backwards: list[Backward] = []
        self.parts: list[Call] = []  # of all ranks, where these are compared with one process

    def add(self, seen: Seen, order: int) -> None:
        """One tensor of the call."""
        part = seen.kind.part
        if part in ("input", "parameter", "buffer"):
            self.inputs[seen.kind.name] = seen
            self.order = self.order or order
        elif part == "output":
            self.outputs[seen.kind.name] = seen
            self.order = max(self.order, order)
        else:
            if not self.backwards or self.backwards[-1].order != order:
                self.backwards.append(Backward(order))
            backward = self.backwards[-1]
            (backward.inputs if part == "grad_inputs" else backward.outputs)[seen.kind.name] = seen

    def lacks_what(self, other: Call) -> bool:
        """Whether the other has tensors that this one has not."""
        if not (other.inputs.keys() <= self.inputs.keys() and other.outputs.keys() <= self.outputs.keys()):
            return True
        return any(
            not (theirs.inputs.keys() <= own.inputs.keys() and theirs.outputs.keys() <= own.outputs.keys())
            for own, theirs in zip(self.backwards, other.backwards)
        )

    def add_piece(self, piece: Seen, kind: Kind, order: int) -> None:
        """To the tensor of this kind that it is one of, if that is there."""
        found = self._of_part(kind.part, order).get(kind.name)
        if found is not None:
            found.pieces = (*found.pieces, piece)

    def _of_part(self, part: str, order: int) -> dict[str, Seen]:
        if not part.startswith("grad"):
            return self.outputs if part == "output" else self.inputs
        backward = next((one for one in self.backwards if one.order == order), None)
        return {} if backward is None else backward.inputs if part == "grad_inputs" else backward.outputs


def plain_module(path: str) -> str:
    """Without the names that wrappers such as DDP put in."""
    return ".".join(part for part in path.split(".") if part not in _WRAPPERS)


def plain_source(line: str) -> str:
    """`/x/norm.py:26 forward: return …` as `norm.py forward: return …`."""
    place, _, text = line.partition(" ")
    return f"{place.rpartition('/')[2].partition(':')[0]} {text}"
