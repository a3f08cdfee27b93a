"""Programs as people write them around torch.compile, each in a size that one core trains in a moment."""

from __future__ import annotations

from benchmarks.compiled import language, machinery, mutation, training
from benchmarks.compiled.program import CompiledProgram

ALL: tuple[CompiledProgram, ...] = (
    *training.PROGRAMS.all,
    *language.PROGRAMS.all,
    *mutation.PROGRAMS.all,
    *machinery.PROGRAMS.all,
)
