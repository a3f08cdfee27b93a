"""Programs as people write them, each in a size that one core trains in a moment. For healthy_programs.py.

Limits of the verdict are set on the half `tuned` alone; `held-out` tells what they are worth: nobody looks at
one of those to mend a limit. `fresh` is a third set, of classes of ops and of ways to program that the other two
lack, `fourth` another one, of models of today, `fifth` one with a state, curves and likelihoods, and optimizers of
its own, `sixth` one that works in chunks, solves and samples, `seventh` one of rare ops, hand-written autograd
and composed optimizers, `eighth` one of geometry, parses, own operators, old names and optimizers of few bits,
`ninth` one of what people fine-tune and train today, as they write it, `tenth` one of what PyTorch offers
beside layers: function transforms, formats, parametrizations, hooks, modes and regions of autocast;
docs/accuracy-figures.md has the first figures of each, and what caused their alarms is mended since.
"""

from __future__ import annotations

from benchmarks.architectures import (
    accumulation,
    chunks,
    curves,
    decoders,
    exact,
    formats,
    generative,
    habits,
    hugging_face,
    language,
    layers,
    losses,
    matchers,
    mechanics,
    memories,
    mixing,
    movements,
    numerics,
    objectives,
    painters,
    pieces,
    readers,
    recipes,
    regions,
    rewriting,
    sciences,
    signals,
    solvers,
    structured,
    surfaces,
    synthesis,
    tables,
    tasks,
    transforms,
    tuning,
    vision,
    voices,
    worlds,
)
from benchmarks.architectures.program import Program

ALL: tuple[Program, ...] = (
    *language.PROGRAMS,
    *vision.PROGRAMS,
    *generative.PROGRAMS,
    *structured.PROGRAMS,
    *exact.PROGRAMS,
    *hugging_face.programs(),
    *losses.PROGRAMS,
    *layers.PROGRAMS,
    *numerics.PROGRAMS,
    *mechanics.PROGRAMS,
    *tasks.PROGRAMS,
    *synthesis.PROGRAMS,
    *objectives.PROGRAMS,
    *mixing.PROGRAMS,
    *memories.PROGRAMS,
    *curves.PROGRAMS,
    *chunks.PROGRAMS,
    *solvers.PROGRAMS,
    *recipes.PROGRAMS,
    *signals.PROGRAMS,
    *rewriting.PROGRAMS,
    *movements.PROGRAMS,
    *accumulation.PROGRAMS,
    *readers.PROGRAMS,
    *surfaces.PROGRAMS,
    *worlds.PROGRAMS,
    *habits.PROGRAMS,
    *tuning.PROGRAMS,
    *decoders.PROGRAMS,
    *pieces.PROGRAMS,
    *painters.PROGRAMS,
    *matchers.PROGRAMS,
    *sciences.PROGRAMS,
    *voices.PROGRAMS,
    *tables.PROGRAMS,
    *transforms.PROGRAMS,
    *formats.PROGRAMS,
    *regions.PROGRAMS,
)
TUNED = tuple(program for program in ALL if program.half == "tuned")
HELD_OUT = tuple(program for program in ALL if program.half == "held-out")
