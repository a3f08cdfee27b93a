"""Known failures: a text file of patterns with reasons, so that CI fails on news only.

    # reason in words, after the pattern
    test_torch.py::TestTorchDeviceTypeCUDA.test_nondeterministic_alert_*  # sim's kernels are deterministic

A pattern is matched against `file::Class.name`; `*` and `?` as in a shell.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ditorch_conformance.causes import kind_of, without_numbers
from ditorch_conformance.errors import ConformanceError
from ditorch_conformance.results import IMPORT, Case, Result, literally
from ditorch_conformance.tables import put

_MAX_REASON = 100
_HEAD = "# Known failures of `ditorch conformance`: pattern  # reason"


@dataclass(frozen=True)
class Pattern:
    text: str
    reason: str

    def matches(self, case: Case) -> bool:
        return fnmatch.fnmatchcase(str(case), self.text)


class Known:
    """The patterns of a file, in its order."""

    def __init__(self, patterns: Iterable[Pattern] = ()) -> None:
        self.patterns = list(patterns)

    def news(self, results: Iterable[Result]) -> list[Result]:
        """Failures that no pattern is about."""
        return [result for result in results if result.is_failing and self.reason(result.case) is None]

    def mended(self, results: Iterable[Result]) -> list[Pattern]:
        """Patterns all of whose cases were run and pass, skip or are flaky now."""
        results = list(results)
        about = {pattern: [result for result in results if pattern.matches(result.case)] for pattern in self.patterns}
        return [pattern for pattern, found in about.items() if found and not any(r.is_failing for r in found)]

    def unmatched(self, results: Iterable[Result], never_run: Iterable[Case]) -> list[Pattern]:
        """Patterns about these files that fit none of their cases: misspelt, or a test has another name by now."""
        cases = {*(result.case for result in results), *never_run}
        names = [str(case) for case in cases]
        files = {case.file for case in cases} - {case.file for case in cases if case.name == IMPORT}
        about = [one for one in self.patterns if fnmatch.filter(files, one.text.partition("::")[0])]
        return [one for one in about if not fnmatch.filter(names, one.text)]

    def reason(self, case: Case) -> str | None:
        return next((pattern.reason for pattern in self.patterns if pattern.matches(case)), None)

    def updated(self, results: Iterable[Result]) -> Known:
        """Without what is mended and with a line for each new failure; patterns about other cases stay."""
        results = list(results)
        mended = self.mended(results)
        kept = [pattern for pattern in self.patterns if pattern not in mended]
        return Known([*kept, *(Pattern(literally(str(result.case)), _reason(result)) for result in self.news(results))])

    def write(self, path: Path) -> None:
        """What the file has besides patterns, headings and reasons of people, stays; new patterns come at its end."""
        before = path.read_text(encoding="utf-8").splitlines() if path.exists() else [_HEAD]
        there = dict(_patterns(path, before))
        kept = [line for number, line in enumerate(before) if number not in there or there[number] in self.patterns]
        added = [pattern for pattern in self.patterns if pattern not in there.values()]
        put(path, "\n".join([*kept, *(f"{pattern.text}  # {pattern.reason}" for pattern in added)]) + "\n")


def read(path: Path, may_be_missing: bool = False) -> Known:
    """The file's patterns. `may_be_missing`: it is about to be written."""
    if not path.exists():
        if not may_be_missing:
            raise ConformanceError(f"There is no file {path} of known failures; --update-known writes one.")
        if not path.absolute().parent.is_dir():
            raise ConformanceError(f"{path} cannot be written: there is no folder {path.parent}.")
        return Known()
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConformanceError(f"{path} cannot be read as known failures: {reason}.") from None
    return Known(pattern for _, pattern in _patterns(path, lines))


def _patterns(path: Path, lines: list[str]) -> Iterator[tuple[int, Pattern]]:
    """Each with the number of its line, from 0."""
    for number, line in enumerate(lines):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        text, _, reason = line.partition("#")
        if "::" not in text or not reason.strip():
            raise ConformanceError(
                f"{path} line {number + 1} is not a known failure: {line.strip()!r}. "
                "It must be 'file::Class.name  # reason', where * stands for anything."
            )
        yield number, Pattern(text.strip(), reason.strip())


def _reason(result: Result) -> str:
    return f"{kind_of(result)}: {without_numbers(result)}"[:_MAX_REASON].replace("#", "N")
