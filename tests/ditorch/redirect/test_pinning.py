"""pin_memory() where torch asks CUDA, and there is no GPU: torch 2.4 does.

With a newer torch, the answers of such a one are put in place of its own.
"""

from __future__ import annotations

import pytest
import torch

from ditorch.backends.sim import SIM
from ditorch.redirect import pinning
from ditorch.redirect.patch import Patches

_pin_memory, _is_pinned = torch.Tensor.pin_memory, torch.Tensor.is_pinned
_asks_accelerator = hasattr(torch, "accelerator")


def _pin_memory_of_cuda(tensor, device=None):
    if device is None:
        raise RuntimeError("Found no NVIDIA driver on your system.")
    assert device == "sim"
    return _pin_memory(tensor)


def _is_pinned_of_cuda(tensor, device=None):
    return device == "sim" and _is_pinned(tensor)


@pytest.fixture
def asks_cuda(monkeypatch):
    if _asks_accelerator:
        monkeypatch.delattr(torch, "accelerator")
        monkeypatch.setattr(torch.Tensor, "pin_memory", _pin_memory_of_cuda)
        monkeypatch.setattr(torch.Tensor, "is_pinned", _is_pinned_of_cuda)
    patches = Patches()
    pinning.apply(patches, SIM)
    yield
    patches.undo()


@pytest.mark.usefixtures("asks_cuda")
@pytest.mark.parametrize("told", [(), (None,), ("sim",)], ids=str)
def test_pinned_memory_is_the_accelerators(told):
    tensor = torch.arange(6.0).view(2, 3).t()
    pinned = tensor.pin_memory(*told)
    assert pinned.is_pinned(*told)
    assert pinned.tolist() == tensor.tolist()
    assert not tensor.is_pinned(*told)


@pytest.mark.usefixtures("asks_cuda")
def test_memory_can_be_pinned_from_the_start():
    assert torch.empty(3, pin_memory=True).is_pinned()


def test_a_data_loader_pins_its_batches(redirect):
    data = torch.utils.data.TensorDataset(torch.arange(4.0))
    batches = list(torch.utils.data.DataLoader(data, batch_size=2, pin_memory=True))
    assert [batch.is_pinned() for (batch,) in batches] == [True, True]


@pytest.mark.skipif(not _asks_accelerator, reason="this torch asks CUDA")
def test_a_torch_that_asks_the_accelerator_is_left_alone():
    before = torch.Tensor.pin_memory
    patches = Patches()
    pinning.apply(patches, SIM)
    assert torch.Tensor.pin_memory is before
    patches.undo()
