"""Who takes the first look: the host, or the device."""

from __future__ import annotations

import pytest

from op_tools.autocompare.prefilter import screen


@pytest.fixture(params=["the host looks", "the device looks first"])
def who_looks(request, monkeypatch):
    """At results that the CPU is the reference for: on CUDA the device, elsewhere the host."""
    is_first = request.param != "the host looks"
    monkeypatch.setattr(screen, "is_quick", lambda tensors: is_first and any(not one.is_cpu for one in tensors))
