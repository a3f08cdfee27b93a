"""`ditorch bisect`: the smallest set of ops which, when they run elsewhere, makes a check pass."""

from __future__ import annotations

import itertools
import json
import shlex
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Callable

from ditorch_diagnosis import search, trial
from ditorch_diagnosis.checks import Check, Ended, LikeGood
from ditorch_diagnosis.errors import DiagnosisError
from ditorch_diagnosis.journal import Journal, Outcome
from ditorch_diagnosis.trial import ALL_BUT_RANDOM, EVERYTHING, Way

SCHEMA = "ditorch.bisect/1"
FOUND, PASSES, UNEXPLAINED, UNCLEAR = "found", "passes", "unexplained", "unclear"
_EXIT_CODES = {PASSES: 0, FOUND: 1, UNEXPLAINED: 2, UNCLEAR: 2}
_TO_FLOAT32 = "torch.float16->torch.float32,torch.bfloat16->torch.float32"
_MAX_EQUAL = 1e-6  # losses that differ by no more are the same, whatever the device
_MAX_ROUNDING_DISTANCE = 1e-3  # a distance of losses that rounding may make, too
Told = Callable[[str], None]
Runner = Callable[[Sequence[str], Path, "dict[str, str]", Check, "float | None"], Ended]


@dataclass
class Bisected:
    """What came out. `verdict`: found, passes (as it is), unexplained (by any set of ops), unclear."""

    command: list[str]
    check: str
    way: str
    verdict: str = UNCLEAR
    ops: list[str] = field(default_factory=list)
    reason: str = ""
    candidates: list[str] = field(default_factory=list)
    suspects: list[str] = field(default_factory=list)
    tolerance: float | None = None
    trials: list[Outcome] = field(default_factory=list)
    next: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        return _EXIT_CODES[self.verdict]

    def as_json(self) -> dict[str, Any]:
        """docs/bisect.md describes it."""
        content = {"schema": SCHEMA, "exit_code": self.exit_code, **asdict(self)}
        for one in content["trials"]:
            one["distance"] = str(one["distance"]) if one["distance"] == float("inf") else one["distance"]
        return content


