"""torch.distributed: "nccl" means the accelerator's collectives, and what those lack is made from what they have."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any, Callable, NoReturn

import torch

from ditorch import sharding
from ditorch.backend import Backend
from ditorch.errors import MissingOnBackendError
from ditorch.redirect import coalescing, reductions
from ditorch.redirect.names import translated
from ditorch.redirect.patch import Patches


def apply(patches: Patches, backend: Backend) -> None:
    if not torch.distributed.is_available() or backend.collectives is None:
        return
    _translate_names(patches, backend.device_type, backend.collectives)
    _stand_in_for_nccl(patches, backend)
    reductions.apply(patches, backend)
    coalescing.apply(patches)
    patches.on_undo(sharding.teach_attention())


def _translate_names(patches: Patches, device_type: str, collectives: str) -> None:
    from torch.distributed import distributed_c10d

    def own(name: Any) -> Any:
        """ "nccl" or "cuda:nccl,cpu:gloo" in the accelerator's words."""
        if not isinstance(name, str) or "nccl" not in name.lower():
            return name
        parts = [part.strip().split(":") for part in name.lower().split(",")]
        return ",".join(
            ":".join(collectives if word == "nccl" else translated(word, device_type) for word in part)
            for part in parts
        )

    original_new = distributed_c10d.Backend.__new__
    original_config = distributed_c10d.BackendConfig.__init__

    def new(cls: Any, name: Any) -> Any:
        return original_new(cls, own(name))

    @functools.wraps(original_config)
    def config(self: Any, name: Any) -> None:
        original_config(self, own(name))

    why = '"nccl" is in the program; the accelerator has collectives of its own'
    patches.assign(distributed_c10d.Backend, "__new__", staticmethod(new), why)
    patches.assign(distributed_c10d.BackendConfig, "__init__", config, why)
    for owner in (torch.distributed, distributed_c10d):
        patches.assign(owner, "is_nccl_available", _true(), "programs ask it before they say nccl")


def _stand_in_for_nccl(patches: Patches, backend: Backend) -> None:
    """Whoever believes is_nccl_available() goes on to ask whether a group is NCCL's, or to make options for one."""
    from torch.distributed import distributed_c10d

    if hasattr(distributed_c10d, "ProcessGroupNCCL"):
        return

    class Options:
        """Options of NCCL; they can be set and change nothing."""

        def __init__(self, is_high_priority_stream: bool = False) -> None:
            self.is_high_priority_stream = is_high_priority_stream
            self.config = SimpleNamespace()

    def refuse(cls: type, *_: Any, **__: Any) -> NoReturn:
        raise MissingOnBackendError(
            f"torch.distributed.ProcessGroupNCCL does not exist on {backend.name} ({backend.title}): it needs NCCL. "
            "Make groups by torch.distributed.init_process_group and new_group."
        )

    made = type("ProcessGroupNCCL", (), {"__new__": refuse, "Options": Options})
    for owner in (torch.distributed, distributed_c10d):
        patches.assign(owner, "ProcessGroupNCCL", made, "is_nccl_available() says that it is there")


def _true() -> Callable[[], bool]:
    return lambda: True  # a function of its own each time: torch.compile keeps a table of functions by identity
