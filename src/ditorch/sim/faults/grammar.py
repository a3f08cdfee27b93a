"""The language of faults: text in, `Fault` objects out.

faults  = fault (";" fault)*
fault   = kernels ":" kind ("," option)*
kernels = "aten.mm"        every variant of a kernel: mm, mm_ and mm.out
        | "aten.add.Tensor"  one overload
        | "aten.*backward*"  a pattern
kind    = name ["=" value] ["@" share]     share of the elements, 0 to 1, or "one"
option  = "after=" N | "every=" N | "seed=" N | "phase=" ("forward" | "backward")
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Union

from ditorch.errors import FaultError
from ditorch.sim.faults.kinds import KINDS, Kind

Share = Union[float, str]  # of the elements: a fraction, or "one"


@dataclass(frozen=True)
class Fault:
    """What is wrong with a kernel, and when."""

    text: str
    kernels: str
    kind: Kind
    value: Any = None
    share: Share | None = None
    after: int = 0
    every: int = 1
    seed: int = 0
    phase: str | None = None

    def hits(self, call_number: int) -> bool:
        """Whether the kernel's call with this number, counted from 0, is a broken one."""
        return call_number >= self.after and (call_number - self.after) % self.every == 0


def parse(text: str) -> list[Fault]:
    """All faults in a text; a FaultError says what cannot be understood, where, and what would be right."""
    parts = [part.strip() for part in re.split(r"[;\n]", text)]
    faults = [_parse_one(part) for part in parts if part]
    if not faults:
        raise FaultError(f"There is no fault in {text!r}. A fault looks like this: 'aten.mm: scale=1.01'.")
    return faults


def _parse_one(text: str) -> Fault:
    kernels, colon, rest = text.partition(":")
    kernels = kernels.strip()
    if not colon or not rest.strip():
        raise _error(text, "there is no ':' with a kind of fault behind it, as in 'aten.mm: scale=1.01'")
    if not re.fullmatch(r"\w+(\.[\w*?\[\]]+){1,2}", kernels):
        raise _error(
            text, f"'{kernels}' is not the name of a kernel, such as aten.mm, aten.add.Tensor or aten.*_backward"
        )
    first, *options = [item.strip() for item in rest.split(",")]
    kind, value, share = _parse_kind(text, first)
    return Fault(text, kernels, kind, value, share, **_parse_options(text, options))


def _parse_kind(text: str, item: str) -> tuple[Kind, Any, Share | None]:
    match = re.fullmatch(r"(\w+)\s*(?:=\s*([^@]+?))?\s*(?:@\s*(\S+))?", item)
    kind = KINDS.get(match[1]) if match else None
    if match is None or kind is None:
        raise _error(text, f"'{item}' is not a kind of fault; there are {', '.join(KINDS)}")
    value = None
    if kind.parse is None:
        if match[2] is not None:
            raise _error(text, f"{kind.name} takes no value")
    elif match[2] is not None or not kind.value_is_optional:
        try:
            value = kind.parse(match[2] or "")
        except ValueError as error:
            raise _error(text, f"{kind.name} {error}, as in '{kind.example}'") from None
    if match[3] is None:
        return kind, value, None
    if not kind.takes_share:
        raise _error(text, f"{kind.name} takes no @share")
    return kind, value, _parse_share(text, match[3])


def _parse_share(text: str, share: str) -> Share:
    if share == "one":
        return share
    try:
        fraction = float(share)
    except ValueError:
        fraction = -1
    if not 0 < fraction <= 1:
        raise _error(text, f"the share '@{share}' must lie above 0 and not above 1, or be '@one' for a single element")
    return fraction


def _parse_options(text: str, items: list[str]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for item in items:
        name, _, value = (part.strip() for part in item.partition("="))
        if name in options:
            raise _error(text, f"'{name}' is given twice")
        if name == "phase":
            if value not in ("forward", "backward"):
                raise _error(text, f"phase must be forward or backward, not '{value}'")
            options[name] = value
        elif name in ("after", "every", "seed"):
            if not value.isdigit() or (name == "every" and int(value) == 0):
                raise _error(
                    text, f"{name} must be a whole number{' above 0' if name == 'every' else ''}, not '{value}'"
                )
            options[name] = int(value)
        else:
            raise _error(text, f"'{item}' is not an option; there are after=N, every=N, seed=N, phase=forward|backward")
    return options


def _error(text: str, reason: str) -> FaultError:
    return FaultError(f"The fault '{text}' cannot be understood: {reason}.")
