"""Layers that give nothing but zeros, or get no gradient, for many steps in a row."""

from __future__ import annotations

from collections import Counter

from op_tools.watch.statistics import ACTIVATIONS, GRADIENTS, StepStatistics

_KINDS = (ACTIVATIONS, GRADIENTS)


class DeadLayers:
    """Each is told once, until it lives again."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._zero_for: Counter[tuple[str, str]] = Counter()

    def found(self, statistics: StepStatistics) -> list[tuple[str, str]]:
        """Kind and module of those that have been dead for so long now."""
        dead = []
        for kind in _KINDS:
            table = statistics.tables.get(kind)
            for module, zeros in zip(table.modules, table.zeros) if table is not None else ():
                if zeros < 1:
                    self._zero_for.pop((kind, module), None)
                    continue
                self._zero_for[kind, module] += 1
                if self._zero_for[kind, module] == self._steps:
                    dead.append((kind, module))
        return dead
