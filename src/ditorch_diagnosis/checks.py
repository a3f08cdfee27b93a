"""What makes a run of the program good: its losses, no NaN, or an exit code."""

from __future__ import annotations

import math
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ditorch_diagnosis import losses
from ditorch_diagnosis.errors import DiagnosisError

_CANNOT_TELL = 125  # as `git bisect run` has it
_ROUNDING = 1e-6  # losses of healthy devices differ by that much at least
_TOO_FAR = 1.0  # a distance beyond this tells no more about how good a run is


@dataclass(frozen=True)
class Verdict:
    """`passes` is None where it cannot be told. `distance`: from the good run's losses, where there are some."""

    passes: bool | None
    reason: str
    distance: float | None = None


@dataclass(frozen=True)
class Ended:
    """A run of the program, as far as checks look at it."""

    status: int | None  # its exit code; None where it was stopped, since its losses had told all
    output: Path  # what it printed
    run: Path  # its folder

    def died(self) -> str:
        """Why it ended early, in words."""
        return "" if self.status in (0, None) else f", and the program ended with exit code {self.status}"


class Check(Protocol):
    """`name` says what it is; two checks of one name are the same."""

    name: str

    def verdict(self, ended: Ended) -> Verdict: ...

    def is_decided(self, going_on: Ended) -> bool:
        """Whether the losses of a run that goes on tell enough."""
        ...


class ByExitCode:
    """The program's own exit code, or that of a command that is given what the program printed."""

    def __init__(self, command: str | None = None) -> None:
        self.command = command
        self.name = "exit code of the program" if command is None else f"exit code of: {command}"

    def verdict(self, ended: Ended) -> Verdict:
        code = ended.status if self.command is None else self._asked(self.command, ended)
        whose = "the program's" if self.command is None else "the check's"
        if code == _CANNOT_TELL:
            return Verdict(None, f"{whose} exit code is {code}: cannot tell")
        return Verdict(code == 0, f"{whose} exit code is {code}")

    def is_decided(self, going_on: Ended) -> bool:
        return False

    @staticmethod
    def _asked(command: str, ended: Ended) -> int:
        with ended.output.open("rb") as text:
            # the user's own command line
            return subprocess.run(command, shell=True, stdin=text, stdout=subprocess.DEVNULL, check=False).returncode  # noqa: S602


class NoNan:
    """Every loss up to and with this step is finite. Steps are counted from 0."""

    def __init__(self, step: int, wanted: re.Pattern[str] | None) -> None:
        self._step = step
        self._wanted = wanted
        self.name = f"no NaN by step {step}"

    def verdict(self, ended: Ended) -> Verdict:
        seen = _losses(ended, self._wanted)[: self._step + 1]
        bad = next((number for number, loss in enumerate(seen) if not math.isfinite(loss)), None)
        if bad is not None:
            return Verdict(False, f"loss {bad} is {seen[bad]}")
        if not seen:
            return Verdict(False if ended.status else None, f"no loss was seen{ended.died()}")
        if len(seen) <= self._step and ended.status:
            return Verdict(False, f"it has {len(seen)} losses{ended.died()}")
        return Verdict(True, f"{len(seen)} losses are finite")

    def is_decided(self, going_on: Ended) -> bool:
        seen = _losses(going_on, self._wanted)
        is_known = len(seen) > self._step and _are_all(going_on, self._wanted)
        return is_known or not all(map(math.isfinite, seen))


class LikeGood:
    """The losses are those of a good run. `tolerance`: how far apart relative to their size; see `calibrated`."""

    def __init__(self, good: Sequence[float], wanted: re.Pattern[str] | None, tolerance: float | None) -> None:
        self._good = list(good)
        self._wanted = wanted
        self.tolerance = tolerance
        self._is_given = tolerance is not None
        self.name = f"{len(self._good)} losses of the good run, {self._good[0]:.6g} … {self._good[-1]:.6g}" + (
            f", within {tolerance:g}" if tolerance is not None else ""
        )

    def calibrated(self, plain: float, mended: float) -> bool:
        """Puts the tolerance between the run as it is and that with all ops elsewhere; False where they are alike."""
        if self._is_given:
            return True
        low, high = max(mended, _ROUNDING), min(plain, _TOO_FAR)
        self.tolerance = math.sqrt(low * high)
        return high > 2 * low

    def verdict(self, ended: Ended) -> Verdict:
        seen = _losses(ended, self._wanted)
        if not seen:
            return Verdict(False if ended.status else None, f"no loss was seen{ended.died()}", math.inf)
        apart = losses.distance(self._good, seen)
        if len(seen) < len(self._good) and ended.status is not None:
            return Verdict(False, f"it has {len(seen)} of {len(self._good)} losses{ended.died()}", math.inf)
        if self.tolerance is None:
            return Verdict(None, f"{apart:.2g} from the good run's losses", apart)
        is_near = apart <= self.tolerance
        beside = f"{'within' if is_near else 'beyond'} {self.tolerance:.2g}"
        return Verdict(is_near, f"{apart:.2g} from the good run's losses, {beside}", apart)

    def is_decided(self, going_on: Ended) -> bool:
        seen = _losses(going_on, self._wanted)
        is_too_far = self.tolerance is not None and losses.distance(self._good, seen) > self.tolerance
        return (len(seen) >= len(self._good) or is_too_far) and _are_all(going_on, self._wanted)


class UntilStep:
    """No check: a run is over when this training step is."""

    name = "none"

    def __init__(self, step: int) -> None:
        self._step = step

    def verdict(self, ended: Ended) -> Verdict:
        return Verdict(None, "nothing was asked")

    def is_decided(self, going_on: Ended) -> bool:
        seen = losses.noted_with_steps(going_on.run)
        return bool(seen) and seen[-1][0] > self._step


def _losses(ended: Ended, wanted: re.Pattern[str] | None) -> list[float]:
    return losses.noted(ended.run) if wanted is None else losses.printed(ended.output, wanted)


def _are_all(going_on: Ended, wanted: re.Pattern[str] | None) -> bool:
    """Whether no rank's losses are still to come."""
    return wanted is not None or losses.are_of_all_ranks(going_on.run)


def chosen(
    good: Path | None, no_nan_by: int | None, command: str | None, pattern: str | None, tolerance: float | None
) -> Check:
    """The check that options ask for."""
    if sum(one is not None for one in (good, no_nan_by, command)) > 1:
        raise DiagnosisError("give one check: --good, --no-nan-by, or --check")
    if good is None and tolerance is not None:
        raise DiagnosisError("--tolerance is for --good")
    if good is None and no_nan_by is None and pattern is not None:
        raise DiagnosisError("--pattern says how losses are printed: it goes with --good or --no-nan-by")
    if good is not None:
        if good.is_dir() and pattern is not None:
            raise DiagnosisError(
                "--pattern says how losses are printed: --good is to be a file then, not a run's folder"
            )
        wanted = losses.pattern(pattern)
        return LikeGood(losses.of_good(good, wanted), None if good.is_dir() else wanted, tolerance)
    if no_nan_by is not None:
        return NoNan(no_nan_by, None if pattern is None else losses.pattern(pattern))
    return ByExitCode(command)
