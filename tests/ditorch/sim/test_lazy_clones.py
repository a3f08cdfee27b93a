"""torch._lazy_clone: two tensors share memory until one of them is written to."""

from __future__ import annotations

import pytest
import torch

is_lazy = torch._C._is_cow_tensor


def clones(device="sim"):
    original = torch.arange(4.0, device=device)
    return original, torch._lazy_clone(original)


def test_a_lazy_clone_shares_memory_until_it_is_written_to():
    original, clone = clones()
    before = torch.sim.memory_allocated()
    assert is_lazy(original)
    assert is_lazy(clone)
    assert torch._C._data_address(clone) == torch._C._data_address(original)
    clone.add_(1)
    assert torch._C._data_address(clone) != torch._C._data_address(original)
    assert torch.sim.memory_allocated() - before == 16
    assert clone.tolist() == [1, 2, 3, 4]
    assert original.tolist() == [0, 1, 2, 3]


def test_writing_to_the_original_leaves_the_clone():
    original, clone = clones()
    original.fill_(9)
    assert clone.tolist() == [0, 1, 2, 3]
    assert not is_lazy(original)
    clone.add_(1)  # the last reference keeps the memory
    assert not is_lazy(clone)
    assert clone.tolist() == [1, 2, 3, 4]


READS = {
    "add": lambda tensor: tensor + 1,
    "view": lambda tensor: tensor.view(2, 2),
    "slice": lambda tensor: tensor[1:],
    "matmul": lambda tensor: tensor @ tensor,
    "cpu": lambda tensor: tensor.cpu(),
    "item": lambda tensor: tensor[2].item(),
    "clone": lambda tensor: tensor.clone(),
    "repr": repr,
}


@pytest.mark.parametrize("name", READS)
def test_reading_copies_nothing(name):
    original, clone = clones()
    READS[name](clone)
    assert is_lazy(clone)
    assert is_lazy(original)


WRITES = {
    "in place": lambda tensor: tensor.mul_(2),
    "by a view": lambda tensor: tensor[1:].zero_(),
    "out": lambda tensor: torch.add(tensor, 1, out=tensor),
    "copy": lambda tensor: tensor.copy_(torch.full((4,), 7.0)),
    "index": lambda tensor: tensor.__setitem__(0, 5),
    "random": lambda tensor: tensor.normal_(),
    "storage": lambda tensor: tensor.untyped_storage().fill_(1),
}


@pytest.mark.parametrize("name", WRITES)
def test_writing_to_a_clone_leaves_the_original(name):
    original, clone = clones()
    WRITES[name](clone)
    assert not is_lazy(clone)
    assert original.tolist() == [0, 1, 2, 3]


def test_running_statistics_are_written_to_without_being_said_to():
    original, clone = clones()
    inputs = torch.randn(3, 4, device="sim")
    torch.native_batch_norm(inputs, None, None, clone, torch.ones(4, device="sim"), True, 0.5, 1e-5)
    assert original.tolist() == [0, 1, 2, 3]
    assert clone.tolist() != [0, 1, 2, 3]


def test_a_clone_outlives_its_original_and_memory_is_given_back():
    before = torch.sim.memory_allocated()
    original, clone = clones()
    del original
    assert clone.tolist() == [0, 1, 2, 3]
    again = torch._lazy_clone(clone)
    clone.add_(1)
    assert again.tolist() == [0, 1, 2, 3]
    del clone, again
    assert torch.sim.memory_allocated() == before


def test_a_clone_on_the_second_device_stays_there():
    original, clone = clones("sim:1")
    clone.add_(1)
    assert clone.device == original.device == torch.device("sim:1")
    assert clone.untyped_storage().device == torch.device("sim:1")


def test_an_empty_tensor_is_cloned():
    clone = torch._lazy_clone(torch.empty(0, device="sim"))
    assert clone.resize_(2).zero_().tolist() == [0, 0]


def test_gradients_flow_through_a_lazy_clone():
    original = torch.ones(3, device="sim", requires_grad=True)
    torch._lazy_clone(original).mul(2).sum().backward()
    assert original.grad.tolist() == [2, 2, 2]
