"""How long a call takes on the device and on the CPU, in seconds: the least of several runs."""

from __future__ import annotations

import time
from typing import Any

import torch

from ditorch_conformance.ops.attempts import synchronize
from ditorch_conformance.ops.moving import moved
from ditorch_conformance.ops.samples import Call

_RUNS = 5
_MAX_SECONDS = 0.5  # in all


def seconds(call: Call, device: torch.device) -> float:
    args, kwargs = moved(call, device)
    with torch.no_grad():
        _once(call, device, args, kwargs)
        best, began = float("inf"), time.perf_counter()
        for _ in range(_RUNS):
            best = min(best, _once(call, device, args, kwargs))
            if time.perf_counter() - began > _MAX_SECONDS:
                break
    return best


def _once(call: Call, device: torch.device, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    synchronize(device)
    began = time.perf_counter()
    call.function(*args, **kwargs)
    synchronize(device)
    return time.perf_counter() - began
