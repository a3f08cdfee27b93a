"""The C++ helper for what is done at every op call and every autograd node. Everything works without it, slower.

It is built on first use, once per torch release, where there is a compiler and Python's headers. OP_TOOLS_NATIVE=0
leaves it aside.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from ditorch_shared.libraries import HELPER
from ditorch_shared.native import NativeError, torch_release
from op_tools import settings
from op_tools.output import messages

NAME = "op_tools_native"
_OLDEST_TORCH = (2, 4)  # its events tell time
# with the source of this very package, wherever it has been copied to
_HELPER = replace(HELPER, main=Path(__file__).parent / "csrc" / "native.cpp")


def library() -> Any | None:
    """The helper, built now if need be; None where it is switched off or cannot be had, which is said once."""
    return _loaded() if settings.NATIVE.get() and is_supported() else None


def is_supported() -> bool:
    """Whether this torch is new enough for it."""
    return torch_release() >= _OLDEST_TORCH


@cache
def _loaded() -> Any | None:
    try:
        return load(_HELPER.path())
    except (NativeError, ImportError) as error:
        reason = str(error).partition("\n")[0]
        messages.complain(f"C++ fast path unavailable ({reason}); using Python: same results, slower")
        return None


def load(path: Path) -> Any:
    """The module in a file."""
    spec = spec_from_file_location(NAME, path, loader=ExtensionFileLoader(NAME, str(path)))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
