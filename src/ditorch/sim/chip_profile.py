"""What a chip lacks, how it keeps its sums and how fast it is, by kernel: a file of `ditorch conformance profile`.

{"schema": "ditorch.profile/1", "chip": "NVIDIA H200", "source": "measured", "made_from": "…", "dtypes": ["float32", …],
 "kernels": {"aten::mm": {"missing": {"float64": "RuntimeError: …"}, "falls_back": ["float32"],
                          "accumulation": {"bfloat16": "float32"},
                          "times": {"bfloat16": {"work": "flops", "points": [[524288.0, 8.1e-06], …]}}}},
 "ops": {"nn.functional.gelu": {"bfloat16": {"max_ulp": 0.5, "device_ms": 0.011}}}}

A kernel is named as the dispatcher does: with its overload (`aten::add.Tensor`), or without for all of them. The dtype
"*" stands for all. Kernels and dtypes that are not named are there. docs/conformance.md tells more.
"""

from __future__ import annotations

import bisect
import functools
import json
import math
from pathlib import Path
from typing import Any

import torch

from ditorch.errors import SettingError

SCHEMA = "ditorch.profile/1"
SOURCES = ("measured", "derived")
_SUMS = frozenset({"float64", "float32", "tf32", "bfloat16", "float16"})  # what they may be kept in
_FOLDER = Path(__file__).parent / "profiles"
# Names that convolutions and attention have on devices from outside of PyTorch
_ALIASES = {
    "aten::convolution_overrideable": "aten::convolution",
    "aten::convolution_backward_overrideable": "aten::convolution_backward",
    "aten::_scaled_dot_product_fused_attention_overrideable": "aten::scaled_dot_product_attention",
    "aten::_scaled_dot_product_fused_attention_overrideable_backward": "aten::scaled_dot_product_attention_backward",
}
# What a kernel without times of its own is taken for
_LIKE = {"flops": "aten::mm", "bytes": "aten::add"}


def included() -> list[str]:
    """The names of the profiles that come along."""
    return sorted(path.stem for path in _FOLDER.glob("*.json"))


class ChipProfile:
    """A chip's profile, to be asked."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self.chip: str = facts["chip"]
        self.source: str = facts["source"]
        self._kernels: dict[str, dict[str, Any]] = facts["kernels"]

    @staticmethod
    def read(name: str) -> ChipProfile:
        """A file, or the name of a profile that comes along."""
        path = _FOLDER / f"{name}.json" if name in included() else Path(name).expanduser()
        try:
            facts = json.loads(path.read_text(encoding="utf-8"))
            return ChipProfile(_checked(facts))
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise SettingError(
                f"The profile {name} cannot be used ({reason}). Give a file that `ditorch conformance profile` wrote, "
                f"or one of {', '.join(included())}."
            ) from None

    @functools.lru_cache(maxsize=10_000)  # noqa: B019 - a profile lives as long as its process
    def facts(self, kernel: str) -> dict[str, Any]:
        """All that is known of a kernel: of this overload, of all overloads, of the form that is not in place."""
        found: dict[str, Any] = {}
        for name in reversed(_names(kernel)):
            for key, value in self._kernels.get(name, {}).items():
                found[key] = {**found.get(key, {}), **value} if isinstance(value, dict) else value
        return found

    def unknown(self) -> list[str]:
        """Kernels that it names and this torch does not have: a slip, or another release's."""
        kernels = set(getattr(torch._C, "_dispatch_get_all_op_names", lambda: self._kernels)())
        kernels |= {kernel.partition(".")[0] for kernel in kernels}
        return sorted(kernel for kernel in self._kernels if kernel not in kernels)

    def missing(self, kernel: str, dtypes: list[str]) -> str | None:
        """What is raised there for arguments of these dtypes; None where the kernel is there."""
        missing = self.facts(kernel).get("missing")
        return next((missing[one] for one in (*dtypes, "*") if one in missing), None) if missing else None

    def accumulation(self, kernel: str, dtype: str) -> str | None:
        found = self.facts(kernel).get("accumulation", {}).get(dtype)
        return None if found is None else str(found)

    def falls_back(self, kernel: str, dtypes: list[str]) -> bool:
        found = self.facts(kernel).get("falls_back", ())
        return "*" in found or any(dtype in found for dtype in dtypes)

    def seconds(self, kernel: str, dtype: str, work: dict[str, float]) -> float | None:
        """How long a call takes there. `work`: its bytes and, if it has any, flops. None where it was not measured."""
        kind = "flops" if work.get("flops") else "bytes"
        own = self._times(kernel, dtype)
        times = own if own and own["work"] in work else self._times(_LIKE[kind], dtype)
        return None if not times else _between([tuple(one) for one in times["points"]], work[times["work"]])

    def _times(self, kernel: str, dtype: str) -> dict[str, Any] | None:
        """Of another dtype where this one was not measured: of whole numbers, mostly."""
        times: dict[str, Any] = self.facts(kernel).get("times", {})
        return times.get(dtype) or times.get("float32") or next(iter(times.values()), None)


