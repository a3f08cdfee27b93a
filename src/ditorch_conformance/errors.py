"""Errors raised on purpose: each message says what is wrong, where, and what to do."""

from __future__ import annotations


class ConformanceError(RuntimeError):
    """A run cannot be started, or results cannot be read."""
