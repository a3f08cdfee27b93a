"""Does OpAutoCompare leave healthy programs alone? Many of them, in many forms, on chips of several makes.

    python benchmarks/healthy_programs.py [--half held-out] [--chips own other tf32] [--reference cpu] [--jobs 2]
    python benchmarks/healthy_programs.py --device cuda --chips own tf32 --reference device --jobs 14 --seconds 250

Each program (benchmarks/architectures) trains for two steps as it is, and again under OpAutoCompare: in float32, under
autocast in bfloat16 and in float16 with a GradScaler, with checkpointing, and with parameters in bfloat16, each with
another optimizer. What is blamed is a false alarm, and losses and parameters must be equal to the bit.

The simulated accelerator computes as the CPU does (`own`), as another maker's chip (`other`: the fault kind remake) or
with products in tf32, which the program allows (`tf32`). A real chip is `own`, or `tf32` with its own matrix units.

Exit code 1 if a goal is missed: one false alarm in 100,000 calls (five on a real chip), one run of 50 with any, all
losses equal, all runs done.
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
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ["DITORCH_DISABLE_MOCK"] = "1"  # nothing here is written for CUDA
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS has other bits from run to run

from benchmarks import architectures
from benchmarks.architectures import Program
from benchmarks.architectures.training import VARIANTS, Variant, optimizer_of, train

REPEATS = 4
MAX_SHOWN = 240  # characters of a reason
CHIPS = {"own": "", "other": "aten.*: remake", "tf32": "aten.*: tf32"}
MAX_ALARMS_PER_CALL, MAX_ALARMS_PER_CALL_OF_CHIP, MAX_RUNS_WITH_ALARM = 1e-5, 5e-5, 1 / 50

# ---- one run -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Alarm:
    """One value that was blamed."""

    op: str
    value: str
    reason: str
    numbers: str  # how far off it is, by several measures
    where: str

    def __str__(self) -> str:
        return f"{self.op} {self.value}: {self.reason} ({self.where}; {self.numbers})"


@dataclass
class Run:
    """What came of one program in one form on one chip."""

    program: str
    variant: str
    optimizer: str
    chip: str
    reference: str
    calls: int = 0
    blamed: int = 0  # calls, forward and backward apart
    alarms: list[Alarm] = field(default_factory=list)  # one for each value of theirs
    not_compared: dict[str, int] = field(default_factory=dict)
    is_same: bool = True  # as without the tool, to the bit
    is_deterministic: bool = True  # without it
    fails: str = ""  # why the program does not run in this form, with no tool at all
    ended: str = ""  # why it ended under the tool, and not without
    seconds: float = 0.0

    @property
    def is_changed(self) -> bool:
        """Whether the tool has changed what the program computes."""
        return self.is_deterministic and not self.is_same


@contextlib.contextmanager
def chip_of(kind: str, device: str) -> Iterator[None]:
    from ditorch.sim import faults

    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"
    make = CHIPS[kind] if device == "sim" else ""
    try:
        # this switch may not be set by itself where torch's own test machinery has been imported
        flags = torch.backends.cudnn.flags(enabled=torch.backends.cudnn.enabled, allow_tf32=kind == "tf32")
        with flags, faults.inject(make) if make else contextlib.nullcontext():
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def run(program: Program, variant: Variant, chip: str, reference: str, device: str, dumps: Path | None = None) -> Run:
    """`dumps`: where the tensors of blamed calls stay."""
    import op_tools

    class Compare(op_tools.OpAutoCompare):
        """Counts calls of the program; forward and backward are one."""

        calls = 0

        def after(self, call: Any, state: Any) -> Any:
            self.calls += 1
            return super().after(call, state)

        def take(self, call: Any, outcome: Any) -> None:
            wrong = [row for row in outcome.comparison.rows if row.is_wrong]
            made.blamed += bool(wrong)
            made.alarms += [_alarm(call, row) for row in wrong]
            super().take(call, outcome)

    made = Run(program.name, variant.name, optimizer_of(program, variant), chip, reference)
    began = time.perf_counter()
    with chip_of(chip, device):
        try:
            plain = train(program, variant, device)
        except (RuntimeError, ValueError, NotImplementedError) as error:  # written for another dtype
            made.fails = str(error).partition("\n")[0]
            return made
        with tempfile.TemporaryDirectory() as own, Compare(verbose=0, out=dumps or own, reference=reference) as tool:
            try:
                watched = train(program, variant, device)
            except Exception as error:  # noqa: BLE001  whatever it is counts against the tool
                made.ended = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
                return made
        made.is_same = _same_bits(plain, watched)
        if not made.is_same:
            made.is_deterministic = all(_same_bits(plain, train(program, variant, device)) for _ in range(REPEATS))
    made.calls = tool.calls
    made.not_compared = {f"{row['what']}: {row['reason']}": row["calls"] for row in tool.results.not_looked_at}
    made.seconds = time.perf_counter() - began
    return made


def _alarm(call: Any, row: Any) -> Alarm:
    measures = row.verdict.measures
    numbers = f"severity {row.verdict.severity:.3g}, max_abs_diff {measures.max_abs_diff:.3g}, "
    numbers += f"rmse_ratio {measures.rmse_ratio:.3g}, max_ulp {measures.max_ulp:.3g}"
    return Alarm(call.name, row.name.partition(" ")[2], row.verdict.reason, numbers, call.where.line())


def _same_bits(some: list[Tensor], others: list[Tensor]) -> bool:
    return len(some) == len(others) and all(
        torch.equal(one.nan_to_num(12.5), other.nan_to_num(12.5)) for one, other in zip(some, others)
    )


def prepare(device: str) -> None:
    """Once in each process."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(device == "cuda", warn_only=True)
    warnings.simplefilter("ignore")
    if device == "sim":
        from ditorch import sim

        sim.start()