def _names(kernel: str) -> list[str]:
    """From the closest name to the widest."""
    kernel = _ALIASES.get(kernel, kernel)
    plain = kernel.partition(".")[0]
    found = [kernel, plain, plain[:-1] if plain.endswith("_") and not plain.endswith("__") else plain]
    return list(dict.fromkeys(found))


def _between(points: list[tuple[float, ...]], work: float) -> float:
    """Straight lines between points on logarithmic axes; not less than the first, and proportional beyond the last."""
    points = sorted(points)
    place = bisect.bisect([point[0] for point in points], work)
    if place == 0:
        return points[0][1]
    left = points[place - 1]
    if place == len(points):
        return left[1] * work / left[0]
    right = points[place]
    share = math.log(work / left[0]) / math.log(right[0] / left[0])
    return math.exp(math.log(left[1]) * (1 - share) + math.log(right[1]) * share)


def _checked(facts: Any) -> dict[str, Any]:
    """ValueError says what is wrong with it."""
    if not isinstance(facts, dict) or facts.get("schema") != SCHEMA:
        raise ValueError(f"its schema is not {SCHEMA}")
    if not isinstance(facts.get("chip"), str) or facts.get("source") not in SOURCES:
        raise ValueError(f"it needs a chip, and a source that is {' or '.join(SOURCES)}")
    kernels = facts.get("kernels")
    if not isinstance(kernels, dict):
        raise ValueError("it has no kernels")
    for name, known in kernels.items():
        if "::" not in name or not isinstance(known, dict):
            raise ValueError(f"'{name}' is no kernel such as aten::mm, with facts about it")
        for key in ("missing", "accumulation", "times"):
            if not isinstance(known.get(key, {}), dict):
                raise ValueError(f"{key} of {name} must be an object with dtypes as keys")
        _check_words(known, name)
        for dtype, times in known.get("times", {}).items():
            _check_times(times, f"the times of {name} in {dtype}")
    return facts


def _check_words(known: dict[str, Any], name: str) -> None:
    if not all(isinstance(message, str) for message in known.get("missing", {}).values()):
        raise ValueError(f"missing of {name} must have what is raised, as text")
    if not set(map(str, known.get("accumulation", {}).values())) <= _SUMS:
        raise ValueError(f"accumulation of {name} must be {', '.join(sorted(_SUMS))}")
    falls_back = known.get("falls_back", [])
    if not isinstance(falls_back, list) or not all(isinstance(dtype, str) for dtype in falls_back):
        raise ValueError(f"falls_back of {name} must be a list of dtypes")


def _check_times(times: Any, what: str) -> None:
    points = times.get("points") if isinstance(times, dict) else None
    is_right = isinstance(points, list) and all(
        isinstance(one, list) and len(one) == 2 and all(isinstance(x, (int, float)) and x > 0 for x in one)
        for one in points
    )
    if not is_right or not points or times.get("work") not in _LIKE:
        raise ValueError(f"{what} must have work (flops or bytes) and points, pairs of positive numbers")
