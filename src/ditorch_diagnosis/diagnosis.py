"""`ditorch diagnose`: from a good run and a program that goes wrong to a guilty op, with a script that proves it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ditorch_diagnosis import losses, trial
from ditorch_diagnosis.checks import Check, LikeGood, UntilStep
from ditorch_diagnosis.errors import DiagnosisError
from ditorch_diagnosis.stages import Result, Stages, asked
from op_tools.compare_runs.reading import Run
from op_tools.errors import CaptureError

SCHEMA = "ditorch.diagnose/1"
SAME, FOUND, UNEXPLAINED = "same", "found", "unexplained"
_EXIT_CODES = {SAME: 0, FOUND: 1, UNEXPLAINED: 2}
_MAX_SCRIPTS = 3  # captures that are tried to be reproduced
_COMES_BACK = 0.2  # of the distance of losses as it is


@dataclass
class Diagnosed:
    """What came out. `place`: the first divergence, as `ditorch compare --json` has it."""

    command: list[str]
    good: str
    folder: str
    verdict: str = UNEXPLAINED
    reason: str = ""
    op: str = ""
    place: Result | None = None
    wrong: str = ""
    capture: str = ""
    reproducer: str = ""
    is_confirmed: bool | None = None
    distances: dict[str, float | str] = field(default_factory=dict)
    next: list[str] = field(default_factory=list)
    stages: list[Result] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        return _EXIT_CODES[self.verdict]

    def as_json(self) -> Result:
        """docs/bisect.md describes it."""
        return {"schema": SCHEMA, "exit_code": self.exit_code, **asdict(self)}


class Diagnosis:
    """`seconds`: how long one run of the program may take; `steps`: the training steps to look at."""

    def __init__(
        self, command: Sequence[str], good: Path, stages: Stages, seconds: float | None, steps: str | None
    ) -> None:
        self._command, self._good, self._stages = list(command), good, stages
        self._folder = stages.folder
        self._seconds, self._steps = seconds, steps

    def run(self) -> Diagnosed:
        result = Diagnosed(self._command, str(self._good), str(self._folder))
        result.stages = self._stages.done
        statistics = self._statistics()
        compared = self._compared(statistics)
        if compared["exit_code"] == 0:
            result.verdict, result.reason = SAME, "the runs agree within rounding"
            return result
        settled = self._settled(statistics, compared)
        result.place = settled["first_divergence"]
        wrong = self._wrong(settled)
        if not wrong:
            result.reason = _nothing_guilty(settled)
            result.next = [self._bisect_command()]
            return result
        self._reproduce(result, wrong)
        self._confirm(result, settled)
        return result

    # -- the stages ---------------------------------------------------------------------------------------------------

    def _statistics(self) -> Path:
        folder = self._folder / "statistics"
        variables = {"OP_TOOLS": "capture,losses", "OP_CAPTURE_MODE": "statistics"}
        variables.update({} if self._steps is None else {"OP_TOOLS_STEPS": self._steps})

        def action() -> Result:
            return self._ran(folder, variables, None)

        does = f"run it with statistics: {shlex.join(self._command)}"
        self._stages.stage("statistics", does, action, lambda ran: str(ran["words"]))
        return folder / "run"

    def _ran(self, folder: Path, variables: dict[str, str], check: Check | None) -> Result:
        ended = trial.run(self._command, folder, variables, check, self._seconds)
        calls = _calls(ended.run)
        if not calls:
            said = trial.last_words(folder)
            raise DiagnosisError(f"the program ran no op that was captured{f': {said}' if said else ''}; see {folder}")
        how = "" if ended.status in (0, None) else f"; it ended with exit code {ended.status}"
        return {"run": str(ended.run), "calls": calls, "status": ended.status, "words": f"{calls:,} calls{how}"}

    def _compared(self, statistics: Path) -> Result:
        def action() -> Result:
            found = asked("compare", self._good, statistics)
            (self._folder / "compare.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
            return found

        return self._stages.stage("compare", f"compare it with {self._good}", action, _divergence)

    def _settled(self, statistics: Path, compared: Result) -> Result:
        """Captures the data of the suspects, and lets it decide."""
        wanted = compared["second_pass"]
        if wanted is None:
            return compared
        ops, step, rank = wanted["ops"], wanted["step"], wanted["rank"]
        folder = self._folder / "data"
        variables = {
            "OP_TOOLS": "capture,losses", "OP_CAPTURE_MODE": "data", "OP_CAPTURE_LIST": ",".join(ops),
            "OP_TOOLS_STEPS": str(step), "OP_TOOLS_RANKS": str(rank),
        }  # fmt: skip
        does = f"run it once more and keep the data of {', '.join(ops)} in step {step}"
        action = lambda: self._ran(folder, variables, UntilStep(step))  # noqa: E731
        self._stages.stage("data", does, action, lambda ran: str(ran["words"]))

        def settle() -> Result:
            found = asked("compare", self._good, statistics, "--data", folder / "run")
            (self._folder / "compare.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
            return found

        return self._stages.stage("settle", "judge that data in float64", settle, _divergence)

    def _wrong(self, settled: Result) -> list[str]:
        """Captures that are wrong, the likeliest first: as they were recorded, and when they run again here."""

        def action() -> Result:
            replayed = asked("replay", self._folder / "data" / "run", "--acc_check")
            calls = [call for call in replayed["calls"] if call["status"] == "wrong"]
            return {"wrong": [{key: call[key] for key in ("folder", "name", "reason")} for call in calls]}

        def says(found: Result) -> str:
            calls = found["wrong"]
            first = f"{calls[0]['name']}: {calls[0]['reason']}".partition(";")[0] if calls else ""
            return f"{len(calls)} calls wrong: {first}" if calls else "all are right"

        recorded = [str(place["capture"]) for place in settled["guilty"] if place.get("capture")]
        if not (self._folder / "data").is_dir():
            return recorded
        again = self._stages.stage("replay", "run those calls again on the device", action, says)
        guilty = [str(place["op"]) for place in settled["guilty"]]
        mine = [str(call["folder"]) for call in again["wrong"] if not guilty or call["name"] in guilty]
        return list(dict.fromkeys([*recorded, *mine]))

    def _reproduce(self, result: Diagnosed, captures: Sequence[str]) -> None:
        def action() -> Result:
            made: Result = {}
            for capture in captures[:_MAX_SCRIPTS]:
                made = asked("reproduce", capture, "--shrink", "--out", self._folder / "reproduce", codes=(0, 1, 2))
                if made.get("wrong"):
                    break
            return made

        def says(made: Result) -> str:
            return f"{made['files'][-1]}: {made['op']} on {made['device']}, {made['elements']} elements"

        made = self._stages.stage("reproduce", "write a script that needs torch only", action, says)
        worst = max(made["times_too_far"].items(), key=lambda item: float(item[1]), default=("", 0.0))
        result.op, result.capture = str(made["op"]), str(made["capture"])
        result.verdict = FOUND
        if made["wrong"]:
            result.reproducer = str(self._folder / "reproduce" / "reproduce.py")
            result.wrong = f"{worst[0]} is {float(worst[1]):.3g} times further off than allowed"

    def _confirm(self, result: Diagnosed, settled: Result) -> None:
        """The losses come back with the op on the CPU; or with all guilty ops, where there are several."""
        others = list(dict.fromkeys(str(place["op"]) for place in settled["guilty"]))
        try:
            good = losses.of_good(self._good, losses.pattern(None))
        except DiagnosisError as error:
            result.reason = f"not confirmed: {error}"
            result.next = [self._fallback_command([result.op])]
            return
        as_it_is = losses.distance(good, losses.noted(self._folder / "statistics" / "run"))
        check = LikeGood(good, None, None)
        for ops in [[result.op], *([others] if len(others) > 1 else [])]:
            name = f"confirm {','.join(ops)}"

            def action() -> Result:
                folder = self._folder / f"confirm-{len(ops)}"  # noqa: B023  used at once
                ended = trial.run(self._command, folder, trial.with_ops(trial.CPU, ops), check, self._seconds)  # noqa: B023
                return {"distance": str(check.verdict(ended).distance)}

            def says(found: Result) -> str:
                back = "they come back" if float(found["distance"]) <= _COMES_BACK * as_it_is else "that is not enough"
                return f"losses are {float(found['distance']):.2g} from the good run's, {as_it_is:.2g} as it is: {back}"

            found = self._stages.stage(name, f"run it with {', '.join(ops)} on the CPU", action, says)
            apart = float(found["distance"])
            result.distances = {"as_it_is": str(as_it_is), "mended": str(apart)}
            result.is_confirmed = apart <= _COMES_BACK * as_it_is
            if result.is_confirmed:
                result.next = [self._fallback_command(ops)]
                return
        result.reason = "with the guilty ops on the CPU the losses do not come back: there is more to find"
        result.next = [self._bisect_command()]

    # -- what to type next --------------------------------------------------------------------------------------------

    def _fallback_command(self, ops: Sequence[str]) -> str:
        return f"ditorch run --fallback {shlex.quote(','.join(ops))} {shlex.join(self._command)}"

    def _bisect_command(self) -> str:
        options = ["--good", str(self._good), "--suspects", str(self._folder / "compare.json")]
        return f"ditorch bisect {shlex.join(options)} -- {shlex.join(self._command)}"


def check(good: Path) -> None:
    """Before the program runs, which may take hours: whether there is something to compare it with."""
    try:
        Run(good)
    except CaptureError as error:
        raise DiagnosisError(f"--good: {error}") from None


def _calls(run: Path) -> int:
    """How many the tools of all processes have seen; 0 where there is no record."""
    total = 0
    for path in (run / "processes").glob("*.json"):
        try:
            tools: list[Any] = json.loads(path.read_text(encoding="utf-8"))["tools"]
            total += sum(int(tool["calls"]) for tool in tools if tool["tool"] == "OpCapture")
        except (OSError, ValueError, TypeError, KeyError):
            continue
    return total


def _divergence(compared: Result) -> str:
    first = compared["first_divergence"]
    if first is None:
        suspects = ", ".join(dict.fromkeys(str(place["op"]) for place in compared["suspects"][:3]))
        return f"no call is guilty{f'; most suspect: {suspects}' if suspects else ''}"
    module = f" in {first['module']}" if first["module"] else ""
    return f"{first['kind']}: {first['op']}{module}, {first['phase']}, step {first['step']}, rank {first['rank']}"


def _nothing_guilty(settled: Result) -> str:
    first = settled["first_divergence"]
    if first is not None and first["kind"] != "guilty":
        before = [str(one["name"]) for one in settled["before"] if one["what"] in ("weights", "data", "seeds")]
        return f"what came from outside differs already{': ' + ', '.join(before[:3]) if before else ''}"
    return "no captured call is wrong by itself"