Job = tuple[int, str, str, str, str, "Path | None"]


def run_job(job: Job) -> Run:
    number, variant, chip, reference, device, dumps = job
    chosen = next(one for one in VARIANTS if one.name == variant)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return run(architectures.ALL[number], chosen, chip, reference, device, dumps)


def jobs_of(options: argparse.Namespace) -> list[Job]:
    return [
        (number, variant.name, chip, reference, options.device, options.dumps)
        for number, program in enumerate(architectures.ALL)
        if (program.name in options.only if options.only else options.half in (program.half, "all"))
        for chip in options.chips
        for reference in options.reference
        for variant in VARIANTS
        if variant.name not in program.cannot and variant.name in options.variants
    ]


def run_all(options: argparse.Namespace) -> tuple[list[Run], list[Job]]:
    """What was done, and what was not within the time that is given."""
    left = {str(job): job for job in jobs_of(options)}
    ends = time.monotonic() + options.seconds
    runs: list[Run] = []
    with multiprocessing.get_context("spawn").Pool(options.jobs, prepare, (options.device,)) as pool:
        waiting = pool.imap_unordered(_numbered, list(left.items()))
        with contextlib.suppress(multiprocessing.TimeoutError):
            while left:
                key, done = waiting.next(max(0.0, ends - time.monotonic()))
                del left[key]
                runs.append(done)
    order = [program.name for program in architectures.ALL]
    return sorted(runs, key=lambda one: order.index(one.program)), list(left.values())


def _numbered(job: tuple[str, Job]) -> tuple[str, Run]:
    return job[0], run_job(job[1])


# ---- the report --------------------------------------------------------------------------------------------------


def table(runs: list[Run]) -> None:
    from benchmarks.fault_finding import table

    columns = ("chip", "reference", "runs", "calls", "false alarms", "runs with one", "losses differ", "not compared")
    rows = []
    for chip, reference in dict.fromkeys((one.chip, one.reference) for one in runs):
        some = [one for one in runs if (one.chip, one.reference) == (chip, reference) and not one.fails]
        rows.append(
            (
                chip,
                reference,
                len(some),
                f"{sum(one.calls for one in some):,}",
                sum(one.blamed for one in some),
                sum(bool(one.blamed) for one in some),
                sum(one.is_changed for one in some),
                f"{sum(sum(one.not_compared.values()) for one in some):,}",
            )
        )
    table("Healthy programs under OpAutoCompare", columns, rows)


def details(runs: list[Run], left: list[Job], most: int) -> None:
    """What was blamed, and where; what changed; what could not be compared; what was not run."""
    alarms = collections.Counter(
        (str(alarm), one.program, one.variant, one.chip, one.reference) for one in runs for alarm in one.alarms
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
    for one in runs:
        if one.ended:
            print(f"ended by the tool: {one.program}, {one.variant}, {one.chip}, {one.reference}: {one.ended}")
    failed = sorted({(one.program, one.variant, one.fails) for one in runs if one.fails})
    for program, variant, reason in failed:
        print(f"not run, with or without the tool: {program}, {variant}: {reason[:MAX_SHOWN]}")
    for number, variant, chip, reference, *_ in left:
        print(f"not done within the time: {architectures.ALL[number].name}, {variant}, {chip}, {reference}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="sim")
    parser.add_argument(
        "--half",
        choices=(
            "tuned",
            "held-out",
            "fresh",
            "fourth",
            "fifth",
            "sixth",
            "seventh",
            "eighth",
            "ninth",
            "tenth",
            "eleventh",
            "all",
        ),
        default="held-out",
    )
    parser.add_argument("--only", nargs="*", help="programs, by name")
    parser.add_argument("--variants", nargs="*", default=[one.name for one in VARIANTS])
    parser.add_argument("--chips", nargs="*", choices=tuple(CHIPS), default=list(CHIPS))
    parser.add_argument("--reference", nargs="*", default=["cpu"])
    parser.add_argument("--details", type=int, default=40, help="false alarms and reasons that are listed")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1e6, help="what is not done by then is named and left out")
    parser.add_argument("--json", type=Path, help="every run, with every alarm")
    parser.add_argument("--dumps", type=Path, help="where the tensors of blamed calls are kept, for ditorch replay")
    options = parser.parse_args()
    runs, left = run_all(options)
    table(runs)
    details(runs, left, options.details)
    if options.json:
        options.json.write_text(json.dumps([asdict(one) for one in runs], indent=1))
    done = [one for one in runs if not one.fails]
    calls, blamed = sum(one.calls for one in done), sum(one.blamed for one in done)
    print(f"{len(done)} runs, {calls:,} calls, {blamed} false alarms")
    allowed = MAX_ALARMS_PER_CALL if options.device == "sim" else MAX_ALARMS_PER_CALL_OF_CHIP
    sys.exit(
        blamed > allowed * max(calls, 100_000)
        or sum(bool(one.blamed) for one in done) > MAX_RUNS_WITH_ALARM * len(done)
        or any(one.is_changed or one.ended for one in done)
        or bool(left)
    )


if __name__ == "__main__":
    main()
