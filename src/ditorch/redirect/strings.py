"""Makes the string "cuda" mean the accelerator, wherever a program hands it to PyTorch.

Natively, where PyTorch parses device strings (csrc/device_string.cpp): complete, and free of cost. Where that cannot be
(no compiler, a system that refuses, no Linux), by wrappers over every function that takes a device: they cost a
microsecond per call of those functions and miss strings inside TorchScript.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

from ditorch.redirect import probe, wrappers
from ditorch.redirect.patch import Patches
from ditorch.settings import NATIVE_REDIRECT
from ditorch_shared.native import NativeError, NativeLibrary

_LIBRARY = NativeLibrary(
    name="redirect",
    title="The redirect of device strings",
    main=Path(__file__).parent / "csrc" / "device_string.cpp",
    probe="ditorch.redirect.probe",
    uses_torch=False,
    quiet=True,
)


def apply(patches: Patches, device_type: str) -> str:
    """Redirects device strings and says in a few words how."""
    reason = _natively(patches, device_type) if NATIVE_REDIRECT.get() else "DITORCH_NATIVE_REDIRECT=0"
    if reason is None:
        return "natively"
    wrappers.apply(patches, device_type)
    return f"by wrappers, because {reason}"


def _natively(patches: Patches, device_type: str) -> str | None:
    """Why it cannot be done; None: it is done."""
    try:
        hook = ctypes.CDLL(str(_LIBRARY.path()))
    except NativeError as error:
        return str(error).splitlines()[0]
    except OSError as error:
        return f"the library cannot be loaded: {error}"
    if hook.ditorch_redirect_strings(device_type.encode()) <= 0:
        hook.ditorch_restore_strings()
        return "PyTorch's parser of device strings cannot be reached in this process"
    try:
        probe.check(device_type)
    except (AssertionError, RuntimeError) as error:
        hook.ditorch_restore_strings()
        return f"it failed its own test: {error}"
    patches.on_undo(hook.ditorch_restore_strings)
    return None
