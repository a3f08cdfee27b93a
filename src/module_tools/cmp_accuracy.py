"""The names under which scripts in the field import these; and `python -m module_tools.cmp_accuracy [FOLDER]`."""

from __future__ import annotations

import sys

from module_tools.comparison import compare_accuracy
from module_tools.recording import DATA, CompLayerAcc
from op_tools.errors import OpToolsError

__all__ = ["CompLayerAcc", "compare_accuracy"]

if __name__ == "__main__":
    if sys.argv[2:] or sys.argv[1:2] in (["-h"], ["--help"]):
        sys.exit("python -m module_tools.cmp_accuracy [FOLDER]   compares what CompLayerAcc wrote (accuracy_data)")
    try:
        sys.exit(not all(row["allclose"] for row in compare_accuracy(sys.argv[1] if sys.argv[1:] else DATA)))
    except OpToolsError as error:
        sys.exit(f"module_tools: {error}")
