"""Do the tools leave compiled programs as they are, see into them, and name the user's lines?

    python benchmarks/compiled_programs.py [--backends aot_eager eager inductor] [--only NAME] [--tools …] [--jobs 2]

Each program (benchmarks/compiled) is trained as it is, then again with a tool that starts before anything is compiled,
afterwards, or twice. What it computes must be equal to the bit, nothing may be blamed or end, each call must be shown
with a line of the program, and nothing may be compiled again once the tool has gone. Inductor has no code generator for
the simulated accelerator: with `--device cpu --backends inductor` the CPU's fused kernels stand for those of a chip.
"""

from __future__ import annotations

import argparse
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

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault("DITORCH_DISABLE_MOCK", "1")  # 0 with --device cuda: the accelerator under that name

from benchmarks import compiled
from benchmarks.compiled.program import Chosen, CompiledProgram

FOLDER = Path(__file__).resolve().parent
STEPS = 5
ON = {"before": range(STEPS), "after": (2, 3), "twice": (1, 3)}  # the steps with a tool, by when it starts
OTHERWISE_LINES = ("/transformers/",)  # libraries, which are not torch


def _tools() -> dict[str, Callable[..., list[Any]]]:
    import op_tools
    from op_tools.core.tool import Tool

    class Places(Tool[None, None]):
        """Notes what is seen, and in which line."""

        hook = "PlacesHook"
        prefix = "PLACES"

        def started(self) -> None:
            self.seen: list[tuple[str, str, str]] = []

        def after(self, call: Any, state: None) -> None:
            self.seen.append((call.name, call.where.line(), call.where.module))

    compare, capture = op_tools.OpAutoCompare, op_tools.OpCapture
    return {
        "places": lambda **common: [Places(**common)],
        "compare": lambda **common: [compare(**common)],
        "device": lambda **common: [compare(reference="device", **common)],
        "identities": lambda **common: [compare(reference="identities", **common)],
        "once": lambda **common: [compare(once=True, **common)],
        "capture": lambda **common: [capture(**common)],
        "statistics": lambda **common: [capture(mode="statistics", **common)],
        "overflow": lambda **common: [op_tools.OpOverflowCheck(**common)],
        "time": lambda **common: [op_tools.OpTimeMeasure(**common)],
        "observe": lambda **common: [op_tools.OpObserve(**common)],
        "nested": lambda **common: [
            op_tools.OpTimeMeasure(**common), compare(**common), op_tools.OpOverflowCheck(**common)
        ],
        "fallback": lambda **common: [op_tools.OpFallback(**common)],
        "cast": lambda **common: [op_tools.OpDtypeCast(**common)],
    }  # fmt: skip


CHANGES = ("fallback", "cast")  # what they compute may have other bits
PLAN = (
    ("places", "before"), ("places", "after"), ("places", "twice"),
    ("compare", "before"), ("compare", "after"), ("compare", "twice"),
    ("device", "after"), ("identities", "before"), ("once", "twice"), ("capture", "after"), ("statistics", "before"),
    ("overflow", "twice"), ("time", "after"), ("observe", "after"), ("nested", "twice"), ("fallback", "after"),
    ("cast", "after"),
)  # fmt: skip


@dataclass
class Run:
    """What came of one program with one compiler under one tool."""

    program: str
    backend: str
    tool: str = ""
    when: str = ""
    calls: int = 0
    compiled_calls: int = 0
    backward_calls: int = 0
    is_same: bool = True
    ended: str = ""
    blamed: list[str] = field(default_factory=list)
    foreign_lines: list[str] = field(default_factory=list)  # and calls with no line at all
    without_module: list[str] = field(default_factory=list)  # of compiled calls, where the program has modules
    compiled_again: str = ""  # where it may not be
    said: list[str] = field(default_factory=list)  # by the tools, of what they could not do
    not_compared: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def is_well(self) -> bool:
        return self.is_same and not (self.ended or self.blamed or self.foreign_lines or self.compiled_again)


