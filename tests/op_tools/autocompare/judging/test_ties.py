"""Among equals any choice is right, and near a jump either side."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from op_tools.autocompare.arguments import Arguments
from tests.op_tools.autocompare.net import compare_call

pytestmark = pytest.mark.usefixtures("who_looks")


@pytest.mark.parametrize(
    ("function", "args", "got", "is_right"),
    [
        (torch.argmax, (torch.tensor([1.0, 3.0, 3.0]),), torch.tensor(2), True),
        (torch.argmax, (torch.tensor([1.0, 3.0, 3.0]),), torch.tensor(0), False),
        (torch.argmax, (torch.tensor([1.0, 3.0, 3.0]),), torch.tensor(7), False),
        (torch.argsort, (torch.tensor([2.0, 2.0, 1.0]),), torch.tensor([2, 1, 0]), True),
        (torch.argsort, (torch.tensor([2.0, 2.0, 1.0]),), torch.tensor([2, 1, 1]), False),
        (torch.topk, (torch.tensor([1.0, 1.0, 1.0]), 2), (torch.ones(2), torch.tensor([2, 0])), True),
        (torch.max, (torch.tensor([[5.0, 5.0]]), 1), (torch.tensor([5.0]), torch.tensor([1])), True),
        (torch.median, (torch.tensor([[1.0, 2.0, 2.0]]), 1), (torch.tensor([2.0]), torch.tensor([2])), True),
    ],
)
def test_among_equals_any_position_is_right(function, args, got, is_right):
    (found,) = compare_call(f"torch.{function.__name__}", function, Arguments(args, {}), got)
    assert found.is_wrong is not is_right


def test_a_jump_within_rounding_is_nobodys_fault():
    quotient = (torch.tensor([0.3, 5.0]), torch.tensor([0.1, 2.0]))
    for got, is_right in (([2.0, 2.0], True), ([3.0, 2.0], True), ([2.0, 1.0], False)):
        (found,) = compare_call("torch.floor_divide", torch.floor_divide, Arguments(quotient, {}), torch.tensor(got))
        assert found.is_wrong is not is_right


def test_gradients_at_ties_may_go_either_way():
    x = torch.tensor([[2.0, 2.0, 1.0, 0.0]], requires_grad=True)
    pooled = functional.max_pool1d(x, 2)
    for gradient, is_right in (
        ([[0.0, 1.0, 1.0, 0.0]], True),
        ([[1.0, 0.0, 1.0, 0.0]], True),
        ([[1.0, 0, 0, 1]], False),
    ):
        _, found = compare_call(
            "torch.nn.functional.max_pool1d",
            functional.max_pool1d,
            Arguments((x, 2), {}),
            pooled.detach(),
            [torch.ones(1, 2)],
            [torch.tensor(gradient)],
        )
        assert found.is_wrong is not is_right


@pytest.mark.parametrize(
    ("function", "args", "wrong"),
    [
        (torch.topk, (3,), [0.0, 0, 0, 0, 0, 0, 0, 1, 0]),
        (torch.sort, (), [1.0, 2, 3, 4, 5, 6, 7, 8, 10]),
        (torch.median, (0,), [1.0, 0, 0, 0, 0, 0, 0, 0, 0]),
    ],
)
def test_gradients_among_many_equals_may_go_to_any_of_them(function, args, wrong):
    """More of them than a second look with moved inputs would try."""
    x = torch.tensor([5.0, 1, 1, 1, 1, 1, 1, 1, 0], requires_grad=True)
    values, indices = function(x, *args)
    gradients = torch.arange(1.0, 1 + values.numel()).reshape(values.shape)
    (right,) = torch.autograd.grad(values, x, gradients)
    order = torch.tensor([0, 7, 6, 5, 4, 3, 2, 1, 8])  # the equal ones the other way round
    for gradient, is_right in ((right, True), (right[order], True), (torch.tensor(wrong), False)):
        _, found = compare_call(
            f"torch.{function.__name__}",
            function,
            Arguments((x, *args), {}),
            (values.detach(), indices),
            [gradients, None],
            [gradient],
        )
        assert found.is_wrong is not is_right


def test_signs_of_vectors_are_free_but_not_their_nan():
    matrix = torch.randn(4, 4)
    values, vectors = torch.linalg.eigh(matrix + matrix.t())
    for got, is_right in ((-vectors, True), (vectors * math.nan, False)):
        (found,) = compare_call(
            "torch.linalg.eigh", torch.linalg.eigh, Arguments((matrix + matrix.t(),), {}), (values, got)
        )
        assert found.is_wrong is not is_right
