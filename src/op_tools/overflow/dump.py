"""What OP_OVERFLOW_CHECK_ACTION=dump saves: what a call was given, as it was before it, and what it made of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from op_tools.output import messages, paths
from op_tools.overflow.calls import CheckedCall
from op_tools.overflow.finite import is_intact
from op_tools.storage import store
from op_tools.values import trees
from op_tools.values.tensors import tensors_in


def kept(checked: CheckedCall, targets: list[Tensor]) -> Any:
    """The arguments as they are now: copies of those that the call changes, the others with their versions."""
    changed, left = set(map(id, targets)), iter(checked.versions)
    versions: list[int | None] = []

    def keep(tensor: Tensor) -> Tensor:
        version = next(left)
        versions.append(None if id(tensor) in changed else version)
        same = tensor.detach()
        same = same.clone() if id(tensor) in changed else same
        return same.requires_grad_(tensor.requires_grad)

    return trees.map_tensors(keep, checked.call.args), trees.map_tensors(keep, checked.call.kwargs), versions


def save(checked: CheckedCall, out: Path) -> paths.OwnFolder | None:
    """In the layout of OpCapture: the folder, or None where it cannot be written, which is said."""
    call = checked.call
    when = paths.timestamp()
    own = paths.OwnFolder(paths.capture_folder, out, call.name, call.id, when)
    details = call.details()
    try:
        for part, args, kwargs in _parts(checked):
            store.save(own.path(), part, call.name, args, kwargs, f"{os.getpid()}/{call.id}/{when}/{part}", details)
    except OSError as error:
        messages.complain(
            f"{paths.shown(out)} cannot be written ({error.strerror}): OpOverflowCheck goes on without it"
        )
        return None
    return own


def _parts(checked: CheckedCall) -> Iterator[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    """What is saved of a call: what has been changed since is left out."""
    if checked.inputs is not None:
        args, kwargs, versions = checked.inputs
        if all(map(is_intact, tensors_in((*args, kwargs)), versions)):
            yield "input", args, kwargs
    if checked.gradients is not None:
        yield "grad_outputs", tuple(checked.gradients[0]), {}
        yield "grad_inputs", tuple(checked.gradients[1]), {}
    elif all(
        one is not None and is_intact(one, version) for one, version in zip(checked.results(), checked.made_versions)
    ):
        yield "output", (checked.call.result,), {}
