"""Is a broken kernel in compiled code found, and named with the user's line? One fault at a time.

    python benchmarks/compiled_faults.py [--only NAME …] [--every 8]   op by op (aot_eager), the simulated accelerator
    python benchmarks/compiled_faults.py --backend inductor            Inductor's fused kernels, on the CPU

The programs are those of benchmarks/compiled, which train with the fault for one step. Op by op, a kernel of the device
is broken (docs/faults.md), and the line and the module that are blamed must be those that the same fault strikes where
nothing is compiled. Of Inductor's kernels a result is changed, or a line of their C++; that kernel must be named, with
a line of the program. What changes nothing that leaves the step, or only rounds a few numbers, does not count.

Exit code 1 if fewer than 97 % are found, or a healthy step is blamed.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import csv
import io
import json
import multiprocessing
import os
import sys
import tempfile
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ["DITORCH_DISABLE_MOCK"] = "1"  # nothing here is written for CUDA

from benchmarks import compiled, fault_finding
from benchmarks.compiled import fused
from benchmarks.compiled.program import Chosen
from benchmarks.compiled.work import Work

PROGRAMS_LINES = (str(Path(compiled.__file__).parent) + os.sep, "/transformers/")
BACKWARD = "  (its backward)"
HEALTHY_STEPS = 2
GOAL = 0.97


@dataclass
class Fault:
    """What came of one."""

    program: str
    kernel: str
    is_backward: bool
    text: str
    found: bool
    has_line: bool = False  # it is blamed with a line of the program, and with the one of eager code
    has_module: bool = False
    others: list[str] = field(default_factory=list)  # what was blamed and had nothing to do with it
    shown: str = ""


@dataclass
class Batch:
    """Everything about one program."""

    program: str
    faults: list[Fault] = field(default_factory=list)
    not_counted: dict[str, int] = field(default_factory=dict)
    healthy_calls: int = 0
    alarms: list[str] = field(default_factory=list)
    left_out: str = ""  # why nothing was tried

    def pass_over(self, reason: str) -> None:
        self.not_counted[reason] = self.not_counted.get(reason, 0) + 1


# ---- op by op --------------------------------------------------------------------------------------------------------


class _Calls:
    """Notes the kernels that compiled code calls, the pass of each, and whether it computes in 16 bits."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str], bool] = {}

    def tool(self) -> Any:
        from op_tools.core.tool import Tool

        def after(tool: Any, call: Any, state: None) -> None:
            name = call.name.split(".")
            op = getattr(getattr(torch.ops.aten, name[1]), name[2], None) if name[0] == "aten" and name[2:] else None
            if op is None or op.is_view or name[1] in fault_finding.NOT_BROKEN:
                return
            phase = "backward" if torch._C._current_graph_task_id() != -1 else "forward"
            kernel = name[1] if name[1].startswith("_") else name[1].rstrip("_")
            results = call.result if isinstance(call.result, (tuple, list)) else [call.result]
            is_narrow = any(isinstance(one, Tensor) and one.dtype in (torch.float16, torch.bfloat16) for one in results)
            self.found[kernel, phase] = self.found.get((kernel, phase), False) or is_narrow

        return type("Calls", (Tool,), {"hook": "CallsHook", "prefix": "CALLS", "after": after})(verbose=0)


def _op_by_op(batch: Batch, work: Work, options: argparse.Namespace, number: int) -> None:
    calls = _Calls()
    with calls.tool():
        work()
    planned = [
        fault
        for (kernel, phase), is_narrow in calls.found.items()
        for fault in fault_finding.faults_for([(kernel, phase)], "bfloat16" if is_narrow else "float32")
    ]
    for kernel, phase, text in planned[(number + options.offset) % options.every :: options.every]:
        _one_op(batch, work, kernel, phase, text)


