"""Which process of a run this is: several write into one folder, from one machine or many."""

from __future__ import annotations

import os
import socket
from functools import lru_cache
from typing import Any

import torch


def this_rank() -> int:
    """This process's rank in a distributed run; 0 where there is none."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    rank = os.environ.get("RANK", "0")
    return int(rank) if rank.isdigit() else 0


def world_size() -> int:
    """How many ranks this run has; 1 where it is not distributed."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size()
    size = os.environ.get("WORLD_SIZE", "1")
    return int(size) if size.isdigit() else 1


@lru_cache(maxsize=1)
def this_host() -> str:
    """The name of this machine, or container."""
    return socket.gethostname()


def identity() -> dict[str, Any]:
    """As it stands in JSON files."""
    return {"host": this_host(), "rank": this_rank(), "pid": os.getpid()}
