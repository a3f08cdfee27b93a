"""How `ditorch attach` and the processes of a run agree on a step, through files: see ditorch_shared/control.py.

Everybody answers a command with the step it is at. Then a step is named that lies ahead of all: by the time that the
answers took, at the pace of the fastest, twice. Who learns of it too late says so, and a later one is named.
"""

from __future__ import annotations

import math
import os
import secrets
import time
from pathlib import Path
from typing import Any, Callable

from ditorch_shared import control

SECONDS_BETWEEN_LOOKS = 0.1
SECONDS_BETWEEN_REMINDERS = 1.0  # for processes that begin only now: what they find is old to them
MIN_STEPS_AHEAD = 2
MAX_TRIES = 4
Answer = dict[str, Any]


class DisagreementError(Exception):
    """The processes did not answer, or could not do what was asked: the message says which, and why."""


class Conversation:
    """One command and its answers. `waiting` is called now and then, with the ranks that have answered."""

    def __init__(self, run: Path, patience: float, waiting: Callable[[list[Answer]], None]) -> None:
        self._folder = control.open_folder(run)
        self._path = self._folder / control.COMMAND
        self._patience = patience
        self._waiting = waiting
        self._id = secrets.token_hex(8)
        self._questions = 0
        if self._path.exists():
            raise DisagreementError(
                f"another `ditorch attach` speaks with this run; if there is none, remove {self._path} and try again"
            )

    def ask(self, action: str, **details: Any) -> list[Answer]:
        """What every process says to it, at the end of its step."""
        self._command = {"schema": control.COMMAND_SCHEMA, "id": self._id, "action": action, **details}
        try:
            return self._asked(None)
        finally:
            control.remove(self._path)

    def switch(self, action: str, **details: Any) -> tuple[int, list[Answer]]:
        """The step at which all processes do what is asked for, and what they said."""
        self._command = {"schema": control.COMMAND_SCHEMA, "id": self._id, "action": action, **details}
        try:
            self._asked(None)
            began = time.monotonic()
            answers = self._asked(None)  # again: by now each knows its pace, and has imported what it needs
            for attempt in range(MAX_TRIES):
                start = _step_ahead(answers, (time.monotonic() - began) * 2**attempt)
                began = time.monotonic()
                answers = self._asked(start)
                if all(answer["armed"] == start for answer in answers):
                    return start, answers
        finally:
            control.remove(self._path)
        late = ", ".join(str(answer["rank"]) for answer in answers if answer["armed"] is None)
        raise DisagreementError(
            f"no step could be agreed on: ranks {late} learned of it too late, {MAX_TRIES} times. The tool may be on "
            "in the others (status tells, off ends it). Are the processes' files slow to reach each other?"
        )

    def _asked(self, start: int | None) -> list[Answer]:
        # a number for each question, so that an answer to the last one is not taken for one to this
        self._questions += 1
        asked = {**self._command, "id": f"{self._id}-{self._questions}", "start": start}
        control.write(self._path, asked)
        until = time.monotonic() + self._patience
        reminded = time.monotonic()
        while True:
            answers = [one for one in self._answers() if one["id"] == asked["id"]]
            problems = [one for one in answers if one["problem"]]
            if problems:
                raise DisagreementError(f"rank {problems[0]['rank']}: {problems[0]['problem']}")
            if answers and {one["rank"] for one in answers} >= set(range(max(one["world_size"] for one in answers))):
                return sorted(answers, key=lambda one: (one["rank"], one["pid"]))
            if time.monotonic() > until:
                raise DisagreementError(_silence(answers, self._patience))
            self._waiting(answers)
            if start is None and time.monotonic() - reminded > SECONDS_BETWEEN_REMINDERS:
                reminded = time.monotonic()
                os.utime(self._path)
            time.sleep(SECONDS_BETWEEN_LOOKS)

    def _answers(self) -> list[Answer]:
        paths = [self._folder / name for name in os.listdir(self._folder) if name.endswith(".json")]
        found = [control.read(path, control.ANSWER_SCHEMA) for path in paths if path != self._path]
        return [answer for answer in found if answer is not None]


def _step_ahead(answers: list[Answer], seconds: float) -> int:
    """`seconds`: how long all of them took to answer."""
    fastest = min((one["seconds_per_step"] for one in answers if one["seconds_per_step"] > 0), default=1.0)
    furthest = max(one["step"] for one in answers)
    return int(furthest) + MIN_STEPS_AHEAD + math.ceil(2 * seconds / fastest)


def _silence(answers: list[Answer], patience: float) -> str:
    why = (
        "a step may take longer (--wait SECONDS), or the program may end none: an optimizer's step does, or "
        "op_tools.step() where there are tools"
    )
    if not answers:
        return f"no process of the run has ended a step within {patience:g} s: {why}"
    silent = sorted(set(range(max(one["world_size"] for one in answers))) - {one["rank"] for one in answers})
    named = ", ".join(map(str, silent))
    return f"ranks {named} did not answer within {patience:g} s: {why}. Do they see the same folder?"
