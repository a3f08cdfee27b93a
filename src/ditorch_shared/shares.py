"""How a share is written: in percent, rounded down, so that 100 % means all."""

from __future__ import annotations


def percent(share: float) -> str:
    share *= 100
    return f"{share:.2g} %" if share < 1 else f"{int(10 * share) / 10:g} %"
