"""Tools for training on an accelerator that goes wrong: capture, compare, time, work around, find the first NaN.

What reads files only (`ditorch compare`) imports parts of this package without torch. So where torch is not there yet,
names come when they are asked for.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from op_tools.public import OpAutoCompare as OpAutoCompare
    from op_tools.public import OpCapture as OpCapture
    from op_tools.public import OpDtypeCast as OpDtypeCast
    from op_tools.public import OpFallback as OpFallback
    from op_tools.public import OpObserve as OpObserve
    from op_tools.public import OpOverflowCheck as OpOverflowCheck
    from op_tools.public import OpTimeMeasure as OpTimeMeasure
    from op_tools.public import apply_feature as apply_feature
    from op_tools.public import read_statistics as read_statistics
    from op_tools.public import step as step

__all__ = [
    "OpAutoCompare",
    "OpCapture",
    "OpDtypeCast",
    "OpFallback",
    "OpObserve",
    "OpOverflowCheck",
    "OpTimeMeasure",
    "apply_feature",
    "read_statistics",
    "step",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _load()
    return globals()[name]


def _load() -> None:
    from op_tools import public

    globals().update((one, getattr(public, one)) for one in __all__)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if "torch" in sys.modules:
    _load()  # a program that trains: what is done at its end must be registered before it
