"""Pinned memory, and data loaders whose workers are forked or spawned."""

from __future__ import annotations

import threading

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from ditorch import sim


class ComputedOnTheDevice(Dataset):
    """Every item is computed on the device, in the worker."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        sim.start()
        return (torch.full((2,), float(index), device="sim") * 10).cpu()


@pytest.fixture(autouse=True)
def _queues_finished():
    """A pinning loader closes its queue without waiting for the queue's thread."""
    yield
    for thread in threading.enumerate():
        if thread.name == "QueueFeederThread":
            thread.join(timeout=30)


@pytest.fixture
def numbers():
    return TensorDataset(torch.arange(20.0).view(10, 2))


def test_pinned_memory_is_host_memory_that_says_so():
    plain = torch.arange(4.0)
    assert not plain.is_pinned()
    pinned = plain.pin_memory()
    assert pinned.is_pinned()
    assert pinned.device.type == "cpu"
    assert pinned.untyped_storage().is_pinned()
    assert torch.equal(pinned, plain)


def test_pinning_pinned_memory_copies_nothing():
    pinned = torch.ones(4).pin_memory()
    assert pinned.pin_memory() is pinned


def test_a_view_of_pinned_memory_is_pinned():
    assert torch.ones(4).pin_memory()[2:].is_pinned()


def test_a_factory_pins():
    assert torch.empty(3, pin_memory=True).is_pinned()
    assert torch.tensor([1, 2], pin_memory=True).is_pinned()
    assert torch.empty(0, pin_memory=True).numel() == 0


def test_freed_pinned_memory_is_not_pinned_any_more():
    pinned = [torch.empty(1000, pin_memory=True) for _ in range(20)]
    del pinned
    assert not any(torch.empty(1000).is_pinned() for _ in range(50))


def test_a_device_tensor_cannot_be_pinned():
    tensor = torch.ones(2, device="sim")
    assert not tensor.is_pinned()
    with pytest.raises(RuntimeError, match="cannot pin 'simFloatType' only dense CPU tensors can be pinned"):
        tensor.pin_memory()


def test_pinned_memory_is_copied_to_the_device():
    copy = torch.arange(4.0).pin_memory().to("sim", non_blocking=True)
    assert copy.sum().item() == 6


@pytest.mark.parametrize("context", [None, "fork", "spawn"])
def test_a_loader_pins_its_batches(numbers, context):
    workers = {} if context is None else {"num_workers": 2, "multiprocessing_context": context}
    total = 0
    for (batch,) in DataLoader(numbers, batch_size=4, pin_memory=True, **workers):
        assert batch.is_pinned()
        total += batch.to("sim", non_blocking=True).sum().item()
    assert total == 190


def test_forked_workers_do_without_pinning(numbers):
    torch.ones(3, device="sim")
    batches = [batch.to("sim") for (batch,) in DataLoader(numbers, batch_size=4, num_workers=2)]
    assert sum(batch.sum().item() for batch in batches) == 190


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_use_the_device(context):
    loader = DataLoader(ComputedOnTheDevice(), batch_size=2, num_workers=2, multiprocessing_context=context)
    assert [batch.tolist() for batch in loader] == [[[0, 0], [10, 10]], [[20, 20], [30, 30]]]


def test_a_loader_shuffles_by_a_generator_of_the_host(numbers):
    orders = [
        [batch.tolist() for (batch,) in DataLoader(numbers, shuffle=True, generator=torch.Generator().manual_seed(3))]
        for _ in range(2)
    ]
    assert orders[0] == orders[1]
    assert orders[0] != sorted(orders[0])
