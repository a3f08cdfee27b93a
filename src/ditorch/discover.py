"""Finds the accelerator to use: the one that DITORCH_BACKEND names, else the one that is there, else the simulated."""

from __future__ import annotations

from ditorch.backend import Backend
from ditorch.backends import ACCELERATORS, BUILT_IN
from ditorch.backends.sim import SIM
from ditorch.errors import BackendError
from ditorch.settings import BACKEND


def choose() -> Backend:
    """The backend to use; it has been started."""
    wanted = BACKEND.get()
    if wanted:
        return _named(wanted)
    available = [backend for backend in ACCELERATORS if backend.unavailable() is None]
    if len(available) > 1:
        names = ", ".join(backend.name for backend in available)
        raise BackendError(
            f"There is more than one accelerator here: {names}. "
            f"Choose one, such as DITORCH_BACKEND={available[0].name}."
        )
    chosen = available[0] if available else SIM
    chosen.start()
    return chosen


def _named(name: str) -> Backend:
    backend = BUILT_IN.get(name)
    if backend is None:
        raise BackendError(f"DITORCH_BACKEND={name}: there is no such backend; there are {', '.join(BUILT_IN)}.")
    reason = backend.unavailable()
    if reason is not None:
        raise BackendError(f"DITORCH_BACKEND={name}: {backend.title} cannot be used here, because {reason}.")
    backend.start()
    return backend
