"""Choosing a device and waiting for it."""

from __future__ import annotations

from typing import Any, Callable

from ditorch.redirect.cuda.target import Target, constant_for_compile


def names(target: Target) -> dict[str, Any]:
    device, device_of = _contexts(target)
    start = target.own("_lazy_init") or target.own("init") or (lambda: None)
    has_devices = target.own("is_available") or target.backend.has_devices
    initialized = target.own("is_initialized") or (lambda: True)
    in_bad_fork = target.own("_is_in_bad_fork") or (lambda: False)
    wait = target.first("synchronize", "synchronize")
    sleep = target.own("_sleep")

    def init() -> None:
        start()

    def _lazy_init() -> None:
        start()

    def _lazy_call(callable: Callable[[], Any], **_: Any) -> None:
        start()
        callable()

    def is_available() -> bool:
        return bool(has_devices())

    def is_initialized() -> bool:
        return bool(initialized())

    def _is_in_bad_fork() -> bool:
        return bool(in_bad_fork())

    def device_count() -> int:
        return target.count()

    def current_device() -> int:
        return target.current()

    def set_device(device: Any) -> None:
        target.set(target.index(device, optional=False))

    def _exchange_device(device: int) -> int:
        return target.exchange(device)

    def _maybe_exchange_device(device: int) -> int:
        return target.exchange(device)

    def synchronize(device: Any = None) -> None:
        if wait:
            target.call(wait, device)
        else:
            target.check(target.index(device))

    def _get_device_index(device: Any, optional: bool = False, allow_cpu: bool = False) -> int:
        return target.index(device, optional, allow_cpu)

    def _get_device(device: Any) -> Any:
        return target.device(device)

    def _sleep(cycles: int) -> None:
        if sleep:
            sleep(cycles)

    return {
        "init": init,
        "_lazy_init": _lazy_init,
        "_lazy_call": _lazy_call,
        "_initialized": True,
        "is_available": constant_for_compile(is_available),
        "is_initialized": is_initialized,
        "_is_in_bad_fork": _is_in_bad_fork,
        "device": device,
        "device_of": device_of,
        "device_count": constant_for_compile(device_count),
        "current_device": current_device,
        "set_device": set_device,
        "_exchange_device": _exchange_device,
        "_maybe_exchange_device": _maybe_exchange_device,
        "synchronize": synchronize,
        "_get_device_index": _get_device_index,
        "_get_device": _get_device,
        "_sleep": _sleep,
    }


def _contexts(target: Target) -> tuple[type, type]:
    class device:
        """Makes another device the current one; a negative number or None changes nothing."""

        def __init__(self, device: Any) -> None:
            self.idx = target.index(device)
            self.prev_idx = -1

        def __enter__(self) -> None:
            self.prev_idx = target.exchange(self.idx)

        def __exit__(self, *_: object) -> None:
            target.exchange(self.prev_idx)

    class device_of(device):
        """Makes the device of a tensor or storage the current one; one on the host changes nothing."""

        def __init__(self, obj: Any) -> None:
            kind = obj.device.type
            super().__init__(obj.device if kind in ("cuda", target.type) and kind != "cpu" else -1)

    return device, device_of
