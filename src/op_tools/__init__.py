"""Tools for training on an accelerator that goes wrong: capture, compare, time, work around, find the first NaN."""

from __future__ import annotations

from op_tools.features import apply_feature
from op_tools.intercept import step
from op_tools.tools.autocompare import OpAutoCompare
from op_tools.tools.capture import OpCapture
from op_tools.tools.cast import OpDtypeCast
from op_tools.tools.fallback import OpFallback
from op_tools.tools.observe import OpObserve
from op_tools.tools.overflow import OpOverflowCheck
from op_tools.tools.timing import OpTimeMeasure

__all__ = [
    "OpAutoCompare",
    "OpCapture",
    "OpDtypeCast",
    "OpFallback",
    "OpObserve",
    "OpOverflowCheck",
    "OpTimeMeasure",
    "apply_feature",
    "step",
]
