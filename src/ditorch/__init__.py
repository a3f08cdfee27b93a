"""Runs PyTorch programs written for CUDA on the accelerator that is there.

    import torch
    import ditorch

One line on stderr says what was found. On a machine with no accelerator it is the simulated one (`ditorch.sim`).
"""

from __future__ import annotations

import os
import sys

import torch

from ditorch.backend import Backend  # here and not later, or the module would take the function's name below
from ditorch.errors import BackendError
from ditorch.settings import DISABLE_MOCK, FAULTS

__all__ = ["__version__", "backend", "install"]
__version__ = "0.1.0"

_backend: Backend | None = None


def backend() -> Backend:
    """The accelerator in use."""
    if _backend is None:
        raise BackendError(
            "ditorch is not active in this process: call ditorch.install(), or unset DITORCH_DISABLE_MOCK."
        )
    return _backend


def install() -> Backend:
    """Chooses the accelerator and makes it ready; `import ditorch` does it unless DITORCH_DISABLE_MOCK is 1."""
    global _backend
    if _backend is None:
        from ditorch import discover

        _backend = discover.choose()
        print(
            f"ditorch: {_backend.name} ({_backend.title}) torch {torch.__version__} pid {os.getpid()}", file=sys.stderr
        )
        if FAULTS.get():
            from ditorch.sim import faults

            injection = faults.inject(FAULTS.get(), _backend.device_type)
            print(f"ditorch: kernels broken by DITORCH_FAULTS: {', '.join(injection.struck)}", file=sys.stderr)
    return _backend


def _is_own_command() -> bool:
    """Whether this process is `ditorch …` or `python -m ditorch …`: the command then installs, and reports errors."""
    started_with = getattr(sys, "orig_argv", sys.argv)  # Python 3.10 and newer
    return os.path.basename(sys.argv[0]) == "ditorch" or ["-m", "ditorch"] in (
        started_with[i : i + 2] for i in range(len(started_with))
    )


if not (DISABLE_MOCK.get() or _is_own_command()):
    install()