class Bisection:
    """`seconds`: how long one run of the program may take."""

    def __init__(
        self,
        command: Sequence[str],
        check: Check,
        way: Way,
        journal: Journal,
        told: Told,
        seconds: float | None = None,
        run: Runner = trial.run,
    ) -> None:
        self._command = list(command)
        self._check = check
        self._way = way
        self._journal = journal
        self._seconds = seconds
        self._told = told
        self._run_program = run
        self._told_of: list[Outcome] = []

    def run(self, suspects: Sequence[str] = ()) -> Bisected:
        result = Bisected(self._command, self._check.name, self._way.words, suspects=list(suspects))
        try:
            self._search(result)
        finally:
            result.trials = self._journal.trials
            result.tolerance = getattr(self._check, "tolerance", None)
        return result

    def _search(self, result: Bisected) -> None:
        plain = self._trial([], "as it is")
        if plain.passes or (plain.distance is not None and plain.passes is None and plain.distance <= _MAX_EQUAL):
            result.verdict, result.reason = PASSES, plain.reason
            return
        for expression, title in self._everything():
            whole = self._trial([expression], f"{title} {self._way.words}")
            if self._is_explained(plain, whole, result):
                break
        else:
            return
        result.candidates = trial.rerouted(self._way, Path(whole.folder) / "run")
        likely = [op for op in dict.fromkeys(result.suspects) if op in result.candidates]
        ordered = [*likely, *(op for op in result.candidates if op not in likely)]
        self._told(f"{len(ordered)} ops can run {self._way.words}" + _suspected(likely))
        result.ops = search.smallest(ordered, self._passes, len(likely))
        again = self._run(result.ops, "once more, to be sure")
        if again.passes:
            result.verdict, result.reason = FOUND, again.reason
            result.next = self._next_commands(result.ops)
        else:
            result.reason = f"the same ops {self._way.words} do not pass a second time ({again.reason}): runs differ"

    def _everything(self) -> list[tuple[str, str]]:
        every = (EVERYTHING, "every op")
        return [(ALL_BUT_RANDOM, "every op that is not random"), every] if self._way is trial.CPU else [every]

    def _is_explained(self, plain: Outcome, whole: Outcome, result: Bisected) -> bool:
        """Whether every op elsewhere is enough; sets the tolerance of losses, and says why where it is not."""
        if isinstance(self._check, LikeGood) and plain.distance is not None and whole.distance is not None:
            return self._is_nearer(self._check, plain.distance, whole, result)
        if plain.passes is None:
            result.reason = f"as it is: {plain.reason}"
            return False
        if not whole.passes:
            result.verdict, result.reason = UNEXPLAINED, f"with every op {self._way.words}: {whole.reason}"
            return False
        return True

    def _is_nearer(self, check: LikeGood, far: float, whole: Outcome, result: Bisected) -> bool:
        near = whole.distance or 0.0
        if not check.calibrated(far, near) or check.tolerance is None or near > check.tolerance:
            result.verdict = UNEXPLAINED
            result.reason = f"with every op {self._way.words}: {whole.reason}; as it is, {far:.2g}"
            return False
        self._told(f"losses may be {check.tolerance:.2g} away: {near:.2g} with every op so, {far:.2g} as it is")
        if far < _MAX_ROUNDING_DISTANCE:
            self._told("that is little: rounding of a healthy device may do so, too (--tolerance sets what counts)")
        return True

    def _passes(self, ops: Sequence[str]) -> bool:
        title = f"{len(ops)} {'op' if len(ops) == 1 else 'ops'} {self._way.words}"
        return bool(self._trial(ops, title).passes) if ops else False

    def _trial(self, ops: Sequence[str], title: str) -> Outcome:
        known = self._journal.find(ops)
        if known is not None:
            if known not in self._told_of:
                self._say(title, ops, known, "known")
            return known
        return self._run(ops, title)

    def _run(self, ops: Sequence[str], title: str) -> Outcome:
        folder = self._unused_folder()
        began = time.monotonic()
        variables = trial.with_ops(self._way, ops)
        ended = self._run_program(self._command, folder, variables, self._check, self._seconds)
        verdict = self._check.verdict(ended)
        said = trial.last_words(folder) if ended.status else ""
        reason = f"{verdict.reason} ({said})" if said and not verdict.passes else verdict.reason
        seconds = round(time.monotonic() - began, 1)
        outcome = Outcome(sorted(ops), verdict.passes, reason, verdict.distance, seconds, str(folder))
        self._journal.add(outcome)
        self._say(title, ops, outcome, f"{seconds:.1f} s")
        return outcome

    def _unused_folder(self) -> Path:
        """A trial of a search that was killed may still be running in the one that it was given."""
        name = f"{len(self._journal.trials):03}"
        folders = (self._journal.folder / "trials" / (name if n == 1 else f"{name}_{n}") for n in itertools.count(1))
        return next(folder for folder in folders if not folder.exists())

    def _say(self, title: str, ops: Sequence[str], outcome: Outcome, how: str) -> None:
        self._told_of.append(outcome)
        word = {True: "passes, ", False: "fails, ", None: ""}[outcome.passes]
        names = f": {', '.join(ops)}" if 0 < len(ops) <= 2 and ops[0] not in (EVERYTHING, ALL_BUT_RANDOM) else ""
        self._told(f"{len(self._told_of):3}. {title}{names}: {word}{outcome.reason} [{how}]")

    def _next_commands(self, ops: Sequence[str]) -> list[str]:
        names, program = ",".join(ops), shlex.join(self._command)
        option = ["--fallback", names] if self._way is trial.CPU else ["--cast", f"{names}:{_TO_FLOAT32}"]
        looked_at = ["--autocompare", "--ops", names, "--steps", "0:2"]
        return [f"ditorch run {shlex.join(words)} {program}" for words in (option, looked_at)]


def _suspected(likely: Sequence[str]) -> str:
    return f"; suspects first: {', '.join(likely)}" if likely else ""


def read_suspects(text: str) -> list[str]:
    """Names with commas, or a file of `ditorch compare --json`: those that it calls guilty come first."""
    path = Path(text)
    try:
        is_file = path.is_file()
    except (OSError, ValueError):
        is_file = False
    if not is_file:
        names = [name.strip() for name in text.split(",") if name.strip()]
        if not names or any("/" in name or name.endswith(".json") for name in names):
            raise DiagnosisError(f"--suspects {text!r}: there is no such file, and these are no names of ops")
        return names
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not str(found["schema"]).startswith("ditorch.compare/"):
            raise KeyError("schema")
        first = found["first_divergence"]
        places = [*([first] if first else []), *found["guilty"], *found["suspects"]]
        return list(dict.fromkeys(str(place["op"]) for place in places))
    except (OSError, ValueError, TypeError, KeyError):
        raise DiagnosisError(f"--suspects {text}: it is not what `ditorch compare --json` prints") from None
