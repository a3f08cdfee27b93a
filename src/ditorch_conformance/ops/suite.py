"""The op matrix as a worker runs it: a case is one entry of torch's lists in one dtype."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from ditorch_conformance import devices
from ditorch_conformance.ops import kernels, speed
from ditorch_conformance.ops.attempts import Finding, words
from ditorch_conformance.ops.checks import Checker
from ditorch_conformance.ops.databases import Entry, entries
from ditorch_conformance.ops.findings import Summary
from ditorch_conformance.ops.recipe import is_chosen
from ditorch_conformance.ops.samples import Call
from ditorch_conformance.results import GENERATOR, RIGHT, UNSUPPORTED
from op_tools.output.results import finite


class OpSuite:
    """`options`: device, and ops, dtypes and samples as recipe.choice has them."""

    def __init__(self, _: str, options: dict[str, Any]) -> None:
        devices.prepare(options["device"])
        torch.set_num_threads(1)
        if options["device"] != devices.CPU:  # float32 is float32 here
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
            recurrent: Any = getattr(torch.backends.cudnn, "rnn", None)
            if hasattr(recurrent, "fp32_precision"):  # newer releases have a switch of its own for these
                recurrent.fp32_precision = "ieee"
        self._device = devices.device_of(options["device"])
        self._entries = entries(options["ops"], options["device"] == devices.CPU)
        self._dtypes, self._patterns = options["dtypes"], options["ops"]
        self._most = options["samples"] or None
        self._checker = Checker(self._device)
        warnings.simplefilter("ignore")

    def cases(self) -> list[tuple[str, str]]:
        names = (f"{kernels.PREFIX}{name}" for name in kernels.KERNELS)
        listed = [(name, dtype) for name in names if is_chosen(name, self._patterns) for dtype in kernels.DTYPES]
        listed += [(entry.name, dtype) for entry in self._entries.values() for dtype in entry.dtypes]
        return [(name, dtype) for name, dtype in listed if not self._dtypes or dtype in self._dtypes]

    def origin(self, classname: str, name: str) -> dict[str, Any]:
        return {} if classname.startswith(kernels.PREFIX) else {"op": classname}

    def run(self, classname: str, name: str) -> dict[str, Any]:
        if classname.startswith(kernels.PREFIX):
            return self._measure(classname.partition(".")[2], name)
        entry, summary, largest = self._entries[classname], Summary(), None
        for call in itertools.islice(self._calls(entry, name, summary), self._most):
            checked = self._checker.check(call)
            summary.add(checked)
            if checked.kernels and _elements(call) > _elements(largest):
                largest = call
        times = {} if largest is None else self._times(largest)
        found = summary.answer(times)
        plain: dict[str, Any] = finite(found)
        return plain

    def _measure(self, kernel: str, dtype: str) -> dict[str, Any]:
        """A kernel in several sizes, for the chip's profile."""
        try:
            details = kernels.facts(kernel, getattr(torch, dtype), self._device)
        except Exception as error:  # noqa: BLE001 - it is what is told
            facts = {"raising": f"aten::{kernel}"}
            return {"status": UNSUPPORTED, "info": type(error).__name__, "message": words(error), "details": facts}
        return {"status": RIGHT, "details": details}

    def _calls(self, entry: Entry, dtype: str, summary: Summary) -> Iterator[Call]:
        """A generator of torch's that fails costs what it has not made yet."""
        torch.manual_seed(0)
        try:
            yield from entry.calls(dtype)
        except Exception as error:  # noqa: BLE001 - it is what is told
            reason = f"torch's list could not make the inputs: {' '.join(str(error).split())}"
            summary.note(Finding("inputs", GENERATOR, reason, "inputs", type(error).__name__))

    def _times(self, call: Call) -> dict[str, float]:
        """Of one call there and on the CPU, which may lack a kernel for it."""
        found: dict[str, float] = {}
        for name, device in (("device_ms", self._device), ("cpu_ms", torch.device("cpu"))):
            with contextlib.suppress(Exception):
                found[name] = 1e3 * speed.seconds(call, device)
        if len(found) == 2:
            found["speedup"] = found["cpu_ms"] / found["device_ms"]
        return {name: float(f"{value:.4g}") for name, value in found.items()}


def _elements(call: Call | None) -> int:
    return -1 if call is None else sum(tensor.numel() for tensor in call.tensors)
