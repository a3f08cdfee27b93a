"""Every environment variable of ditorch: its name, default, meaning and parser. docs/settings.md is made from it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Generic, TypeVar

from ditorch.errors import SettingError

Value = TypeVar("Value")


@dataclass(frozen=True)
class Setting(Generic[Value]):
    """One environment variable. It is read when it is asked for, not at import."""

    name: str
    default: Value
    parse: Callable[[str], Value]
    help: str

    def get(self) -> Value:
        """The value in the environment, or the default where the variable is unset or empty."""
        text = os.environ.get(self.name, "").strip()
        if not text:
            return self.default
        try:
            return self.parse(text)
        except ValueError as error:
            raise SettingError(f"{self.name}={text!r} cannot be used: {error}. It means: {self.help}") from None


def _device_count(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 64:
        raise ValueError("it must be a whole number from 1 to 64")
    return int(text)


def _switch(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError("it must be 0 or 1")
    return text == "1"


def _interpret_or_off(text: str) -> str:
    if text not in ("interpret", "off"):
        raise ValueError("it must be interpret or off")
    return text


_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?", text.lower())
    if not match:
        raise ValueError("it must be a number of bytes, such as 8000000, 512MB or 2GiB")
    return int(float(match[1]) * _UNITS[match[2] or ""])


BACKEND = Setting(
    "DITORCH_BACKEND",
    "",
    str,
    "the accelerator to use, by name; unset: the one that is there, or the simulated one",
)
DISABLE_MOCK = Setting("DITORCH_DISABLE_MOCK", False, _switch, "1: `import ditorch` leaves torch alone")
SHOW_DEVICE_AS_CUDA = Setting(
    "DITORCH_SHOW_DEVICE_AS_CUDA",
    True,
    _switch,
    "1: tensor.device and what is printed say cuda; 0: the accelerator's true name",
)
NATIVE_REDIRECT = Setting(
    "DITORCH_NATIVE_REDIRECT",
    True,
    _switch,
    "0: do not hook PyTorch's parser of device strings but wrap its functions, on systems where the hook is unwelcome",
)
FAULTS = Setting(
    "DITORCH_FAULTS",
    "",
    str,
    'kernels to break for the whole run, such as "aten.mm: scale=1.01"; see docs/faults.md',
)
SIM_DEVICES = Setting(
    "DITORCH_SIM_DEVICES", 2, _device_count, "how many devices the simulated accelerator has, 1 to 64"
)
SIM_MEMORY = Setting(
    "DITORCH_SIM_MEMORY",
    0,
    _bytes,
    "memory of each simulated device, such as 512MB or 2GiB; unset: as much as the host has",
)
SIM_TRITON = Setting(
    "DITORCH_SIM_TRITON",
    "interpret",
    _interpret_or_off,
    "interpret: Triton's kernels run on the simulated accelerator in Triton's interpreter; off: not",
)
CACHE: Setting[Path | None] = Setting(
    "DITORCH_CACHE",
    None,
    lambda text: Path(text).expanduser(),
    "the folder for what is built once and kept, such as the simulated accelerator",
)


ALL: tuple[Setting[Any], ...] = (
    BACKEND,
    DISABLE_MOCK,
    SHOW_DEVICE_AS_CUDA,
    NATIVE_REDIRECT,
    FAULTS,
    SIM_DEVICES,
    SIM_MEMORY,
    SIM_TRITON,
    CACHE,
)
