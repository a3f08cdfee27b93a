"""Does OpAutoCompare find the bugs that people have reported? Over a hundred of them, one at a time, on the simulator.

    python benchmarks/reported_faults.py [--half tuned] [--only argmax] [--jobs 2] [--json FILE]
    python benchmarks/reported_faults.py --device cuda   on a real chip, whose kernels are broken in the same ways
    python benchmarks/reported_faults.py --reference device --shared   the reference has the fault, too, in every dtype
    python benchmarks/reported_faults.py --check     runs no tool: does every fault strike, and change what comes out?
    python benchmarks/reported_faults.py --list      all faults, with their reports

Each fault (benchmarks/reported) is a kernel that goes wrong as a report says, and a small program in which that shows,
forward and backward, in the dtypes of the report. It is found if the call that used the broken kernel is blamed, and
no other one. Whether it can be found at all stands in the table, with the reason; those that cannot must blame nobody.
Limits are set while looking at one half of the faults; the other half says what they are worth. A fault belongs to the
tuned half if the number of its first report is even; `fresh`, `latest`, `recent`, `sixth`, `seventh`, `eighth`
and `ninth` are those that were written down after all limits were set, in this order.

A chip has kernels of its own: a fault of one that its programs do not run strikes nothing there and does not count.

Exit code 1 if fewer than 97 % of the findable faults are found in a half, or a healthy program or call is blamed.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import multiprocessing
import os
import sys
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ["DITORCH_DISABLE_MOCK"] = "1"  # nothing here is written for CUDA

HALVES = ("tuned", "held-out", "fresh", "latest", "recent", "sixth", "seventh", "eighth", "ninth")
GOAL = 0.97


@dataclass
class Run:
    """What came of one fault in one dtype."""

    name: str
    family: str
    half: str
    dtype: str
    reports: tuple[str, ...]
    hidden: str | None
    strikes: bool = True  # it changes what a kernel gives, and what leaves the program
    found: bool = False
    others: tuple[str, ...] = ()  # calls that were blamed and had nothing to do with it
    healthy: tuple[str, ...] = ()  # calls that were blamed without the fault
    healthy_calls: int = 0
    problem: str = ""  # why it cannot be tried on a chip whose kernels have other arguments

    @property
    def is_well(self) -> bool:
        """As it should be: found alone, or for one that cannot be found, nobody blamed."""
        return self.strikes and not self.others and self.found == (self.hidden is None)


def prepare(device: str) -> None:
    """Once in each process."""
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if device == "sim":
        from ditorch import sim

        sim.start()


Job = tuple[int, str, str, str, bool, bool]


def run(job: Job) -> Run:
    """One fault, by its number in the table, in one dtype."""
    number, dtype, device, reference, is_shared, checks_only = job
    import torch
    from benchmarks.fault_finding import observed
    from benchmarks.reported import REPORTED, Work

    fault = REPORTED[number]
    work = Work(fault, device, getattr(torch, dtype))
    result = Run(fault.name, fault.family, fault.half, dtype, fault.reports, fault.hidden)
    with contextlib.redirect_stderr(io.StringIO()):
        try:
            result.strikes = _strikes(fault, work, device)
        except Exception as error:
            if device == "sim":
                raise
            result.strikes, result.problem = False, f"{type(error).__name__}: {error}".splitlines()[0]
        if checks_only or not result.strikes:
            return result
        healthy = observed(work, None, reference)
        result.healthy, result.healthy_calls = tuple(healthy.alarms["verdict"]), healthy.calls
        with fault.inject(device) as injected:
            outcome = observed(work, injected, reference, spares=not is_shared)
    blamed = outcome.blamed["verdict"]
    result.found = bool(blamed & outcome.used)
    if blamed - outcome.used:
        result.others = tuple(outcome.alarms["verdict"])
    return result


def _strikes(fault: Any, work: Any, device: str) -> bool:
    right = work()
    with fault.inject(device) as injected:
        wrong = work()
    if not sum(injected.effective.values()):
        return False
    return len(right) != len(wrong) or any(not _is_equal(one, other) for one, other in zip(right, wrong))


def _is_equal(one: Any, other: Any) -> bool:
    if one.shape != other.shape:
        return False
    one, other = one.detach().cpu(), other.detach().cpu()
    different = one != other
    if one.is_floating_point():
        different &= ~(one.isnan() & other.isnan())
    return not bool(different.any())


def _jobs(options: argparse.Namespace) -> Iterator[Job]:
    from benchmarks.reported import REPORTED

    for number, fault in enumerate(REPORTED):
        if fault.half in options.half and options.only in fault.name:
            for dtype in fault.dtypes:
                name = str(dtype).partition(".")[2]
                yield number, name, options.device, options.reference, options.shared, options.check


def report(runs: list[Run], halves: list[str], device: str) -> bool:
    """Prints what was found and what not, by family; True if every goal is met."""
    from benchmarks.fault_finding import share, table

    for one in runs:
        if not one.strikes:
            print(f"{one.half}: {one.name}, {one.dtype}: {_what_is_not_well(one)}")
    if device != "sim":
        runs = [one for one in runs if one.strikes]
    findable = [one for one in runs if one.hidden is None]
    rows = []
    for family in dict.fromkeys(one.family for one in runs):
        row: list[str] = [family]
        for half in halves:
            here = [one for one in findable if (one.family, one.half) == (family, half)]
            row += [str(len({one.name for one in here})), f"{sum(one.found for one in here)} of {len(here)}"]
        rows.append(tuple(row))
    columns = ("work", *(column for half in halves for column in (f"kinds, {half}", "found")))
    table("Faults after reports, by family", columns, rows)
    for one in runs:
        if one.strikes and not one.is_well:
            print(f"{one.half}: {one.name}, {one.dtype} ({', '.join(one.reports)}): {_what_is_not_well(one)}")
        for alarm in one.healthy:
            print(f"false alarm in the program of {one.name}, {one.dtype}: {alarm}")
    good = not any(one.healthy for one in runs)
    for half in halves:
        here = [one for one in findable if one.half == half]
        found = sum(one.is_well for one in here)
        kinds = len({one.name for one in here})
        print(f"{half}: {kinds} kinds, {found} of {len(here)} runs found ({share(found, len(here))})")
        good &= found >= GOAL * len(here)
    hidden = [one for one in runs if one.hidden is not None]
    alarms, calls = sum(len(one.healthy) for one in runs), sum(one.healthy_calls for one in runs)
    print(f"not to be found: {len(hidden)} runs, in {sum(one.is_well for one in hidden)} of them nobody is blamed")
    print(f"healthy programs: {alarms} false alarms in {calls} calls")
    return good and all(one.is_well for one in hidden)


def _what_is_not_well(one: Run) -> str:
    if not one.strikes:
        return one.problem or "it changes nothing: the program does not show it"
    if one.others:
        return f"blamed: {'; '.join(one.others)}"
    return "not found" if one.hidden is None else f"blamed, though {one.hidden}"


def listed() -> Iterator[str]:
    """Every fault: its half, what goes wrong, where it was reported."""
    from benchmarks.reported import REPORTED

    for fault in REPORTED:
        yield f"{fault.half:<9} {fault.name} ({', '.join(fault.reports)}): {fault.what}"


def families() -> Iterator[tuple[str, str, str]]:
    """For the documentation: a family, its kinds in both halves, its reports."""
    from benchmarks.reported import REPORTED

    for family in dict.fromkeys(fault.family for fault in REPORTED):
        faults = [fault for fault in REPORTED if fault.family == family]
        kinds = " + ".join(str(sum(fault.half == half for fault in faults)) for half in HALVES)
        reports = dict.fromkeys(report for fault in faults for report in fault.reports)
        yield family, kinds, ", ".join(report.replace("pytorch/pytorch#", "#") for report in reports)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--half", nargs="*", choices=HALVES, default=list(HALVES))
    parser.add_argument("--only", default="", metavar="TEXT", help="faults with this in their name")
    parser.add_argument("--device", default="sim")
    parser.add_argument("--reference", default="cpu")
    parser.add_argument("--shared", action="store_true", help="the tool's own calls meet the fault, too, in any dtype")
    parser.add_argument("--check", action="store_true", help="only whether the faults strike")
    parser.add_argument("--list", action="store_true", help="only tells which faults there are")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.list:
        print("\n".join(listed()))
        return
    jobs = list(_jobs(options))
    with multiprocessing.get_context("spawn").Pool(options.jobs, prepare, (options.device,)) as pool:
        runs = pool.map(run, jobs, chunksize=4)
    if options.json:
        options.json.write_text(json.dumps([asdict(one) for one in runs], indent=1))
    if options.check:
        idle = [one for one in runs if not one.strikes]
        for one in idle:
            print(f"{one.name}, {one.dtype}: {_what_is_not_well(one)}")
        print(f"{len(runs) - len(idle)} of {len(runs)} faults strike")
        sys.exit(bool(idle))
    sys.exit(not report(runs, options.half, options.device))


if __name__ == "__main__":
    main()
