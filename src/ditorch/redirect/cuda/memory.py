"""Memory: what the device counts, under the names and keys of CUDA."""

from __future__ import annotations

import contextlib
import os
import pickle
import warnings
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, Callable

import torch

from ditorch.redirect.cuda.target import Target

_POOLS = ("all", "large_pool", "small_pool")
_METRICS = ("current", "peak", "allocated", "freed")
_KINDS = (
    *("allocation", "allocated_bytes", "segment", "reserved_bytes", "active", "active_bytes"),
    *("inactive_split", "inactive_split_bytes", "requested_bytes"),
)
_KEYS = (
    *(f"{kind}.{pool}.{metric}" for kind in _KINDS for pool in _POOLS for metric in _METRICS),
    *(f"oversize_{kind}.{metric}" for kind in ("allocations", "segments") for metric in _METRICS),
    *("num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free"),
    "max_split_size",
)
_TIMES = ("total", "max", "min", "count", "avg")
_HOST_KEYS = (
    *(f"{kind}.{metric}" for kind in _KINDS[:6] for metric in _METRICS),
    *(f"host_{what}_time.{part}" for what in ("alloc", "free") for part in _TIMES),
    *("num_host_alloc", "num_host_free"),
)

_APPLE = {"memory_allocated": "current_allocated_memory", "memory_reserved": "driver_allocated_memory"}


def names(target: Target) -> dict[str, Any]:
    return {**_counts(target), **_statistics(target), **_allocator(target)}


def _counted(target: Target, name: str) -> Callable[[Any], int]:
    own = target.own(name) or target.own(_APPLE.get(name, name))
    generic = target.first(name, name)

    def count(device: Any) -> int:
        if own:
            return int(target.call(own, device))
        target.index(device)  # refuses what is no device
        with contextlib.suppress(RuntimeError):  # the device's allocator does not count
            return int(target.call(generic, device)) if generic else 0
        return 0

    return count


def _counts(target: Target) -> dict[str, Any]:
    allocated, max_allocated = _counted(target, "memory_allocated"), _counted(target, "max_memory_allocated")
    reserved, max_reserved = _counted(target, "memory_reserved"), _counted(target, "max_memory_reserved")
    reset = target.first("reset_peak_memory_stats", "reset_peak_memory_stats")
    info = target.first("mem_get_info", "get_memory_info")
    limit = target.own("recommended_max_memory")  # Apple's

    def memory_allocated(device: Any = None) -> int:
        return allocated(device)

    def max_memory_allocated(device: Any = None) -> int:
        return max_allocated(device)

    def memory_reserved(device: Any = None) -> int:
        return reserved(device)

    def max_memory_reserved(device: Any = None) -> int:
        return max_reserved(device)

    def memory_cached(device: Any = None) -> int:
        return reserved(device)

    def max_memory_cached(device: Any = None) -> int:
        return max_reserved(device)

    def reset_peak_memory_stats(device: Any = None) -> None:
        target.index(device)
        if reset:
            target.call(reset, device)

    def reset_max_memory_allocated(device: Any = None) -> None:
        reset_peak_memory_stats(device)

    def reset_max_memory_cached(device: Any = None) -> None:
        reset_peak_memory_stats(device)

    def mem_get_info(device: Any = None) -> tuple[int, int]:
        if target.own("mem_get_info") or (info and not limit):
            assert info is not None
            free, total = target.call(info, device)
            return (int(free), int(total))
        target.check(target.index(device))
        if limit:
            return (int(limit()) - memory_reserved(device), int(limit()))
        return _host_memory()

    def device_memory_used(device: Any = None) -> int:
        free, total = mem_get_info(device)
        return total - free

    return {
        "memory_allocated": memory_allocated,
        "max_memory_allocated": max_memory_allocated,
        "memory_reserved": memory_reserved,
        "max_memory_reserved": max_memory_reserved,
        "memory_cached": memory_cached,
        "max_memory_cached": max_memory_cached,
        "reset_peak_memory_stats": reset_peak_memory_stats,
        "reset_max_memory_allocated": reset_max_memory_allocated,
        "reset_max_memory_cached": reset_max_memory_cached,
        "mem_get_info": mem_get_info,
        "device_memory_used": device_memory_used,
    }


