"""One run of the program with some ops on the CPU, or in float32: `ditorch run --losses --fallback OPS program`."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ditorch_diagnosis.checks import Check, Ended
from ditorch_diagnosis.errors import DiagnosisError
from ditorch_shared import processes

EVERYTHING = ".*"  # an expression for all ops
# ops that draw numbers: the CPU draws others, which makes another run of it, right or wrong
_RANDOM = (
    r".*\b(\w*dropout\w*|bernoulli_?|binomial|cauchy_|exponential_|fractional_max_pool\w+|geometric_|gumbel_softmax|"
    r"\w+_lowrank|log_normal_|multinomial|normal_?|kaiming_normal_|kaiming_uniform_|poisson|rand\w*|rrelu\w*|uniform_)"
)
ALL_BUT_RANDOM = f"(?!{_RANDOM}$).*"
_SECONDS_BETWEEN_LOOKS = 0.25
_SECONDS_TO_END = 30.0  # for launchers, which end their ranks
_COMMAND = (sys.executable, "-c", "from ditorch_cli import main; main()", "run")


@dataclass(frozen=True)
class Way:
    """Where ops go: the tool's name in OP_TOOLS, its list, and how its results name it."""

    tool: str
    variable: str
    result: str
    words: str


CPU = Way("fallback", "OP_FALLBACK_LIST", "OpFallback", "on the CPU")
CAST = Way("cast", "OP_DTYPE_CAST_LIST", "OpDtypeCast", "in float32")


def run(
    program: Sequence[str],
    folder: Path,
    variables: Mapping[str, str],
    check: Check | None = None,
    seconds: float | None = None,
) -> Ended:
    """Runs the program with these variables of the tools; `folder` is the run's own, and is written anew.

    It is stopped as soon as `check` can tell. What it prints goes to output.txt and errors.txt beside the run.
    """
    shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.mkdir(parents=True)
        output, errors = (folder / "output.txt").open("wb"), (folder / "errors.txt").open("wb")
    except OSError as error:
        raise DiagnosisError(f"{folder} cannot be written ({error.strerror}): give another folder (--out)") from None
    environment = {**_without_tools(os.environ), "OP_TOOLS_OUT": str(folder / "run"), **variables}
    with output, errors:
        process = subprocess.Popen(
            [*_COMMAND, *program], env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=errors,
            start_new_session=True,
        )  # fmt: skip
        status = _followed(process, folder, check, seconds)
    return Ended(status, folder / "output.txt", folder / "run")


def with_ops(way: Way, ops: Iterable[str]) -> dict[str, str]:
    """What puts these ops elsewhere; none at all where there is none."""
    names = list(ops)
    if not names:
        return {"OP_TOOLS": "losses"}
    return {"OP_TOOLS": f"losses,{way.tool}", way.variable: ",".join(names)}


def rerouted(way: Way, run: Path) -> list[str]:
    """The ops that went elsewhere in a run, by name."""
    found: set[str] = set()
    for record in sorted((run / "processes").glob("*.json")):
        try:
            tools = json.loads(record.read_text(encoding="utf-8"))["tools"]
            found.update(str(row["op"]) for tool in tools if tool["tool"] == way.result for row in tool["rows"])
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise DiagnosisError(f"{record} cannot be read ({error!r}): run it again") from None
    return sorted(found)


def last_words(folder: Path) -> str:
    """The last line that a run wrote to stderr before the summary, for messages."""
    try:
        lines = (folder / "errors.txt").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    summary = next((number for number, line in enumerate(lines) if line.startswith("ditorch run: ended")), len(lines))
    return next((line.strip() for line in reversed(lines[:summary]) if line.strip()), "")


def _without_tools(environment: Mapping[str, str]) -> dict[str, Any]:
    """Tools that the caller has set for runs of his own are not for these."""
    return {name: text for name, text in environment.items() if name not in ("OP_TOOLS", "OP_TOOLS_OUT")}


def _followed(process: subprocess.Popen[bytes], folder: Path, check: Check | None, seconds: float | None) -> int | None:
    """Its exit code as a shell has it; None where it was stopped because the check could tell."""
    until = None if seconds is None else time.monotonic() + seconds
    try:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = process.wait(_SECONDS_BETWEEN_LOOKS)
                return status if status >= 0 else 128 - status
            if check is not None and check.is_decided(Ended(None, folder / "output.txt", folder / "run")):
                _stop(process)
                return None
            if until is not None and time.monotonic() > until:
                _stop(process)
                return 124  # as `timeout` has it
    except BaseException:  # also Ctrl-C: nothing of it goes on
        _stop(process)
        raise


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Asks it to end, and ends what is left of it and its children."""
    family = processes.family(process.pid) if processes.is_known() else [process.pid]
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_SECONDS_TO_END)
    for pid in family:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
