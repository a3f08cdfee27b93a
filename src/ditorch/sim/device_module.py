"""`torch.sim`: what torch.cuda is to CUDA, for the simulated accelerator.

PyTorch finds it by `torch.get_device_module("sim")` and calls many of these names itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Union

import torch

from ditorch.sim import sharing

DeviceLike = Union[torch.device, int, str, None]

device_type = "sim"  # set by start(): the name the device carries


# ---- devices -----------------------------------------------------------------------------------------------------


def is_available() -> bool:
    return device_count() > 0


def is_initialized() -> bool:
    """Whether the program has used the device yet: until then, a device mesh may choose the process' device."""
    return bool(torch.ops.ditorch_sim.is_used())


def __getattr__(name: str) -> Any:
    if name == "_initialized":  # torch.utils.checkpoint looks here before it keeps random states
        return is_initialized()
    if name == f"{device_type.upper()}Graph":
        return graphs.Graph
    if name == "default_generators":  # one per device; how many devices are visible is open until the first use
        return tuple(map(_generator, range(device_count())))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def init() -> None:
    """Nothing to do: start() has done it."""


_lazy_init = init


def _is_in_bad_fork() -> bool:
    return False  # host memory and host kernels survive a fork


def device_count() -> int:
    return int(torch.ops.ditorch_sim.device_count())


def current_device() -> int:
    """The number of the current device; an error where none is visible."""
    return int(torch.ops.ditorch_sim.current_device())


def set_device(device: DeviceLike) -> None:
    torch.ops.ditorch_sim.set_device(_index(device))


def synchronize(device: DeviceLike = None) -> None:
    """Waits until the device's queues have run out on the simulated clock."""
    torch.ops.ditorch_sim.synchronize(_index(device))


def get_device_name(device: DeviceLike = None) -> str:
    return f"Simulated accelerator {device_type}:{_index(device)}"


@dataclass(frozen=True)
class DeviceProperties:
    name: str
    total_memory: int
    uuid: str  # of the machine's device, whatever number it has in this process
    pci_bus_id: int


def get_device_properties(device: DeviceLike = None) -> DeviceProperties:
    number = torch.ops.ditorch_sim.visible_devices()[_index(device)]
    uuid = torch.ops.ditorch_sim.device_uuid(number)
    return DeviceProperties(get_device_name(device), mem_get_info(device)[1], uuid, number)


class device:
    """Makes another device the current one: `with torch.sim.device(1): …`"""

    def __init__(self, device: DeviceLike) -> None:
        self.index = _index(device)
        self._previous = -1

    def __enter__(self) -> None:
        self._previous = current_device()
        if self.index >= 0:  # as in torch.cuda, -1 changes nothing
            set_device(self.index)

    def __exit__(self, *_: object) -> None:
        set_device(self._previous)


def _index(device: DeviceLike) -> int:
    if device is None:
        return current_device()
    if isinstance(device, int):
        return device
    device = torch.device(device)
    if device.type != device_type:
        raise ValueError(f"Expected a {device_type} device, but got: {device}")
    return current_device() if device.index is None else device.index


# ---- random numbers ----------------------------------------------------------------------------------------------


def _generator(index: int) -> torch.Generator:
    generator = torch.ops.ditorch_sim.default_generator(index)
    assert isinstance(generator, torch.Generator)
    return generator


def manual_seed(seed: int) -> None:
    if is_available():  # as with CUDA, ignored where no device is visible
        _seed(current_device(), seed)


def _seed(index: int, seed: int) -> None:
    """Seeds are 64 bits without a sign; PyTorch's operators take numbers with one."""
    bits = int(seed) % 2**64
    torch.ops.ditorch_sim.seed(index, bits - 2**64 if bits >= 2**63 else bits)


def manual_seed_all(seed: int) -> None:
    for index in range(device_count()):
        _seed(index, seed)


def seed() -> None:
    if is_available():
        _generator(current_device()).seed()


def seed_all() -> None:
    if is_available():
        manual_seed_all(_generator(current_device()).seed())


def initial_seed() -> int:
    return _generator(current_device()).initial_seed()


def get_rng_state(device: DeviceLike = None) -> torch.Tensor:
    return _generator(_index(device)).get_state()


def set_rng_state(new_state: torch.Tensor, device: DeviceLike = None) -> None:
    _generator(_index(device)).set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    return [_generator(index).get_state() for index in range(device_count())]


def set_rng_state_all(new_states: list[torch.Tensor]) -> None:
    for index, state in zip(range(device_count()), new_states):
        _generator(index).set_state(state)


# ---- numbers it computes in --------------------------------------------------------------------------------------


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.float16, torch.bfloat16]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    return True


# ---- memory ------------------------------------------------------------------------------------------------------


def _memory_statistic(device: DeviceLike, name: str) -> int:
    return int(torch.ops.ditorch_sim.memory_statistic(_index(device), name))


def memory_allocated(device: DeviceLike = None) -> int:
    return _memory_statistic(device, "current")


def max_memory_allocated(device: DeviceLike = None) -> int:
    return _memory_statistic(device, "peak")


# Nothing is cached but memory of graphs.
def memory_reserved(device: DeviceLike = None) -> int:
    return _memory_statistic(device, "reserved")


def max_memory_reserved(device: DeviceLike = None) -> int:
    return max(max_memory_allocated(device), memory_reserved(device))


