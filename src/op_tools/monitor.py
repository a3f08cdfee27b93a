"""ProcessMonitor: memory and CPU time of this process; memory, utilisation and temperature of its devices.

    with ProcessMonitor(interval=1.0) as monitor:
        train()
    monitor.results.to_pandas()

`ditorch run --monitor` has it in every process of a program. It sees what the allocator of the device tells, which
nobody outside of the process can; `ditorch monitor` watches from there (process_monitor.py).
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from ditorch_shared import nvidia_smi, processes
from ditorch_shared.monitoring import DeviceUsage, Log
from op_tools import settings
from op_tools.errors import SettingError
from op_tools.output import messages, paths
from op_tools.output.results import Results

_COLUMNS = (
    "pid",
    "rank",
    "command",
    "samples",
    "seconds",
    "host_memory_peak",
    "cpu_seconds",
    "cpu_percent",
    "device_memory_peak",
    "device_memory_reserved_peak",
    "device_utilization",
    "device_temperature_peak",
)
_SECONDS_BETWEEN_QUESTIONS = 5.0  # to the vendor's command


class ProcessMonitor:
    """A context manager, or `start()` and `stop()`.

    interval  seconds between samples (OP_TOOLS_MONITOR_INTERVAL)
    out       the folder for results (OP_TOOLS_OUT)
    """

    def __init__(self, interval: float | None = None, out: str | os.PathLike[str] | None = None) -> None:
        self._interval = settings.argument("interval", interval, settings.MONITOR_INTERVAL)
        self._out = settings.OUT.get() if out is None else Path(out)
        self._log: Log | None = None
        self._thread: threading.Thread | None = None
        self._is_over = threading.Event()
        self._samples_of_devices = 0

    def start(self) -> ProcessMonitor:
        """Begins to sample; a folder that cannot be written is said, and training goes on."""
        if self._thread is not None:
            return self
        if not processes.is_known():
            raise SettingError("ProcessMonitor needs Linux: this system has no /proc")
        self._log = Log(paths.resolved(self._out), os.getpid())
        try:
            self._log.begin()
        except OSError as error:
            messages.complain(f"ProcessMonitor cannot write {self._log.path} ({error.strerror}); training goes on")
            self._log = None
            return self
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="op_tools monitor", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Takes a last sample and ends."""
        if self._thread is not None:
            self._is_over.set()
            self._thread.join()
            self._thread = None

    def __enter__(self) -> ProcessMonitor:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def results(self) -> Results:
        """What the process has used so far, in one row. `calls`: samples in which it used a device."""
        rows = self._log.rows() if self._log is not None else []
        cells = [[row[column] for column in _COLUMNS] for row in rows]
        files = [str(self._log.path)] if self._log is not None else []
        return Results("ProcessMonitor", _COLUMNS, cells, self._samples_of_devices, (), files)

    def _sample(self) -> None:
        is_over = False
        while not is_over:
            is_over = self._is_over.wait(self._interval)
            usage = processes.usage(os.getpid())
            device = _device_usage()
            self._samples_of_devices += bool(device.memory)
            try:
                if usage is not None and self._log is not None:
                    self._log.add(usage, device)
            except OSError as error:
                messages.complain(f"ProcessMonitor cannot write any more ({error.strerror}); training goes on")
                return


def _device_usage() -> DeviceUsage:
    """As the device's own module tells; each tells less, or fails, in its own way."""
    module = _device_module()
    if module is None:
        return DeviceUsage()
    try:
        held = {index: int(module.memory_reserved(index)) for index in range(module.device_count())}
        own = [index for index, bytes in held.items() if bytes]
        allocated = sum(int(module.memory_allocated(index)) for index in own)
        reserved = sum(held.values())
    except Exception:  # noqa: BLE001  a device that fails is the program's own business
        return DeviceUsage()
    used = None
    with contextlib.suppress(Exception):
        used = sum(total - free for free, total in map(module.mem_get_info, own))
    busy, heat = (_told_by(module, name, own) for name in ("utilization", "temperature"))
    if own and (busy is None or heat is None):
        busy, heat = _told_by_vendor(module, own, busy, heat)
    return DeviceUsage(allocated, reserved, used, busy, heat)


_silent: set[tuple[Any, str]] = set()  # modules that lack a function, or a package for it


def _told_by(module: Any, name: str, devices: list[int]) -> float | None:
    """Of the busiest, or hottest, of these."""
    if not devices or (module, name) in _silent:
        return None
    try:
        return max(float(getattr(module, name)(index)) for index in devices)
    except Exception:  # noqa: BLE001  each fails in its own way
        _silent.add((module, name))
        return None


_last_asked: list[tuple[float, float | None, float | None]] = []  # when, how busy, how hot


def _told_by_vendor(
    module: Any, devices: list[int], busy: float | None, heat: float | None
) -> tuple[float | None, float | None]:
    """By NVIDIA's command, which takes a moment: it is not asked in every sample."""
    if torch.version.cuda is None or module is not torch.cuda or not nvidia_smi.is_there():
        return busy, heat
    if not _last_asked or time.monotonic() - _last_asked[-1][0] >= _SECONDS_BETWEEN_QUESTIONS:
        names = tuple(f"GPU-{module.get_device_properties(index).uuid}" for index in devices)
        _last_asked[:] = [(time.monotonic(), *nvidia_smi.most(nvidia_smi.gpus(names)))]
    _, known_busy, known_heat = _last_asked[-1]
    return (known_busy if busy is None else busy), (known_heat if heat is None else heat)


def _device_module() -> Any:
    """Of the accelerator that the program uses; None as long as it uses none: asking would start it."""
    for name in (torch._C._get_privateuse1_backend_name(), "xpu", "hpu", "cuda"):
        module = getattr(torch, name, None) if name != "privateuseone" else None
        is_initialized = getattr(module, "is_initialized", None)
        if is_initialized is not None:
            with contextlib.suppress(Exception):  # a module that does not even answer that
                if is_initialized():
                    return module
    return None
