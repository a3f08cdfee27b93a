"""The old tensor and storage types: torch.cuda.FloatTensor, torch.cuda.FloatStorage and their kin."""

from __future__ import annotations

from typing import Any, Callable

import torch

from ditorch.redirect.cuda.target import Target
from ditorch.redirect.patch import Patches
from ditorch.settings import SHOW_DEVICE_AS_CUDA

_DTYPES = {
    "BFloat16": torch.bfloat16,
    "Bool": torch.bool,
    "Byte": torch.uint8,
    "Char": torch.int8,
    "ComplexDouble": torch.complex128,
    "ComplexFloat": torch.complex64,
    "Double": torch.float64,
    "Float": torch.float32,
    "Half": torch.float16,
    "Int": torch.int32,
    "Long": torch.int64,
    "Short": torch.int16,
}


class _TensorType(type):
    """The type of torch.cuda.FloatTensor and its kin: they make tensors of one dtype on the device."""

    target: Target
    dtype: torch.dtype
    layout: torch.layout

    def __instancecheck__(cls, it: object) -> bool:
        return (
            isinstance(it, torch.Tensor)
            and it.dtype is cls.dtype
            and it.layout is cls.layout
            and it.device.type in ("cuda", cls.target.type)
        )

    def __call__(cls, *args: Any, device: Any = None, **options: Any) -> torch.Tensor:
        where: dict[str, Any] = {"dtype": cls.dtype, "device": cls.target.device(device)}
        if cls.layout is torch.sparse_coo:
            return torch.sparse_coo_tensor(*args, **{**options, **where})
        if len(args) == 1 and not options:
            (content,) = args
            if isinstance(content, (torch.storage.TypedStorage, torch.UntypedStorage)):
                return torch.empty(0, **where).set_(content)
            if isinstance(content, torch.Tensor):
                return content.to(**where)
            if not isinstance(content, (int, torch.Size)):
                return torch.tensor(content, **where)
        size = args[0] if len(args) == 1 else options.get("size", args or (0,))
        return torch.empty(size, **where)


class _StorageType(type(torch.FloatStorage)):  # type: ignore[misc]
    """The type of torch.cuda.FloatStorage and its kin: they make storages of one dtype on the device."""

    target: Target
    _dtype: torch.dtype  # `dtype` warns, as everything about typed storages does

    def __instancecheck__(cls, it: object) -> bool:
        return (
            isinstance(it, torch.storage.TypedStorage)
            and it.dtype is cls._dtype
            and it.device.type in ("cuda", cls.target.type)
        )

    def __call__(cls, *args: Any, device: Any = None, **options: Any) -> Any:
        if "wrap_storage" in options:
            return torch.storage.TypedStorage(*args, dtype=cls._dtype, **options)
        return torch.storage.TypedStorage(*args, dtype=cls._dtype, device=cls.target.device(device), **options)


def names(target: Target) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for prefix, dtype in _DTYPES.items():
        made[f"{prefix}Tensor"] = _tensor_type(target, f"{prefix}Tensor", dtype, torch.strided)
        storage = f"{prefix}Storage"
        made[storage] = _StorageType(storage, (getattr(torch.cuda, storage),), {"target": target})
    return made


def sparse_names(target: Target) -> dict[str, Any]:
    """For torch.cuda.sparse."""
    return {
        f"{prefix}Tensor": _tensor_type(target, f"{prefix}Tensor", dtype, torch.sparse_coo)
        for prefix, dtype in _DTYPES.items()
    }


def _tensor_type(target: Target, name: str, dtype: torch.dtype, layout: torch.layout) -> _TensorType:
    members = {"target": target, "dtype": dtype, "layout": layout, "is_cuda": True, "is_xpu": False}
    return _TensorType(name, (), {**members, "is_sparse": layout is torch.sparse_coo})


def patch_type_names(patches: Patches, target: Target) -> None:
    """`x.type()`, `x.type("torch.cuda.HalfTensor")` and torch.set_default_tensor_type."""
    true_prefix = "torch." if target.is_host else f"torch.{target.type}."
    shown = SHOW_DEVICE_AS_CUDA.get() and not target.is_host
    original = torch.Tensor.type
    set_default = torch.set_default_tensor_type

    def type(self: torch.Tensor, dtype: Any = None, non_blocking: bool = False, **options: Any) -> Any:
        asked = _asked_type(dtype)
        if asked is not None:
            device = self.device if self.device.type in ("cuda", target.type) else target.device()
            return self.to(device=device, dtype=asked.dtype, non_blocking=non_blocking)
        answer = original(self, dtype, non_blocking, **options)
        if shown and isinstance(answer, str) and answer.startswith(true_prefix):
            return f"torch.cuda.{answer[len(true_prefix) :]}"
        return answer

    default = _DefaultType(target, set_default)

    def set_default_tensor_type(t: Any, /) -> None:
        default.set(t)

    patches.assign(torch.Tensor, "type", _named(type, original), 'x.type("torch.cuda.HalfTensor") means the device')
    patches.assign(
        torch,
        "set_default_tensor_type",
        _named(set_default_tensor_type, set_default),
        "torch.cuda.FloatTensor can be the default",
    )
    patches.on_undo(default.reset)


class _DefaultType:
    """The default tensor type; a torch.cuda one is made of the default dtype and the default device."""

    def __init__(self, target: Target, original: Callable[[Any], None]) -> None:
        self._target = target
        self._original = original
        self._replaced = Patches()
        self._on_device = False

    def set(self, kind: Any) -> None:
        asked = _asked_type(kind)
        if asked is None:
            self._original(kind)
            self.reset()
        else:
            self._original(f"torch.{asked.__name__}")  # refuses what is not floating-point; warns, as ever
            torch.set_default_device(self._target.device())
            self._replace(asked)
            self._on_device = True

    def reset(self) -> None:
        if self._on_device:
            torch.set_default_device(None)
            self._replaced.undo()
            self._on_device = False

    def _replace(self, kind: _TensorType) -> None:
        """torch.Tensor(2, 3) asks for no default device, only for the default type; so do printed tensors."""
        self._replaced.undo()
        original: Any = torch.Tensor.__new__

        def new(
            *args: Any, **options: Any
        ) -> Any:  # any other signature is refused by torch._dynamo, which has its own
            if args[0] is torch.Tensor and not options:
                return kind(*args[1:])
            return original(*args, **options)

        self._replaced.assign(torch.Tensor, "__new__", staticmethod(new), "the default type is the device's")
        self._replaced.assign(torch._C, "_get_default_device", lambda: "cuda", "tensors are printed without it")


def _asked_type(kind: Any) -> _TensorType | None:
    """The torch.cuda type that an argument means, itself or by name."""
    if isinstance(kind, str) and kind.startswith("torch.cuda."):
        kind = getattr(torch.cuda, kind[len("torch.cuda.") :], None)
    return kind if isinstance(kind, _TensorType) else None


def _named(function: Any, original: Any) -> Any:
    function.__name__, function.__qualname__ = original.__name__, original.__qualname__
    function.__doc__, function.__module__ = original.__doc__, "torch"
    return function
