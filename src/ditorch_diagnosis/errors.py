"""Errors raised on purpose: each message says what is wrong, where, and what to do."""

from __future__ import annotations


class DiagnosisError(RuntimeError):
    """A search cannot be started, or goes no further."""
