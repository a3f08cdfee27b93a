"""Every optimizer of torch.optim in each of its paths: the CPU's numbers, or a clean refusal."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

OPTIMIZERS = {
    name: cls
    for name, cls in vars(torch.optim).items()
    if inspect.isclass(cls) and issubclass(cls, torch.optim.Optimizer) and cls is not torch.optim.Optimizer
}
DENSE = sorted(set(OPTIMIZERS) - {"SparseAdam"})
PATHS = {
    "plain": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "capturable": {"capturable": True},
}


def accepted_arguments(name):
    return set(inspect.signature(OPTIMIZERS[name]).parameters)


def paths_of(name):
    return [path for path, arguments in PATHS.items() if set(arguments) <= accepted_arguments(name)]


def trained_weight(name, device, steps=4, **arguments):
    """A layer's weight after a few steps."""
    torch.manual_seed(0)
    model = nn.Linear(4, 4, bias=False).to(device)  # no bias: Muon takes matrices only
    optimizer = OPTIMIZERS[name](model.parameters(), lr=0.1, **arguments)
    inputs = torch.arange(8.0).view(2, 4).to(device) / 8

    def closure():
        optimizer.zero_grad()
        loss = model(inputs).pow(2).mean()
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(closure)
    return model.weight.detach().cpu()


@pytest.mark.parametrize("name", DENSE)
def test_an_optimizer_trains_as_on_the_cpu(name):
    device, host = trained_weight(name, "sim"), trained_weight(name, "cpu")
    torch.testing.assert_close(device, host)  # the CPU chooses the plain path where the device chooses foreach
    assert not torch.equal(device, trained_weight(name, "cpu", steps=0))


@pytest.mark.parametrize(
    ("name", "path"), [(name, path) for name in DENSE for path in paths_of(name) if path != "capturable"]
)
def test_a_path_of_an_optimizer_gives_the_cpus_bits(name, path):
    device, host = (trained_weight(name, device, **PATHS[path]) for device in ("sim", "cpu"))
    assert torch.equal(device, host)


@pytest.mark.parametrize("foreach", [False, True], ids=["plain", "foreach"])
@pytest.mark.parametrize("name", [name for name in DENSE if "capturable" in paths_of(name)])
def test_a_capturable_optimizer_trains_as_the_plain_one(name, foreach):
    device = trained_weight(name, "sim", capturable=True, foreach=foreach)
    torch.testing.assert_close(device, trained_weight(name, "cpu"))


def test_every_path_is_there():
    assert {"SGD", "Adam", "AdamW", "LBFGS", "Adagrad", "RMSprop"} <= set(DENSE)
    assert paths_of("Adam") == list(PATHS)
    assert "fused" in paths_of("SGD")


def test_state_lives_on_the_device_and_survives_a_state_dict():
    model = nn.Linear(2, 2).to("sim")
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    model(torch.ones(1, 2, device="sim")).sum().backward()
    optimizer.step()
    state = optimizer.state[model.weight]
    assert str(state["exp_avg"].device) == "sim:0"

    moved = nn.Linear(2, 2).to("sim:1")
    restored = torch.optim.AdamW(moved.parameters(), fused=True)
    restored.load_state_dict(optimizer.state_dict())
    assert str(restored.state[moved.weight]["exp_avg"].device) == "sim:1"
    assert torch.equal(restored.state[moved.weight]["exp_avg"].cpu(), state["exp_avg"].cpu())


def test_gradients_are_clipped_as_on_the_cpu():
    norms = []
    for device in ("cpu", "sim"):
        weights = [torch.ones(3, device=device, requires_grad=True) for _ in range(2)]
        sum((weight * 5).sum() for weight in weights).backward()
        norm = nn.utils.clip_grad_norm_(weights, 1.0)
        norms.append((norm.item(), weights[0].grad.tolist()))
    assert norms[0] == norms[1]


def test_parameters_on_two_devices_can_share_an_optimizer():
    weights = [torch.ones(3, device=device, requires_grad=True) for device in ("sim:0", "sim:1", "cpu")]
    optimizer = torch.optim.SGD(weights, lr=1.0, foreach=True)
    for weight in weights:
        weight.sum().backward()
    optimizer.step()
    assert [weight.tolist() for weight in weights] == [[0, 0, 0]] * 3


@pytest.mark.skipif(not hasattr(torch.ops.aten._fused_adam_, "tensor_lr"), reason="this release takes numbers only")
@pytest.mark.parametrize("shape", [(), (1,)])
@pytest.mark.parametrize("name", ["Adam", "AdamW"])
def test_a_fused_kernel_reads_a_learning_rate_from_the_host(name, shape):
    parameters = [nn.Parameter(torch.ones(3, device=device)) for device in ("sim", "cpu")]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
        OPTIMIZERS[name]([parameter], lr=torch.full(shape, 0.25), fused=True).step()
    torch.testing.assert_close(parameters[0].cpu(), parameters[1])


@pytest.mark.skipif(not hasattr(torch, "_fused_sgd_"), reason="this release has no fused SGD")
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_fused_steps_in_sixteen_bits_are_those_of_float32(dtype, momentum):
    """The CPU's kernel does not move such parameters, and reads beyond their momenta."""
    torch.manual_seed(0)
    starts, slopes = ([torch.randn(size).to(dtype) for size in (3, 16, 64, 100)] for _ in range(2))
    found = {}
    for kind, device in ((dtype, "sim"), (torch.float32, "cpu")):
        parameters = [nn.Parameter(one.to(device, kind)) for one in starts]
        optimizer = torch.optim.SGD(parameters, 0.1, momentum, weight_decay=0.01, nesterov=momentum > 0, fused=True)
        for _ in range(3):
            for parameter, slope in zip(parameters, slopes):
                parameter.grad = slope.to(device, kind)
            optimizer.step()
        momenta = [one["momentum_buffer"] for one in optimizer.state.values() if momentum]
        found[device] = [one.detach().cpu().float() for one in (*parameters, *momenta)]
    for one, other in zip(found["sim"], found["cpu"]):
        torch.testing.assert_close(one, other, atol=0.05, rtol=0.02)
