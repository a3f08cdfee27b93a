"""What ditorch knows about one kind of accelerator: a short description and a few hooks.

Most chips are a description and nothing else; see `ditorch/backends/`. docs/backends.md tells how to write one.
torch is imported where it is needed: `python -m ditorch --help` imports this file, and must not wait for torch.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shlex
import shutil
import sys
from dataclasses import dataclass
from types import ModuleType


@dataclass(frozen=True)
class Backend:
    """An accelerator. A chip whose facts are not enough overrides a method."""

    name: str  # what DITORCH_BACKEND says: "ascend"
    title: str  # for people: "Huawei Ascend"
    device_type: str  # what PyTorch calls its devices: "npu"
    modules: tuple[str, ...] = ()  # the package that brings it to PyTorch, newest first; none: PyTorch itself does
    collectives: str | None = None  # its backend in torch.distributed: "hccl"
    visible_devices: str | None = None  # the variable that hides devices: "ASCEND_RT_VISIBLE_DEVICES"
    commands: tuple[str, ...] = ()  # what shows the devices, the first that is there: "npu-smi info"
    lacks_dtypes: tuple[str, ...] = ()  # no tensor can have them: "float64"
    lacks_reductions: tuple[str, ...] = ()  # what NCCL can and its collectives cannot, everywhere: "AVG"
    migrations: tuple[str, ...] = ()  # the vendor's own modules that turn "cuda" into the chip when imported
    migration_switch: str | None = None  # the setting that makes the vendor's package do so: "TORCH_TRANSFER_TO_NPU=1"
    quirks: tuple[str, ...] = ()  # what else surprises people on this chip; `ditorch doctor` says it

    @property
    def module(self) -> str | None:
        """The package that brings it to PyTorch: the one that is installed, or the first; None: PyTorch itself does."""
        installed = (module for module in self.modules if _is_installed(module))
        return next(installed, self.modules[0] if self.modules else None)

    @property
    def command(self) -> str | None:
        """The vendor's command that shows the devices: the one that is there, or the first."""
        there = (command for command in self.commands if shutil.which(shlex.split(command)[0]))
        return next(there, self.commands[0] if self.commands else None)

    def unavailable(self) -> str | None:
        """Why it cannot be used on this machine, in a few words; None if it can. May raise what the vendor raises."""
        import torch

        if self.modules and not any(map(_is_installed, self.modules)):  # cheap: nothing has been imported yet
            return f"{' or '.join(self.modules)} is not installed"
        self.start()
        if not hasattr(torch, self.device_type):
            return f"{self.module or 'this PyTorch'} has no torch.{self.device_type}"
        return None if self.has_devices() else self.why_no_devices()

    def start(self) -> None:
        """Makes the device known to PyTorch; doing it again does nothing."""
        import torch

        self._mirror_visible_devices()
        if self.module:
            importlib.import_module(self.module)
        if not hasattr(torch, self.device_type):
            self._migrate()

    def _migrate(self) -> None:
        """The vendor's own way from "cuda" to the chip, where its package alone brings no device to PyTorch."""
        migration = next(filter(_is_installed, self.migrations), None)
        if migration:
            importlib.import_module(migration)

    def _mirror_visible_devices(self) -> None:
        """A program started with CUDA_VISIBLE_DEVICES means the chip's devices; the chip looks when it is imported."""
        wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
        if wanted is not None and self.visible_devices is not None:
            os.environ.setdefault(self.visible_devices, wanted)

    def has_devices(self) -> bool:
        return bool(self.device_module().is_available())

    def interprets_triton(self) -> bool:
        """Whether Triton's kernels run in its interpreter, and not by a back end of the vendor's."""
        return False

    def why_no_devices(self) -> str:
        """What to say when the package is there but PyTorch sees no device."""
        reason = f"torch.{self.device_type}.is_available() is False"
        if self.visible_devices and self.visible_devices in os.environ:
            reason += f" ({self.visible_devices}={os.environ[self.visible_devices]} may hide the devices)"
        return reason

    def device_module(self) -> ModuleType:
        """`torch.npu`, `torch.cuda`, …"""
        import torch

        module = getattr(torch, self.device_type)
        assert isinstance(module, ModuleType)
        return module

    def migration(self) -> str | None:
        """What of the vendor turns "cuda" into the chip in this process already; None if nothing does."""
        for module in self.migrations:
            if module in sys.modules:
                return module
        imported = self.module in sys.modules
        if imported and self._has_rewritten_cuda():
            return self.module
        # The package reads its switch when it is imported; after that, the modules above tell the truth, and a
        # release that does not know the switch has not obeyed it.
        if self.migration_switch and not imported:
            variable, _, value = self.migration_switch.partition("=")
            if os.environ.get(variable) == value:
                return self.migration_switch
        return None

    def _has_rewritten_cuda(self) -> bool:
        """Whether torch.cuda, or what it answers with, is the vendor's: by a migration that nobody told us of."""
        if self.module is None:
            return False
        import torch

        package = self.module.partition(".")[0]
        owners = (torch.cuda.__name__, getattr(torch.cuda.is_available, "__module__", None) or "")
        return package in (owner.partition(".")[0] for owner in owners)

    def migration_active(self) -> bool:
        """Whether ditorch must leave torch alone, because the vendor's own layer is at work."""
        return self.migration() is not None


def _is_installed(module: str) -> bool:
    if module in sys.modules:
        return True
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its parent is not there
        return False
