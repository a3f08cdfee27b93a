"""Runs PyTorch programs written for CUDA on the accelerator that is there.

    import torch
    import ditorch

From then on "cuda" means that accelerator: `.cuda()`, `device="cuda"`, `torch.cuda.*`, "nccl", autocast, checkpoints.
One line on stderr says what was found. On a machine with no accelerator it is the simulated one (`ditorch.sim`); on one
with CUDA nothing is changed.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import TYPE_CHECKING

from ditorch.backend import Backend  # here and not later, or the module would take the function's name below
from ditorch.errors import BackendError, SettingError
from ditorch.settings import DISABLE_MOCK, FAULTS, FLOAT32_COLLECTIVES, SIM_PROFILE, misspelt
from ditorch_shared import messages

if TYPE_CHECKING:  # imported when they are needed, so that `import ditorch` stays light
    from ditorch.redirect import Redirect
    from ditorch.redirect.patch import Patches
    from ditorch.sim.faults import Injection

__all__ = ["__version__", "backend", "install", "uninstall"]
__version__ = "0.1.0"

_backend: Backend | None = None
_redirect: Redirect | None = None
_precision: Patches | None = None
_faults: Injection | None = None


def backend() -> Backend:
    """The accelerator in use."""
    if _backend is None:
        raise BackendError(
            "ditorch is not active in this process: call ditorch.install(), or unset DITORCH_DISABLE_MOCK."
        )
    return _backend


def install() -> Backend:
    """Chooses the accelerator and makes "cuda" mean it; `import ditorch` does it unless DITORCH_DISABLE_MOCK is 1."""
    global _backend, _redirect, _precision, _faults
    if _backend is not None:
        return _backend
    import torch  # here, because `python -m ditorch --help` imports this file, too

    from ditorch import discover

    chosen = discover.choose()
    if chosen.device_type != "cuda" and not chosen.migration_active():
        from ditorch.redirect import Redirect

        _redirect = Redirect(chosen)
    if FLOAT32_COLLECTIVES.get():  # on every backend, CUDA included
        from ditorch.redirect import precision

        _precision = precision.applied(FLOAT32_COLLECTIVES.get())
    _backend = chosen
    # users' scripts look for its last words
    framework = f"ditorch.framework: {chosen.module or 'torch'}:{_framework_version(chosen)}"
    said = [f"{chosen.name} ({chosen.title}) torch {torch.__version__} pid {os.getpid()} {framework}", *misspelt()]
    if FLOAT32_COLLECTIVES.get():
        said.append(f"16-bit tensors are reduced in float32 by {', '.join(FLOAT32_COLLECTIVES.get())}")
    if SIM_PROFILE.get():
        from ditorch import sim

        if chosen.name != "sim":
            raise SettingError(f"DITORCH_SIM_PROFILE is for the simulated accelerator, and {chosen.name} is in use.")
        said.append(f"the simulated accelerator behaves like {sim.rehearsed()}")
    if FAULTS.get():
        from ditorch.sim import faults

        _faults = faults.inject(FAULTS.get(), chosen.device_type)
        said.append(f"kernels broken by DITORCH_FAULTS: {', '.join(_faults.struck)}")
    # in one write: otherwise the lines of several processes mix
    text = "".join(f"ditorch: {line}\n" for line in said)
    sys.stderr.write(text)
    messages.keep(text)
    return chosen


def uninstall() -> None:
    """Puts everything in torch back as it was. The accelerator itself stays known to PyTorch, under its own name."""
    global _backend, _redirect, _precision, _faults
    if _faults is not None:
        _faults.remove()
    if _precision is not None:
        _precision.undo()
    if _redirect is not None:
        _redirect.undo()
    _backend = _redirect = _precision = _faults = None


def _framework_version(chosen: Backend) -> str:
    """Of the vendor's package; of torch where there is none."""
    import torch

    module = sys.modules.get(chosen.module) if chosen.module else None
    return str(getattr(module, "__version__", torch.__version__))


def _is_own_command() -> bool:
    """Whether this process is `ditorch …` or `python -m ditorch …`: the command then installs, and reports errors."""
    started_with = _original_arguments()
    return os.path.basename(sys.argv[0]) == "ditorch" or ["-m", "ditorch"] in (
        started_with[i : i + 2] for i in range(len(started_with))
    )


def _original_arguments() -> list[str]:
    """The command line as Python got it, with its own options."""
    if sys.version_info >= (3, 10):
        return sys.orig_argv
    count, arguments = ctypes.c_int(), ctypes.POINTER(ctypes.c_wchar_p)()
    ctypes.pythonapi.Py_GetArgcArgv(ctypes.byref(count), ctypes.byref(arguments))
    return [str(arguments[i]) for i in range(count.value)]


if not (_is_own_command() or DISABLE_MOCK.get()):
    install()
