"""What comes to the ops from outside: the model's parameters and buffers at the first step, each step's first inputs.

They are digested like the tensors of a call, in the same file, so that who compares two runs sees first whether the
weights or the data differ already. No hook is put into the program: the first op in a module finds, on the stack, the
outermost module that is running, and what it was given.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, Callable

from torch import Tensor
from torch.nn import Module

from op_tools.core.call import OpCall
from op_tools.core.where import RecordedWhere
from op_tools.storage.blocks import MODEL, PIECE, STEP

_CALLS_FORWARD = Module._call_impl.__code__
_MAX_ROWS = 5_000  # of parameters and buffers, in the record of the process
_MAX_STEPS = 1_000
_NOWHERE = RecordedWhere("", "")
Add = Callable[["Given", str, tuple[Any, ...], dict[str, Any]], None]


class Given:
    """In place of a call, for what digests. Its number is negative: it takes none of theirs."""

    __slots__ = ("args", "id", "name", "result", "step", "where")

    def __init__(self, id: int, name: str, step: int) -> None:
        self.id, self.name, self.step = id, name, step
        self.where = _NOWHERE
        self.args: tuple[Any, ...] = ()
        self.result = None


class Outside:
    """Looks at the first calls of each step. `add` digests."""

    def __init__(self, add: Add) -> None:
        self._add = add
        self._ids = itertools.count(-1, -1)
        # asked for at every call, to call `look` only where there is something to see
        self.step = -1  # whose inputs were noted last
        self.is_first_step = True
        self._first_step: int | None = None
        self.modules: set[str] = set()  # in which ops have run in the first step
        self._known: set[int] = set()  # modules whose parameters were noted, by their ids
        # in the writer's thread
        self._tensors: dict[int, list[dict[str, Any]]] = {}  # as described, by the description's number
        self._model: list[dict[str, Any]] = []
        self._inputs: list[dict[str, Any]] = []

    def look(self, call: OpCall) -> None:
        """Before an op of a module runs that is the first in its step, or in its module in the first step."""
        module, step = call.where.module, call.step
        found = _outermost()
        if found is None:
            return
        model, args, kwargs = found
        if self._first_step is None:
            self._first_step = step
        self.is_first_step = step == self._first_step
        if self.is_first_step:
            self.modules.add(module)
            if id(model) not in self._known:
                self._note_model(model, step)
        if step != self.step:
            self.step = step
            self._note(STEP, "input", step, args, kwargs)

    def _note_model(self, model: Module, step: int) -> None:
        self._known.update(map(id, model.modules()))
        for part, tensors in (("parameter", model.named_parameters()), ("buffer", model.named_buffers())):
            self._note(MODEL, part, step, (), dict(tensors))

    def _note(self, name: str, part: str, step: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._add(Given(next(self._ids), name, step), part, args, kwargs)

    # -- for the record of the process, in the writer's thread --------------------------------------------------------

    def described(self, number: int, description: dict[str, Any]) -> None:
        """A description that was written, and its number."""
        self._tensors.pop(number, None)  # of an earlier file
        if description["op"] in (MODEL, STEP):
            self._tensors[number] = description["tensors"]

    def digested(self, labels: Tensor, numbers: list[int], digests: Tensor) -> None:
        """Lines that are written; those of calls are none of ours."""
        for place in (labels[:, 1] < 0).nonzero()[:, 0].tolist():
            description, _, step, _ = labels[place].tolist()
            tensor = self._tensors[description][numbers[place]]
            if tensor["part"] == PIECE:
                continue
            checksum = f"{int(digests[place, 3]) % 2**64:016x}"
            about = {"part": tensor["part"], "shape": tensor["shape"], "dtype": tensor["dtype"], "checksum": checksum}
            if tensor["part"] != "input" and len(self._model) < _MAX_ROWS:
                self._model.append({"name": tensor["place"], **about})
            elif tensor["part"] == "input" and len(self._inputs) < _MAX_STEPS:
                self._inputs.append({"step": step, "place": tensor["place"], **about})

    def facts(self) -> dict[str, Any]:
        """`model`: parameters and buffers at the first step; `first_inputs`: of each step."""
        return {"model": self._model, "first_inputs": self._inputs} if self._model or self._inputs else {}


def _outermost() -> tuple[Module, tuple[Any, ...], dict[str, Any]] | None:
    """The outermost module whose forward is running, and what it was given."""
    found: dict[str, Any] | None = None
    for frame in _frames():
        if frame.f_code is _CALLS_FORWARD:
            found = frame.f_locals
    if found is None or not isinstance(found.get("self"), Module):
        return None
    return found["self"], found.get("args") or (), found.get("kwargs") or {}


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back
