"""torch.distributed.split_group where the collectives cannot split a group: the parts are made as groups of their own.

A mesh of several dimensions splits the default group as soon as that is bound to a device (`device_id=`).
"""

from __future__ import annotations

import copy
import functools
import threading
import weakref
from datetime import timedelta
from typing import Any, Callable

import torch

from ditorch.backend import Backend
from ditorch.redirect.patch import Patches

_splits: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # how often each group was split
_next = threading.local()  # the name of the group that is being made


def apply(patches: Patches, backend: Backend) -> None:
    from torch.distributed import device_mesh, distributed_c10d

    if not hasattr(distributed_c10d, "split_group"):  # before torch 2.5
        return
    wrapper = _splitting(distributed_c10d.split_group, torch.device(backend.device_type))
    for owner in (torch.distributed, distributed_c10d, device_mesh):
        if hasattr(owner, "split_group"):
            patches.assign(owner, "split_group", wrapper, "only NCCL and its like split a group")
    naming = _naming(distributed_c10d._hash_ranks_to_str)
    patches.assign(distributed_c10d, "_hash_ranks_to_str", naming, "the parts of a group need names that all agree on")


def _splitting(original: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    @functools.wraps(original)
    def split_group(
        parent_pg: Any = None,
        split_ranks: list[list[int]] | None = None,
        timeout: timedelta | None = None,
        pg_options: Any = None,
        group_desc: str | None = None,
        **others: Any,
    ) -> Any:
        parent = parent_pg or torch.distributed.distributed_c10d._get_default_group()
        if not split_ranks or _can_split(parent, device, pg_options):
            return original(parent_pg, split_ranks, timeout, pg_options, group_desc, **others)
        _splits[parent] = count = _splits.get(parent, 0) + 1  # in all members, also those that are in no part
        ranks = _own_part(parent, split_ranks)
        if ranks is None:
            return None
        backend = others.get("backend") or torch.distributed.get_backend(parent)
        _next.name = f"{parent.group_name}:split:{count}:{ranks[0]}"
        try:
            return torch.distributed.new_group(
                ranks, timeout, backend, pg_options, use_local_synchronization=True, group_desc=group_desc
            )
        finally:
            _next.name = None

    return split_group


def _naming(original: Callable[..., str]) -> Callable[..., str]:
    """PyTorch's names count the groups that a process is in, which members of one part need not agree on."""

    @functools.wraps(original)
    def hash_ranks(ranks: list[int]) -> str:
        return getattr(_next, "name", None) or original(ranks)

    return hash_ranks


def _can_split(parent: Any, device: torch.device, options: Any) -> bool:
    collectives = parent._get_backend(device)
    if not getattr(collectives, "supports_splitting", False):
        return False
    if options is not None:
        return True
    try:
        copy.deepcopy(collectives.options)  # as split_group does with them
    except TypeError:
        return False
    return True


def _own_part(parent: Any, split_ranks: list[list[int]]) -> list[int] | None:
    """The processes, counted in the whole program, of the part that this one is in."""
    own = torch.distributed.get_rank(parent)
    for part in split_ranks:
        if not part or len(set(part)) != len(part):
            raise ValueError("the split group cannot be empty or have duplicate ranks")
        if own in part:
            return [torch.distributed.get_global_rank(parent, rank) for rank in sorted(part)]
    return None
