"""Histograms of what the device gave beside what the reference has, of calls that are saved because they are wrong.

They stand beside the device's tensors as histograms-output.json or histograms-grad_inputs.json: `ditorch report` draws
them without loading a tensor.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from op_tools.output.results import finite
from op_tools.storage import files
from op_tools.values import trees

BINS = 40
MAX_ELEMENTS = 1_000_000  # of a larger tensor every n-th is counted
MAX_VALUES = 8  # of a call


def write(folder: Path, part: str, got: tuple[Any, ...], expected: tuple[Any, ...]) -> None:
    """`part`: output or grad_inputs; `got` and `expected` are what is saved under that name."""
    values = [
        _value(f"{part}{place}", ours, theirs)
        for (place, ours), (_, theirs) in zip(_places(part, got), _places(part, expected))
        if _is_real(ours) and _is_real(theirs)
    ]
    if values:
        content = finite({"schema": "ditorch.histograms/1", "values": values[:MAX_VALUES]})
        files.put(str(folder / f"histograms-{part}.json"), [json.dumps(content).encode()])


def _places(part: str, values: tuple[Any, ...]) -> Iterable[tuple[str, Any]]:
    return trees.results(values[0]) if part == "output" else trees.arguments(values, {})


def _is_real(value: Any) -> bool:
    return (
        isinstance(value, Tensor) and value.is_floating_point() and value.layout is torch.strided and value.numel() > 0
    )


def _value(what: str, got: Tensor, expected: Tensor) -> dict[str, Any]:
    ours, theirs = _sample(got), _sample(expected)
    numbers = torch.cat([ours, theirs])
    numbers = numbers[numbers.isfinite()]
    low, high = (float(numbers.min()), float(numbers.max())) if numbers.numel() else (0.0, 0.0)
    if high <= low:
        low, high = low - 0.5, high + 0.5
    edges = [low + (high - low) * place / BINS for place in range(BINS + 1)]
    sides = {"device": _side(ours, low, high), "reference": _side(theirs, low, high)}
    return {"what": what.strip(), "edges": edges, **sides}


def _sample(tensor: Tensor) -> Tensor:
    flat = tensor.detach().reshape(-1)
    return flat[:: flat.numel() // MAX_ELEMENTS + 1].to("cpu", torch.float64)


def _side(numbers: Tensor, low: float, high: float) -> dict[str, Any]:
    known = numbers[numbers.isfinite()]
    counts = torch.histc(known, BINS, low, high) if known.numel() else torch.zeros(BINS)
    found: dict[str, Any] = {"counts": [int(count) for count in counts.tolist()]}
    found.update(
        nan=int(numbers.isnan().sum()), inf=int(numbers.isinf().sum()), min=None, max=None, mean=None, std=None
    )
    if known.numel():
        found.update(min=float(known.min()), max=float(known.max()), mean=float(known.mean()))
        found["std"] = float(known.std(correction=0))
    return found
