"""pin_memory() where torch was built for CUDA and there is no GPU.

No such torch is here: its answers are put in place of this one's. As torch 2.4's, they ask CUDA unless told otherwise.
"""

from __future__ import annotations

import pytest
import torch

from ditorch.backends.sim import SIM
from ditorch.redirect import pinning
from ditorch.redirect.patch import Patches

_pin_memory, _is_pinned = torch.Tensor.pin_memory, torch.Tensor.is_pinned


def _pin_memory_of_cuda(tensor, device=None):
    if device is None:
        raise RuntimeError("Found no NVIDIA driver on your system.")
    assert device == "sim"
    return _pin_memory(tensor)


def _is_pinned_of_cuda(tensor, device=None):
    return device == "sim" and _is_pinned(tensor)


@pytest.fixture
def built_for_cuda(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "12.1")
    monkeypatch.setattr(torch.Tensor, "pin_memory", _pin_memory_of_cuda)
    monkeypatch.setattr(torch.Tensor, "is_pinned", _is_pinned_of_cuda)
    patches = Patches()
    pinning.apply(patches, SIM)
    yield
    patches.undo()


@pytest.mark.usefixtures("built_for_cuda")
def test_pinned_memory_is_the_accelerators():
    pinned = torch.ones(3).pin_memory()
    assert pinned.is_pinned()
    assert pinned.tolist() == [1.0, 1.0, 1.0]
    assert not torch.ones(3).is_pinned()


@pytest.mark.usefixtures("built_for_cuda")
def test_a_data_loader_pins_its_batches():
    data = torch.utils.data.TensorDataset(torch.arange(4.0))
    batches = list(torch.utils.data.DataLoader(data, batch_size=2, pin_memory=True))
    assert [batch.is_pinned() for (batch,) in batches] == [True, True]


def test_a_torch_without_cuda_is_left_alone():
    patches = Patches()
    pinning.apply(patches, SIM)
    assert torch.Tensor.pin_memory is _pin_memory
    patches.undo()
