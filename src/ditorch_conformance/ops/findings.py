"""What the checks of one entry in one dtype come to: one status that blames one cause, and the figures."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from ditorch_conformance.ops.attempts import Finding
from ditorch_conformance.ops.checks import TWICE, Checked
from ditorch_conformance.results import GENERATOR, HARNESS, REDIRECT, RIGHT, SKIPPED, UNSUPPORTED, WRONG

# The first of these that any check came to is the status of all: what a user should know first.
_ORDER = (WRONG, UNSUPPORTED, REDIRECT, GENERATOR, HARNESS, RIGHT)


class Summary:
    """Takes what was found about one call after the other."""

    def __init__(self) -> None:
        self.samples = 0
        self._counts: dict[str, Counter[str]] = {}
        self._first: dict[str, tuple[int, Finding]] = {}
        self._kernels: dict[str, None] = {}
        self._falls_back: dict[str, None] = {}
        self._figures = {"max_ulp": 0.0, "mean_ulp": 0.0, "rmse_ratio": 0.0}
        self._warned = ""

    def add(self, checked: Checked) -> None:
        if not checked.findings:
            return  # one of ours that the CPU does not take
        for finding in checked.findings:
            self.note(finding)
        self._kernels.update(checked.kernels)
        self._falls_back.update(checked.falls_back)
        for name in self._figures:
            value = getattr(checked, name)
            if math.isfinite(value):
                self._figures[name] = max(self._figures[name], value)
        self._warned = self._warned or checked.warned
        self.samples += 1

    def note(self, finding: Finding) -> None:
        self._counts.setdefault(finding.check, Counter())[finding.status] += 1
        if finding.check != TWICE:  # which bits come out may depend on the order of threads: told, and no fault
            self._first.setdefault(finding.status, (self.samples, finding))

    def answer(self, speed: dict[str, float]) -> dict[str, Any]:
        """The fields of an attempt."""
        status = next((status for status in _ORDER if status in self._first), SKIPPED)
        number, finding = self._first.get(status, (0, Finding("", SKIPPED, "the list has no samples for it")))
        details: dict[str, Any] = {
            "samples": self.samples,
            "checks": {check: dict(counted) for check, counted in self._counts.items()},
            **{name: round(value, 3) for name, value in self._figures.items() if value},
            "kernels": sorted(self._kernels),
            **speed,
        }
        if TWICE in self._counts:
            details["deterministic"] = not self._counts[TWICE][WRONG]
        if self._falls_back or self._warned:
            details["falls_back"] = sorted(self._falls_back) or [self._warned]
        if status == RIGHT:
            return {"status": status, "details": details}
        details["raising"] = finding.raising or finding.check
        details["sample"] = number
        reason = f"{finding.check}: {finding.reason}" if finding.check else finding.reason
        return {"status": status, "info": finding.info, "message": reason, "where": finding.where, "details": details}
