"""Accuracy layer by layer: what every module of a model gave in two runs, on the benchmark's device and on yours.

    from module_tools import CompLayerAcc, compare_accuracy

    CompLayerAcc(model, is_dump_benchmark=True).insert_hook()    # one step here, on the device that is right
    CompLayerAcc(model, is_dump_benchmark=False).insert_hook()   # the same step there
    compare_accuracy()

recording.py writes what the layers gave, comparison.py reads it.
"""

from __future__ import annotations

from module_tools.comparison import compare_accuracy
from module_tools.recording import CompLayerAcc

__all__ = ["CompLayerAcc", "compare_accuracy"]
