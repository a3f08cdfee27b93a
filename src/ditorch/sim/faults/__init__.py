"""Breaks chosen kernels of any backend on purpose: to rehearse a chip's faults, and to test the tools that find them.

    >>> from ditorch.sim import faults
    >>> with faults.inject("aten.mm: scale=1.01"):
    ...     train()  # every mm kernel, forward and backward, is wrong by 1 %

For a whole run, without a change to the program: `DITORCH_FAULTS="aten.mm: scale=1.01"`.

A fault sits at the backend's own dispatch key (PrivateUse1, CUDA, XPU, …), below autograd and autocast: where a broken
kernel would sit. Kernels that are not named are untouched, and with no fault there is no cost. The grammar and every
kind of fault are in docs/faults.md. Limits: operators that PyTorch splits up before a device sees them (aten.linear)
have no kernel to break, and neither have views.
"""

from __future__ import annotations

from ditorch.sim.faults.grammar import Fault, parse
from ditorch.sim.faults.install import Injection, active, inject

__all__ = ["Fault", "Injection", "active", "inject", "parse"]
