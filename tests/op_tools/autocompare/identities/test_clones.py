"""Copies of small calls' tensors, for which no kernel is trusted that reads with strides."""

from __future__ import annotations

import pytest
import torch
from benchmarks.reported import REPORTED

from op_tools.autocompare import clones

from ....conftest import DEVICE


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x,
        lambda x: x[..., 1],
        lambda x: x[1:, ::2].mT,
        lambda x: x[:, :1].expand(3, 5, 4),
        lambda x: x[:0],
        lambda x: x[1, 2, 3],
    ],
    ids=["whole", "column", "turned", "repeated", "empty", "number"],
)
def test_a_copy_lies_in_memory_as_the_tensor_does(device, view):
    tensor = view(torch.randn(3, 6, 4, device=device)).requires_grad_()
    copy = clones.as_it_lies(tensor)
    assert (copy.shape, copy.requires_grad, copy.is_leaf) == (tensor.shape, True, True)
    assert copy.stride() == tensor.stride() or tensor.is_contiguous()
    assert torch.equal(copy, tensor)
    assert copy.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr() or not tensor.numel()
    with torch.no_grad():
        tensor.untyped_storage().fill_(0)
    assert not tensor.any()
    assert copy.numel() == 0 or bool(copy.any())


@pytest.mark.skipif(DEVICE != "sim", reason="its kernels are broken")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_copy_that_reads_in_order_is_found_though_the_tools_own_copies_do_so_too(compared, device, dtype):
    (fault,) = (fault for fault in REPORTED if fault.name == "copied_numbers_are_neighbours")
    x = torch.randn(3, 4, 2, device=device, dtype=dtype)
    run = lambda: torch.zeros(3, 4, device=device, dtype=dtype).copy_(x[..., 1])  # noqa: E731
    assert list(compared(run)) == []
    with fault.inject("sim") as injection:
        results = compared(run)
    assert sum(injection.effective.values())
    assert {row["op"] for row in results} == {"torch.Tensor.copy_"}
