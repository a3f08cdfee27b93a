"""Whether the CPU's matrix units (AMX) work where they are announced.

Some virtual machines announce AMX and refuse to run it: plain PyTorch then dies of an illegal instruction in the first
product in bfloat16. oneDNN, which computes it, can be told to leave the units alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

VARIABLE = "ONEDNN_MAX_CPU_ISA"
WITHOUT_UNITS = "avx512_core_fp16"  # the most that oneDNN knows below AMX
_PRODUCT = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); torch.nn.functional.linear(x, x)"


def are_announced(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the kernel lists them."""
    try:
        return "amx_bf16" in cpuinfo.read_text()
    except OSError:
        return False


def kill_programs(product: str = _PRODUCT) -> bool:
    """Whether a product in bfloat16 ends a process with a signal; tried in one of its own, as it is set up now."""
    if not are_announced():
        return False
    done = subprocess.run([sys.executable, "-c", product], capture_output=True, check=False)
    return done.returncode < 0


def leave_alone() -> None:
    """For this process, if oneDNN has not begun to work in it, and for those that it starts."""
    os.environ.setdefault(VARIABLE, WITHOUT_UNITS)
