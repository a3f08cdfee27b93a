"""The accelerators that ditorch knows, one short file each. To add one: write its file and list it here."""

from __future__ import annotations

from ditorch.backend import Backend
from ditorch.backends.apple import APPLE
from ditorch.backends.ascend import ASCEND
from ditorch.backends.biren import BIREN
from ditorch.backends.cambricon import CAMBRICON
from ditorch.backends.cpu import CPU
from ditorch.backends.cuda import CUDA
from ditorch.backends.dipu import DIPU
from ditorch.backends.enflame import ENFLAME
from ditorch.backends.habana import HABANA
from ditorch.backends.intel import INTEL
from ditorch.backends.mthreads import MTHREADS
from ditorch.backends.sim import SIM
from ditorch.backends.tecorigin import TECORIGIN

# The simulated one is taken when none of these is there, the plain CPU only when asked for.
ACCELERATORS = (
    ASCEND, CAMBRICON, MTHREADS, BIREN, ENFLAME, TECORIGIN, DIPU, HABANA, INTEL, APPLE, CUDA,
)  # fmt: skip
BUILT_IN = {backend.name: backend for backend in (*ACCELERATORS, SIM, CPU)}


def table() -> str:
    """The built-in backends for docs/backends.md."""
    rows = [
        ("DITORCH_BACKEND", "chip", "package", "device", "collectives", "visible devices", "lacks"),
        ("---",) * 7,
        *map(_row, BUILT_IN.values()),
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _row(backend: Backend) -> tuple[str, ...]:
    lacks = [*backend.lacks_dtypes, *(f"ReduceOp.{name}" for name in backend.lacks_reductions)]
    return (
        f"`{backend.name}`",
        backend.title,
        ", ".join(f"`{module}`" for module in backend.modules) or "–",
        f"`{backend.device_type}`",
        backend.collectives or "–",
        f"`{backend.visible_devices}`" if backend.visible_devices else "–",
        ", ".join(lacks) or "–",
    )
