"""The stages of a diagnosis: each a command of ditorch, in a process of its own, with what came out kept on disk."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Callable

from ditorch_diagnosis.errors import DiagnosisError
from ditorch_diagnosis.journal import Log

SCHEMA = "ditorch.stages/1"
FILE = "stages.jsonl"
_COMMAND = (sys.executable, "-c", "from ditorch_cli import main; main()")
_MAX_WORDS = 300
Result = dict[str, Any]


class Stages:
    """`stage` does something once: when the same diagnosis is started again, what is known is taken as it was."""

    def __init__(self, folder: Path, identity: str, told: Callable[[str], None]) -> None:
        self.folder = folder
        self._log = Log(folder, FILE, SCHEMA, identity)
        self._told = told
        try:
            self._known = {str(line["stage"]): line for line in self._log.lines}
        except KeyError:
            raise self._log.damaged() from None
        self.done: list[Result] = []

    def stage(self, name: str, does: str, action: Callable[[], Result], says: Callable[[Result], str]) -> Result:
        """`does` and `says`: what it is about to do, and what came out, in words."""
        number = len(self.done) + 1
        known = self._known.get(name)
        if known is None:
            self._told(f"{number}. {does} …")
            began = time.monotonic()
            result = action()
            known = {"stage": name, "seconds": round(time.monotonic() - began, 1), "result": result}
            self._log.append(known)
            how = f"{known['seconds']:.1f} s"
        else:
            self._told(f"{number}. {does}")
            how = "known"
        self.done.append(known)
        self._told(f"   {says(known['result'])} [{how}]")
        found: Result = known["result"]
        return found


def asked(*arguments: str | Path, codes: Sequence[int] = (0, 1)) -> Result:
    """What a command of ditorch prints with --json; other exit codes than these are an error with its message."""
    command = [*_COMMAND, *map(str, arguments), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode not in codes:
        said = done.stderr.strip().splitlines()
        reason = said[-1][:_MAX_WORDS] if said else f"exit code {done.returncode}"
        raise DiagnosisError(f"`ditorch {arguments[0]}` cannot go on: {reason}")
    try:
        found: Result = json.loads(done.stdout)
    except ValueError:
        raise DiagnosisError(f"`ditorch {arguments[0]}` gave no JSON: {done.stdout[:_MAX_WORDS]!r}") from None
    return found
