"""What ops are called."""

from __future__ import annotations

import torch

from op_tools.ops.names import op_name


def test_a_product_has_the_name_that_it_was_called_by():
    """torch.mm == torch.spmm, and torch.overrides knows only the last of them."""
    assert op_name(torch.mm) == "torch.mm"
    assert op_name(torch.spmm) == "torch.spmm"
    assert op_name(torch.add) == "torch.add"
    assert op_name(torch.Tensor.__abs__) == "torch.Tensor.abs"
