"""Runs the programs and writes what came of it.

    python -m programs                            all, on the simulated accelerator
    python -m programs nanogpt timm               only these
    python -m programs --device cuda              on a genuine GPU, with ditorch imported
    python -m programs --json results/sim.json    keep the results, for docs/programs.md

Exit code 1 if one failed. Checkouts of repositories are looked for in $PROGRAM_SOURCES, see docs/programs.md.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from .catalogue import ALL
from .record import Program
from .run import Result, run


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m programs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="names of programs; a part of a name will do")
    parser.add_argument("--device", default="sim", help="the backend of ditorch: sim (default), cuda, npu …")
    parser.add_argument("--json", type=Path, help="a file for the results; those of other programs in it stay")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for one run of one program")
    parser.add_argument("--within", type=float, default=float("inf"), help="begin no program after so many seconds")
    parser.add_argument("--jobs", type=int, default=1, help="how many programs at a time")
    parser.add_argument("--list", action="store_true", help="only say what there is")
    options = parser.parse_args()
    chosen = _chosen(options.names)
    if options.list:
        for program in chosen:
            print(f"{program.name:28} {program.missing() or 'can be run'}")
        return 0
    end = time.monotonic() + options.within

    def run_in_time(program: Program) -> Result:
        if time.monotonic() > end:
            return Result(program.name, "", "skipped", f"not begun within {options.within:g} s")
        return run(program, options.device, options.timeout)

    results = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for done in as_completed(pool.submit(run_in_time, program) for program in chosen):
            result = done.result()
            results.append(result)
            print(f"{result.status:8} {result.program:30} {_in_words(result)}", flush=True)
            if options.json and result.status != "skipped":
                _keep(options.json, result)
    counts = {
        status: sum(result.status == status for result in results)
        for status in ("passed", "refused", "broken", "failed", "skipped")
    }
    print(", ".join(f"{count} {status}" for status, count in counts.items() if count))
    return int(counts["failed"] > 0)


def _chosen(names: list[str]) -> list[Program]:
    """All, or those of these names; a name that nobody has stands for all that it is a part of."""
    exact = {program.name for program in ALL} & set(names)
    parts = set(names) - exact
    return [p for p in ALL if not names or p.name in exact or any(part in p.name for part in parts)]


def _in_words(result: Result) -> str:
    if result.status != "passed":
        return result.message
    close = "equal" if result.difference == 0 else f"within {result.difference:.1e}"
    return f"{result.numbers} numbers, {close}; {result.seconds:g} s"


def _keep(file: Path, result: Result) -> None:
    """Written after every program, so that a run that is cut short leaves what it has."""
    import torch

    content = json.loads(file.read_text()) if file.exists() else {"programs": {}}
    content.update(torch=torch.__version__, python=platform.python_version())
    content["programs"][result.program] = {key: value for key, value in result.as_json().items() if key != "program"}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
