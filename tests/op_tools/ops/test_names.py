"""What ops are called."""

from __future__ import annotations

import pytest
import torch

from op_tools.ops import catalogue
from op_tools.ops.names import normalized, op_name, works_in_place


def test_a_product_has_the_name_that_it_was_called_by():
    """torch.mm == torch.spmm, and torch.overrides knows only the last of them."""
    assert op_name(torch.mm) == "torch.mm"
    assert op_name(torch.spmm) == "torch.spmm"
    assert op_name(torch.add) == "torch.add"
    assert op_name(torch.Tensor.__abs__) == "torch.Tensor.abs"


@pytest.mark.parametrize(
    "form", ["add_", "__iadd__", "__ipow__", "__ilshift__", "__itruediv__", "__setitem__", "_foreach_add_"]
)
def test_what_works_in_place_is_known_by_its_name(form):
    assert works_in_place(form)


@pytest.mark.parametrize(
    "form", ["add", "__add__", "__invert__", "__int__", "__index__", "__iter__", "__getitem__", ""]
)
def test_what_works_in_no_place_is_known_by_its_name(form):
    assert not works_in_place(form)


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("torch.Tensor.__eq__", "eq"), ("torch.Tensor.__iadd__", "add"), ("torch.Tensor.__iand__", "__and__"),
        ("torch.Tensor.__ifloordiv__", "__floordiv__"), ("torch.Tensor.__invert__", "__invert__"),
        ("torch.Tensor.__rmod__", "__rmod__"),
    ],
)  # fmt: skip
def test_operators_are_known_by_their_function_or_by_their_plain_form(name, base):
    assert normalized(name).base == base
    assert catalogue.of(name) is not None
