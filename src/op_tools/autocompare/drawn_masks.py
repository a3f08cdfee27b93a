"""What a call has dropped on its way: masks that kernels of their own draw are taken there, and given to another run.

Fused kernels draw inside of themselves, and show nothing.
"""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

MAX_BYTES = 2**28  # of the masks of one call

_DROPOUT, _BERNOULLI = "aten::native_dropout", "aten::bernoulli_"
_SEEDED = getattr(torch.Tag, "nondeterministic_seeded", None)


class Taken(TorchDispatchMode):
    """In this block masks are taken as they are drawn."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.masks: list[Tensor] = []
        self._hides_some = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name
        if name == _DROPOUT:
            self.masks.append(result[1])
        elif name == _BERNOULLI:
            self.masks.append(result != 0)  # a copy: it will be scaled
        elif _SEEDED in getattr(func, "tags", ()) and not isinstance(result, int):  # the choice of a kernel
            self._hides_some = True
        return result

    @property
    def is_all(self) -> bool:
        """Whether nothing else has drawn, and there is room to keep them."""
        size = sum(mask.nbytes for mask in self.masks)
        return bool(self.masks) and not self._hides_some and size <= MAX_BYTES


class _Given(TorchDispatchMode):
    """In this block nothing is drawn: these masks come in their order."""

    def __init__(self, masks: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._left = iter(masks)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        if name == _DROPOUT:
            kept = self._next(args[0])
            return args[0] * kept * (1 / (1 - args[1])), kept
        if name == _BERNOULLI:
            return args[0].copy_(self._next(args[0]))
        return func(*args, **(kwargs or {}))

    def _next(self, like: Tensor) -> Tensor:
        mask = next(self._left, None)
        if mask is None or mask.shape != like.shape:
            raise NotImplementedError("it drops other numbers elsewhere")
        return mask.to(like.device)


class WithMasks:
    """A function that drops what these masks say. `as_drawn`: puts the rate of dropout among its arguments."""

    __slots__ = ("_as_drawn", "_function", "_masks")

    def __init__(self, function: Callable[..., Any], as_drawn: Callable[..., Any], masks: list[Tensor]) -> None:
        self._function = function
        self._as_drawn = as_drawn
        self._masks = masks

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = self._as_drawn(args, kwargs)
        with _Given(self._masks):
            return self._function(*args, **kwargs)
