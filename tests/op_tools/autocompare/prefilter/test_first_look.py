"""Where tensors lie (op_tools.autocompare.prefilter.first_look): C++ and Python say the same."""

from __future__ import annotations

import pytest
import torch

import op_tools
from op_tools import native
from op_tools.autocompare.observed import bytes_taken
from op_tools.autocompare.prefilter import first_look

NUMBERS = torch.arange(24.0).reshape(4, 6)
PAIRS = {
    "in order": (NUMBERS, NUMBERS.double()),
    "the other way round": (NUMBERS.t(), NUMBERS.double().t()),
    "in different orders": (NUMBERS.t(), NUMBERS.double().t().contiguous()),
    "with gaps": (NUMBERS[:, ::2], NUMBERS[:, ::2]),
    "one row for all": (NUMBERS[:1].expand(4, 6), NUMBERS[:1].expand(4, 6)),
    "strides that meet": (torch.arange(9.0).as_strided((3, 3), (2, 2)), torch.arange(9.0).as_strided((3, 3), (2, 2))),
    "empty": (NUMBERS[:0], NUMBERS[:0]),
    "a number": (torch.tensor(1.0), torch.tensor(2)),
    "zeros without memory": (torch._efficientzerotensor((3, 2)), torch.zeros(3, 2)),
    "gradients required": (NUMBERS.clone().requires_grad_(), NUMBERS.double()),
    "other shapes": (NUMBERS, NUMBERS.t()),
    "complex": (NUMBERS.to(torch.complex64), NUMBERS.to(torch.complex64)),
    "negated later": (torch._neg_view(NUMBERS), NUMBERS),
    "sparse": (NUMBERS.to_sparse(), NUMBERS),
    "elsewhere": (NUMBERS, NUMBERS.to("meta")),
}
UNLIKE = {"other shapes", "complex", "negated later", "sparse", "elsewhere"}
ALIKE_IN_MEMORY = {"in order", "the other way round", "a number", "gradients required"}


@pytest.fixture(params=["python", "native"])
def beside(request):
    if request.param == "python":
        return first_look._beside
    helper = native.library()
    if helper is None:
        pytest.skip("there is no compiler")
    return helper.beside


@pytest.mark.parametrize("name", PAIRS)
def test_how_two_tensors_lie_beside_each_other(beside, name):
    got, expected = PAIRS[name]
    found = beside(got, expected)
    if name in UNLIKE:
        assert found is None
        return
    elements, size, got_address, expected_address, are_in_order = found
    assert elements == got.numel()
    assert size == got.nbytes + expected.nbytes
    assert are_in_order == (got.is_contiguous() and expected.is_contiguous())
    there = name in ALIKE_IN_MEMORY
    assert (got_address, expected_address) == ((got.data_ptr(), expected.data_ptr()) if there else (0, 0))


def test_memory_counts_once():
    other = torch.zeros(10)
    assert bytes_taken([NUMBERS, NUMBERS[1], NUMBERS.t(), other]) == 4 * (24 + 10)
    assert bytes_taken([other, NUMBERS.to_sparse()]) == 4 * 10
    assert bytes_taken([]) == 0


def test_gradients_that_accumulate_are_looked_at_before_they_change(device):
    """Autograd makes a gradient that flows the parameter's own, and adds the next one to it, unseen."""
    layer, x = torch.nn.Linear(8, 8).to(device), torch.randn(4, 8, device=device)
    with op_tools.OpAutoCompare(verbose=0, reference="device") as tool:
        for _ in range(3):
            layer(x).square().mean().backward()
    assert not tool.results
    assert not tool.results.not_looked_at


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("reference", ["cpu", "device"])
def test_sparse_tensors_and_their_gradients_are_compared(device, reference):
    places = torch.tensor([[0, 1, 1, 3, 0], [2, 0, 0, 1, 2]], device=device)
    values = torch.randn(5, device=device, requires_grad=True)
    with op_tools.OpAutoCompare(verbose=0, reference=reference) as tool:
        matrix = torch.sparse_coo_tensor(places, values, (4, 4)).coalesce()
        (matrix.values().square().sum() + torch.sparse.softmax(matrix, 1).to_dense().sum()).backward()
    assert not tool.results
    assert not tool.results.not_looked_at
