"""A case, an attempt to run it, and its result: what the journal holds and every table is made of."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

# The reference's words, and ours for what it had none for.
PASSED, FAILURE, ERROR, SKIPPED = "passed", "failure", "error", "skipped"
CRASH, TIMEOUT, FLAKY = "crash", "timeout", "flaky"
# The op matrix's: a status blames one cause.
RIGHT, WRONG, UNSUPPORTED = "right", "wrong", "unsupported"
GENERATOR, REDIRECT, HARNESS = "input-generator", "redirect", "harness"
PASSING = frozenset({PASSED, RIGHT})
FAILING = frozenset({FAILURE, ERROR, CRASH, TIMEOUT, WRONG, UNSUPPORTED, GENERATOR, REDIRECT, HARNESS})
STATUSES = PASSING | FAILING | {SKIPPED, FLAKY}
IMPORT = "import"  # the name of the one case of a file that cannot be imported


class Case(NamedTuple):
    """One test: of a file, in a class. Of the op matrix: one op in one dtype."""

    file: str
    classname: str
    name: str

    def __str__(self) -> str:
        return f"{self.file}::{self.classname}.{self.name}"


@dataclass(frozen=True)
class Attempt:
    """What came out of running a case once. `details`: whatever the kind of case has to tell beyond that."""

    case: Case
    status: str
    info: str = ""  # the kind of exception
    message: str = ""
    line: int = 0  # of the test in its file
    where: str = ""  # file and function that raised
    op: str = ""  # the entry of torch's op_db that the case is about
    seconds: float = 0.0
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Result(Attempt):
    """What is known about a case in the end. `tries`: the statuses of its attempts, in their order."""

    tries: tuple[str, ...] = ()

    @property
    def is_failing(self) -> bool:
        return self.status in FAILING


def result_of(attempts: list[Attempt]) -> Result:
    """A case that fails and then passes is flaky, and keeps its failure's message. A skip says nothing of either."""
    tries = tuple(attempt.status for attempt in attempts)
    told = [attempt for attempt in attempts if attempt.status != SKIPPED] or attempts
    first, last = told[0], told[-1]
    shown = first if last.status in PASSING else last
    status = FLAKY if len({one.status for one in told}) > 1 and PASSING.intersection(tries) else last.status
    values = {name: getattr(shown, name) for name in Attempt.__dataclass_fields__}
    return Result(**{**values, "status": status}, tries=tries)


# ---- names that do not depend on the device --------------------------------------------------------------------------

_DTYPES = (
    "float64|float32|float16|bfloat16|complex128|complex64|complex32|int64|int32|int16|int8|uint64|uint32|uint16|uint8|"
    r"bool|float8_\w+|qint8|quint8|qint32"
)
_DTYPE = re.compile(rf"(?:^|_)({_DTYPES})(?=_|$)")
DEVICES = "privateuse1|privateuseone|sim|cuda|cpu|npu|mlu|musa|xpu|mps|hpu|gcu|supa|sdaa|meta"
_CLASS_SUFFIX = re.compile(rf"({DEVICES})$", re.IGNORECASE)
_NAME_DEVICE = re.compile(rf"_({DEVICES})(?=_|$)")


def portable(case: Case) -> Case:
    """The same case on whatever device: without the device's name in its class and its name."""
    return Case(case.file, _CLASS_SUFFIX.sub("", case.classname), _NAME_DEVICE.sub("", case.name, count=1))


def on_any_device(case: Case) -> Case:
    """The same case, as patterns of its class and name."""
    classname, name = literally(case.classname), literally(case.name)
    return Case(case.file, _CLASS_SUFFIX.sub("*", classname), _NAME_DEVICE.sub("_*", name, count=1))


def literally(text: str) -> str:
    """A pattern that fits this text alone."""
    return re.sub(r"([*?[])", r"[\1]", text)


def is_of_device(case: Case) -> bool:
    """Whether PyTorch made the case for one kind of device."""
    return bool(_CLASS_SUFFIX.search(case.classname) and _NAME_DEVICE.search(case.name))


def dtype_of(case: Case) -> str:
    """The dtype in a case's name; nothing where it has none."""
    found = _DTYPE.findall(case.name)
    return found[-1] if found else ""


def full_name(op: Any) -> str:
    """An entry of torch's op_db with its variant; releases before 2.5 have no such attribute."""
    return ".".join(filter(None, [op.name, op.variant_test_name]))


# torch's words on how to run the one case again, which differ from case to case
_ADVICE = re.compile(r"\s*To execute this test, run the following.*", re.DOTALL)


def without_advice(message: str) -> str:
    """The message of an exception, as it would be outside of torch's tests."""
    return _ADVICE.sub("", message).strip()


def unique(results: Iterable[Result]) -> list[Result]:
    """One result per case: of several rows for one case, the last; a pass beside a failure is flaky."""
    by_case: dict[Case, list[Attempt]] = {}
    for result in results:
        by_case.setdefault(result.case, []).append(result)
    return [result_of(attempts) if len(attempts) > 1 else _as_result(attempts[0]) for attempts in by_case.values()]


def _as_result(attempt: Attempt) -> Result:
    return attempt if isinstance(attempt, Result) else result_of([attempt])
