"""Tools for training on an accelerator that goes wrong: capture, compare, time, work around, find the first NaN."""

from __future__ import annotations

from op_tools.intercept import step
from op_tools.tools.observe import OpObserve

__all__ = ["OpObserve", "step"]
