"""How the tools compute where modes are on: what they do is no business of a FLOP counter or of checkpointing."""

from __future__ import annotations

from typing import Any, Callable

import torch

# how many dispatch modes are on
dispatch_modes: Callable[[], int] = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)


def with_modes_aside(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls `function`; no tool and no mode sees the ops that it uses."""
    from torch.utils._python_dispatch import _disable_current_modes

    with torch._C.DisableTorchFunction(), _disable_current_modes():
        return function(*arguments)
