"""Every test of the tools runs in a folder of its own, with no variable of theirs set, as if nothing was said yet."""

from __future__ import annotations

import os

import pytest

from op_tools import native
from op_tools.core.steps import STEPS
from op_tools.output import messages


@pytest.fixture(autouse=True)
def _fresh(monkeypatch, tmp_path):
    for name in list(os.environ):
        if name.startswith("OP_") or "AUTOCOMPARE_ERROR" in name or name.endswith("OP_DTYPE_CAST_DICT"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    messages.forget()
    STEPS.forget()


@pytest.fixture(params=["native", "python"])
def way(request, monkeypatch):
    """With the C++ helper, and without."""
    monkeypatch.setenv("OP_TOOLS_NATIVE", str(int(request.param == "native")))
    if request.param == "native":
        assert native.library() is not None
    return request.param
