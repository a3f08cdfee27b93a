"""What a run's statistics tell of one call: its tensors before, after, and in backward."""

from __future__ import annotations

import re
from typing import Any

# numel, NaN, infinities, checksum, min, max, mean, std, norm, then the sketch, relative to the norm
Numbers = tuple[Any, ...]
NUMEL, NAN, INF, CHECKSUM, MIN, MAX, MEAN, STD, NORM = range(9)
SKETCH = slice(9, None)
_WRAPPERS = {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}


class Kind:
    """What is the same for a tensor at each call of one place in the program."""

    __slots__ = ("dtype", "group", "name", "part", "place", "real_shape", "requires_grad", "shape")

    def __init__(self, described: dict[str, Any]) -> None:
        self.part = str(described["part"])
        self.place = place = str(described["place"])
        self.name = f"{self.part}{place}" if place.startswith("[") or not place else f"{self.part} {place}"
        self.requires_grad = bool(described.get("requires_grad", False))
        self.shape = tuple(int(size) for size in described["shape"])
        self.dtype = str(described["dtype"])
        self.real_shape = (*self.shape, 2) if self.dtype.startswith("complex") else self.shape
        # of ops on lists: the number in the list, by which results belong to arguments
        found = re.search(r"\[(\d+)\]$", place)
        self.group = int(found[1]) if found else -1


class Seen:
    """One tensor."""

    __slots__ = ("kind", "numbers")

    def __init__(self, kind: Kind, numbers: Numbers) -> None:
        self.kind = kind
        self.numbers = numbers


class Site:
    """A place in the program: the op, its source line and module, and the tensors of one part of it."""

    __slots__ = ("is_list", "is_recomputed", "key", "kinds", "module", "op", "source")

    def __init__(self, described: dict[str, Any]) -> None:
        self.op, self.source = str(described["op"]), str(described["source"])
        self.module = plain_module(str(described["module"]))
        self.is_recomputed = bool(described.get("recomputed", False))
        self.is_list = "_foreach_" in self.op
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
        if part == "input":
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


def plain_module(path: str) -> str:
    """Without the names that wrappers such as DDP put in."""
    return ".".join(part for part in path.split(".") if part not in _WRAPPERS)


def plain_source(line: str) -> str:
    """`/x/norm.py:26 forward: return …` as `norm.py forward: return …`."""
    place, _, text = line.partition(" ")
    return f"{place.rpartition('/')[2].partition(':')[0]} {text}"
