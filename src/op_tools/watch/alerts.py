"""Alerts: in the terminal, in alerts.jsonl, and to the user's command or webhook."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from typing import Any

from op_tools.output import messages, process
from op_tools.output.results import finite
from op_tools.watch.delivery import Delivery
from op_tools.watch.log import LineFile

SCHEMA = "ditorch.alert/1"
COLUMNS = ("step", "rule", "kind", "module", "value", "limit", "text")
MAX_SHOWN = 50  # in the terminal; the file has all


@dataclass(frozen=True)
class Alert:
    step: int
    rule: str  # nan, spike, norm, dead, parting, ranks
    text: str
    kind: str = ""  # of the tensors: loss, gradients, …
    module: str = ""
    value: float | None = None
    limit: float | None = None


class Alerts:
    """All of this process. Rank 0 shows its own; those of the others are in their files, and in the run's summary."""

    def __init__(self, file: LineFile, delivery: Delivery | None) -> None:
        self._file = file
        self._delivery = delivery
        self.all: list[Alert] = []

    def raised(self, alert: Alert) -> None:
        self.all.append(alert)
        about: dict[str, Any] = {"schema": SCHEMA, "time": time.time(), **process.identity()}
        text = json.dumps(finite({**about, **asdict(alert)}), ensure_ascii=False)
        self._file.add(text)
        if process.this_rank() == 0:
            self._show(alert)
        if self._delivery is not None:
            self._delivery.add(text)

    def _show(self, alert: Alert) -> None:
        shown = len(self.all)
        if shown <= MAX_SHOWN:
            messages.complain(f"ALERT at step {alert.step}: {alert.text}")
        if shown == MAX_SHOWN + 1:
            messages.complain(f"more alerts are in {self._file.path} only")

    def rows(self) -> list[tuple[Any, ...]]:
        return [tuple(getattr(alert, column) for column in COLUMNS) for alert in self.all[:]]