def _one_op(batch: Batch, work: Work, kernel: str, phase: str, text: str) -> None:
    from ditorch.errors import FaultError
    from ditorch.sim import faults

    try:
        change = fault_finding.changed_by(text, work)
        if change != "something":
            batch.pass_over(change)
            return
        with faults.inject(text) as injected:
            outcome = fault_finding.observed(work, injected, "cpu")
    except FaultError:
        batch.pass_over("no such kernel")
        return
    except Exception as error:  # noqa: BLE001  what raises needs no tool to be found
        batch.pass_over(f"raises {type(error).__name__}")
        return
    if not outcome.used:
        batch.pass_over("in no call")
        return
    right = outcome.blamed["verdict"] & outcome.used
    places = {outcome.places[call] for call, _ in right}
    struck, all_places = _where_eager_code_has_it(work, text)
    batch.faults.append(
        Fault(
            batch.program,
            kernel,
            phase == "backward",
            text,
            bool(right),
            bool(right) and _are_lines_right(places, struck, all_places),
            bool(right) and _are_modules_right(places, all_places),
            outcome.alarms["verdict"] if outcome.blamed["verdict"] - outcome.used else [],
            "; ".join(sorted({" in ".join(place) for place in places}))[:600],
        )
    )


Places = set[tuple[str, str]]  # lines and modules


def _plain(line: str) -> str:
    return line.replace(BACKWARD, "")


def _are_lines_right(places: Places, struck: Places, all_places: Places) -> bool:
    """Each calls something in eager code, too; one is struck there, if any is: compiled code cuts ops up."""
    lines = {_plain(line) for line, _ in places}
    told = {line for line, _ in struck}
    return lines <= {line for line, _ in all_places} and (not told or bool(lines & told))


def _are_modules_right(places: Places, all_places: Places) -> bool:
    """The module of the same line. Where a module was called from outside of all others, eager code tells its class."""
    for line, module in places:
        eager = {other for its, other in all_places if its == _plain(line)}
        if eager and module not in eager and not (module and any(other[:1].isupper() for other in eager)):
            return False
    return True


def _where_eager_code_has_it(work: Work, text: str) -> tuple[Places, Places]:
    """The calls that the fault strikes where nothing is compiled, and all calls."""
    from ditorch.sim import faults
    from op_tools.core.tool import Tool

    outcome, seen = fault_finding.Outcome(), set()

    def after(tool: Any, call: Any, state: None) -> None:
        seen.add((call.where.line(), call.where.module))

    with (
        torch.compiler.set_stance("force_eager"),
        type("AllPlaces", (Tool,), {"hook": "PlacesHook", "prefix": "PLACES", "after": after})(verbose=0),
        faults.inject(text) as injected,
        fault_finding.truth(outcome, lambda: sum(injected.effective.values())),
    ):
        work()
    return set(outcome.places.values()), seen


# ---- Inductor --------------------------------------------------------------------------------------------------------


def _fused(batch: Batch, work: Work, options: argparse.Namespace, number: int) -> None:
    kernels = fused.kernels_of(lambda: _blamed(work))  # those of the code that is compiled for a tool
    planned = [(kernel, fault) for kernel in kernels for fault in fused.faults_of(kernel)]
    for kernel, fault in planned[(number + options.offset) % options.every :: options.every]:
        healthy = _blamed(work)[0]
        try:
            with fused.broken(kernel, fault):
                changed, rows = _blamed(work)
        except Exception as error:  # noqa: BLE001  what raises needs no tool to be found
            batch.pass_over(f"raises {type(error).__name__}")
            continue
        if all(map(_is_rounding, healthy, changed)):
            batch.pass_over("nothing, or a rounding")
            continue
        right = [row for row in rows if kernel.name in row["name"] or kernel.name in row["where"]]
        batch.faults.append(
            Fault(
                batch.program,
                kernel.name,
                kernel.is_backward,
                fault,
                bool(right),
                bool(right) and all(any(part in row["where"] for part in PROGRAMS_LINES) for row in right),
                True,  # Inductor's text has no modules
                [f"{row['name']}: {row['reason']} ({row['where']})" for row in rows if row not in right],
                "; ".join(row["where"] for row in right)[:600],
            )
        )


def _is_rounding(one: Tensor, other: Tensor) -> bool:
    return one.equal(other) or fault_finding._is_rounding(one, other, None)


def _blamed(work: Work) -> tuple[list[Tensor], list[dict[str, str]]]:
    """What a step gives, and what OpAutoCompare blames in it."""
    import op_tools

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        tool = op_tools.OpAutoCompare(verbose=0, out=folder)
        tool.sees_cpu = True
        with tool:
            results = [one.clone() for one in work()]
        rows = [
            row
            for path in Path(folder).glob("op_autocompare_result/*.csv")
            for row in csv.DictReader(path.read_text().splitlines())
        ]
    return results, [row for row in rows if row["verdict"] == "wrong"]


# ---- a program, in a process of its own ------------------------------------------------------------------------------


