"""Every environment variable of ditorch: its name, default, meaning and parser. docs/settings.md is made from it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ditorch.errors import SettingError
from ditorch_shared import settings as shared
from ditorch_shared.settings import Value, number_of_bytes, switch


class Setting(shared.Setting[Value]):
    """One environment variable of ditorch."""

    error = SettingError


def _device_count(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 64:
        raise ValueError("it must be a whole number from 1 to 64")
    return int(text)


def _arithmetic(text: str) -> str:
    if text != "float32":
        raise ValueError("it must be float32, or unset")
    return text


def _interpret_or_off(text: str) -> str:
    if text not in ("interpret", "off"):
        raise ValueError("it must be interpret or off")
    return text


REDUCTIONS = ("all_reduce", "reduce", "reduce_scatter")


def _reductions(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    unknown = [name for name in names if name not in (*REDUCTIONS, "all")]
    if unknown:
        raise ValueError(f"there is no {unknown[0]} among {', '.join(REDUCTIONS)} and all")
    return REDUCTIONS if "all" in names else names


BACKEND = Setting(
    "DITORCH_BACKEND",
    "",
    str,
    "the accelerator to use, by name; unset: the one that is there, or the simulated one",
)
DISABLE_MOCK = Setting("DITORCH_DISABLE_MOCK", False, switch, "1: `import ditorch` leaves torch alone")
SHOW_DEVICE_AS_CUDA = Setting(
    "DITORCH_SHOW_DEVICE_AS_CUDA",
    True,
    switch,
    "1: tensor.device and what is printed say cuda; 0: the accelerator's true name",
)
NATIVE_REDIRECT = Setting(
    "DITORCH_NATIVE_REDIRECT",
    True,
    switch,
    "0: do not hook PyTorch's parser of device strings but wrap its functions, on systems where the hook is unwelcome",
)
FAULTS = Setting(
    "DITORCH_FAULTS",
    "",
    str,
    'kernels to break for the whole run, such as "aten.mm: scale=1.01"; see docs/faults.md',
)
FLOAT32_COLLECTIVES: Setting[tuple[str, ...]] = Setting(
    "DITORCH_FLOAT32_COLLECTIVES",
    (),
    _reductions,
    "collectives that add up 16-bit tensors in float32 and round once: all_reduce, reduce, reduce_scatter, or all",
)
SIM_DEVICES = Setting(
    "DITORCH_SIM_DEVICES", 2, _device_count, "how many devices the simulated accelerator has, 1 to 64"
)
SIM_MEMORY = Setting(
    "DITORCH_SIM_MEMORY",
    0,
    number_of_bytes,
    "memory of each simulated device, such as 512MB or 2GiB; unset: as much as the host has",
)
SIM_16BIT = Setting(
    "DITORCH_SIM_16BIT",
    "",
    _arithmetic,
    "float32: the simulated accelerator computes 16-bit products and convolutions in float32 and rounds once, as chips "
    "do, which is faster; unset: with the CPU's own kernels, equal to the CPU to the last bit",
)
SIM_PROFILE = Setting(
    "DITORCH_SIM_PROFILE",
    "",
    str,
    "the simulated accelerator behaves like the chip of this profile: a file, or the name of one that comes along; see "
    "docs/conformance.md",
)
REHEARSAL: Setting[Path | None] = Setting(
    "DITORCH_REHEARSAL",
    None,
    lambda text: Path(text).expanduser(),
    "a folder, set by `ditorch rehearse`: what the profile lacks is noted there and runs all the same",
)
CONTROL: Setting[Path | None] = Setting(
    "DITORCH_CONTROL",
    None,
    Path,
    "the run's folder, set by `ditorch run`: `ditorch attach` leaves there what it asks for",
)
MESSAGES: Setting[Path | None] = Setting(
    "DITORCH_MESSAGES",
    None,
    Path,
    "a file to which all that ditorch and the tools print is appended; `ditorch run` with tools sets it to "
    "messages.txt in the run's folder",
)
PROGRESS = Setting(
    "DITORCH_PROGRESS",
    True,
    switch,
    "0: `ditorch run` with tools shows no progress line on a terminal; in logs there is none anyway",
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

ALL: tuple[Setting[Any], ...] = tuple(each for each in list(globals().values()) if isinstance(each, Setting))


def misspelt() -> list[str]:
    """Variables in the environment that look like one of ours, and are none: what to say about each."""
    known = {setting.name for setting in ALL}
    unread = [name for name in os.environ if name.startswith("DITORCH_") and name not in known]
    suspects = [(name, shared.meant(name, known)) for name in sorted(unread)]
    return [f"the variable {name} is set but not read; did you mean {close}?" for name, close in suspects if close]
