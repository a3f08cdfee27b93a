"""Small calls, which the CPU computes as a whole where there is no other reference."""

from __future__ import annotations

from itertools import product

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  its usual name

from ditorch.sim import faults


def program(device):
    """Ops of which none has an identity, in place and not, with and without gradients, and gradients of views."""
    torch.manual_seed(0)
    x = torch.randn(6, 4, 8, device=device, requires_grad=True)
    norm = torch.nn.BatchNorm1d(4).to(device)
    y = F.max_pool1d(F.pad(norm(x), (1, 1), "reflect"), 3).cumsum(-1)
    y = y[:, torch.tensor([0, 2, 2], device=device)].expand(2, -1, -1, -1).flip(1)
    total = torch.zeros(3, device=device).index_add_(0, torch.tensor([0, 1, 1], device=device), y.sum((0, 1, 3)))
    (torch.linalg.svdvals(y[0, :, 0]).sum() + total.std()).backward()
    parameters = [parameter.detach().clone() for parameter in norm.parameters()]
    torch._foreach_norm(parameters)
    torch._foreach_mul_(parameters, 2.0)


# a fault, and the op that is to blame
FAULTS = {
    "aten.native_batch_norm: epsilon=1000": "torch.nn.functional.batch_norm",
    "aten.native_batch_norm_backward: scale=1.01": "torch.nn.functional.batch_norm",
    "aten.max_pool2d_with_indices: scale=1.01": "torch.nn.functional.max_pool1d",
    "aten.reflection_pad1d: tail=0.2": "torch.nn.functional.pad",
    "aten.reflection_pad1d_backward: scale=1.01": "torch.nn.functional.pad",
    "aten.cumsum: scale=1.01, phase=forward": "torch.Tensor.cumsum",
    "aten.index: tail=0.2": "torch.Tensor.__getitem__",
    "aten.sum: scale=1.01, phase=backward": "torch.Tensor.expand",
    "aten.index_add: scale=1.01": "torch.Tensor.index_add_",
    "aten.std: scale=1.01": "torch.Tensor.std",
    "aten._foreach_mul_: scale=1.01": "torch._foreach_mul_",
    "aten._foreach_norm: scale=1.01": "torch._foreach_norm",
}

BESIDE_THE_DEVICE = [*FAULTS][::3]  # proofs beside another reference


@pytest.mark.parametrize("reference", ["identities", "device"])
def test_a_healthy_program_has_no_alarm_and_every_op_is_compared(compared, device, reference):
    results = compared(lambda: program(device), reference)
    assert list(results) == []
    assert list(results.not_looked_at) == []


@pytest.mark.parametrize(
    ("fault", "reference"), [*product(FAULTS, ["identities"]), *product(BESIDE_THE_DEVICE, ["device"])]
)
def test_a_kernel_that_is_wrong_in_every_dtype_is_named(compared, device, fault, reference):
    with faults.inject(fault) as injection:
        results = compared(lambda: program(device), reference)
    assert sum(injection.struck.values()), "the program does not use this kernel"
    assert FAULTS[fault] in {row["op"] for row in results}


def test_what_is_drawn_at_random_is_not_blamed_for_it(compared, device):
    assert list(compared(lambda: F.dropout(torch.rand(100, device=device), 0.5).bernoulli_())) == []


def test_memory_that_was_changed_after_a_call_is_no_fault(compared, device):
    def changes():
        x = torch.randn(20, device=device)
        y = x.cumsum(0)
        x.zero_()
        y.zero_()

    assert list(compared(changes)) == []


@pytest.mark.parametrize("reference", ["identities", "device"])
def test_gradients_of_gradients_are_no_fault_and_stay_the_same(compared, device, reference):
    """Autograd adds gradients up in the order in which the thread of each has made its graph."""

    def slopes():
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(2, 16),
            torch.nn.Tanh(),
            torch.nn.Linear(16, 16),
            torch.nn.Softplus(),
            torch.nn.Linear(16, 1),
        ).to(device)
        for _ in range(2):
            places = torch.randn(20, 2).to(device).requires_grad_()
            result = model(places)
            (slope,) = torch.autograd.grad(result.sum(), places, create_graph=True)
            (curve,) = torch.autograd.grad(slope[:, 1].sum(), places, create_graph=True)
            (slope[:, :1] + result * slope[:, 1:] - 0.01 * curve[:, 1:]).square().mean().backward()
        return [parameter.grad.cpu() for parameter in model.parameters()]

    plain, watched = slopes(), []
    assert list(compared(lambda: watched.extend(slopes()), reference)) == []
    assert all(torch.equal(one, other) for one, other in zip(plain, watched))


@pytest.mark.parametrize("reference", ["identities", "device"])
def test_layers_of_many_small_weights_are_computed_as_a_whole(compared, device, reference):
    torch.manual_seed(1)
    layers = torch.nn.GRU(3, 4, 3, bidirectional=True).to(device)
    x = torch.randn(3, 2, 3, device=device, requires_grad=True)
    results = compared(lambda: layers(x)[0].square().sum().backward(), reference)
    assert (list(results), list(results.not_looked_at)) == ([], [])
    with faults.inject("aten.mm: scale=1.1, phase=backward"):
        results = compared(lambda: layers(x)[0].square().sum().backward(), reference)
    assert {row["op"].rpartition(".")[2] for row in results} == {"gru"}
