"""Tools for training on an accelerator that goes wrong. None are here yet."""

from __future__ import annotations

__all__: list[str] = []
