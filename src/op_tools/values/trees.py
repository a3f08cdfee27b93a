"""Nested arguments: lists, tuples, named tuples and dictionaries with tensors somewhere inside."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Callable

import torch
from torch import Tensor


def tensors(value: Any) -> Iterator[Tensor]:
    """Every tensor inside, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from tensors(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from tensors(part)


def map_tensors(function: Callable[[Tensor], Any], value: Any) -> Any:
    """The same structure with `function` applied to every tensor; what holds no tensor is passed on as it is."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, dict):
        return _rebuilt_dict(value, {key: map_tensors(function, part) for key, part in value.items()})
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return rebuilt(value, [map_tensors(function, part) for part in value])
    return value


def rebuilt(like: Any, parts: list[Any]) -> Any:
    """A list, tuple, named tuple or torch.return_types with other parts; `like` itself where none has changed."""
    if all(new is old for new, old in zip(parts, like)):
        return like
    kind = type(like)
    if hasattr(kind, "_make"):
        return kind._make(parts)
    if kind.__module__ == "torch.return_types":
        return kind(parts)
    return tuple(parts) if isinstance(like, tuple) else parts


def _rebuilt_dict(like: dict[Any, Any], changed: dict[Any, Any]) -> Any:
    return like if all(changed[key] is part for key, part in like.items()) else changed


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Everything inside with its place, as the tables write it: `[0]`, ` [1][0]` inside a list, ` keepdim` by name."""
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        for index, part in enumerate(value):
            yield from leaves(part, f"{path}[{index}]")
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from leaves(part, f"{path} {key}")
    else:
        yield path, value


def arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The arguments of a call with their places. A single positional argument needs no index."""
    if len(args) == 1 and not isinstance(args[0], (list, tuple, dict)):
        yield "", args[0]
    else:
        for index, value in enumerate(args):
            nested = isinstance(value, (list, tuple, dict)) and not isinstance(value, torch.Size)
            yield from leaves(value, f" [{index}]" if nested else f"[{index}]")
    for key, value in kwargs.items():
        yield from leaves(value, f" {key}")


def results(value: Any) -> Iterator[tuple[str, Any]]:
    """The results of a call with their places; several are written ` [0][1]`, as one returned tuple."""
    if isinstance(value, (list, tuple, dict)) and not isinstance(value, torch.Size):
        yield from leaves(value, " [0]")
    else:
        yield "", value
