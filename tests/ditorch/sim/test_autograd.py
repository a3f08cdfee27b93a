"""Autograd on the device: gradients, hooks, threads, modes and torch.func."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad


@pytest.fixture
def leaf():
    return torch.tensor([0.5, -1.0, 2.0], device="sim", dtype=torch.float64, requires_grad=True)


class Doubled(torch.autograd.Function):
    """Doubles; its gradient is tripled, to be told from PyTorch's own."""

    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(context, gradient):
        (saved,) = context.saved_tensors
        assert saved.device == gradient.device
        return gradient * 3


def test_gradients_are_right(leaf):
    assert torch.autograd.gradcheck(lambda x: (x.sin() * x).cumsum(0), (leaf,))
    assert torch.autograd.gradgradcheck(lambda x: (x.sin() * x).cumsum(0), (leaf,))


def test_gradients_of_convolution_are_right():
    image = torch.randn(1, 2, 4, 4, device="sim", dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2, 1, 3, 3, device="sim", dtype=torch.float64, requires_grad=True)
    bias = torch.randn(2, device="sim", dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *a: nn.functional.conv2d(*a, groups=2), (image, weight, bias))


def test_forward_mode_gradients_are_right(leaf):
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(leaf.detach(), torch.ones_like(leaf))
        tangent = forward_ad.unpack_dual(dual.sin()).tangent
    assert torch.equal(tangent.cpu(), leaf.detach().cos().cpu())


def test_a_custom_function_runs(leaf):
    Doubled.apply(leaf).sum().backward()
    assert leaf.grad.tolist() == [3, 3, 3]


def test_hooks_see_tensors_on_the_device(leaf):
    seen = []
    product = Doubled.apply(leaf)
    product.register_hook(lambda gradient: seen.append(("tensor", str(gradient.device))))
    product.grad_fn.register_hook(lambda inputs, outputs: seen.append(("node", str(inputs[0].device))))
    leaf.register_post_accumulate_grad_hook(lambda parameter: seen.append(("leaf", str(parameter.grad.device))))
    product.sum().backward()
    assert seen == [("tensor", "sim:0"), ("node", "sim:0"), ("leaf", "sim:0")]


def test_a_hook_can_change_a_gradient(leaf):
    leaf.register_hook(lambda gradient: gradient * 10)
    leaf.sum().backward()
    assert leaf.grad.tolist() == [10, 10, 10]


def test_module_hooks_run():
    seen = []
    layer = nn.Linear(2, 2).to("sim")
    layer.register_forward_hook(lambda module, inputs, output: seen.append(str(output.device)))
    layer.register_full_backward_hook(lambda module, inputs, outputs: seen.append(str(outputs[0].device)))
    layer(torch.ones(1, 2, device="sim", requires_grad=True)).sum().backward()
    assert seen == ["sim:0", "sim:0"]


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled:UserWarning")  # that is the point
@pytest.mark.filterwarnings("ignore:Error detected in SqrtBackward0:UserWarning")
def test_anomaly_mode_names_the_function_that_made_nan():
    leaf = torch.zeros(1, device="sim", requires_grad=True)
    with torch.autograd.set_detect_anomaly(True):
        (leaf * 2).sum().backward()
        loss = (leaf.sqrt() * 0).sum()
        with pytest.raises(RuntimeError, match="'SqrtBackward0' returned nan values"):
            loss.backward()


def test_backward_runs_in_many_threads(leaf):
    gradients = []

    def differentiate():
        gradients.append(torch.autograd.grad((leaf * leaf).sum(), leaf)[0].tolist())

    threads = [threading.Thread(target=differentiate) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert gradients == [[1, -2, 4]] * 4


def test_backward_runs_in_a_thread_of_the_device(leaf):
    names = []
    product = leaf * 2
    product.register_hook(lambda gradient: names.append(threading.get_ident()))
    product.sum().backward()
    assert names != [threading.get_ident()]


def test_backward_crosses_devices():
    leaf = torch.ones(2, requires_grad=True)
    ((leaf.to("sim:0") * 2).to("sim:1") * 3).cpu().sum().backward()
    assert leaf.grad.device.type == "cpu"
    assert leaf.grad.tolist() == [6, 6]


def test_gradients_accumulate(leaf):
    for _ in range(2):
        leaf.sum().backward()
    assert leaf.grad.tolist() == [2, 2, 2]


def test_an_error_in_backward_reaches_the_caller(leaf):
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return x.clone()

        @staticmethod
        def backward(context, gradient):
            raise ZeroDivisionError("broken on purpose")

    with pytest.raises(ZeroDivisionError, match="broken on purpose"):
        Broken.apply(leaf).sum().backward()
    leaf.sum().backward()
    assert leaf.grad.tolist() == [1, 1, 1]


def test_inference_mode_makes_inference_tensors(leaf):
    with torch.inference_mode():
        doubled = leaf * 2
    assert doubled.is_inference()
    assert doubled.tolist() == [1, -2, 4]
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        leaf * doubled


def test_no_grad_makes_no_graph(leaf):
    with torch.no_grad():
        assert not (leaf * 2).requires_grad


@pytest.mark.parametrize("pinned", [False, True])
def test_saved_tensors_can_wait_on_the_cpu(leaf, pinned):
    before = torch.sim.memory_allocated()
    with torch.autograd.graph.save_on_cpu(pin_memory=pinned):
        doubled = leaf * 2
        product = doubled * doubled
    del doubled
    assert torch.sim.memory_allocated() == before + product.nbytes
    product.sum().backward()
    assert leaf.grad.tolist() == [4, -8, 16]


def test_saved_tensor_hooks_see_device_tensors(leaf):
    packed = []

    def pack(tensor):
        packed.append(str(tensor.device))
        return tensor.cpu()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor.to("sim")):
        loss = (leaf * leaf).sum()
    loss.backward()
    assert packed == ["sim:0", "sim:0"]
    assert leaf.grad.tolist() == [1, -2, 4]


def per_sample_gradients(device):
    weight = torch.arange(3.0).to(device)
    samples = torch.arange(6.0).view(2, 3).to(device)
    gradient = torch.func.grad(lambda w, x: (w * x).sin().sum())
    return torch.func.vmap(gradient, (None, 0))(weight, samples)


@pytest.mark.parametrize(
    "transform",
    [
        per_sample_gradients,
        lambda device: torch.func.jacrev(lambda x: x**2)(torch.arange(3.0).to(device)),
        lambda device: torch.func.jacfwd(torch.sin)(torch.arange(3.0).to(device)),
        lambda device: torch.func.jvp(torch.sin, (torch.arange(3.0).to(device),), (torch.ones(3).to(device),))[1],
        lambda device: torch.func.vjp(torch.sin, torch.arange(3.0).to(device))[1](torch.ones(3).to(device))[0],
        lambda device: torch.func.hessian(lambda x: (x**3).sum())(torch.arange(3.0).to(device)),
        lambda device: torch.func.vmap(torch.linalg.det)(torch.eye(2).expand(3, 2, 2).to(device)),
    ],
    ids=["vmap of grad", "jacrev", "jacfwd", "jvp", "vjp", "hessian", "vmap"],
)
def test_function_transforms_give_the_cpus_numbers(transform):
    on_device = transform("sim")
    assert str(on_device.device) == "sim:0"
    torch.testing.assert_close(on_device.cpu(), transform("cpu"))


def test_a_functional_call_runs():
    model = nn.Linear(2, 1).to("sim")
    weights = {name: torch.ones_like(parameter) for name, parameter in model.named_parameters()}
    assert torch.func.functional_call(model, weights, torch.ones(1, 2, device="sim")).item() == 3
