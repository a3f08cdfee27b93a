"""The gradients that tools see are those at the edge of the op: autograd's own answer for the op alone."""

from __future__ import annotations

import contextlib
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from ditorch.sim import faults
from op_tools.values import trees

from ...conftest import DEVICE
from .. import op_samples
from ..recorder import Recorder

CHUNKS = 8


pytestmark = pytest.mark.usefixtures("way")


@pytest.mark.parametrize("chunk", op_samples.chunks(CHUNKS))
def test_every_ops_gradients_are_those_of_autograd(device, chunk):
    compared, wrong = 0, []
    for op in op_samples.ops()[chunk::CHUNKS]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                for sample in op_samples.samples(op, device, torch.float32):
                    verdict = _compare(op, sample)
                    compared += verdict is not None
                    if verdict:
                        wrong.append(f"{op_samples.full_name(op)}: {verdict}")
            except (RuntimeError, NotImplementedError) as error:
                if "sim" not in str(error) and "strided" not in str(error):
                    continue  # the op itself refuses the sample
    assert not wrong, "\n".join(wrong)
    assert compared > 60


def _compare(op, sample):
    """None where the op is not one call with gradients; "" where all are equal; else what differs."""
    args, kwargs = sample.arguments()
    torch.manual_seed(0)
    with Recorder(verbose=0) as recorder:
        outputs = op.op(*args, **kwargs)
        outputs = [x for x in pytree.tree_leaves(outputs) if isinstance(x, torch.Tensor) and x.requires_grad]
        if not outputs or len(recorder.calls) != 1:
            return None
        inputs = [*trees.tensors(recorder.calls[0].args), *trees.tensors(recorder.calls[0].kwargs)]
        if any(x is y for x in inputs for y in outputs):
            return None  # it returned its input: there is nothing that gradients could flow through
        wanted = [x for x in inputs if x.requires_grad]
        gradients = [torch.randn_like(x) for x in outputs]
        expected = torch.autograd.grad(outputs, wanted, gradients, allow_unused=True)
        assert all(x is None or x.device.type == wanted[0].device.type for x in expected)
    if not any(gradient is not None for gradient in expected):
        return None
    if len(recorder.backward) != 1:
        return f"{len(recorder.backward)} backward passes were seen"
    seen = {id(x): got for x, got in zip(inputs, recorder.backward[0][1].inputs) if x.requires_grad}
    for number, (x, right) in enumerate(zip(wanted, expected)):
        got = seen[id(x)]
        if (got is None) != (right is None):
            return f"gradient {number} is {'missing' if got is None else 'too many'}"
        if right is not None and not torch.allclose(got, right, equal_nan=True, rtol=1e-6, atol=1e-6):
            return f"gradient {number} differs by {(got - right).abs().max().item()}"
    for slot, gradient in enumerate(gradients):
        if not any(torch.equal(gradient, seen) for seen in recorder.backward[0][1].outputs if seen is not None):
            return f"the gradient of output {slot} is not there"
    return ""


def only(recorder, name):
    found = recorder.gradients_of(name)
    assert len(found) == 1
    return found[0]


def test_linear_on_three_dimensions(device):
    layer = nn.Linear(4, 5, device=device)
    x = torch.randn(2, 3, 4, device=device, requires_grad=True)
    with Recorder() as recorder:
        output = layer(x)
        gradient = torch.randn_like(output)
        output.backward(gradient)
    seen = only(recorder, "torch.nn.functional.linear")
    assert torch.equal(seen.outputs[0], gradient)
    for got, right in zip(seen.inputs, (x.grad, layer.weight.grad, layer.bias.grad)):
        assert torch.equal(got, right)


def test_an_inputs_share_is_this_ops_only(device):
    x = torch.randn(3, device=device, requires_grad=True)
    with Recorder() as recorder:
        (x * 2 + x.exp()).sum().backward()
    assert torch.equal(only(recorder, "torch.Tensor.mul").inputs[0].cpu(), torch.full((3,), 2.0))
    assert torch.equal(only(recorder, "torch.Tensor.exp").inputs[0], x.detach().exp())


def test_the_same_tensor_twice_gives_the_sum_at_its_first_place(device):
    x = torch.randn(3, device=device, requires_grad=True)
    with Recorder() as recorder:
        torch.mul(x, x).sum().backward()
    first, second = only(recorder, "torch.mul").inputs
    assert torch.equal(first, x.grad)
    assert second is None


def test_in_place(device):
    x = torch.randn(3, device=device, requires_grad=True)
    with Recorder() as recorder:
        y = x * 1
        y.mul_(3)
        y.sum().backward()
    seen = only(recorder, "torch.Tensor.mul_")
    assert torch.equal(seen.inputs[0].cpu(), torch.full((3,), 3.0))


def test_in_place_on_a_view(device):
    x = torch.randn(4, device=device, requires_grad=True)
    with Recorder():
        y = x * 1
        y[:2].mul_(3)
        y.sum().backward()
    assert torch.equal(x.grad.cpu(), torch.tensor([3.0, 3.0, 1.0, 1.0]))


def test_unused_outputs(device):
    x = torch.randn(4, 3, device=device, requires_grad=True)
    with Recorder() as recorder:
        first, _ = x.split(2)
        first.sum().backward()
    seen = only(recorder, "torch.Tensor.split")
    assert torch.equal(seen.inputs[0], x.grad)