def run(job: tuple[int, str, argparse.Namespace]) -> Batch:
    number, name, options = job
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    chosen = Chosen("cpu" if options.backend == "inductor" else "sim", options.backend)
    if chosen.device == "sim":
        from ditorch import sim

        sim.start()
    program = next(one for one in compiled.ALL if one.name == name)
    batch = Batch(name)
    with contextlib.redirect_stderr(io.StringIO()):
        try:
            work = Work(program, chosen)
            if not work.repeats():
                batch.left_out = "no two of its steps are the same"
                return batch
        except Exception as error:  # noqa: BLE001  torch cannot do it
            batch.left_out = f"{type(error).__name__}: {error}".partition("\n")[0]
            return batch
        for _ in range(HEALTHY_STEPS):
            if chosen.device == "sim":
                outcome = fault_finding.observed(work, None, "cpu")
                batch.healthy_calls += outcome.calls
                batch.alarms += outcome.alarms["verdict"]
            else:
                batch.alarms += [f"{row['name']}: {row['reason']}" for row in _blamed(work)[1]]
        work.remember()
        (_op_by_op if chosen.device == "sim" else _fused)(batch, work, options, number)
    return batch


def report(batches: list[Batch]) -> bool:
    """True if the goal is met."""
    share = fault_finding.share
    rows: list[tuple[Any, ...]] = []
    for batch in batches:
        faults = batch.faults
        found = [fault for fault in faults if fault.found]
        rows.append(
            (
                batch.program,
                *(sum(fault.is_backward is phase for fault in faults) for phase in (False, True)),
                share(len(found), len(faults)),
                share(sum(fault.has_line for fault in found), len(found)),
                share(sum(fault.has_module for fault in found), len(found)),
                sum(bool(fault.others) for fault in faults),
                len(batch.alarms),
            )
        )
    columns = ("work", "forward", "backward", "found", "right line", "right module", "others blamed", "false alarms")
    fault_finding.table("Faults in compiled code", columns, rows)
    for batch in batches:
        if batch.left_out:
            print(f"left out: {batch.program}: {batch.left_out}")
        for alarm in batch.alarms[:4]:
            print(f"false alarm: {batch.program}: {alarm}")
        for fault in batch.faults:
            problem = "" if fault.found else "not found"
            problem = (
                problem or ("" if fault.has_line else "other line") or ("" if fault.has_module else "other module")
            )
            if problem:
                print(f"{problem}: {batch.program}: {fault.kernel}: {fault.text}: {fault.shown}")
            for other in fault.others[:2]:
                print(f"also blamed: {batch.program}: {fault.text}: {other[:300]}")
    faults = [fault for batch in batches for fault in batch.faults]
    found = [fault for fault in faults if fault.found]
    not_counted: collections.Counter[str] = collections.Counter()
    for batch in batches:
        not_counted.update(batch.not_counted)
    alarms = sum(len(batch.alarms) for batch in batches)
    print(f"not counted: {', '.join(f'{count} {reason}' for reason, count in not_counted.items()) or 'none'}")
    print(
        f"{len(faults)} faults in {sum(bool(batch.faults) for batch in batches)} programs, {len(found)} found "
        f"({share(len(found), len(faults))}), {sum(fault.has_line for fault in found)} of them with the right line, "
        f"{sum(fault.has_module for fault in found)} with the right module; {alarms} false alarms in healthy steps"
    )
    return len(found) >= GOAL * len(faults) and not alarms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=("aot_eager", "inductor"), default="aot_eager")
    parser.add_argument("--only", nargs="*", help="programs, by name")
    parser.add_argument("--every", type=int, default=8, help="of all faults of a program, every so many")
    parser.add_argument("--offset", type=int, default=0, help="others of them")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    device = "cpu" if options.backend == "inductor" else "sim"
    jobs = [
        (number, program.name, options)
        for number, program in enumerate(compiled.ALL)
        if not {options.backend, device} & set(program.cannot) and (not options.only or program.name in options.only)
    ]
    batches = []
    with multiprocessing.get_context("spawn").Pool(options.jobs, maxtasksperchild=1) as pool:
        for batch in pool.imap(run, jobs):
            batches.append(batch)
            if options.json:
                options.json.write_text(json.dumps([asdict(one) for one in batches], indent=1))
    sys.exit(not report(batches))


if __name__ == "__main__":
    main()
