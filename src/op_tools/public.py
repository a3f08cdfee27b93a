"""The public names, imported when one of them is asked for: `import op_tools` alone imports no torch."""

from op_tools.core.features import apply_feature
from op_tools.core.running import step
from op_tools.storage.pack import read_statistics

# in the order in which apply_feature lists them
# isort: off
from op_tools.reroute.fallback import OpFallback
from op_tools.reroute.cast import OpDtypeCast
from op_tools.capture.tool import OpCapture
from op_tools.autocompare.tool import OpAutoCompare
from op_tools.observe import OpObserve
from op_tools.timing.tool import OpTimeMeasure
from op_tools.overflow.tool import OpOverflowCheck
# isort: on

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
