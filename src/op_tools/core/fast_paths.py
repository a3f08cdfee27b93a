"""The fast path of nn.TransformerEncoder and its parts, which rounds otherwise: they leave it where a mode is on.

Ours shall not count. They ask torch.overrides.has_torch_function for it, so while tools watch, their `forward` runs
with a `torch` whose answer leaves our mode out. Everybody else is answered as ever.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any, Callable

import torch

from op_tools.core import dynamo
from op_tools.core.modes import Replacement, without_mode

_MODULES = (torch.nn.TransformerEncoder, torch.nn.TransformerEncoderLayer, torch.nn.MultiheadAttention)


class _Module(ModuleType):
    """A module of torch, with some other attributes."""

    def __init__(self, module: ModuleType, **other: Any) -> None:
        super().__init__(module.__name__)
        self.__dict__.update(other, _module=module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def replacements(mode_class: type) -> Iterator[Replacement]:
    """Their `forward`, not meeting modes of this class when it asks."""
    asked = without_mode(torch.overrides.has_torch_function, mode_class)
    own_torch = _Module(torch, overrides=_Module(torch.overrides, has_torch_function=asked))
    for kind in _MODULES:
        forward = vars(kind)["forward"]
        if isinstance(forward, FunctionType) and forward.__globals__.get("torch") is torch:
            yield kind, "forward", _with_own_torch(forward, own_torch)


def _with_own_torch(forward: FunctionType, own_torch: ModuleType) -> Callable[..., Any]:
    names = {**forward.__globals__, "torch": own_torch}
    copy = FunctionType(forward.__code__, names, forward.__name__, forward.__defaults__, forward.__closure__)
    copy.__kwdefaults__ = forward.__kwdefaults__

    @functools.wraps(forward)
    @dynamo.passed_over  # Dynamo leaves torch's own layers between two graphs alone
    def chosen(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs) if dynamo.is_tracing() else copy(*args, **kwargs)

    return chosen
