"""Every public name of torch.cuda, in any release of PyTorch since 2.1, and what becomes of it. The docs' table is made
from it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

TREATMENTS = {
    "device": "works on the device, by the device's own module or torch.accelerator",
    "emulated": "made of what the device has",
    "stub": "does nothing, or is a constant; harmless",
    "refused": "raises an error that names the backend, unless the device's own module has it",
}


@dataclass(frozen=True)
class Name:
    """One public name of torch.cuda."""

    name: str
    treatment: str  # a key of TREATMENTS
    what: str  # what it does; for a refused one what is missing, as the end of "it needs …"


def _rows(treatment: str, *rows: tuple[str, str]) -> list[Name]:
    return [Name(name, treatment, what) for names, what in rows for name in names.split()]


_DEVICE = _rows(
    "device",
    ("init is_available is_initialized", "whether there is a device"),
    ("device_count current_device set_device synchronize", "choosing and waiting for a device"),
    ("device device_of", "`with torch.cuda.device(1):`"),
    ("get_device_name", "the device's name"),
    ("is_bf16_supported", "the device's word, or what its backend says"),
    ("Stream Event", "the device's streams and events; without any, one queue in order and host time"),
    ("stream StreamContext current_stream default_stream set_stream streams", "choosing a stream"),
    ("ExternalStream get_stream_from_external", "the stream of a handle; refused where the device has no handles"),
    ("memory", "the module: the names below"),
    ("memory_allocated max_memory_allocated memory_reserved max_memory_reserved", "bytes; 0 where it is not counted"),
    ("reset_peak_memory_stats empty_cache", "does nothing where memory is not counted or cached"),
    ("mem_get_info device_memory_used", "free, total and used bytes"),
    ("random", "the module: the names below"),
    ("manual_seed manual_seed_all seed seed_all initial_seed", "the device's generators"),
    ("get_rng_state get_rng_state_all set_rng_state set_rng_state_all", "the state of the device's generators"),
    ("default_generators", "one generator per device"),
    ("amp", "the module: autocast and GradScaler"),
    (
        "CUDAGraph graph graph_pool_handle make_graphed_callables",
        "the device's own graphs (`NPUGraph`, `MUSAGraph`, …); refused where it has none",
    ),
    ("is_current_stream_capturing", "whether a graph is being captured; False where the device has none"),
    ("get_sync_debug_mode set_sync_debug_mode", "tells of calls that wait for the device, where it can"),
)

_EMULATED = _rows(
    "emulated",
    (
        "BFloat16Tensor BoolTensor ByteTensor CharTensor DoubleTensor FloatTensor HalfTensor IntTensor LongTensor "
        "ShortTensor",
        "makes tensors on the device; isinstance goes by device and dtype",
    ),
    (
        "BFloat16Storage BoolStorage ByteStorage CharStorage ComplexDoubleStorage ComplexFloatStorage DoubleStorage "
        "FloatStorage HalfStorage IntStorage LongStorage ShortStorage",
        "makes typed storages on the device; isinstance goes by device and dtype",
    ),
    ("sparse", "the module: sparse tensors, where the device has them"),
    ("get_device_properties", "the device's own properties, and CUDA's with default values"),
    ("get_device_capability", "the device's (major, minor), or (8, 0)"),
    ("can_device_access_peer", "the device's word, or False"),
    ("memory_stats", "the device's statistics; CUDA's other keys are 0"),
    ("memory_stats_as_nested_dict", "memory_stats as nested dictionaries"),
    ("memory_summary", "memory_stats as a text"),
    ("memory_cached max_memory_cached", "other names of memory_reserved and max_memory_reserved"),
    ("reset_max_memory_allocated reset_max_memory_cached", "other names of reset_peak_memory_stats"),
    ("list_gpu_processes", "this process only, unless the device's module knows more"),
    ("caching_allocator_alloc caching_allocator_delete", "a tensor's memory, kept until it is deleted"),
    ("CudaError check_error", "the error for a code that is not 0"),
)

_STUBS = _rows(
    "stub",
    ("DeferredCudaCallError cudaStatus AcceleratorError OutOfMemoryError", "left as it is"),
    ("caching_allocator_enable caching_allocator_disabled", "changes nothing"),
    ("get_allocator_backend", "'native'"),
    ("set_per_process_memory_fraction", "limits nothing, unless the device's module does"),
    ("get_per_process_memory_fraction", "1.0"),
    ("memory_snapshot", "an empty list"),
    ("reset_accumulated_memory_stats", "changes nothing, unless the device's module does"),
    ("host_memory_stats host_memory_stats_as_nested_dict", "pinned memory is not counted: all 0"),
    ("reset_accumulated_host_memory_stats reset_peak_host_memory_stats", "changes nothing"),
    ("get_arch_list", "an empty list: nothing is compiled for a CUDA architecture"),
    ("get_gencode_flags", "an empty text"),
    ("has_half", "True"),
    ("has_magma is_tf32_supported", "False"),
    ("ipc_collect", "does nothing"),
    ("graphs graph_annotations", "the module"),
    ("nvtx profiler", "the module: marks and ranges go nowhere"),
    ("cudart", "profiler marks and pinning of host memory succeed and do nothing; the rest is refused"),
)

_REFUSED = _rows(
    "refused",
    ("export_dot export_graph_data", "the nodes of a CUDA graph"),
    ("CUDAPluggableAllocator change_current_allocator", "CUDA's allocator interface"),
    ("MemPool MemPoolContext use_mem_pool", "memory pools of CUDA's allocator"),
    ("GreenContext", "CUDA's green contexts"),
    ("current_blas_handle", "a cuBLAS handle"),
    ("current_solver_handle", "a cuSOLVER handle"),
    ("clock_rate memory_usage power_draw temperature utilization", "NVIDIA's management library"),
    ("jiterator", "the module: NVIDIA's run-time compiler"),
    ("nccl", "the module: NCCL; use torch.distributed"),
    ("tunable", "the module: CUDA's tunable operators; they count as switched off"),
)

NAMES = {row.name: row for row in (*_DEVICE, *_EMULATED, *_STUBS, *_REFUSED)}


def counts() -> dict[str, int]:
    """How many names get which treatment."""
    found = Counter(row.treatment for row in NAMES.values())
    return {treatment: found[treatment] for treatment in TREATMENTS}


def table() -> str:
    """The Markdown table of docs/cuda.md: names that are treated alike share a line."""
    lines = ["| names in `torch.cuda` | treatment | what they do |", "| --- | --- | --- |"]
    alike: dict[tuple[str, str], list[str]] = {}
    for row in NAMES.values():
        alike.setdefault((row.treatment, row.what), []).append(f"`{row.name}`")
    for (treatment, what), names in alike.items():
        lines.append(f"| {' '.join(names)} | {treatment} | {'needs ' if treatment == 'refused' else ''}{what} |")
    lines.append("")
    lines.append(", ".join(f"{count} {treatment}" for treatment, count in counts().items()) + f": {len(NAMES)} names.")
    return "\n".join(lines)
