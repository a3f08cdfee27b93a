"""The tools by the names that OP_TOOLS, the options of `ditorch run`, and `ditorch attach` have for them."""

from __future__ import annotations

from typing import Any

from op_tools import settings
from op_tools.autocompare.tool import OpAutoCompare
from op_tools.capture.tool import OpCapture
from op_tools.core.tool import AnyTool
from op_tools.observe import OpObserve
from op_tools.overflow.tool import OpOverflowCheck
from op_tools.reroute.cast import OpDtypeCast
from op_tools.reroute.fallback import OpFallback
from op_tools.timing.tool import OpTimeMeasure
from op_tools.watch import TrainingWatch

TOOLS: dict[str, type[AnyTool]] = {
    "autocompare": OpAutoCompare,
    "capture": OpCapture,
    "time": OpTimeMeasure,
    "overflow": OpOverflowCheck,
    "observe": OpObserve,
    "fallback": OpFallback,
    "cast": OpDtypeCast,
    "watch": TrainingWatch,
}


def made(name: str, backend: str, **arguments: Any) -> AnyTool:
    """`backend`: the accelerator's name."""
    if name == "observe" and arguments.get("verbose", settings.VERBOSE.get()) == 0:
        arguments["verbose"] = 1  # `ditorch run` makes the tools silent; what OpObserve prints is its purpose
    tool = TOOLS[name](**arguments)
    # a run on the plain CPU is what others are compared with
    tool.sees_cpu = backend == "cpu" and name == "capture"
    return tool
