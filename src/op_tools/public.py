"""The public names, imported when one of them is asked for: `import op_tools` alone imports no torch."""

from op_tools.core.features import apply_feature as apply_feature
from op_tools.core.running import step as step
from op_tools.storage.pack import read_statistics as read_statistics

# in the order in which apply_feature lists them
# isort: off
from op_tools.reroute.fallback import OpFallback as OpFallback
from op_tools.reroute.cast import OpDtypeCast as OpDtypeCast
from op_tools.capture.tool import OpCapture as OpCapture
from op_tools.autocompare.tool import OpAutoCompare as OpAutoCompare
from op_tools.observe import OpObserve as OpObserve
from op_tools.timing.tool import OpTimeMeasure as OpTimeMeasure
from op_tools.overflow.tool import OpOverflowCheck as OpOverflowCheck
# isort: on