def test_a_part_of_an_op_that_no_gradient_reaches_does_not_hold_the_rest_back(device):
    x = torch.randn(4, 3, device=device, requires_grad=True)
    y = torch.randn(4, 3, device=device, requires_grad=True)
    with Recorder() as recorder:
        results = torch._foreach_mul([x, y], 2)
        results[0].sum().backward()
    seen = only(recorder, "torch._foreach_mul")
    assert torch.equal(seen.inputs[0], x.grad)
    assert seen.inputs[1] is None


def test_two_passes_over_a_retained_graph(device):
    x = torch.randn(3, device=device, requires_grad=True)
    with Recorder() as recorder:
        y = functional.normalize(x, dim=0)
        y.sum().backward(retain_graph=True)
        first = x.grad.clone()
        y.sum().backward()
    seen = recorder.gradients_of("torch.nn.functional.normalize")
    assert len(seen) == 2
    assert torch.equal(seen[0].inputs[0], first)


def test_gradients_of_gradients(device):
    x = torch.randn(3, device=device, requires_grad=True)
    with Recorder():
        (gradient,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(gradient.sum(), x)
    torch.testing.assert_close(second, 6 * x.detach())


def test_checkpointed_layers(device):
    layer = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3)).to(device)
    x = torch.ones(2, 3, device=device, requires_grad=True)
    with Recorder() as recorder:
        checkpoint(layer, x, use_reentrant=False).sum().backward()
    seen = recorder.gradients_of("torch.nn.functional.linear")
    assert len(seen) == 2
    assert torch.equal(seen[0].inputs[1], layer[2].weight.grad)
    assert torch.equal(seen[1].inputs[1], layer[0].weight.grad)


def test_watching_keeps_nothing_alive(device):
    import gc
    import weakref

    class Held:
        pass

    x = torch.randn(3, device=device, requires_grad=True)

    class Keeping(Recorder):
        def after(self, call, state):
            return True

        def flowed(self, call, state, gradients):
            pass

    with Keeping():
        y = x * 2
        held = Held()
        y.grad_fn.metadata["held"] = held  # goes when the node goes
        held = weakref.ref(held)
        y.sum().backward()
        assert held() is not None
        del y
        gc.collect()
        assert held() is None


class HoldsNothing(Recorder):
    def flowed(self, call, state, gradients):
        pass


class CountsCopies(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.copies = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.copies += function.overloadpacket in (torch.ops.aten.clone, torch.ops.aten.copy_)
        return function(*args, **(kwargs or {}))


def copies_in_backward(device, watched):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)).to(device)
    x = torch.ones(2, 3, 4, device=device)
    with HoldsNothing(ops=["torch.nn.functional.linear"]) if watched else contextlib.nullcontext():
        loss = model(x).sum()
        with CountsCopies() as counted:
            loss.backward()
    return counted.copies


def test_gradients_of_parameters_are_not_copied(device):
    """Autograd takes them for its own as long as nobody else holds them."""
    assert copies_in_backward(device, watched=True) == copies_in_backward(device, watched=False)


def test_a_gradient_that_was_changed_before_the_op_was_done_is_not_shown(device):
    """A hook changes the bias's gradient in place while linear's other nodes have still to run."""
    weight = torch.ones(4, 4, device=device, requires_grad=True)
    bias = torch.ones(4, device=device, requires_grad=True)
    x = torch.ones(2, 3, 4, device=device, requires_grad=True)

    def change(parameter):
        parameter.grad.mul_(100)

    bias.register_post_accumulate_grad_hook(change)
    with Recorder() as recorder:
        functional.linear(x, weight, bias).sum().backward()
    (gradients,) = recorder.gradients_of("torch.nn.functional.linear")
    seen = gradients.inputs[2]
    assert seen is None or seen.tolist() == [6.0] * 4
    assert bias.grad.tolist() == [600.0] * 4


@pytest.mark.skipif(DEVICE != "sim", reason="kernels are replaced on the simulated accelerator")
def test_tools_do_not_see_the_arithmetic_of_an_injected_fault(device):
    x = torch.randn(6, 6, device=device, requires_grad=True)

    def names():
        with Recorder(verbose=0) as recorder:
            (x[None] @ (x @ x)[None]).sum().backward()
        return [call.name for call in recorder.calls]

    with faults.inject("aten.mm: scale=1.01, phase=backward"), faults.inject("aten.bmm: remake"):
        broken = names()
    assert broken == names()


def test_a_weight_that_autocast_casts_once_gives_each_op_its_own_share(device):
    weight = torch.randn(4, 4, device=device, requires_grad=True)
    x = torch.randn(3, 4, device=device)
    with Recorder(ops=["torch.nn.functional.linear"], verbose=0) as recorder:
        with torch.autocast(torch.device(device).type, torch.bfloat16):
            first, second = functional.linear(x, weight), functional.linear(x * 2, weight)
        shares = [torch.randn_like(first), torch.randn_like(second)]
        torch.autograd.backward([first, second], shares)
    low = x.bfloat16()
    expected = [shares[0].t() @ low, shares[1].t() @ (low * 2)]
    flows = {call.id: gradients for call, gradients in recorder.backward}
    assert sorted(flows) == [call.id for call in recorder.calls]
    for number, share in zip(sorted(flows), expected):
        assert flows[number].inputs[1].dtype is torch.float32
        torch.testing.assert_close(flows[number].inputs[1], share.float(), rtol=2e-2, atol=2e-2)
