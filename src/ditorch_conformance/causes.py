"""Failures by root cause: what raised, and the message without what differs from case to case."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from ditorch_conformance import devices
from ditorch_conformance.ops import recipe as op_matrix
from ditorch_conformance.results import (
    CRASH,
    ERROR,
    FAILURE,
    FLAKY,
    IMPORT,
    Case,
    Result,
    dtype_of,
    is_of_device,
    on_any_device,
    without_advice,
)

_MAX_MESSAGE = 160
_FRESH_FOLDER = '--out "$(mktemp -d)"'  # a folder with results is not run again

# What a message tells about the op that raised, by whose message it is.
_RAISING = tuple(
    re.compile(pattern)
    for pattern in (
        r"Could not run '(\w+::[\w.]+)'",  # PyTorch's dispatcher
        r"operator '(\w+::[\w.]+)'",
        r"\"(\w+)\" not implemented for",  # a kernel without this dtype
        r"call (aclnn\w+) failed",  # Ascend
        r"MLU (\w+) don't support",  # Cambricon
        r"(CNNL \w+|CNNL error)",
        r"(torch\.[\w.]+) (?:does not exist|is not available)",  # the redirect
        r"(aten::[\w.]+)",
    )
)
# In this order: the first that fits is the kind of a failure.
_KINDS = tuple(
    (kind, re.compile(pattern, re.IGNORECASE))
    for kind, pattern in (
        # the device does what the test wants refused, or refuses it in other words
        ("expected-error", r"Error not raised|does not match \"|Warning not triggered|no warning caught"),
        (
            "input-generator",
            r"\"(random_|normal_|uniform_|bernoulli_)\w*\" not implemented|Inplace(Normal|Uniform|Random)",
        ),
        ("redirect", r"does not exist on|CUDA is not available|ATen_cuda library|_cuda_\w+'|without CUDA"),
        ("harness", r"Comparing TensorOrArrayPair"),  # what compares the results fails on the device
        (
            "unsupported",
            r"not implemented|n[o']t support|unsupported|only support|Could not run|NOT_SUPPORTED|no kernel|"
            r"not available|cannot be larger than \d+ dimension|dimension should less than|promote dtype",
        ),
        ("wrong", r"not close|Mismatched elements|do not match|not equal|Scalars are not|!="),
        ("memory", r"^MemoryError|out of memory|Cannot allocate|can't allocate|enforce fail at alloc"),
    )
)
_EXCEPTION = re.compile(r"[\w.]*(Error|Exception)\b")
_GENERATORS = ("make_tensor", "_uniform_random_", "random_", "normal_", "uniform_")


@dataclass
class Cause:
    """Failures that are probably one."""

    kind: str
    raising: str
    message: str
    results: list[Result] = field(default_factory=list)

    @property
    def count(self) -> int:
        return len(self.results)

    @property
    def dtypes(self) -> dict[str, int]:
        return dict(Counter(filter(None, (dtype_of(result.case) for result in self.results))).most_common())

    @property
    def ops(self) -> dict[str, int]:
        return dict(Counter(result.op for result in self.results if result.op).most_common())

    @property
    def smallest(self) -> Result:
        """The quickest case; of equally quick ones, that with the shortest name."""
        return min(self.results, key=lambda result: (round(result.seconds, 1), len(result.case.name), result.case))

    def as_dictionary(self, options: Mapping[str, Any]) -> dict[str, object]:
        """`options`: of the run."""
        return {
            "kind": self.kind,
            "raising": self.raising,
            "message": self.message,
            "cases": self.count,
            "dtypes": self.dtypes,
            "ops": self.ops,
            "reproducer": reproducer(self.smallest.case, options),
        }


def group(results: Iterable[Result]) -> list[Cause]:
    """The failing ones by cause, the largest first."""
    causes: dict[tuple[str, str, str], Cause] = {}
    for result in results:
        if result.is_failing:
            key = kind_of(result), raising(result), without_numbers(result)
            causes.setdefault(key, Cause(*key)).results.append(result)
    return sorted(causes.values(), key=lambda cause: -cause.count)


def kind_of(result: Result) -> str:
    """Whose fault it looks like: one word."""
    if result.status not in (FAILURE, ERROR, FLAKY):
        return result.status  # a crash; and the op matrix knows
    if result.where.rpartition(":")[2] in _GENERATORS:
        return "input-generator"
    text = f"{result.info}: {result.message}"
    return next((kind for kind, pattern in _KINDS if pattern.search(text)), "other")


def raising(result: Result) -> str:
    """The op that raised, as far as a message names it; otherwise the function that did, if it is not the test's."""
    if "raising" in result.details:
        return str(result.details["raising"])
    found = next(filter(None, (pattern.search(result.message) for pattern in _RAISING)), None)
    if found:
        return found[1]
    if result.case.name == IMPORT:
        return IMPORT
    is_in_test = result.where.partition(":")[0] == result.case.file.rpartition("/")[2]
    return result.info if is_in_test else result.where or result.info


