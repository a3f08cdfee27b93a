"""The way that always works: every function of torch that takes a device gets a wrapper that translates "cuda"."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from typing import Any, Callable

import torch
from torch.jit import _builtins
from torch.utils import _device

from ditorch.redirect.names import translated
from ditorch.redirect.patch import Patches

Function = Callable[..., Any]

# Functions that take a device but are no operators, or whose schema does not show it.
_OTHERS: tuple[tuple[Any, str], ...] = (
    (torch, "tensor"),
    (torch, "as_tensor"),
    (torch, "asarray"),
    (torch, "frombuffer"),
    (torch, "sparse_coo_tensor"),
    (torch, "set_default_device"),
    (torch.Tensor, "to"),
    (torch.Tensor, "new_tensor"),
    (torch.nn.Module, "to"),
    (torch.nn.Module, "to_empty"),
    (torch, "get_autocast_dtype"),
    (torch, "set_autocast_dtype"),
)


def apply(patches: Patches, device_type: str) -> None:
    """Wraps them all."""
    _device._device_constructors()  # remembers the originals, which `with torch.device(…)` looks for
    for owner, name in dict.fromkeys([*_OTHERS, *_operators()]):
        original = getattr(owner, name, None)
        if original is not None:  # not every release has all of them
            wrapper = _wrapper(original, device_type)
            patches.assign(owner, name, wrapper, 'a device argument may say "cuda"')
            _tell_torchscript(patches, original, wrapper)
    _replace_constructors(patches, device_type)


def _operators() -> Iterator[tuple[Any, str]]:
    """The functions of torch and methods of tensors whose operators take a device, by torch's own schemas."""
    for owner in (torch, torch.Tensor):
        for name in dir(owner):
            packet = getattr(torch.ops.aten, name, None) if not name.startswith("__") else None
            function = getattr(owner, name, None)
            if packet is None or isinstance(function, type) or not hasattr(packet, "overloads"):
                continue
            schemas = (getattr(packet, overload)._schema for overload in packet.overloads())
            if any("Device" in str(argument.type) for schema in schemas for argument in schema.arguments):
                yield owner, name


def _wrapper(function: Function, device_type: str) -> Function:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs:
            kwargs["device"] = translated(kwargs["device"], device_type)
        if any(isinstance(argument, str) for argument in args[:2]):  # x.to("cuda"), set_default_device("cuda")
            args = (*(translated(argument, device_type) for argument in args[:2]), *args[2:])
        return function(*args, **kwargs)

    return wrapper


def _tell_torchscript(patches: Patches, original: Function, wrapper: Function) -> None:
    """TorchScript knows functions by identity; the wrapper stands for the same operator."""
    operator = _builtins._find_builtin(original)
    if operator is not None:
        _builtins._register_builtin(wrapper, operator)
        patches.on_undo(lambda: _builtins._get_builtin_table().pop(id(wrapper), None))


def _replace_constructors(patches: Patches, device_type: str) -> None:
    """C classes that are made with a device. They must stay what they are: programs use them in isinstance."""
    for name in ("device", "Generator", "Stream", "Event"):
        constructed = getattr(torch, name, None)
        if isinstance(constructed, type):
            _replace_constructor(patches, constructed, device_type)


_NEW_OFFSET = 312  # of tp_new in a type object, 64-bit CPython


def _replace_constructor(patches: Patches, constructed: type, device_type: str) -> None:
    """A `__new__` of ours, which calls the original by its address: Python would refuse it under a replaced one."""
    signature = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.py_object, ctypes.c_void_p)
    slot = ctypes.c_void_p.from_address(id(constructed) + _NEW_OFFSET)
    address = slot.value
    assert address is not None
    original = signature(address)

    def new(cls: type, *args: Any, **named: Any) -> Any:
        for name in ("type", "device"):
            if name in named:
                named[name] = translated(named[name], device_type)
        args = tuple(translated(argument, device_type) for argument in args)
        if args and args[0] == "cpu" and device_type == "cpu" and constructed is torch.device:
            args = args[:1]  # torch.device("cuda", 1), and the CPU is one device
        return original(cls, args, id(named) if named else None)

    patches.assign(constructed, "__new__", staticmethod(new), 'made with a device that may be "cuda"')

    def undo() -> None:
        slot.value = address  # putting back the attribute alone does not put back the slot
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(constructed))

    patches.after_undo(undo)
