"""What becomes of a step's figures, in the thread that writes: the log, the rules, the alerts, the receivers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Callable

from op_tools.output import process
from op_tools.output.paths import shown
from op_tools.settings import Rules
from op_tools.watch.against import Against
from op_tools.watch.alerts import Alert, Alerts
from op_tools.watch.delivery import Delivery
from op_tools.watch.log import ALERTS_FILE, LineFile, StepLog, new_folder
from op_tools.watch.ranks import Checksums
from op_tools.watch.receivers import Receivers
from op_tools.watch.rules import RuleChecker
from op_tools.watch.statistics import StepStatistics

_SECONDS_FOR_OTHERS = 2.0  # other ranks write their last step a little later


class WatchRecord:
    """All that TrainingWatch keeps of this process."""

    def __init__(
        self, out: Path, rules: Rules, against: Path | None, on_alert: str, to: tuple[str, ...], disk: int
    ) -> None:
        self._out = out
        self._rules = rules
        self._against = Against(against, process.this_rank(), rules.get("parting", 1.0)) if against else None
        self._delivery = Delivery(on_alert) if on_alert.strip() else None
        self._to, self._disk = to, disk
        self._receivers: Receivers | None = Receivers(to, new_folder(out)) if to else None
        self._rule_checker = RuleChecker(rules, self._against)
        self._log: StepLog | None = None
        self._checksums: Checksums | None = None
        self._left_out: set[str] = set()
        self._changed = self._out_of_memory = 0
        self._is_compiled = False
        self.alerts = Alerts(LineFile(new_folder(out) / ALERTS_FILE), self._delivery)
        self.steps = 0
        self.wants_a_look = False  # at the tensors of the next step: the loss alone does not tell the module

    @property
    def files(self) -> list[str]:
        if self._log is None:
            return []
        folder = self._log.file.path.parent
        return [str(path) for path in (self._log.file.path, folder / ALERTS_FILE) if path.exists()]

    def take(self, read: Callable[[], StepStatistics], left_out: set[str], facts: dict[str, Any]) -> None:
        """One step, in the order of the steps."""
        found = read()
        if self._log is None:
            self._open(facts)
        assert self._log is not None
        self.steps += 1
        self._left_out |= left_out
        self._changed += found.changed
        self._out_of_memory += found.out_of_memory
        self._is_compiled |= facts["is_compiled"]
        self._log.add(found)
        alerts = list(self._rule_checker.alerts(found))
        for alert in alerts:
            self.alerts.raised(alert)
        self.wants_a_look = (self.wants_a_look or bool(alerts)) and not found.tables
        if found.checksum is not None and "ranks" in self._rules and process.world_size() > 1:
            self._compare_ranks(found.step, found.checksum)
        if self._receivers is not None:
            self._receivers.add(found)

    def _open(self, facts: dict[str, Any]) -> None:
        """Now that a step has ended, the rank is known."""
        folder = new_folder(self._out)
        self.alerts = Alerts(LineFile(folder / ALERTS_FILE), self._delivery)
        self._log = StepLog(folder, self._disk)
        self._log.begin({"sharded": facts["is_sharded"], "rules": self._rules})

    def _compare_ranks(self, step: int, checksum: int) -> None:
        if self._checksums is None:
            self._checksums = Checksums(new_folder(self._out))
        self._checksums.add(step, checksum)
        self._tell_parted(is_end=False)

    def _tell_parted(self, is_end: bool) -> bool:
        parted = self._checksums.parted(is_end) if self._checksums is not None else None
        if parted is None:
            return False
        step, rank = parted
        text = f"ranks part: after step {step} the weights of rank {rank} are not those of rank 0"
        self.alerts.raised(Alert(step, "ranks", text, "weights", value=float(rank)))
        return True

    def close(self) -> None:
        if self._checksums is not None and process.this_rank() == 0:
            until = time.monotonic() + _SECONDS_FOR_OTHERS
            while not self._tell_parted(is_end=True) and time.monotonic() < until and self._checksums.is_behind():
                time.sleep(0.05)
        if self._delivery is not None:
            self._delivery.close()
        if self._receivers is not None:
            self._receivers.close()

    def not_looked_at(self) -> list[tuple[str, int, str]]:
        """For `results`."""
        found = [(kind, 0, "TrainingWatch does not know such tensors") for kind in sorted(self._left_out)]
        if self._changed:
            found.append(("activations", self._changed, "changed in place before they could be looked at"))
        if self._out_of_memory:
            found.append(("tensors", self._out_of_memory, "the device's memory did not suffice"))
        if self._is_compiled:
            found.append(("activations", 0, "modules inside of compiled code: only what the whole gives is seen"))
        if self._against is not None and not self._against.compared and self.steps:
            found.append(("the other run", 0, "no step of it has the number of one of this run's"))
        return found

    def summary(self) -> str:
        alerts = {1: "1 alert"}.get(len(self.alerts.all), f"{len(self.alerts.all) or 'no'} alerts")
        where = f", {shown(self.files[0])}" if self.files else ""
        return f"TrainingWatch: {self.steps} steps, {alerts}{where}"
