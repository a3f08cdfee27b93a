"""Perturbation: moves a model's weights by a rounding error, once, before they are first used. `ditorch run --perturb`.

How far such a run is from the plain one tells how far healthy results of this program may be apart:
`ditorch compare --healthy`. The same weights are moved the same way each time, and on each rank.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.module import Module, register_module_forward_pre_hook

from op_tools import settings
from op_tools.core import dynamo
from op_tools.core.modes import with_modes_aside
from op_tools.core.steps import STEPS
from op_tools.output.results import Results

_SEED = 99
_TF32_EPS = 2.0**-10


class Perturbation:
    """`size`: own, the rounding of each weight's dtype; or that of bfloat16, float16, tf32, which it is computed in."""

    def __init__(self, size: str | None = None) -> None:
        self._size = settings.PERTURB.get() if size is None else size
        self._generator = torch.Generator().manual_seed(_SEED)
        self._known: set[int] = set()  # modules, by their ids
        self._hook: Any = None
        self._rows: list[tuple[str, int]] = []

    def start(self) -> Perturbation:
        """The first forward of each model moves its weights, up to the end of the first training step."""
        if self._hook is None:
            self._hook = register_module_forward_pre_hook(dynamo.hidden(self._before))
        return self

    def stop(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    @property
    def results(self) -> Results:
        return Results("Perturbation", ("model", "parameters"), self._rows, 0, size=self._size)

    def _before(self, module: Module, args: Any) -> None:
        if STEPS.ended_by_optimizers:
            self.stop()
        elif id(module) not in self._known:
            self._known.update(map(id, module.modules()))
            moved = with_modes_aside(self._move, list(module.parameters()))
            if moved:
                self._rows.append((type(module).__name__, moved))

    def _move(self, parameters: list[Tensor]) -> int:
        with torch.no_grad():
            return sum(map(self._moved, parameters))

    def _moved(self, parameter: Tensor) -> bool:
        own: Tensor = getattr(parameter, "_local_tensor", parameter)  # of a DTensor, this rank's part
        if torch.nn.parameter.is_lazy(own) or not own.is_floating_point():
            return False
        share = 2 * torch.rand(own.shape, generator=self._generator, device="cpu", dtype=torch.float32) - 1
        host = own.data.to("cpu", torch.float64)
        own.data.copy_(host * (1 + self._unit(own.dtype) * share))  # rounded once, to its own dtype
        return True

    def _unit(self, dtype: torch.dtype) -> float:
        if self._size == "tf32":
            return _TF32_EPS
        return torch.finfo(dtype if self._size == "own" else getattr(torch, self._size)).eps