def _host_memory() -> tuple[int, int]:
    page = os.sysconf("SC_PAGE_SIZE")
    return page * os.sysconf("SC_AVPHYS_PAGES"), page * os.sysconf("SC_PHYS_PAGES")


def _statistics(target: Target) -> dict[str, Any]:
    statistics = target.first("memory_stats", "memory_stats")
    reset = target.first("reset_accumulated_memory_stats", "reset_accumulated_memory_stats")
    processes = target.own("list_gpu_processes")
    snapshot = target.own("memory_snapshot")

    def memory_stats(device: Any = None) -> dict[str, Any]:
        stats: dict[str, Any] = dict.fromkeys(_KEYS, 0)
        for kind, what in (("allocated_bytes", "allocated"), ("reserved_bytes", "reserved")):
            stats[f"{kind}.all.current"] = getattr(torch.cuda, f"memory_{what}")(device)
            stats[f"{kind}.all.peak"] = getattr(torch.cuda, f"max_memory_{what}")(device)
        with contextlib.suppress(RuntimeError):  # the device's allocator does not count
            stats.update(target.call(statistics, device) if statistics else {})
        return OrderedDict(sorted(stats.items()))

    def memory_stats_as_nested_dict(device: Any = None) -> dict[str, Any]:
        return _nested(memory_stats(device))

    def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
        return _summary(target, target.index(device), memory_stats(device), abbreviated)

    def list_gpu_processes(device: Any = None) -> str:
        if processes:
            return str(target.call(processes, device))
        used = torch.cuda.memory_reserved(device) / 2**20
        return f"GPU:{target.index(device)}\nprocess {os.getpid():>10d} uses {used:>12.3f} MB GPU memory"

    def memory_snapshot(mempool_id: Any = None, include_traces: bool = True) -> list[Any]:
        return list(snapshot()) if snapshot else []

    def reset_accumulated_memory_stats(device: Any = None) -> None:
        target.index(device)
        if reset:
            with contextlib.suppress(RuntimeError):  # the device's allocator does not count
                target.call(reset, device)

    def host_memory_stats() -> dict[str, Any]:
        return OrderedDict(dict.fromkeys(_HOST_KEYS, 0))

    def host_memory_stats_as_nested_dict() -> dict[str, Any]:
        return _nested(host_memory_stats())

    def reset_accumulated_host_memory_stats() -> None:
        pass

    def reset_peak_host_memory_stats() -> None:
        pass

    return {
        "memory_stats": memory_stats,
        "memory_stats_as_nested_dict": memory_stats_as_nested_dict,
        "memory_summary": memory_summary,
        "memory_snapshot": memory_snapshot,
        "list_gpu_processes": list_gpu_processes,
        "reset_accumulated_memory_stats": reset_accumulated_memory_stats,
        "host_memory_stats": host_memory_stats,
        "host_memory_stats_as_nested_dict": host_memory_stats_as_nested_dict,
        "reset_accumulated_host_memory_stats": reset_accumulated_host_memory_stats,
        "reset_peak_host_memory_stats": reset_peak_host_memory_stats,
    }


