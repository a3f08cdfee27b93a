"""The device that torch.cuda is to mean: its module, and what a device argument says."""

from __future__ import annotations

import inspect
from typing import Any, Callable

import torch

from ditorch.backend import Backend


class Target:
    """The device and its module."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.type = backend.device_type
        self.module = backend.device_module()
        self.is_host = self.type == "cpu"
        self._accelerator = _accelerator(self.type)
        self._count = self.first("device_count", "device_count")
        self._current = self.first("current_device", "current_device_index")
        self._set = self.first("set_device", "set_device_index")

    def own(self, name: str) -> Any:
        """What the device's module has by this name, or None."""
        # torch.cpu's are stand-ins: its current device is a text, its streams cannot be waited for
        return None if self.is_host else getattr(self.module, name, None)

    def first(self, name: str, in_accelerator: str) -> Callable[..., Any] | None:
        """The device module's function, or torch.accelerator's, or None."""
        return self.own(name) or getattr(self._accelerator, in_accelerator, None)

    def count(self) -> int:
        return int(self._count()) if self._count else 1

    def current(self) -> int:
        return int(self._current()) if self._current else 0

    def set(self, index: int) -> None:
        """Makes a device the current one; a negative index changes nothing."""
        if index < 0:
            return
        if self._set:
            self._set(index)
        else:
            self.check(index)

    def exchange(self, index: int) -> int:
        """Makes a device the current one and returns the one before."""
        before = self.current()
        if index >= 0 and index != before:
            self.set(index)
        return before

    def check(self, index: int) -> None:
        if not 0 <= index < self.count():
            raise AssertionError(
                f"Invalid device id {index}: {self.backend.name} ({self.backend.title}) has {self.count()} device(s)"
            )

    def index(self, device: Any = None, optional: bool = True, allow_cpu: bool = False) -> int:
        """The number that a device argument means: None, 1, "cuda", "cuda:1", "npu:1" or an object."""
        if isinstance(device, int):
            return device
        if device is None and optional:
            return self.current()
        if hasattr(device, "idx"):  # a torch.cuda.device
            return int(device.idx)
        if isinstance(device, str):
            kind, _, number = device.partition(":")
            if number and not number.isdecimal():
                raise ValueError(f"Invalid device string: '{device}'")
            index = int(number) if number else None
        elif isinstance(device, torch.device):
            kind, index = device.type, device.index
        else:
            raise ValueError(f"Expected a torch.device with a specified index or an integer, but got: {device}")
        if kind in ("cuda", self.type):
            return self.current() if index is None else index
        if kind == "cpu" and allow_cpu:
            return -1
        raise ValueError(f"Expected a cuda device, but got: {device}")

    def device(self, device: Any = None) -> torch.device:
        """The device that an argument means, under its true name."""
        index = self.index(device)
        if self.is_host:
            self.check(index)
            return torch.device("cpu")
        return torch.device(self.type, index)

    def call(self, function: Callable[..., Any], device: Any) -> Any:
        """Calls a function of the device's module for one device."""
        if device is None:
            return function()
        index = self.index(device)
        if takes_arguments(function):
            return function(index)
        before = self.exchange(index)
        try:
            return function()
        finally:
            self.set(before)


def takes_arguments(function: Callable[..., Any]) -> bool:
    try:
        return bool(inspect.signature(function).parameters)
    except ValueError:  # a C function that does not tell
        return True


def _accelerator(device_type: str) -> Any:
    """torch.accelerator, if it is there (2.6 and newer) and means this device."""
    accelerator = getattr(torch, "accelerator", None)
    try:
        found = accelerator and accelerator.current_accelerator()
    except RuntimeError:  # how 2.6 says that there is none
        return None
    return accelerator if found and found.type == device_type else None


def constant_for_compile(function: Callable[..., Any]) -> Callable[..., Any]:
    """Makes torch.compile take what the function returns for a constant; torch.compiler's own way imports dynamo."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function
