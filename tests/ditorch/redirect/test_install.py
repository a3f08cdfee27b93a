"""ditorch.install() and ditorch.uninstall() as a whole: what changes in torch, and that all of it can be put back."""

from __future__ import annotations

import types

import pytest
import torch
import torch.distributed.distributed_c10d

import ditorch
from ditorch.backends.sim import SIM
from ditorch.redirect import Redirect

OWNERS = (
    torch,
    torch.device,
    torch.Tensor,
    torch.UntypedStorage,
    torch.Generator,
    torch.Stream,
    torch.Event,
    torch.nn.Module,
    torch.amp.autocast_mode.autocast,
    torch.amp.GradScaler,
    torch.cuda,
    torch.cuda.amp.common,
    torch.cuda.memory,
    torch.cuda.random,
    torch.cuda.streams,
    torch.distributed,
    torch.distributed.distributed_c10d,
    torch.distributed.distributed_c10d.Backend,
    torch.distributed.distributed_c10d.BackendConfig,
    torch.serialization,
)


def attributes():
    return {
        (owner.__name__, name): value
        for owner in OWNERS
        for name, value in vars(owner).items()
        if not issubclass(type(value), types.ModuleType)
    }


@pytest.mark.parametrize("native", ["1", "0"])
def test_uninstall_puts_every_object_back(monkeypatch, native):
    monkeypatch.setenv("DITORCH_NATIVE_REDIRECT", native)
    before = attributes()
    registry = list(torch.serialization._package_registry)
    redirect = Redirect(SIM)
    during = attributes()
    changed = [key for key in during if during[key] is not before.get(key)]
    assert len(changed) > 100
    redirect.undo()
    after = attributes()
    assert [key for key in after if after[key] is not before.get(key)] == []
    assert set(after) == set(before)
    assert torch.serialization._package_registry == registry
    assert torch.device("cuda").type == "cuda"
    assert str(torch.device("sim:0")) == "sim:0"
    assert not torch.zeros(1, device="sim").is_cuda


def test_every_change_has_a_reason():
    redirect = Redirect(SIM)
    try:
        assert all(patch.why and patch.target for patch in redirect.patches.applied)
    finally:
        redirect.undo()


def test_a_redirect_that_fails_half_way_leaves_nothing(monkeypatch):
    before = attributes()

    def fail(patches, backend):
        raise KeyError("half way")

    monkeypatch.setattr("ditorch.redirect.checkpoints.apply", fail)
    with pytest.raises(KeyError, match="half way"):
        Redirect(SIM)
    after = attributes()
    assert [key for key in after if after[key] is not before.get(key)] == []


def test_install_and_uninstall(monkeypatch, capsys):
    monkeypatch.setenv("DITORCH_BACKEND", "sim")
    assert ditorch.install() is SIM
    try:
        assert torch.zeros(1).cuda().is_cuda
        assert ditorch.install() is SIM  # again: nothing
    finally:
        ditorch.uninstall()
    assert capsys.readouterr().err.count("ditorch: sim (simulated accelerator) torch") == 1
    with pytest.raises(ditorch.errors.BackendError):
        ditorch.backend()
    ditorch.uninstall()  # again: nothing


def test_torchs_memory_of_device_modules_follows_the_redirect():
    redirect = Redirect(SIM)
    try:
        assert torch.get_device_module(torch.device("sim")) is torch.cuda
    finally:
        redirect.undo()
    assert torch.get_device_module(torch.device("sim")) is torch.sim
    redirect = Redirect(SIM)
    try:
        assert torch.get_device_module(torch.device("sim")) is torch.cuda
    finally:
        redirect.undo()


def test_the_true_name_can_be_shown(monkeypatch):
    monkeypatch.setenv("DITORCH_SHOW_DEVICE_AS_CUDA", "0")
    redirect = Redirect(SIM)
    try:
        x = torch.ones(1, device="cuda")
        assert repr(x) == "tensor([1.], device='sim:0')"
        assert x.device.type == "sim"
        assert x.device.type != "cuda"
        assert x.is_cuda
    finally:
        redirect.undo()


def test_an_active_migration_of_the_vendor_is_left_alone(run_python):
    code = """
        import dataclasses, sys, torch
        import ditorch
        from ditorch import discover, sim
        from ditorch.backends.sim import SIM
        sys.modules["vendor_migration"] = sys
        before = torch.Tensor.cuda
        discover.choose = lambda: (SIM.start(), dataclasses.replace(SIM, migrations=("vendor_migration",)))[1]
        ditorch.install()
        print(torch.Tensor.cuda is before)
    """
    assert run_python(code).stdout == "True\n"


def test_the_import_does_not_touch_the_device(run_python):
    # a vendor's driver must not be started before the program forks, and a device mesh chooses the device of a process
    # that has not used one yet
    code = """
        import torch, ditorch
        torch.manual_seed(0)
        print(torch.cuda.device_count(), torch.cuda.is_initialized())
        print(torch.zeros(1).cuda().is_cuda, torch.cuda.is_initialized())
    """
    done = run_python(code, DITORCH_DISABLE_MOCK="0", DITORCH_BACKEND="sim")
    assert done.stdout == "2 False\nTrue True\n"


def test_cuda_visible_devices_is_mirrored(run_python):
    code = "import torch, ditorch; print(torch.cuda.device_count())"
    environment = {"DITORCH_DISABLE_MOCK": "0", "DITORCH_BACKEND": "sim"}
    assert run_python(code, CUDA_VISIBLE_DEVICES="0", **environment).stdout == "1\n"


def test_cuda_programs_run_on_the_plain_cpu_when_asked(run_python):
    code = """
        import torch, ditorch
        assert torch.cuda.is_available() and torch.cuda.device_count() == 1
        model = torch.nn.Linear(2, 2).cuda()
        x = torch.ones(1, 2, device="cuda:0").to("cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            y = model(x)
        y.float().sum().backward()
        torch.cuda.synchronize()
        print(y.dtype, model.weight.grad.tolist(), x.device)
    """
    done = run_python(code, DITORCH_DISABLE_MOCK="0", DITORCH_BACKEND="cpu")
    assert done.stdout == "torch.bfloat16 [[1.0, 1.0], [1.0, 1.0]] cpu\n"
