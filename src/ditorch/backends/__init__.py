"""The accelerators that ditorch knows, one short file each. To add one: write its file and list it here."""

from __future__ import annotations

from ditorch.backends.cpu import CPU
from ditorch.backends.cuda import CUDA
from ditorch.backends.sim import SIM

# Real ones first; the simulated one is taken when none of these is there, the plain CPU only when asked for.
ACCELERATORS = (CUDA,)
BUILT_IN = {backend.name: backend for backend in (*ACCELERATORS, SIM, CPU)}
