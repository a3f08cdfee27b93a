"""What a device says about itself."""

from __future__ import annotations

from typing import Any

import torch

from ditorch.redirect.cuda.target import Target, constant_for_compile

# The capability of a chip that has none. Programs ask in order to switch on bfloat16, fused attention and the like,
# which begin at 8.0; from 9.0 on they choose kernels that are written for NVIDIA's Hopper and newer.
_CAPABILITY = (8, 0)

# What CUDA has and other devices may not: as an NVIDIA GPU of that capability says it, but with one processor.
_DEFAULTS: dict[str, Any] = {
    "multi_processor_count": 1,
    "warp_size": 32,
    "max_threads_per_block": 1024,
    "max_threads_per_multi_processor": 2048,
    "regs_per_multiprocessor": 65536,
    "shared_memory_per_block": 49152,
    "shared_memory_per_block_optin": 166912,
    "shared_memory_per_multiprocessor": 167936,
    "L2_cache_size": 0,
    "clock_rate": 0,
    "memory_clock_rate": 0,
    "memory_bus_width": 0,
    "is_integrated": 0,
    "is_multi_gpu_board": 0,
    "gcnArchName": "",
    "uuid": "",
    "pci_bus_id": 0,
    "pci_device_id": 0,
    "pci_domain_id": 0,
}


class DeviceProperties:
    """The device's own properties, and CUDA's where it has none."""

    def __init__(self, target: Target, index: int) -> None:
        own = target.own("get_device_properties")
        self._own = target.call(own, index) if own else None
        self._backend = target.backend
        self._given = {"name": _name(target, index), "major": _CAPABILITY[0], "minor": _CAPABILITY[1]}
        if not hasattr(self._own, "total_memory"):
            self._given["total_memory"] = _total_memory(index)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        for values in (_attributes(self._own, name), self._given, _DEFAULTS):
            if name in values:
                return values[name]
        raise AttributeError(f"{self._backend.name} ({self._backend.title}) has no device property {name!r}")

    def __dir__(self) -> list[str]:
        return sorted({*dir(self._own), *self._given, *_DEFAULTS})

    def __repr__(self) -> str:
        gibibytes = self.total_memory / 2**30
        return (
            f"DeviceProperties(name={self.name!r}, major={self.major}, minor={self.minor}, "
            f"total_memory={gibibytes:.1f} GiB, multi_processor_count={self.multi_processor_count})"
        )


def _attributes(own: Any, name: str) -> dict[str, Any]:
    value = getattr(own, name, None)
    return {} if value is None else {name: value}


def _name(target: Target, index: int) -> str:
    own = target.own("get_device_name")
    return str(target.call(own, index)) if own else target.backend.title


def _total_memory(index: int) -> int:
    return int(torch.cuda.mem_get_info(index)[1])


def names(target: Target) -> dict[str, Any]:
    own_capability = target.own("get_device_capability")
    own_bf16, own_tf32 = target.own("is_bf16_supported"), target.own("is_tf32_supported")
    own_peer = target.own("can_device_access_peer")

    def get_device_name(device: Any = None) -> str:
        index = target.index(device)
        target.check(index)
        return _name(target, index)

    def get_device_properties(device: Any = None) -> DeviceProperties:
        index = target.index(device)
        target.check(index)
        return DeviceProperties(target, index)

    def _get_device_properties(device: int) -> DeviceProperties:
        return get_device_properties(device)

    def get_device_capability(device: Any = None) -> tuple[int, int]:
        index = target.index(device)
        target.check(index)
        found = target.call(own_capability, index) if own_capability else None
        if isinstance(found, tuple) and len(found) == 2:  # some devices return None, others a table of features
            return (int(found[0]), int(found[1]))
        properties = get_device_properties(index)
        return (properties.major, properties.minor)

    def is_bf16_supported(including_emulation: bool = True) -> bool:
        return bool(own_bf16()) if own_bf16 else "bfloat16" not in target.backend.lacks_dtypes

    def is_tf32_supported() -> bool:
        return bool(own_tf32()) if own_tf32 else False

    def can_device_access_peer(device: Any, peer_device: Any) -> bool:
        index, peer = target.index(device), target.index(peer_device, optional=False)
        target.check(index)
        target.check(peer)
        return bool(own_peer(index, peer)) if own_peer else False

    return {
        "get_device_name": get_device_name,
        "get_device_properties": get_device_properties,
        "_CudaDeviceProperties": DeviceProperties,
        "_get_device_properties": _get_device_properties,
        "get_device_capability": constant_for_compile(get_device_capability),
        "is_bf16_supported": constant_for_compile(is_bf16_supported),
        "is_tf32_supported": constant_for_compile(is_tf32_supported),
        "can_device_access_peer": can_device_access_peer,
    }
