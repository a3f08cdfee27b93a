"""What ditorch knows about one kind of accelerator: a short description and two hooks."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from types import ModuleType

import torch


@dataclass(frozen=True)
class Backend:
    """An accelerator. A chip whose facts are not enough overrides `unavailable` or `start`."""

    name: str  # what DITORCH_BACKEND says: "ascend"
    title: str  # for people: "Huawei Ascend"
    device_type: str  # what PyTorch calls its devices: "npu"
    module: str | None = None  # the package that brings it to PyTorch: "torch_npu"; None: PyTorch itself does
    collectives: str | None = None  # its backend in torch.distributed: "hccl"
    visible_devices: str | None = None  # the variable that hides devices: "ASCEND_RT_VISIBLE_DEVICES"
    command: str | None = None  # the vendor's command that shows the devices: "npu-smi"

    def unavailable(self) -> str | None:
        """Why it cannot be used on this machine, in a few words; None if it can."""
        if self.module and importlib.util.find_spec(self.module.partition(".")[0]) is None:
            return f"the package {self.module} is not installed"
        self.start()
        if not self.device_module().is_available():
            return f"torch.{self.device_type}.is_available() is False"
        return None

    def start(self) -> None:
        """Makes the device known to PyTorch."""
        if self.module:
            importlib.import_module(self.module)

    def device_module(self) -> ModuleType:
        """`torch.npu`, `torch.cuda`, …"""
        module = getattr(torch, self.device_type)
        assert isinstance(module, ModuleType)
        return module
