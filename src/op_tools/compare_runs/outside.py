"""What comes to the ops from outside, and may differ before the first of them: weights, buffers and data.

Runs tell of their model at the first step and of each step's first inputs (capture/outside.py). Where they do not, and
for what is given later (labels), inputs that no recorded call made are taken for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from op_tools.compare_runs.calls import Call, Seen
from op_tools.compare_runs.distance import distance, same_bits
from op_tools.compare_runs.findings import Before
from op_tools.storage.blocks import MODEL, STEP

_MAX_NAMED = 20
_MAX_STEPS = 3  # with other data, that are told
_PLURALS = {"parameter": "parameters", "buffer": "buffers"}


class Outside:
    """Of one process of each run, step by step."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._steps_with_other_data = 0
        self._has_model = False
        self._known: set[int] = set()  # keys of what was told of already

    def of_step(
        self, pairs: Iterable[tuple[Call, Call]], calls: Sequence[tuple[Call, Call]], step: int
    ) -> Iterator[Before]:
        """`pairs`: what both runs have in place of calls; `calls`: those of the step."""
        model: dict[str, tuple[Seen, Seen | None]] = {}
        inputs: dict[str, tuple[Seen, Seen | None]] = {}
        for a, b in pairs:
            for name, seen in a.inputs.items():
                (model if a.site.op == MODEL else inputs)[name] = seen, b.inputs.get(name)
                self._known.add(seen.key)
            for name in [name for name in b.inputs if name not in a.inputs][:_MAX_NAMED]:
                yield Before("code", name, False, True, step, self._rank)
        self._has_model = self._has_model or bool(model)
        for name in [name for name, (_, other) in model.items() if other is None][:_MAX_NAMED]:
            yield Before("code", name, True, False, step, self._rank)
        for part, plural in _PLURALS.items():
            yield from self._of_model(plural, {k: v for k, v in model.items() if v[0].kind.part == part}, step)
        yield from self._of_inputs(inputs, calls, step)

    def _of_model(self, plural: str, tensors: dict[str, tuple[Seen, Seen | None]], step: int) -> Iterator[Before]:
        common = {seen.kind.place: (seen, other) for seen, other in tensors.values() if other is not None}
        for name, (seen, other) in list(common.items())[: 10 * _MAX_NAMED]:
            if seen.kind.shape != other.kind.shape:
                yield Before(
                    "code", f"shape of {name}", list(seen.kind.shape), list(other.kind.shape), step, self._rank
                )
        apart = {name: _apart(*pair) for name, pair in common.items()}
        differing = [name for name, far in apart.items() if far is not None and far > 0]
        if differing:
            words = f"{len(differing)} of {len(common)} {plural}, first {differing[0]}"
            yield Before("weights", words, max(apart[name] or 0.0 for name in differing), "", step, self._rank)

    def _of_inputs(
        self, inputs: dict[str, tuple[Seen, Seen | None]], calls: Sequence[tuple[Call, Call]], step: int
    ) -> Iterator[Before]:
        apart = {name: _apart(*pair) for name, pair in inputs.items()}
        differing = [name for name, far in apart.items() if far is None or far > 0]
        if differing:  # an evaluation that one run has in between was given other data, and training was not
            same = _given_to_both(calls)
            differing = [name for name in differing if not any(seen and seen.key in same for seen in inputs[name])]
        if differing and self._steps_with_other_data < _MAX_STEPS:
            self._steps_with_other_data += 1
            far = [apart[name] for name in differing]
            largest = None if None in far else max(one for one in far if one is not None)
            yield Before("data", ", ".join(differing[:3]), largest, "", step, self._rank)

    # -- what no call made --------------------------------------------------------------------------------------------

    def of_forward(self, calls: Iterable[tuple[Call, Call]]) -> Iterator[Before]:
        """Inputs of the first forward pass that no call made. `calls`: in the order in which they ran."""
        made: set[int] = set()
        for a, b in calls:
            for name, tensor in a.inputs.items():
                other = b.inputs.get(name)
                if other is None or tensor.key in made or tensor.key in self._known:
                    continue
                if self._has_model and tensor.kind.requires_grad:
                    continue  # its weights were told of
                self._known.add(tensor.key)
                far = _apart(tensor, other)
                if far is None or far > 0:
                    what = "weights" if tensor.kind.requires_grad else "data"
                    yield Before(what, f"{a.site.module or a.site.op} {name}", far, "", a.step, self._rank)
            made.update(tensor.key for tensor in a.outputs.values())
            new = [name for name, one in a.outputs.items() if name in b.outputs and one.key not in self._known]
            if a.inputs.keys().isdisjoint(b.inputs) and any(
                _apart(a.outputs[name], b.outputs[name]) != 0 for name in new
            ):
                yield Before("data", f"{a.site.op} ({a.site.source})", None, "", a.step, self._rank)


def _apart(seen: Seen, other: Seen | None) -> float | None:
    """How far; 0 within rounding, None where that cannot be told."""
    if other is None:
        return None
    if same_bits(seen, other):
        return 0.0
    apart = distance(seen, other)
    if apart is None:
        return None
    return apart.told if apart.told > 2 * max(seen.kind.unit, other.kind.unit) else 0.0


def _given_to_both(calls: Iterable[tuple[Call, Call]]) -> set[int]:
    """The keys of arguments that are the same in both runs."""
    pairs = ((seen, b.inputs.get(name)) for a, b in calls for name, seen in a.inputs.items())
    return {seen.key for seen, other in pairs if other is not None and same_bits(seen, other)}


def split(calls: list[Call]) -> tuple[list[Call], list[Call]]:
    """What stands in place of calls, and the calls."""
    outside = [call for call in calls if call.site.op in (MODEL, STEP)]
    return (outside, [call for call in calls if call.site.op not in (MODEL, STEP)]) if outside else ([], calls)
