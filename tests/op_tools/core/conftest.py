"""torch.compile as if nothing had been compiled yet."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture
def compiler():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()
