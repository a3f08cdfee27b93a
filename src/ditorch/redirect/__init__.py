"""Makes "cuda" mean the accelerator that is there: a program written for CUDA then runs on it unchanged.

No mode and no subclass stands in the way of an op: strings are translated where PyTorch parses them (strings.py), and
what is left are attributes that were given another value, every one of them in patch.py's list, with its reason.
"""

from __future__ import annotations

from ditorch.backend import Backend
from ditorch.redirect import (
    amp,
    checkpoints,
    compiler,
    cuda,
    devices,
    distributed,
    exchange,
    operators,
    pinning,
    sharing,
    strings,
    triton,
)
from ditorch.redirect.patch import Patches


class Redirect:
    """The redirect in force; `undo()` puts everything back as it was."""

    def __init__(self, backend: Backend) -> None:
        self.patches = Patches()
        try:
            self.how = strings.apply(self.patches, backend.device_type)
            devices.apply(self.patches, backend)
            cuda.apply(self.patches, backend)
            amp.apply(self.patches, backend)
            checkpoints.apply(self.patches, backend)
            exchange.apply(self.patches, backend)
            pinning.apply(self.patches, backend)
            sharing.apply(self.patches, backend)
            distributed.apply(self.patches, backend)
            compiler.apply(self.patches, backend)
            triton.apply(self.patches, backend)
            operators.apply(self.patches, backend)
        except BaseException:  # swallows nothing: half a redirect is worse than none, whatever went wrong
            self.patches.undo()
            raise

    def undo(self) -> None:
        self.patches.undo()
