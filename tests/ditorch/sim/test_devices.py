"""Devices: which tensors mix, how many there are, and what a missing kernel says."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ditorch.sim import device_module

DIFFERENT_DEVICES = "Expected all tensors to be on the same device"


@pytest.mark.parametrize(
    "operation",
    [
        pytest.param(lambda device, host: device + host, id="device + host"),
        pytest.param(lambda device, host: host + device, id="host + device"),
        pytest.param(lambda device, host: torch.mm(host, device), id="mm"),
        pytest.param(lambda device, host: torch.cat([device, host]), id="cat"),
        pytest.param(lambda device, host: nn.Linear(2, 2)(device), id="linear of the host"),
        pytest.param(lambda device, host: device.add_(host), id="in-place on the device"),
        pytest.param(lambda device, host: host.add_(device), id="in-place on the host"),
        pytest.param(lambda device, host: torch.add(device, 1, out=host), id="out= on the host"),
        pytest.param(lambda device, host: torch.add(host, 1, out=device), id="out= on the device"),
        pytest.param(lambda device, host: torch._foreach_add([device], [host]), id="foreach"),
    ],
)
def test_tensors_on_different_devices_do_not_mix(operation):
    device, host = torch.ones(2, 2, device="sim"), torch.ones(2, 2)
    with pytest.raises(RuntimeError, match=rf"{DIFFERENT_DEVICES}.*sim:0"):
        operation(device, host)


def test_the_error_about_mixed_devices_names_both_devices_and_the_operator():
    with pytest.raises(RuntimeError, match=r"two devices, sim:0 and cpu! \(in aten::mul.Tensor\)"):
        torch.ones(3, device="sim") * torch.ones(3)


def test_tensors_on_two_simulated_devices_do_not_mix():
    with pytest.raises(RuntimeError, match=rf"{DIFFERENT_DEVICES}.*sim:0 and sim:1"):
        torch.ones(3, device="sim:0") + torch.ones(3, device="sim:1")


def test_a_device_tensor_does_not_mix_with_a_meta_tensor():
    with pytest.raises(RuntimeError, match="meta"):
        torch.ones(3, device="sim") + torch.ones(3, device="meta")


def test_host_scalars_mix_with_device_tensors():
    total = torch.ones(3, device="sim") + torch.tensor(1.0)
    assert total.device == torch.device("sim:0")
    assert total.tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    "operation",
    [
        pytest.param(lambda device, host: torch.sum(device, 0, out=host), id="out="),
        pytest.param(lambda device, host: torch.add(device[0], device[0], out=host), id="out=, device scalars"),
        pytest.param(lambda device, host: host.add_(device[0]), id="in-place"),
    ],
)
def test_results_are_not_written_into_host_scalars(operation):
    with pytest.raises(RuntimeError, match=rf"{DIFFERENT_DEVICES}.*sim:0 and cpu"):
        operation(torch.ones(3, device="sim"), torch.tensor(0.0))


def test_a_host_tensor_is_filled_with_a_device_scalar():
    scalar = torch.tensor(2.0, device="sim")
    assert torch.zeros(2).fill_(scalar).tolist() == [2, 2]
    assert torch.tensor(0.0).fill_(scalar).item() == 2
    host = torch.zeros(2)
    host[0] = scalar
    assert host.tolist() == [2, 0]


def test_a_device_scalar_is_written_where_a_mask_of_the_host_says():
    scalar = torch.tensor(2.0, device="sim")
    host = torch.zeros(3)
    host[torch.tensor([True, False, True])] = scalar
    assert host.tolist() == [2, 0, 2]
    host[torch.tensor([1])] = scalar * 2
    assert host.tolist() == [2, 4, 2]
    host.index_put_((torch.tensor([0, 0]),), scalar, accumulate=True)
    assert host.tolist() == [6, 4, 2]


def test_host_indices_index_a_device_tensor():
    tensor = torch.arange(5.0, device="sim")
    assert tensor[torch.tensor([4, 0])].tolist() == [4, 0]
    tensor[torch.tensor([True, False, True, False, False])] = 9
    assert tensor.tolist() == [9, 1, 9, 3, 4]


MIXED = {
    "host tensor, device indices": lambda: torch.arange(3)[torch.tensor([0, 2], device="sim")],
    "values on the host": lambda: torch.zeros(3, device="sim").__setitem__(torch.tensor([0, 2]), torch.ones(2)),
    "a host tensor written by device indices": lambda: torch.zeros(3).index_put_(
        (torch.tensor([0], device="sim"),), torch.ones(1, device="sim")
    ),
    "a host tensor, a mask and a number on the device": lambda: torch.zeros(1).__setitem__(
        torch.tensor([True], device="sim"), torch.tensor(2.0, device="sim")
    ),
}


@pytest.mark.parametrize("name", MIXED)
def test_indexing_across_devices_is_refused(name):
    with pytest.raises(RuntimeError, match=r"same device"):
        MIXED[name]()


def test_a_device_tensor_is_not_a_numpy_array():
    with pytest.raises(TypeError, match="can't convert sim:0 device type tensor to numpy"):
        torch.ones(3, device="sim").numpy()


def test_a_tensor_says_which_device_it_is_on():
    tensor = torch.ones(3, device="sim")
    assert str(tensor.device) == "sim:0"
    assert tensor.get_device() == 0
    assert tensor.type() == "torch.sim.FloatTensor"
    assert str((tensor * 2).sum().device) == "sim:0"


def test_there_are_two_devices_unless_told():
    assert torch.sim.device_count() == 2


def test_a_tensor_moves_between_devices():
    first = torch.arange(3.0, device="sim:0")
    second = first.to("sim:1")
    assert str(second.device) == "sim:1"
    assert str((second + 1).device) == "sim:1"
    second.zero_()
    assert first.tolist() == [0, 1, 2]
    assert first.to("sim:0") is first


ACCELERATOR = getattr(torch, "accelerator", None)  # torch 2.6 and newer
has_accelerator = pytest.mark.skipif(
    not hasattr(ACCELERATOR, "current_device_index"), reason="this torch has no torch.accelerator, or less of it"
)
CHOICES = [getattr(ACCELERATOR, "device_index", None), device_module.device]


@pytest.mark.parametrize("choose", [choose for choose in CHOICES if choose])
def test_the_current_device_is_where_new_tensors_go(choose):
    with choose(1):
        assert torch.sim.current_device() == 1
        assert str(torch.ones(2, device="sim").device) == "sim:1"
        assert str(torch.ones(2).to("sim").device) == "sim:1"
    assert str(torch.ones(2, device="sim").device) == "sim:0"


@has_accelerator
def test_setting_the_current_device_lasts():
    try:
        torch.accelerator.set_device_index(1)
        assert torch.accelerator.current_device_index() == torch.sim.current_device() == 1
        torch.sim.set_device("sim:0")
        assert torch.accelerator.current_device_index() == 0
    finally:
        torch.sim.set_device(0)


def test_a_kernel_runs_on_its_tensors_device_whatever_the_current_one():
    tensor = torch.ones(3, device="sim:1", requires_grad=True)
    (tensor * 2).sum().backward()
    assert str(tensor.grad.device) == "sim:1"
    assert torch.sim.current_device() == 0


@pytest.mark.parametrize("index", [2, 63])
def test_a_device_that_is_not_there_is_refused(index):
    with pytest.raises(RuntimeError, match=f"invalid device ordinal {index}: there are 2 simulated devices"):
        torch.ones(1, device=f"sim:{index}")
    with pytest.raises(RuntimeError, match=f"invalid device ordinal {index}"):
        torch.sim.set_device(index)


def test_another_kind_of_device_is_refused_where_a_simulated_one_is_expected():
    with pytest.raises(ValueError, match="Expected a sim device, but got: cpu"):
        torch.sim.synchronize("cpu")


def test_an_operator_without_a_kernel_is_named_with_the_device():
    with torch.library._scoped_library("ditorch_test_devices", "DEF") as library:
        library.define("nowhere(Tensor x) -> Tensor")
        with pytest.raises(NotImplementedError, match=r"'ditorch_test_devices::nowhere' on device 'sim'"):
            torch.ops.ditorch_test_devices.nowhere(torch.ones(2, device="sim"))


def test_an_operator_with_a_cpu_kernel_runs_on_the_device():
    with torch.library._scoped_library("ditorch_test_devices", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CPU")
        doubled = torch.ops.ditorch_test_devices.twice(torch.ones(2, device="sim"))
    assert str(doubled.device) == "sim:0"
    assert doubled.tolist() == [2, 2]


@has_accelerator
def test_the_accelerator_interface_finds_the_device():
    assert torch.accelerator.is_available()
    assert torch.accelerator.device_count() == 2
    assert torch.accelerator.current_accelerator() == torch.device("sim")
    assert torch.accelerator.current_device_index() == 0
    assert torch.get_device_module("sim") is torch.sim
    assert torch.get_device_module() is torch.sim


def test_the_device_module_describes_the_device():
    assert torch.sim.is_available()
    assert torch.sim.is_initialized()
    assert torch.sim.is_bf16_supported()
    assert torch.sim.get_device_name(1) == "Simulated accelerator sim:1"
    properties = torch.sim.get_device_properties("sim:1")
    assert properties.name == "Simulated accelerator sim:1"
    assert properties.total_memory == torch.sim.mem_get_info()[1]


def test_module_to_keeps_parameters_and_tied_weights():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    weight = model[0].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)

    model.to("sim")
    assert model[0].weight is weight
    assert model[1].weight is weight
    assert str(weight.device) == "sim:0"

    model(torch.ones(1, 3, device="sim")).sum().backward()
    before = weight.detach().cpu().clone()
    optimizer.step()
    assert not torch.equal(before, weight.detach().cpu())

    model.cpu()
    assert model[0].weight is weight
    assert weight.device.type == weight.grad.device.type == "cpu"


def test_module_to_another_dtype_and_device_moves_buffers_too():
    model = nn.BatchNorm1d(3).to("sim:1", torch.float64)
    assert model.weight.dtype == model.running_mean.dtype == torch.float64
    assert {str(tensor.device) for tensor in model.state_dict().values()} == {"sim:1"}


def test_a_dispatch_mode_sees_ops_and_no_questions_to_the_driver():
    class Names(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.seen = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with Names() as names:
        torch.sim.device_count()
        torch.sim.set_device(torch.sim.current_device())
        torch.manual_seed(1)
        torch.sim.set_rng_state(torch.sim.get_rng_state())
        torch.sim.synchronize()
        torch.sim.memory_allocated()
        with torch.sim.stream(torch.sim.Stream()):
            torch.sim.current_stream().synchronize()
        torch.empty(1, device="sim")

    assert names.seen == ["aten.empty.memory_format"]