def _nested(stats: dict[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, value in stats.items():
        inner = nested
        *parents, last = key.split(".")
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[last] = value
    return nested


def _summary(target: Target, index: int, stats: dict[str, Any], abbreviated: bool) -> str:
    pools = _POOLS[:1] if abbreviated else _POOLS
    lines = [
        f"Memory of {target.type}:{index} on {target.backend.name} ({target.backend.title})",
        f"out-of-memory errors: {stats['num_ooms']}, allocations tried again: {stats['num_alloc_retries']}",
        f"{'':32}" + "".join(f"{metric:>14}" for metric in _METRICS),
    ]
    for kind in _KINDS:
        for pool in pools:
            values = [stats[f"{kind}.{pool}.{metric}"] for metric in _METRICS]
            if pool == "all" or any(values):
                shown = (_bytes(value) if kind.endswith("bytes") else str(value) for value in values)
                lines.append(
                    f"{kind + (f' ({pool})' if pool != 'all' else ''):32}" + "".join(f"{x:>14}" for x in shown)
                )
    return "\n".join(lines)


def _bytes(number: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(number) < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"


def _allocator(target: Target) -> dict[str, Any]:
    kept: dict[int, torch.Tensor] = {}
    own_alloc, own_delete = target.own("caching_allocator_alloc"), target.own("caching_allocator_delete")
    own_empty = target.first("empty_cache", "empty_cache")
    own_fraction = target.own("set_per_process_memory_fraction")
    own_get_fraction = target.own("get_per_process_memory_fraction")
    own_collect = target.own("ipc_collect")

    def caching_allocator_alloc(size: int, device: Any = None, stream: Any = None) -> int:
        if own_alloc and own_delete:
            return int(own_alloc(size, target.index(device), stream))
        block = torch.empty(size, dtype=torch.uint8, device=target.device(device))
        kept[block.data_ptr()] = block
        return block.data_ptr()

    def caching_allocator_delete(mem_ptr: int) -> None:
        if own_alloc and own_delete:
            own_delete(mem_ptr)
        else:
            del kept[mem_ptr]

    def caching_allocator_enable(value: bool = True) -> None:
        pass

    @contextlib.contextmanager
    def caching_allocator_disabled() -> Iterator[None]:
        yield

    def empty_cache() -> None:
        if own_empty:
            own_empty()

    def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
        if not isinstance(fraction, float):
            raise TypeError("Invalid type for fraction argument, must be `float`")
        if not 0 <= fraction <= 1:
            raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
        index = target.index(device)
        if own_fraction and target.count() == 1:
            own_fraction(fraction)
        elif own_fraction:
            own_fraction(fraction, index)

    def get_per_process_memory_fraction(device: Any = None) -> float:
        index = target.index(device)
        return float(own_get_fraction(index)) if own_get_fraction else 1.0

    def get_allocator_backend() -> str:
        return "native"

    def ipc_collect() -> None:
        if own_collect:
            own_collect()

    return {
        "caching_allocator_alloc": caching_allocator_alloc,
        "caching_allocator_delete": caching_allocator_delete,
        "caching_allocator_enable": caching_allocator_enable,
        "caching_allocator_disabled": caching_allocator_disabled,
        "empty_cache": empty_cache,
        "set_per_process_memory_fraction": set_per_process_memory_fraction,
        "get_per_process_memory_fraction": get_per_process_memory_fraction,
        "get_allocator_backend": get_allocator_backend,
        "ipc_collect": ipc_collect,
    }


def private_names(target: Target) -> dict[str, Any]:
    """What torch.cuda.memory alone has: people draw pictures of memory with it."""
    own_memory = target.own("memory")

    def own(name: str) -> Any:
        return target.own(name) or getattr(own_memory, name, None)

    record, snapshot, dump, settings = map(
        own, ("_record_memory_history", "_snapshot", "_dump_snapshot", "_set_allocator_settings")
    )

    def _record_memory_history(*args: Any, **options: Any) -> None:
        if record:
            record(*args, **options)
        elif args[:1] != (None,) and options.get("enabled", "all") is not None:
            warnings.warn(
                f"{target.backend.name} ({target.backend.title}) keeps no history of its memory: "
                "what torch.cuda.memory._snapshot() returns will be empty.",
                stacklevel=2,
            )

    def _snapshot(*args: Any, **options: Any) -> Any:
        return snapshot(*args, **options) if snapshot else {"segments": [], "device_traces": []}

    def _dump_snapshot(filename: str = "dump_snapshot.pickle", *args: Any, **options: Any) -> None:
        if dump:
            dump(filename, *args, **options)
        else:
            with open(filename, "wb") as file:
                pickle.dump(_snapshot(), file)

    def _set_allocator_settings(env: str) -> None:
        if settings:
            settings(env)

    return {
        "_record_memory_history": _record_memory_history,
        "_snapshot": _snapshot,
        "_dump_snapshot": _dump_snapshot,
        "_set_allocator_settings": _set_allocator_settings,
    }
