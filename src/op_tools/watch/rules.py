"""When to alert: one function for each rule. Each tells a thing once, and again only after it was well in between."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from op_tools.settings import Rules
from op_tools.watch.against import Against
from op_tools.watch.alerts import Alert
from op_tools.watch.dead_layers import DeadLayers
from op_tools.watch.recent_values import RecentValues
from op_tools.watch.statistics import ACTIVATIONS, GRADIENTS, LOSS, StepStatistics, Table

# of a loss that is next to constant, this share of it counts as one deviation
_MIN_LOSS_DEVIATION = 0.03
_MIN_NORM_DEVIATION = 0.2  # of the logarithm
# Steps beyond the limit: one batch may have wild data, a loss that spikes stays high. A loss that stays NaN is no work
# of GradScaler's: a scale makes it infinite at most.
_IN_A_ROW = {"spike": 2, "norm": 1, "nan": 2}
_MAX_NAMED = 3
_MIN_NORM = 1e-30


class RuleChecker:
    """`numbers`: those of the rules that are on. `against`: another run's losses."""

    def __init__(self, numbers: Rules, against: Against | None) -> None:
        self._numbers = numbers
        self._against = against
        self._losses, self._norms = RecentValues(), RecentValues()
        self._high: Counter[str] = Counter()  # for how many steps a rule's curve has been beyond its limit
        self._bad: set[str] = set()  # kinds that hold NaN or Inf now
        self._left_out = 0  # steps in a row
        self._nan_losses = 0  # likewise
        self._dead = DeadLayers(max(1, round(numbers.get("dead", 1))))

    def alerts(self, found: StepStatistics) -> Iterator[Alert]:
        """Of one step, in the order of the steps."""
        if "nan" in self._numbers:
            yield from self._not_finite(found)
        if found.was_left_out:  # its gradients have an Inf, which GradScaler expects
            return
        if found.loss is not None and math.isfinite(found.loss):
            yield from self._spike(found.step, found.loss)
            if self._against is not None and "parting" in self._numbers:
                yield from self._parting(found.step, found.loss, self._against)
        if found.gradient_norm is not None:
            yield from self._norm(found.step, found.gradient_norm, found.tables[GRADIENTS])
        if "dead" in self._numbers and found.tables:
            yield from self._dead_layers(found)

    # -- NaN ----------------------------------------------------------------------------------------------------------

    def _not_finite(self, found: StepStatistics) -> Iterator[Alert]:
        self._left_out = self._left_out + 1 if found.was_left_out else 0
        most = max(1, round(self._numbers["nan"]))
        if self._left_out == most and LOSS not in self._bad:
            text = f"GradScaler has left out {most} steps in a row: their gradients have NaN or Inf at every scale"
            yield Alert(found.step, "nan", text, GRADIENTS, value=float(most), limit=float(most))
        bad = {kind: _first_bad(table) for kind, table in found.tables.items() if any(table.nonfinite)}
        is_bad_loss = found.loss is not None and not math.isfinite(found.loss)
        self._nan_losses = self._nan_losses + 1 if found.loss is not None and math.isnan(found.loss) else 0
        is_expected = found.was_left_out and self._nan_losses < _IN_A_ROW["nan"]
        if is_expected:
            bad.pop(ACTIVATIONS, None)
            bad.pop(GRADIENTS, None)
        elif found.loss is not None and not is_bad_loss:
            bad.pop(ACTIVATIONS, None)  # a mask of infinities, which came to nothing
        if is_bad_loss and not is_expected:
            bad[LOSS] = ""
        new = [kind for kind in bad if kind not in self._bad]
        # what was not looked at in this step is as it was
        self._bad = {*bad, *(kind for kind in self._bad if kind not in found.tables and kind != LOSS)}
        if new:
            words = [f"{kind} ({bad[kind]})" if bad[kind] else kind for kind in new]
            first = next((kind for kind in new if kind != LOSS), LOSS)
            module = bad[first].partition(",")[0].partition("first in ")[2]
            yield Alert(found.step, "nan", f"NaN or Inf in {', '.join(words)}", first, module, found.loss)

    # -- curves -------------------------------------------------------------------------------------------------------

    def _spike(self, step: int, loss: float) -> Iterator[Alert]:
        least = _MIN_LOSS_DEVIATION * abs(self._losses.level()) + _MIN_NORM
        limit = self._beyond("spike", self._losses, loss, least)
        if limit is not None:
            text = f"the loss is {loss:.4g}, far above the last ones (limit {limit:.4g})"
            yield Alert(step, "spike", text, LOSS, value=loss, limit=limit)

    def _norm(self, step: int, norm: float, gradients: Table) -> Iterator[Alert]:
        if not math.isfinite(norm) or norm <= _MIN_NORM:
            return
        logarithm = self._beyond("norm", self._norms, math.log(norm), _MIN_NORM_DEVIATION)
        if logarithm is not None:
            module, share = _largest(gradients, norm)
            limit = math.exp(logarithm)
            text = f"the gradient norm is {norm:.4g}, far above the last ones (limit {limit:.4g}); "
            yield Alert(step, "norm", f"{text}{share:.0%} of it in {module}", GRADIENTS, module, norm, limit)

    def _beyond(self, rule: str, values: RecentValues, value: float, least: float) -> float | None:
        """The limit that a curve has just gone beyond."""
        limit = values.limit(self._numbers[rule], least) if rule in self._numbers else None
        values.add(value)
        if limit is None or value <= limit:
            self._high[rule] = 0
            return None
        self._high[rule] += 1
        return limit if self._high[rule] == _IN_A_ROW[rule] else None

    def _parting(self, step: int, loss: float, against: Against) -> Iterator[Alert]:
        parted = against.parted(step, loss)
        if parted is not None:
            apart, allowed = parted
            text = f"the loss has parted from the other run's: {apart:.4g} apart, {allowed:.4g} is allowed"
            yield Alert(step, "parting", text, LOSS, value=apart, limit=allowed)

    # -- layers -------------------------------------------------------------------------------------------------------

    def _dead_layers(self, found: StepStatistics) -> Iterator[Alert]:
        by_kind: dict[str, list[str]] = {}
        for kind, module in self._dead.found(found):
            by_kind.setdefault(kind, []).append(module)
        steps = round(self._numbers["dead"])
        for kind, modules in by_kind.items():
            more = f" and {len(modules) - _MAX_NAMED} more" if len(modules) > _MAX_NAMED else ""
            text = (
                f"dead: all {kind} of {', '.join(modules[:_MAX_NAMED])}{more} have been zero in the last {steps} looks"
            )
            yield Alert(found.step, "dead", text, kind, modules[0], float(steps), float(steps))


def _first_bad(table: Table) -> str:
    bad = [module for module, count in zip(table.modules, table.nonfinite) if count]
    return f"first in {bad[0]}" if len(bad) == 1 else f"first in {bad[0]}, {len(bad)} modules"


def _largest(gradients: Table, norm: float) -> tuple[str, float]:
    """The module with most of the norm's square."""
    squares = [count * rms * rms for count, rms in zip(gradients.count, gradients.rms)]
    place = max(range(len(squares)), key=squares.__getitem__)
    return gradients.modules[place], squares[place] / norm**2
