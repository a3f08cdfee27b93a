"""The simulated accelerator's library, built on first use (see `ditorch_shared.native`)."""

from __future__ import annotations

from pathlib import Path

import torch

from ditorch.errors import SimulatorError
from ditorch_shared import libraries
from ditorch_shared.native import NativeError, torch_release

_OLDEST_TORCH = (2, 4)
_WAY_ON = "To go on without it, on the plain CPU: DITORCH_BACKEND=cpu."


def library() -> Path:
    """The path of the library for this torch, built now if need be."""
    if torch_release() < _OLDEST_TORCH:
        raise SimulatorError(
            f"The simulated accelerator needs torch {'.'.join(map(str, _OLDEST_TORCH))} or newer, and this is "
            f"{torch.__version__}. {_WAY_ON}"
        )
    try:
        return libraries.simulator()
    except NativeError as error:
        between = "\n" if "\n" in str(error) else " "
        raise SimulatorError(f"{error}{between}{_WAY_ON}") from error
