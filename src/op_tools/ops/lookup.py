"""From the name of an op to the function."""

from __future__ import annotations

import difflib
import functools
import importlib
import re
import sys
from typing import Any

import torch
from torch.overrides import get_overridable_functions, resolve_name

from op_tools.errors import UnknownOpError
from op_tools.ops.names import normalized
from op_tools.ops.no_ops import NO_OPS
from op_tools.ops.purity import is_pure, overloads


def look_up(name: str) -> tuple[Any, str, Any]:
    """Any function by its full name: where it is kept, under which attribute, and the function. May import modules."""
    path = name.split(".")
    for length in range(len(path) - 1, 0, -1):
        owner: Any = sys.modules.get(".".join(path[:length])) or _imported(".".join(path[:length]))
        if owner is None:
            continue
        try:
            for part in path[length:-1]:
                owner = getattr(owner, part)
            return owner, path[-1], getattr(owner, path[-1])
        except AttributeError:
            continue
    registered = _registered(name)
    if registered is not None:
        return None, "", registered
    raise UnknownOpError(f"there is no op {name!r}{_suggestion(name)}")


def torch_op(name: str, trusted: tuple[str, ...] = ()) -> Any:
    """An op of torch, or one that is registered with it, by a name that was read from a file.

    A file must not be able to do anything but compute: the op must be a function of tensors (purity.py). Functions of
    other packages are found only below `trusted` ones.
    """
    if any(name.startswith(f"{package}.") for package in trusted):
        return look_up(name)[2]
    is_op = not NO_OPS.fullmatch(name)
    registered = _registered(name) if is_op else None
    function = registered or (_by_torchs_name(name) if is_op else None)
    if function is None:
        package = name.partition(".")[0]
        hint = "" if package == "torch" else f". If it is one of your own, say so: --trust {package}"
        raise UnknownOpError(f"{name!r} is no op of torch, so a file may not name it{hint}")
    kernels = registered or _registered(f"aten.{normalized(name).form}")
    if kernels is not None and not is_pure(kernels):
        raise UnknownOpError(f"{name!r} may not be run from a file: it does more than compute with tensors")
    return function


def _by_torchs_name(name: str) -> Any:
    """`torch.Tensor.add`, `torch.nn.functional.linear`; factories and the ops of optimizers: `torch.full`."""
    function = _torchs_own().get(name)
    if function is None and name.startswith("torch.") and name.count(".") == 1:
        function = getattr(torch._C._VariableFunctions, name.partition(".")[2], None)
    return function


_HOMES = ("torch.", "aten.", "F.", "nn.", "Tensor.")  # names below these can only be torch's


def reason_for_no_op(entry: str) -> str | None:
    """For an entry of a list: why no op can ever match it, with a suggestion. None where one may."""
    is_name = re.fullmatch(r"[\w.]+", entry)
    if not is_name or ("." in entry and not entry.startswith(_HOMES)):
        return None  # a pattern, or a function of a third party
    owner: Any = torch if entry.startswith("torch.") else None
    for part in entry.split(".")[1:] if owner is not None else ():
        owner = getattr(owner, part, None)
    return None if owner is not None or _registered(entry) is not None else _suggestion(entry)


@functools.lru_cache(maxsize=1)
def _torchs_own() -> dict[str, Any]:
    functions = [function for group in get_overridable_functions().values() for function in group]
    return {str(resolve_name(function)): function for function in functions}


def _registered(name: str) -> Any:
    """An op of the dispatcher: `aten.mm`, `aten.mm.default`, `my_library.my_op`."""
    name = name.replace("::", ".")
    namespace, _, rest = name.removeprefix("torch.ops.").partition(".")
    packet_name, _, overload = rest.partition(".")
    if not packet_name or namespace == "torch":
        return None
    packet = getattr(getattr(torch.ops, namespace, None), packet_name, None)
    if not isinstance(packet, torch._ops.OpOverloadPacket) or not overloads(packet):
        return None
    return getattr(packet, overload, None) if overload else packet


def _imported(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        return None


def _suggestion(name: str) -> str:
    ending = f".{name.rpartition('.')[2]}"
    close = [known for known in _torchs_own() if known.endswith(ending)] or difflib.get_close_matches(
        name, _torchs_own(), n=3
    )
    hint = f"; did you mean {' or '.join(close)}?" if close else "."
    return f"{hint} Names are full: torch.Tensor.add, torch.nn.functional.linear, my_package.my_function"