def graphs() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def trained(program: CompiledProgram, chosen: Chosen, tools: list[Any], when: str) -> tuple[list[Any], list[int]]:
    """What each step gives, and how many graphs there are after it."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch.manual_seed(0)
    results, counts, on = [], [], ON[when]
    try:
        if when == "before":
            _switch(tools, True)
        step = program.make(chosen)
        for number in range(STEPS):
            _switch(tools, number in on)
            results.append([one.detach().cpu().clone() for one in step()])
            counts.append(graphs())
    finally:
        _switch(tools, False)
    return results, counts


def _switch(tools: list[Any], on: bool) -> None:
    for tool in tools if on else reversed(tools):
        if on is not tool.active:
            tool.start() if on else tool.stop()


def run(program: CompiledProgram, chosen: Chosen) -> Iterator[Run]:
    """Every tool of the plan."""
    warnings.simplefilter("ignore")
    try:
        plain, plain_counts = trained(program, chosen, [], "before")
        again, _ = trained(program, chosen, [], "before")
        reason = "" if _same_bits(plain, again) else "not deterministic"
    except Exception as error:  # noqa: BLE001  torch cannot do it, or the program is wrong
        reason = f"without a tool: {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    if reason:
        yield Run(program.name, chosen.backend, ended=reason)
        return
    for tool, when in PLAN:
        yield _watched(program, chosen, tool, when, plain, plain_counts)


def _watched(
    program: CompiledProgram, chosen: Chosen, tool: str, when: str, plain: list[Any], plain_counts: list[int]
) -> Run:
    made = Run(program.name, chosen.backend, tool, when)
    began, printed = time.perf_counter(), io.StringIO()
    with tempfile.TemporaryDirectory() as out:
        tools = _tools()[tool](out=out, verbose=2 if tool == "observe" else 1)
        for one in tools:
            one.sees_cpu = chosen.device == "cpu"
        try:
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                watched, counts = trained(program, chosen, tools, when)
        except Exception as error:  # noqa: BLE001  whatever it is counts against the tool
            made.ended = f"{type(error).__name__}: {str(error).strip()[:400]}"
            return made
        made.is_same = tool in CHANGES or _same_bits(plain, watched)
        made.compiled_again = _compiled_again(plain_counts, counts, ON[when])
        made.said = sorted({line[:300] for line in printed.getvalue().splitlines() if _is_complaint(line)})
        for one in tools:
            if tool not in ("places", "time", "observe", *CHANGES) and type(one).__name__ in (
                "OpAutoCompare",
                "OpOverflowCheck",
            ):
                made.blamed += [str(row)[:400] for row in one.results]
            for row in one.results.not_looked_at:
                made.not_compared[f"{row['what']}: {row['reason']}"] = row["calls"]
        if tool == "places":
            _note(program, tools[0].seen, made)
    made.seconds = time.perf_counter() - began
    return made


def _is_complaint(line: str) -> bool:
    return any(text in line for text in ("could not", "op_tools ", "Traceback", "Error", "WARNING", "cannot"))


def _note(program: CompiledProgram, seen: list[tuple[str, str, str]], made: Run) -> None:
    folder = str(FOLDER / "compiled") + os.sep
    for name, line, module in seen:
        if line.startswith(__file__):
            continue
        is_compiled = name.startswith(("aten.", "prims.", "torch.compile."))
        made.calls += 1
        made.compiled_calls += is_compiled
        made.backward_calls += line.endswith("(its backward)") or "backward" in name
        if not line.startswith(folder) and not any(part in line for part in OTHERWISE_LINES):
            made.foreign_lines.append(f"{name}: {line}")
        if is_compiled and program.has_modules and not module:
            made.without_module.append(f"{name}: {line}")
    made.foreign_lines = sorted(set(made.foreign_lines))
    made.without_module = sorted(set(made.without_module))


def _compiled_again(plain: list[int], watched: list[int], on: Any) -> str:
    """A function is compiled once more for the modes that are on; nothing is once they are known."""
    new_plain = [after - before for before, after in zip([0, *plain], plain)]
    new = [after - before for before, after in zip([0, *watched], watched)]
    for here in (True, False):  # with the tool, and without it
        steps = [number for number in range(STEPS) if (number in on) is here]
        for number in steps:
            made = sum(new[other] for other in steps if other <= number)
            if made > sum(new_plain[: number + 1]):
                return f"step {number}: {new} graphs with the tool in steps {list(on)}, {new_plain} without"
    return ""


def _same_bits(some: list[Any], others: list[Any]) -> bool:
    return len(some) == len(others) and all(
        len(one) == len(other) and all(map(_equal, one, other)) for one, other in zip(some, others)
    )


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one.nan_to_num(12.5), other.nan_to_num(12.5))


def run_job(job: tuple[str, str, str, tuple[str, ...]]) -> list[Run]:
    global PLAN
    name, backend, device, tools = job
    torch.set_num_threads(1)
    if device == "sim":
        from ditorch import sim

        sim.start()
    elif device == "cuda":
        import ditorch  # noqa: F401  the redirect, where there is no CUDA
    PLAN = tuple(one for one in PLAN if not tools or one[0] in tools)
    program = next(one for one in compiled.ALL if one.name == name)
    return list(run(program, Chosen(device, backend)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", nargs="*", default=["aot_eager"])
    parser.add_argument("--device", default="sim", help="sim, cpu, or cuda, which may be the accelerator's name")
    parser.add_argument("--only", nargs="*", help="programs, by name")
    parser.add_argument("--tools", nargs="*", default=[])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    jobs = [
        (program.name, backend, options.device, tuple(options.tools))
        for backend in options.backends
        for program in compiled.ALL
        if not {backend, options.device} & set(program.cannot) and (not options.only or program.name in options.only)
    ]
    runs: list[Run] = []
    with multiprocessing.get_context("spawn").Pool(options.jobs, maxtasksperchild=4) as pool:
        for done in pool.imap(run_job, jobs):
            for one in done:
                report(one)
            runs += done
            if options.json:
                options.json.write_text(json.dumps([asdict(one) for one in runs], indent=1))
    well = sum(one.is_well for one in runs)
    print(
        f"{len(runs)} runs, {well} as they should be; {sum(one.calls for one in runs):,} calls looked at for their line"
    )
    sys.exit(well < len(runs))


def report(one: Run) -> None:
    """What is not as it should be."""
    name = f"{one.program}, {one.backend}, {one.tool} {one.when}"
    if not one.is_same:
        print(f"other bits: {name}", flush=True)
    for what in ("ended", "compiled_again"):
        if getattr(one, what):
            print(f"{what}: {name}: {getattr(one, what)}", flush=True)
    for what in ("blamed", "foreign_lines", "said"):
        for text in getattr(one, what)[:4]:
            print(f"{what}: {name}: {text}", flush=True)


if __name__ == "__main__":
    main()
