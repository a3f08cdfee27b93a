"""Which ops talk to other processes, by their names."""

from __future__ import annotations

_PREFIXES = ("torch.distributed.", "c10d.", "_c10d_functional", "c10d_functional", "_dtensor.", "torch.ops.c10d")


def is_collective(name: str) -> bool:
    """True for ops that talk to other processes: run twice, or by one process alone, they hang."""
    return name.startswith(_PREFIXES)
