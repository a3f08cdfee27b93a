"""Tensors that are surely what they were when they were last seen, and need not be digested again.

A tensor's version tells only of changes that went by way of torch: a kernel of a third party, or anything done to
`.data`, leaves it as it is. So a tensor counts as unchanged only between the list ops that one run of a function of
torch's own makes, as an optimizer's step does: nobody else has a hand in there. These are most of what a step touches.
"""

from __future__ import annotations

import os
import sys
import weakref
from types import FrameType
from typing import Any

import torch
from torch import Tensor

_TORCH = os.path.dirname(torch.__file__) + os.sep
_OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep
_LIST_OPS = "torch._foreach_"

Origin = tuple[int, int, int]  # the record that holds its numbers: description, forward_id, number of the tensor


class Repeats:
    """Remembers the tensors of the list ops of the running function of torch's."""

    def __init__(self) -> None:
        self._run: tuple[int, Any] = (0, None)  # the frame, by its id and code
        self._instruction = 0
        self._known: dict[int, tuple[weakref.ref[Tensor], int, Origin]] = {}

    def forget(self) -> None:
        self._known.clear()

    def find(self, op: str, tensors: list[Tensor]) -> dict[int, Origin]:
        """For each tensor that is known, by its number, where its numbers are."""
        if not op.startswith(_LIST_OPS) or not self._is_same_run():
            self._known.clear()
            return {}
        origins = {}
        for number, tensor in enumerate(tensors):
            known = self._known.get(id(tensor))
            if known is not None and known[0]() is tensor and known[1] == tensor._version:
                origins[number] = known[2]
        return origins

    def remember(self, op: str, tensors: list[Tensor], origins: dict[int, Origin], description: int, call: int) -> None:
        """Notes where the numbers of all these tensors are, for what comes next."""
        if op.startswith(_LIST_OPS) and self._run[1] is not None:
            for number, tensor in enumerate(tensors):
                origin = origins.get(number, (description, call, number))
                self._known[id(tensor)] = (weakref.ref(tensor), tensor._version, origin)

    def _is_same_run(self) -> bool:
        """Whether the function that calls is the one of last time, further on: a new run would begin before that."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename.startswith(_OURS):
            frame = frame.f_back
        last, self._run = self._run, (0, None)
        if frame is None or not frame.f_code.co_filename.startswith(_TORCH):
            return False
        self._run = (id(frame), frame.f_code)
        instruction, self._instruction = self._instruction, frame.f_lasti
        return self._run == last and frame.f_lasti >= instruction
