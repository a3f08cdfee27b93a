"""With the device as the reference a few calls of each place are proven: what counts as one."""

from __future__ import annotations

import pytest
import torch

from ....conftest import DEVICE
from ..kernels import kernel


@pytest.mark.skipif(DEVICE != "sim", reason="a kernel is replaced")
def test_a_line_that_calls_an_op_on_other_dimensions_is_another_place(compared, device):
    """The kernel is as wrong in float64, so that only a proof tells."""
    given = torch.rand(64, 64, device=device)

    def eightfold(x, dim=None, keepdim=False, *, dtype=None):
        made = x.cpu().sum(dim, keepdim, dtype=dtype).to(x.device)
        return made * 8 if x.dim() == 1 else made

    with kernel("sum.dim_IntList", eightfold):
        results = compared(lambda: given.sum(1).sum(0), reference="device")
    assert {row["op"] for row in results} == {"torch.Tensor.sum"}
