"""What a comparison has found, as data. docs/compare.md describes the JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from op_tools.compare_runs.counting import OutsideStep
from op_tools.compare_runs.judging import Event

SCHEMA = "ditorch.compare/1"
SAME, DIFFERENT, UNKNOWN = 0, 1, 2  # exit codes


@dataclass
class Place:
    """A call of the two runs, and how far apart it is."""

    step: int
    rank: int
    op: str
    module: str
    where: str
    phase: str  # forward, recomputed, backward
    part: str  # output, grad_inputs
    place: str  # among the results: [1]
    kind: str  # guilty: its inputs agree and its results do not; carried: what came in differs already
    distance: float  # of the results, relative to their norm
    inputs: float  # of what went in
    score: float  # how many times further than it may be, over the limit
    shape: list[int]
    dtype: str
    forward_id: int  # in run A
    other_forward_id: int  # in run B
    reason: str = ""  # where data has settled it: what is wrong with the result
    capture: str = ""  # … and the folder with the data
    side: str = "b"  # … and which run's result is wrong
    origin: str = ""  # of what is carried, where nothing differs before the first op: what it came from

    @classmethod
    def of(cls, event: Event, rank: int, kind: str, origin: str = "") -> Place:
        a, kept = event.a, event.result.kind if event.result is not None else None
        return cls(
            a.step, rank, a.site.op, a.site.module, a.site.source, event.phase,
            kept.part if kept else "output", kept.place if kept else "", kind,
            event.distance, event.inputs, event.score / event.limit,
            list(kept.shape) if kept else [], kept.dtype if kept else "", a.id, event.b.id, origin=origin,
        )  # fmt: skip


@dataclass
class Before:
    """Something that differs before the first op, or comes from outside: environment, code, seeds, weights, data."""

    what: str
    name: str
    a: Any
    b: Any
    step: int = 0
    rank: int = 0

    @property
    def moves_numbers(self) -> bool:
        """Whether results must differ because of it."""
        return self.what in ("weights", "data")


@dataclass
class ModuleRow:
    """A module along the depth of the program."""

    module: str
    events: int = 0
    same: int = 0  # bit by bit
    guilty: int = 0
    distance: float = 0.0
    op: str = ""  # of the largest distance


@dataclass
class SecondPass:
    """Whose data to capture, and the command that does."""

    ops: list[str]
    step: int
    rank: int
    command: str


@dataclass
class Findings:
    """Of two runs."""

    a: str
    b: str
    before: list[Before] = field(default_factory=list)
    first_divergence: Place | None = None
    chain: list[Place] = field(default_factory=list)  # from the first divergence to the worst result of its step
    guilty: list[Place] = field(default_factory=list)
    suspects: list[Place] = field(default_factory=list)  # those to capture the data of next, the most suspect first
    cleared: list[Place] = field(default_factory=list)  # that data has shown to be right
    second_pass: SecondPass | None = None  # what would settle it; None where nothing is in doubt, or data was there
    worst: list[Place] = field(default_factory=list)
    modules: list[ModuleRow] = field(default_factory=list)
    not_comparable: list[str] = field(default_factory=list)
    calls: int = 0  # that both have
    events: int = 0
    same: int = 0  # bit by bit
    only_a: int = 0
    only_b: int = 0
    steps: int = 0  # training steps that both have
    training: range = range(0)  # … and their numbers, of one process
    outside_steps: list[OutsideStep] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    replicas: int = 1  # of the model on them, where they are compared with one process
    only_in_b: tuple[int, list[str]] | None = None  # a step and its ops of run B that may be what is carried came from
    is_cut_short: bool = False  # files that cannot be read whole

    def step_name(self, step: int, rank: int, in_short: bool = False) -> str:
        """`step 3`, or when it ran if it is none; the number is the one that --steps takes."""
        outside = next((one for one in self.outside_steps if (one.step, one.rank) == (step, rank)), None)
        if in_short:
            return str(step) if outside is None else f"{step} ({outside.when.partition(' ')[0]})"
        return f"step {step}" if outside is None else f"{outside.when} ({step})"

    @property
    def exit_code(self) -> int:
        if self.first_divergence is not None:
            return DIFFERENT
        return SAME if self.calls and not self.is_cut_short else UNKNOWN
