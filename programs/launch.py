"""Runs a Python program with random seeds set, and says at its end how much device memory it took.

    python launch.py train.py --epochs 1
    python launch.py -m package.train

Many programs set no seed, so that no two of their runs agree; a genuine GPU has kernels that agree with themselves only
where PROGRAM_DETERMINISTIC asks for it. The memory tells whether the device was used at all.
"""

from __future__ import annotations

import os
import random
import runpy
import sys


def main() -> None:
    sys.path.pop(0)  # the folder of this file
    del sys.argv[0]
    import torch

    random.seed(0)
    torch.manual_seed(0)
    if os.environ.get("PROGRAM_DETERMINISTIC"):
        torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        import numpy
    except ImportError:
        pass
    else:
        numpy.random.seed(0)
    try:
        if sys.argv[0] == "-m":
            del sys.argv[0]
            sys.path.insert(0, "")
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            sys.path[:0] = [sys.argv[0].rpartition("/")[0] or ".", "."]
            runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
        if torch.cuda.is_available():
            peak = max(torch.cuda.max_memory_allocated(index) for index in range(torch.cuda.device_count()))
            print(f"launch.py: {peak} bytes of device memory", flush=True)


if __name__ == "__main__":
    main()
