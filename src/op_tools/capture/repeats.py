"""Tensors that are surely what they were when they were last seen, and need not be digested again.

A tensor's version tells only of changes that went by way of torch: a kernel of a third party, or anything done to
`.data`, leaves it as it is. So a tensor counts as unchanged only between the list ops that one run of a function of
torch's own makes, as an optimizer's step does: nothing else runs in between. These are most of what a step touches.
"""

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from op_tools.capture.notes import Found, unchanged_tensors
from op_tools.capture.outside import Given
from op_tools.core.call import OpCall

_TORCH = os.path.dirname(torch.__file__) + os.sep
_OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep
_LIST_OPS = "torch._foreach_"
_NOWHERE: tuple[int, Any] = (0, None)


class Repeats:
    """Remembers the tensors of the list ops of the running function of torch's."""

    def __init__(self) -> None:
        self._run = _NOWHERE  # the frame, by its id and code
        self._instruction = 0
        self._call = 0
        self._memory = unchanged_tensors()
        self.is_empty = True

    def forget(self) -> None:
        if not self.is_empty:
            self._memory.forget()
            self.is_empty = True

    def find(self, call: OpCall | Given, tensors: list[Tensor]) -> Found | None:
        """Those that are known, and where their digests are."""
        if not call.name.startswith(_LIST_OPS):
            self._run = _NOWHERE
            self.forget()
            return None
        if not self._is_same_run(call):
            self.forget()
        return None if self.is_empty else self._memory.find(tensors)

    def remember(self, call: OpCall | Given, tensors: list[Tensor], found: Found | None, description: int) -> None:
        """Notes where the digests of all these tensors are, for what comes next."""
        if self._run is not _NOWHERE:
            # versions alone do not tell: on CUDA, torch._foreach_lerp_ leaves them as they are
            is_about_to_change = call.result is None and call.name.endswith("_") and call.args
            changed = len(call.args[0]) if is_about_to_change else 0
            self._memory.remember(tensors, found, description, call.id, changed)
            self.is_empty = False

    def _is_same_run(self, call: OpCall | Given) -> bool:
        """Whether the function that calls is the one of last time, further on: a new run would begin before that."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename.startswith(_OURS):
            frame = frame.f_back
        last, self._run = self._run, _NOWHERE
        if frame is None or not frame.f_code.co_filename.startswith(_TORCH):
            return False
        self._run = (id(frame), frame.f_code)
        is_further_on = frame.f_lasti > self._instruction or call.id == self._call
        self._instruction, self._call = frame.f_lasti, call.id
        return self._run == last and is_further_on
