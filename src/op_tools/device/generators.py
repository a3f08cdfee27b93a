"""The state of random number generators: whether an op that is not in the catalogue has drawn from one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

States = list[Tensor]


def states_of(values: Iterable[Any]) -> States:
    """Of the generators among these values, the CPU's own, and those of the devices that tensors among them are on."""
    values = list(values)
    found = [torch.get_rng_state(), *(value.get_state() for value in values if isinstance(value, torch.Generator))]
    tensors = [value for value in values if isinstance(value, Tensor)]
    for device in {tensor.device for tensor in tensors if not tensor.is_cpu}:
        module = getattr(torch, device.type, None)
        with contextlib.suppress(Exception):  # a device without a generator, or with one that does not tell
            found.append(module.get_rng_state(device))  # type: ignore[union-attr]
    return found


def are_equal(some: States, others: States) -> bool:
    return len(some) == len(others) and all(map(torch.equal, some, others))
