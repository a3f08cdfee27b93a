"""Searches in a folder of their own, with no variable of the tools set."""

from __future__ import annotations

import os

import pytest

from op_tools.core.steps import STEPS
from op_tools.output import messages


@pytest.fixture(autouse=True)
def _fresh(monkeypatch, tmp_path):
    for name in list(os.environ):
        if name.startswith("OP_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    messages.forget()
    STEPS.forget()
