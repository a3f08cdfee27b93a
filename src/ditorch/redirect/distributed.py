"""torch.distributed: "nccl" means the accelerator's collectives, and what those lack is made from what they have."""

from __future__ import annotations

import functools
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, Callable, NoReturn

import torch

from ditorch import sharding
from ditorch.backend import Backend
from ditorch.errors import MissingOnBackendError
from ditorch.redirect import coalescing, reductions, splitting, symmetric_memory
from ditorch.redirect.names import translated
from ditorch.redirect.patch import Patches

_NCCL_TIMEOUT = timedelta(minutes=10)


def apply(patches: Patches, backend: Backend) -> None:
    if not torch.distributed.is_available() or backend.collectives is None:
        return
    _translate_names(patches, backend.device_type, backend.collectives)
    _stand_in_for_nccl(patches, backend)
    _compress_to_bfloat16(patches)
    _wait_where_streams_cannot(patches)
    reductions.apply(patches, backend)
    coalescing.apply(patches)
    splitting.apply(patches, backend)
    symmetric_memory.apply(patches, backend)
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

    original_config = distributed_c10d.BackendConfig.__init__

    @functools.wraps(original_config)
    def config(self: Any, name: Any) -> None:
        original_config(self, own(name))
        chosen = self.device_backend_map  # without a name, PyTorch chooses "nccl" for what says that it is cuda
        for device in [device for device, backend in chosen.items() if backend == "nccl"]:
            del chosen[device]
            chosen[device_type] = distributed_c10d.Backend(collectives)

    why = '"nccl" is in the program, which is told so again by get_backend; the accelerator has collectives of its own'
    patches.assign(distributed_c10d.BackendConfig, "__init__", config, why)
    types = distributed_c10d.Backend.backend_type_map
    own_type = types.get(collectives, torch.distributed.ProcessGroup.BackendType.CUSTOM)
    patches.assign(distributed_c10d.Backend, "backend_type_map", {**types, "nccl": own_type}, why)
    if not hasattr(torch.distributed.ProcessGroup, "_set_default_backend"):  # torch 2.5 and older ask by name in C++
        options: Any = vars(torch.distributed.ProcessGroup)["Options"]

        class Options(options):  # type: ignore[misc]
            """What a group is made with; the backend is the one that it will have."""

            def __init__(self, backend: str) -> None:
                super().__init__(own(backend))

        patches.assign(torch.distributed.ProcessGroup, "Options", Options, why)
    if getattr(distributed_c10d, "default_pg_nccl_timeout", timedelta()) is None:
        patches.assign(distributed_c10d, "default_pg_nccl_timeout", _NCCL_TIMEOUT, "this PyTorch has no NCCL")
    for owner in (torch.distributed, distributed_c10d):
        patches.assign(owner, "is_nccl_available", _true(), "programs ask it before they say nccl")
    _say_nccl(patches, device_type, collectives)
    _default_to_own(patches, own_type, collectives)


def _default_to_own(patches: Patches, own_type: Any, collectives: str) -> None:
    """A group asks its default backend for its name and hooks; of several, PyTorch makes NCCL the default, by name."""
    from torch.distributed import distributed_c10d

    if not hasattr(torch.distributed.ProcessGroup, "_set_default_backend"):  # torch 2.5 and older
        return
    original = distributed_c10d._new_process_group_helper

    @functools.wraps(original)
    def make(*arguments: Any, **options: Any) -> Any:
        made = original(*arguments, **options)
        group = made[0]  # and its store; no ProcessGroup in a process that is not in it
        config = distributed_c10d._world.pg_backend_config.get(group, "")
        if any(part.endswith(f":{collectives}") for part in config.split(",")):
            group._set_default_backend(own_type)
        return made

    patches.assign(
        distributed_c10d, "_new_process_group_helper", make, "the accelerator's collectives are the default, as NCCL is"
    )


def _say_nccl(patches: Patches, device_type: str, collectives: str) -> None:
    """get_backend_config speaks in the program's words, as get_backend does by itself."""
    from torch.distributed import distributed_c10d

    original = getattr(distributed_c10d, "get_backend_config", None)
    if original is None:
        return

    @functools.wraps(original)
    def get_backend_config(group: Any = None) -> str:
        said: str = original(group)
        if distributed_c10d.get_backend(group) == collectives:
            return said
        parts = [part.split(":") for part in said.split(",")]
        own = [part for part in parts if part[-1] == collectives]
        others = [part for part in parts if part[-1] != collectives]
        # ours may serve the CPU as well, NCCL never does
        named = [["cuda", "nccl"]] if any(part[0] in (device_type, "cuda") for part in own) else own
        return ",".join(":".join(part) for part in (*others, *named))

    why = "nccl is what the program asked for"
    for owner in (torch.distributed, distributed_c10d):
        if hasattr(owner, "get_backend_config"):
            patches.assign(owner, "get_backend_config", get_backend_config, why)


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


def _compress_to_bfloat16(patches: Patches) -> None:
    """DistributedDataParallel refuses bf16_compress_hook, which it knows by name, unless PyTorch was built for CUDA."""
    from torch.nn.parallel import DistributedDataParallel

    original = DistributedDataParallel._check_comm_hook

    def check(self: Any, hook: Any) -> None:
        if getattr(hook, "__name__", "").startswith("bf16_compress"):
            named = hook
            hook = functools.wraps(named)(lambda *args: named(*args))
            hook.__name__ = "compress_hook"
        original(self, hook)  # type: ignore[no-untyped-call]

    patches.assign(DistributedDataParallel, "_check_comm_hook", check, "bfloat16 can be reduced without CUDA, too")


def _wait_where_streams_cannot(patches: Patches) -> None:
    """Work.block_current_stream needs a kernel that PyTorch has for CUDA alone: elsewhere the work is waited for."""
    work = torch.distributed.Work
    original = getattr(work, "block_current_stream", None)
    if original is None:
        return

    @functools.wraps(original)
    def block_current_stream(self: Any) -> None:
        try:
            original(self)
        except RuntimeError:  # no kernel, or CUDA's, which finds no driver
            self.wait()  # raises in its turn if the work has failed

    patches.assign(work, "block_current_stream", block_current_stream, "its kernel is built for CUDA alone")


def _true() -> Callable[[], bool]:
    return lambda: True  # a function of its own each time: torch.compile keeps a table of functions by identity