def memory_stats(device: DeviceLike = None) -> dict[str, int]:
    stats = {"allocation.all.allocated": _memory_statistic(device, "allocations")}
    for kind in ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes"):
        stats[f"{kind}.all.current"] = memory_allocated(device)
        stats[f"{kind}.all.peak"] = max_memory_allocated(device)
        stats[f"{kind}.all.allocated"] = _memory_statistic(device, "total")
        stats[f"{kind}.all.freed"] = stats[f"{kind}.all.allocated"] - stats[f"{kind}.all.current"]
    stats["num_ooms"] = _memory_statistic(device, "out_of_memory")
    return stats


def reset_peak_memory_stats(device: DeviceLike = None) -> None:
    torch.ops.ditorch_sim.reset_peak_memory(_index(device))


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    """Free and total bytes."""
    total = int(torch.ops.ditorch_sim.memory_limit())
    return total - memory_allocated(device), total


def empty_cache() -> None:
    """Nothing is cached."""


def set_memory_limit(bytes: int) -> None:
    """From now on, allocating more than this on one device is an out-of-memory error."""
    torch.ops.ditorch_sim.set_memory_limit(bytes)


# ---- memory that several processes have --------------------------------------------------------------------------

_host_alias = sharing.host_alias
_share_storage, _follow_storage, _adopt_storage = sharing.share_storage, sharing.follow_storage, sharing.adopt_storage


# ---- streams and events ------------------------------------------------------------------------------------------


def _sleep(nanoseconds: int) -> None:
    """Queues device time on the current stream; the host goes on at once."""
    torch.ops.ditorch_sim.sleep(nanoseconds)


_SYNC_DEBUG_MODES = ("default", "warn", "error")


def set_sync_debug_mode(debug_mode: int | str) -> None:
    """Whether what makes the host wait for the device (`item()`, `nonzero()`, a blocking copy …) warns or raises."""
    modes: dict[Any, int] = {key: mode for mode, name in enumerate(_SYNC_DEBUG_MODES) for key in (mode, name)}
    if debug_mode not in modes:
        raise RuntimeError(f"invalid value of debug_mode, expected one of {', '.join(_SYNC_DEBUG_MODES)}: {debug_mode}")
    torch.ops.ditorch_sim.set_sync_debug_mode(modes[debug_mode])


def get_sync_debug_mode() -> int:
    """0 for "default", 1 for "warn", 2 for "error"."""
    return int(torch.ops.ditorch_sim.sync_debug_mode())


class Stream(torch.Stream):
    """A queue of device work."""

    def __new__(cls, device: DeviceLike = None, priority: int = 0) -> Stream:
        on = torch.device(device_type, _index(device))
        return torch.Stream.__new__(cls, device=on, priority=priority)

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """The lowest and the highest priority."""
        return 0, int(torch.ops.ditorch_sim.highest_stream_priority())


class ExternalStream(Stream):
    """The stream that has this handle."""

    def __new__(cls, stream_ptr: int, device: DeviceLike = None) -> torch.Stream:  # type: ignore[misc]
        return _stream(_index(device), stream_ptr)


def get_stream_from_external(data_ptr: int, device: DeviceLike = None) -> torch.Stream:
    return _stream(_index(device), data_ptr)


def _stream_handle(stream: torch.Stream) -> int:
    """The number that stands for a stream outside PyTorch; 0 is the default stream's, as on CUDA."""
    return stream.stream_id


def _stream_priority(stream: torch.Stream) -> int:
    return int(torch.ops.ditorch_sim.stream_priority(stream.stream_id))


class Event(torch.Event):
    """A point in a stream, on the simulated clock. Creating one gives a plain torch.Event, the only kind that
    torch.Event.elapsed_time accepts."""

    def __new__(  # type: ignore[misc]
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> torch.Event:
        return torch.Event(device=torch.device(device_type, current_device()), enable_timing=enable_timing)


def _event_handle(event: torch.Event) -> bytes:
    return sharing.event_handle(event)


def _event_from_handle(device: DeviceLike, handle: bytes) -> torch.Event:
    event = torch.Event(device=torch.device(device_type, _index(device)))
    return sharing.event_from_handle(event, handle)


def current_stream(device: DeviceLike = None) -> torch.Stream:
    index = _index(device)
    return _stream(index, torch.ops.ditorch_sim.current_stream(index))


def default_stream(device: DeviceLike = None) -> torch.Stream:
    return _stream(_index(device), 0)


def _stream(index: int, number: int) -> torch.Stream:
    return torch.Stream(stream_id=number, device_index=index, device_type=_device_type_number())


@lru_cache(maxsize=1)
def _device_type_number() -> int:
    return int(torch.Stream(device=torch.device(device_type, 0)).device_type)


def set_stream(stream: torch.Stream) -> None:
    """The stream's device becomes the current one, too."""
    torch.ops.ditorch_sim.set_stream(stream.device.index, stream.stream_id)


class stream:
    """Makes another stream the current one: `with torch.sim.stream(s): …`; None changes nothing."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream
        self._previous: torch.Stream | None = None
        self._previous_device = -1

    def __enter__(self) -> None:
        if self.stream is not None:
            self._previous_device = current_device()
            self._previous = current_stream(self.stream.device)
            set_stream(self.stream)

    def __exit__(self, *_: object) -> None:
        if self._previous is not None:
            set_stream(self._previous)
            set_device(self._previous_device)


# ---- graphs ------------------------------------------------------------------------------------------------------

from ditorch.sim import graphs  # noqa: E402 - made of the names above
from ditorch.sim.graphs import graph, graph_pool_handle, is_current_stream_capturing  # noqa: E402, F401
