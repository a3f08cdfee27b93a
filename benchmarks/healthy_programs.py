"""Does OpAutoCompare leave healthy programs alone? Many of them, in many forms, on chips of several makes.

    python benchmarks/healthy_programs.py [--half held-out] [--chips own other tf32] [--reference cpu] [--jobs 2]
    python benchmarks/healthy_programs.py --device cuda --chips own --reference device

Each program (benchmarks/architectures) trains for two steps as it is, and again under OpAutoCompare: in float32, under
autocast in bfloat16 and in float16 with a GradScaler, with checkpointing, and with parameters in bfloat16, each with
another optimizer. What is blamed is a false alarm, and losses and parameters must be equal to the bit.

The simulated accelerator computes as the CPU does (`own`), as another maker's chip (`other`: the fault kind remake) or
with products in tf32, which the program allows (`tf32`).

Exit code 1 if a goal is missed: one false alarm in 100,000 calls, one run of 50 with any, all losses equal.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import io
import json
import multiprocessing
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ["DITORCH_DISABLE_MOCK"] = "1"  # nothing here is written for CUDA

from benchmarks import architectures
from benchmarks.architectures import Program

STEPS, REPEATS = 2, 4
MAX_SHOWN = 240  # characters of a reason
CHIPS = {"own": "", "other": "aten.*: remake", "tf32": "aten.*: tf32"}
MAX_ALARMS_PER_CALL, MAX_RUNS_WITH_ALARM = 1e-5, 1 / 50

# ---- in which forms ----------------------------------------------------------------------------------------------

Optimizer = Callable[[list[Tensor]], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Optimizer] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, 0.05, momentum=0.9, nesterov=True),
    "Adam": lambda parameters: torch.optim.Adam(parameters, 1e-2, foreach=True, amsgrad=True),
    "fused AdamW": lambda parameters: torch.optim.AdamW(parameters, 1e-2, fused=True),
    "Adafactor": lambda parameters: torch.optim.Adafactor(parameters, 1e-2),
    "RMSprop": lambda parameters: torch.optim.RMSprop(parameters, 1e-3, foreach=False, centered=True),
    "LBFGS": lambda parameters: torch.optim.LBFGS(parameters, 0.1, max_iter=2),
}


@dataclass(frozen=True)
class Variant:
    """How a program is trained."""

    name: str
    autocast: torch.dtype | None = None
    scales: bool = False  # gradients, with a GradScaler
    recomputes: bool = False  # by checkpointing
    parameters: torch.dtype | None = None


VARIANTS = (
    Variant("float32"),
    Variant("autocast bfloat16", torch.bfloat16),
    Variant("autocast float16", torch.float16, scales=True),
    Variant("checkpointed", recomputes=True),
    Variant("bfloat16", parameters=torch.bfloat16),
)


def optimizer_of(program: Program, variant: Variant) -> str:
    """Each program meets another one in each of its forms."""
    names = [name for name in OPTIMIZERS if not (variant.scales and name == "LBFGS")]
    return names[(architectures.ALL.index(program) + VARIANTS.index(variant)) % len(names)]


def train(program: Program, variant: Variant, device: str) -> list[Tensor]:
    """Two steps: the losses, and the parameters in the end."""
    torch.manual_seed(0)
    model = program.make().to(device)
    data = [part.to(device) for part in program.data()]
    if variant.parameters is not None:
        model.to(variant.parameters)
        data = [part.to(variant.parameters) if part.is_floating_point() else part for part in data]
    optimizer = OPTIMIZERS[optimizer_of(program, variant)](list(model.parameters()))
    scaler = torch.amp.GradScaler(device, init_scale=1024.0) if variant.scales else None
    losses: list[Tensor] = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        with torch.autocast(device, variant.autocast) if variant.autocast else contextlib.nullcontext():
            loss = checkpoint(model.loss, *data, use_reentrant=False) if variant.recomputes else model.loss(*data)
        (loss if scaler is None else scaler.scale(loss)).backward()
        losses.append(loss.detach().clone())
        return loss

    for _ in range(STEPS):
        if isinstance(optimizer, torch.optim.LBFGS):
            optimizer.step(closure)
            continue
        closure()
        if scaler is not None:
            scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
    return [one.detach().cpu() for one in (*losses, *model.parameters())]


# ---- one run -----------------------------------------------------------------------------------------------------


@dataclass
class Run:
    """What came of one program in one form on one chip."""

    program: str
    variant: str
    optimizer: str
    chip: str
    reference: str
    calls: int = 0
    alarms: list[str] = field(default_factory=list)  # one for each call that was blamed
    not_compared: dict[str, int] = field(default_factory=dict)
    is_same: bool = True  # as without the tool, to the bit
    is_deterministic: bool = True  # without it
    fails: str = ""  # why the program does not run in this form, with no tool at all
    seconds: float = 0.0

    @property
    def is_changed(self) -> bool:
        """Whether the tool has changed what the program computes."""
        return self.is_deterministic and not self.is_same


@contextlib.contextmanager
def chip_of(kind: str) -> Iterator[None]:
    from ditorch.sim import faults

    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"
    try:
        # this switch may not be set by itself where torch's own test machinery has been imported
        flags = torch.backends.cudnn.flags(enabled=torch.backends.cudnn.enabled, allow_tf32=kind == "tf32")
        with flags, faults.inject(CHIPS[kind]) if CHIPS[kind] else contextlib.nullcontext():
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def run(program: Program, variant: Variant, chip: str, reference: str, device: str) -> Run:
    import op_tools

    class Compare(op_tools.OpAutoCompare):
        """Counts calls of the program; forward and backward are one."""

        calls = 0

        def after(self, call: Any, state: Any) -> Any:
            self.calls += 1
            return super().after(call, state)

        def take(self, call: Any, outcome: Any) -> None:
            comparison = outcome.comparison
            wrong = [row for row in comparison.rows if row.is_wrong]
            if wrong:
                reasons = "; ".join(f"{row.name.partition(' ')[2]}: {row.verdict.reason}" for row in wrong)
                made.alarms.append(f"{call.name} {reasons} ({call.where.line()})")
            super().take(call, outcome)

    made = Run(program.name, variant.name, optimizer_of(program, variant), chip, reference)
    began = time.perf_counter()
    with chip_of(chip):
        try:
            plain = train(program, variant, device)
        except (RuntimeError, ValueError, NotImplementedError) as error:  # written for another dtype
            made.fails = str(error).partition("\n")[0]
            return made
        with tempfile.TemporaryDirectory() as folder, Compare(verbose=0, out=folder, reference=reference) as tool:
            watched = train(program, variant, device)
        made.is_same = _same_bits(plain, watched)
        if not made.is_same:
            made.is_deterministic = all(_same_bits(plain, train(program, variant, device)) for _ in range(REPEATS))
    made.calls = tool.calls
    made.not_compared = {f"{row['what']}: {row['reason']}": row["calls"] for row in tool.results.not_looked_at}
    made.seconds = time.perf_counter() - began
    return made


def _same_bits(some: list[Tensor], others: list[Tensor]) -> bool:
    return len(some) == len(others) and all(
        torch.equal(one.nan_to_num(12.5), other.nan_to_num(12.5)) for one, other in zip(some, others)
    )


def run_all(job: tuple[int, argparse.Namespace]) -> list[Run]:
    """One program in all its forms."""
    number, options = job
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(options.device == "cuda", warn_only=True)
    warnings.simplefilter("ignore")
    if options.device == "sim":
        from ditorch import sim

        sim.start()
    program = architectures.ALL[number]
    variants = [one for one in VARIANTS if one.name not in program.cannot and one.name in options.variants]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return [
            run(program, variant, chip, reference, options.device)
            for chip in options.chips
            for reference in options.reference
            for variant in variants
        ]


# ---- the report --------------------------------------------------------------------------------------------------


def table(runs: list[Run]) -> None:
    from rich.console import Console
    from rich.table import Table

    shown = Table(title="Healthy programs under OpAutoCompare", title_justify="left")
    for column in (
        "chip",
        "reference",
        "runs",
        "calls",
        "false alarms",
        "runs with one",
        "losses differ",
        "not compared",
    ):
        shown.add_column(column, justify="left" if column in ("chip", "reference") else "right")
    for chip, reference in dict.fromkeys((one.chip, one.reference) for one in runs):
        some = [one for one in runs if (one.chip, one.reference) == (chip, reference) and not one.fails]
        shown.add_row(
            chip,
            reference,
            f"{len(some)}",
            f"{sum(one.calls for one in some):,}",
            f"{sum(len(one.alarms) for one in some)}",
            f"{sum(bool(one.alarms) for one in some)}",
            f"{sum(one.is_changed for one in some)}",
            f"{sum(sum(one.not_compared.values()) for one in some):,}",
        )
    Console(width=120).print(shown)


def details(runs: list[Run], most: int) -> None:
    """What was blamed, and where; what changed; what could not be compared."""
    alarms = collections.Counter(
        (alarm, one.program, one.variant, one.chip, one.reference) for one in runs for alarm in one.alarms
    )
    for (alarm, *where), times in alarms.most_common(most):
        print(f"false alarm ({', '.join(where)}; {times} times): {alarm[:MAX_SHOWN]}")
    for one in runs:
        if one.is_changed:
            print(f"losses differ: {one.program}, {one.variant}, {one.optimizer}, {one.chip}, {one.reference}")
    reasons: collections.Counter[str] = collections.Counter()
    for one in runs:
        reasons.update(one.not_compared)
    for reason, times in reasons.most_common(most):
        print(f"not compared ({times} calls): {reason}")
    failed = sorted({(one.program, one.variant, one.fails) for one in runs if one.fails})
    for program, variant, reason in failed:
        print(f"not run, with or without the tool: {program}, {variant}: {reason[:MAX_SHOWN]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="sim")
    parser.add_argument("--half", choices=("tuned", "held-out", "both"), default="held-out")
    parser.add_argument("--only", nargs="*", help="programs, by name")
    parser.add_argument("--variants", nargs="*", default=[one.name for one in VARIANTS])
    parser.add_argument("--chips", nargs="*", choices=tuple(CHIPS), default=list(CHIPS))
    parser.add_argument("--reference", nargs="*", default=["cpu"])
    parser.add_argument("--details", type=int, default=40, help="false alarms and reasons that are listed")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    numbers = [
        number
        for number, program in enumerate(architectures.ALL)
        if (program.name in options.only if options.only else options.half in (program.half, "both"))
    ]
    jobs = [(number, options) for number in numbers]
    context = multiprocessing.get_context("spawn")
    with context.Pool(options.jobs) as pool:
        runs = [one for some in pool.imap(run_all, jobs, chunksize=1) for one in some]
    table(runs)
    details(runs, options.details)
    if options.json:
        options.json.write_text(json.dumps([asdict(one) for one in runs], indent=1))
    done = [one for one in runs if not one.fails]
    calls, alarms = sum(one.calls for one in done), sum(len(one.alarms) for one in done)
    print(f"{len(done)} runs, {calls:,} calls, {alarms} false alarms")
    sys.exit(
        alarms > MAX_ALARMS_PER_CALL * max(calls, 100_000)
        or sum(bool(one.alarms) for one in done) > MAX_RUNS_WITH_ALARM * len(done)
        or any(one.is_changed for one in done)
    )


if __name__ == "__main__":
    main()
