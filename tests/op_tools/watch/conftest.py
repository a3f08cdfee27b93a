"""Tensors are looked at in every step, unless a test says otherwise."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _every_step(_fresh, monkeypatch):
    monkeypatch.setenv("OP_WATCH_EVERY", "1")
