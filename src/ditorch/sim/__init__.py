"""The simulated accelerator: a device of its own to PyTorch, on a machine that has none.

    >>> import os; os.environ["DITORCH_DISABLE_MOCK"] = "1"  # otherwise it is started, and called cuda, by the import
    >>> import torch
    >>> from ditorch import sim
    >>> sim.start()
    >>> torch.ones(3, device="sim") + 1
    tensor([2., 2., 2.], device='sim:0')

Its memory is host memory and its kernels are the CPU's, run on the same memory without a copy; but tensors on different
devices do not mix, streams and events keep a simulated clock, memory is counted and can run out, and several processes
can talk by collectives. Its kernels can be broken on purpose: see `ditorch.sim.faults`.

Limits: no quantized tensors, sparse and nested ones as far as the CPU has kernels for them, one PrivateUse1 backend per
process, torch 2.4 or newer, and a C++ compiler on first use.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import re
import sys
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, Callable

import torch
from torch.utils import backend_registration

from ditorch.errors import SimulatorError
from ditorch.settings import REHEARSAL, SIM_16BIT, SIM_DEVICES, SIM_MEMORY, SIM_PROFILE

__all__ = ["start", "started_as"]

_started_as: str | None = None
_MAX_UNKNOWN = 5  # kernels of a profile that are named
_rehearsed: str = ""  # the chip that it behaves like


def rehearsed() -> str:
    """The chip of DITORCH_SIM_PROFILE, as text; nothing where it behaves like itself."""
    return _rehearsed


def started_as() -> str | None:
    """The device type the simulated accelerator runs under in this process, or None if it was not started."""
    return _started_as


def start(name: str = "sim", collectives: str | None = None) -> ModuleType:
    """Starts the simulated accelerator as device type `name` and returns its module, which is `torch.<name>` too.

    `name` may be a real chip's (`npu`, `mlu`, …), to rehearse what runs on that chip. `collectives` names its backend
    in torch.distributed, `<name>ccl` unless told. Starting it again under the same name does nothing.
    """
    global _started_as
    if _started_as is None:
        from ditorch.sim import build

        _check_name(name)
        register(build.library(), name, collectives or f"{name}ccl")
        _started_as = name
        if SIM_PROFILE.get():
            _behave_like(SIM_PROFILE.get(), name)
    elif name != _started_as:
        raise SimulatorError(
            f"The simulated accelerator runs as '{_started_as}' in this process already and cannot become '{name}': "
            "PyTorch has room for one such device per process. Use another process; where `import ditorch` has started "
            "it, set DITORCH_DISABLE_MOCK=1 before that."
        )
    from ditorch.sim import device_module

    return device_module


def _behave_like(profile_name: str, name: str) -> None:
    global _rehearsed
    from ditorch.sim.chip_profile import ChipProfile
    from ditorch.sim.rehearsal import Rehearsal

    profile = ChipProfile.read(profile_name)
    unknown = profile.unknown()
    if unknown:
        more = f" and {len(unknown) - _MAX_UNKNOWN} more" if len(unknown) > _MAX_UNKNOWN else ""
        named = ", ".join(unknown[:_MAX_UNKNOWN])
        print(
            f"ditorch: the profile {profile_name} names kernels that this torch lacks: {named}{more}", file=sys.stderr
        )
    Rehearsal(profile, name, REHEARSAL.get())  # the dispatcher holds it
    _rehearsed = f"{profile.chip}, by a profile that was {profile.source}"


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or _is_torchs_own(name):
        raise SimulatorError(
            f"'{name}' cannot name the simulated accelerator: PyTorch wants a lower-case word that is not the name of "
            "one of its own devices, such as 'sim' or 'npu'."
        )
    owner = _privateuse1_name()
    if owner not in ("privateuseone", name):
        raise SimulatorError(
            f"The simulated accelerator cannot start: the backend '{owner}' has taken PyTorch's one place for outside "
            f"devices (PrivateUse1) in this process. Use '{owner}' itself, or a process that does not import it."
        )


def _is_torchs_own(name: str) -> bool:
    try:
        return bool(torch.device(name)) and name != _privateuse1_name()
    except RuntimeError:  # not a device that PyTorch knows
        return False


def _privateuse1_name() -> str:
    get_name = getattr(torch._C, "_get_privateuse1_backend_name", None)
    return get_name() if get_name else "privateuseone"


def register(library: Path, name: str, collectives: str) -> None:
    """Loads a built library and tells PyTorch all about the device. start() does it, and the probe of a new build."""
    from ditorch import sharding
    from ditorch.sim import attention, batch_norm, device_module, int4_products, packed_attention, products, rnn

    SIM_DEVICES.get()  # the C++ side reads it; a malformed value is reported here
    limit, arithmetic = SIM_MEMORY.get() or _host_memory(), SIM_16BIT.get()
    torch.ops.load_library(str(library))
    torch.ops.ditorch_sim.register_backend()
    torch.ops.ditorch_sim.set_memory_limit(limit)
    torch.ops.ditorch_sim.compute_products_in_float32(arithmetic == "float32")
    backend_registration.rename_privateuse1_backend(name)
    device_module.device_type = name
    torch._register_device_module(name, device_module)
    torch.ops.ditorch_sim.register_accelerator_graph()
    backend_registration.generate_methods_for_privateuse1_backend(for_storage=True)
    in_python = (rnn, batch_norm, attention, packed_attention, products, int4_products)
    _register_kernels({name: kernel for module in in_python for name, kernel in module.KERNELS.items()})
    _register_collectives(name, collectives)
    sharding.teach_attention()
    atexit.register(_finish_backward_threads)


_python_kernels: torch.library.Library | None = None  # kernels live as long as their library object


def _register_kernels(kernels: dict[str, Callable[..., Any]]) -> None:
    """Kernels that are composed of the device's others, in Python."""
    global _python_kernels
    _python_kernels = torch.library.Library("aten", "IMPL")
    for name, kernel in kernels.items():
        operator = _operator(name)
        if operator is not None:
            _python_kernels.impl(name, _recorded(operator, kernel), "PrivateUse1")


def _operator(name: str) -> torch._ops.OpOverload | None:
    """None in an older torch that lacks it."""
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)


def _recorded(operator: torch._ops.OpOverload, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """While a graph is captured, the call is recorded as a whole."""
    from ditorch.sim import graphs

    @functools.wraps(kernel)
    def run(*arguments: Any, **named: Any) -> Any:
        if graphs.must_record():
            return graphs.record(operator, *arguments, **named)
        return kernel(*arguments, **named)

    return run


def _register_collectives(device_type: str, backend_name: str) -> None:
    """The device's collectives are gloo's: the C++ side hands it the device's memory as the CPU's."""
    if not torch.distributed.is_available():
        return

    def create(store: Any, rank: int, size: int, timeout: timedelta) -> object:
        return torch.distributed.ProcessGroupGloo(store, rank, size, timeout=timeout)

    torch.distributed.Backend.register_backend(backend_name, create, devices=[device_type, "cpu"])


def _host_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _finish_backward_threads() -> None:
    # PyTorch refuses in a forked child of a process that ran backward; there are no threads to wait for then.
    with contextlib.suppress(RuntimeError):
        torch.ops.ditorch_sim.finish_backward_threads()