def without_numbers(result: Result) -> str:
    """The first words of a message, without numbers, addresses, devices and dtypes."""
    if result.status == CRASH:
        return f"{result.info}: {_without_numbers(_raised(result))}" if _raised(result) else result.info
    text = _without_numbers(without_advice(result.message))
    return f"{result.info}: {text[:_MAX_MESSAGE]}" if result.info else text[:_MAX_MESSAGE]


def _raised(result: Result) -> str:
    """The exception by which Python ended, as at an import; other last words may be anybody's."""
    last = result.message.rpartition("\n")[2]
    return last if result.info == "exit code 1" and _EXCEPTION.match(last) else ""


def _without_numbers(text: str) -> str:
    text = " ".join(text.split())
    text = re.sub(r"0x[0-9a-f]+", "#", text)
    text = re.sub(r"tensor\(.*?\)(?=[ ,.]|$)", "tensor(…)", text)
    text = re.sub(r"(?<![\w])-?\d+((,\d{3})+(?![\d,]))?(\.\d+)?(e[+-]?\d+)?", "#", text)
    return re.sub(r"#(, #)+", "#, …", text)


def reproducer(case: Case, options: Mapping[str, Any] = MappingProxyType({})) -> str:
    """A command that shows the failure. `options`: of the run; if they name no source, it is for the folder `test`."""
    if case.file == op_matrix.FILE:
        return _ops_command(case, options)
    source = options.get("source", "")
    device = options.get("device") or _device(case)
    if device == devices.OWN:
        words = ["--source", source or "..", "--device", device]
        if case.name != IMPORT:
            words += ["-k", "{1}.{2}".format(*on_any_device(case))]
        return f"ditorch conformance pytorch {shlex.join(words)} {_FRESH_FOLDER} {shlex.quote(case.file)}"
    words = [f"{source}/test/{case.file}" if source else case.file]
    words += ["--help"] if case.name == IMPORT else [f"{case.classname}.{case.name}"]  # importing it is enough
    program = "python" if device == devices.CPU else "ditorch run"
    return f"PYTORCH_TESTING_DEVICE_ONLY_FOR={device} {program} {shlex.join(words)}"


def _ops_command(case: Case, options: Mapping[str, Any]) -> str:
    words = ["--ops", case.classname, "--dtypes", case.name]
    if options.get("device", devices.CUDA) != devices.CUDA:
        words = ["--device", options["device"], *words]
    if options.get("samples"):
        words += ["--samples", str(options["samples"])]
    return f"ditorch conformance ops {shlex.join(words)} {_FRESH_FOLDER}"


def _device(case: Case) -> str:
    """Of a table that does not say: which of torch's classes it is."""
    if not is_of_device(case) or case.classname.endswith("CUDA"):
        return devices.CUDA
    return devices.CPU if case.classname.endswith("CPU") else devices.OWN
