"""A test file as PyTorch has them, unmodified: imported once, its cases run one by one. In a worker."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import os
import sys
import traceback
import unittest
from pathlib import Path
from types import TracebackType
from typing import Any, Union

from ditorch_conformance import devices, forked_children
from ditorch_conformance.results import ERROR, FAILURE, PASSED, SKIPPED, full_name, without_advice

_MAX_MESSAGE = 2000
_SEVERITY = (ERROR, FAILURE, SKIPPED, PASSED)

Raised = Union[tuple[type[BaseException], BaseException, TracebackType], tuple[None, None, None]]


class UnittestFile:
    """`options`: the device, as `devices.prepare` takes it; `forked`: whether forked_children.py is used."""

    def __init__(self, path: str, options: dict[str, Any]) -> None:
        devices.prepare(options["device"])
        self._path = path
        sys.argv = [path]  # torch's tests look at it, and start themselves by it
        os.environ.pop("CI", None)  # torch's run_tests would want packages of its own
        module = imported(Path(path))
        if options.get("forked"):
            forked_children.install(Path(path))
        suite = unittest.TestLoader().loadTestsFromModule(module)
        self._cases = {(type(case).__name__, _method(case)): case for case in _flat(suite)}
        self._result = _Result()

    def cases(self) -> list[tuple[str, str]]:
        return list(self._cases)

    def origin(self, classname: str, name: str) -> dict[str, Any]:
        """The line of the test that PyTorch made the case from, and the op that it made it for."""
        try:
            code = inspect.unwrap(getattr(type(self._cases[classname, name]), name)).__code__
        except (AttributeError, ValueError):
            return {}
        return {"line": code.co_firstlineno, "op": _op(name[len(code.co_name) + 1 :])}

    def run(self, classname: str, name: str) -> dict[str, Any]:
        case, result = self._cases[classname, name], self._result
        result.events, result.shouldStop = [], False  # torch's base class wants to stop after a device error
        unittest.TestSuite([case])(result)
        status, error = min(
            result.events, key=lambda event: _SEVERITY.index(event[0]), default=(ERROR, "setUpClass failed")
        )
        return {"status": status, **self._described(error)}

    def _described(self, error: Raised | str) -> dict[str, Any]:
        if isinstance(error, str):
            return {"info": "skip" if error else "", "message": error}
        kind, value, trace = error
        if kind is None or value is None:
            return {}
        frames = [frame for frame in traceback.extract_tb(trace) if not _is_machinery(frame.filename)]
        where = f"{_short(frames[-1].filename)}:{frames[-1].name}" if frames else ""
        message = _raised_first(without_advice(str(value)))
        return {"info": kind.__name__, "message": message[:_MAX_MESSAGE], "where": where}


def _raised_first(message: str) -> str:
    """Where a message is the traceback of another process, begin with its end: messages are cut off."""
    _, found, trace = message.rpartition("Traceback (most recent call last):")
    lines = trace.splitlines()
    frames = [number for number, line in enumerate(lines) if line.startswith("  ")]
    if not found or not frames:
        return message
    raised = "\n".join(lines[frames[-1] + 1 :]).strip()
    return f"{raised}\n\n{message}" if raised else message


class _Result(unittest.TestResult):
    """Notes what happens to one case: statuses, each with the exception or the reason."""

    _testRunEntered = True  # noqa: N815 - setUpClass runs once per class and not once per case

    def __init__(self) -> None:
        super().__init__()
        self.events: list[tuple[str, Any]] = []

    def addSuccess(self, test: Any) -> None:  # noqa: N802
        self.events.append((PASSED, ""))

    def addFailure(self, test: Any, err: Any) -> None:  # noqa: N802
        self.events.append((FAILURE, err))

    def addError(self, test: Any, err: Any) -> None:  # noqa: N802
        self.events.append((ERROR, err))

    def addSkip(self, test: Any, reason: str) -> None:  # noqa: N802
        self.events.append((SKIPPED, reason or "no reason given"))

    def addExpectedFailure(self, test: Any, err: Any) -> None:  # noqa: N802
        self.events.append((SKIPPED, "expected failure"))

    def addUnexpectedSuccess(self, test: Any) -> None:  # noqa: N802
        self.events.append((FAILURE, "unexpected success"))

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:  # noqa: N802
        if err is not None:
            self.events.append((FAILURE if issubclass(err[0], test.failureException) else ERROR, err))


def imported(path: Path) -> Any:
    """Under its own name, so that children of its cases find it as they find any module."""
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _flat(suite: Any) -> list[unittest.TestCase]:
    return [case for part in suite for case in (_flat(part) if isinstance(part, unittest.TestSuite) else [part])]


def _method(case: unittest.TestCase) -> str:
    return case.id().rpartition(".")[2]


def _op(suffix: str) -> str:
    """`add_cuda_float32` is about add; what else torch's tests are parametrized by is no op."""
    names = _op_names()
    parts = suffix.split("_")
    candidates = ("_".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((names[candidate] for candidate in candidates if candidate in names), "")


@functools.lru_cache(maxsize=1)
def _op_names() -> dict[str, str]:
    """torch's ops by the form that their names have in cases; none where the file does not use op_db."""
    module = sys.modules.get("torch.testing._internal.common_methods_invocations")
    ops = [*getattr(module, "op_db", ()), *getattr(module, "python_ref_db", ())]
    return {op.formatted_name: full_name(op) for op in ops}


def _is_machinery(filename: str) -> bool:
    return "/unittest/" in filename or "/torch/testing/_" in filename or "/contextlib.py" in filename


def _short(filename: str) -> str:
    return filename.partition("site-packages/")[2] or Path(filename).name
