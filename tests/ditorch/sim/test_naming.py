"""The name the device carries, and who else may have PyTorch's one place for outside devices."""

from __future__ import annotations

import pytest

from ditorch import errors, sim


def test_the_device_is_called_sim_unless_told():
    import torch

    assert sim.started_as() == "sim"
    assert sim.start() is torch.sim
    assert torch.distributed.is_backend_available("simccl")


def test_starting_again_under_the_same_name_does_nothing():
    assert sim.start("sim") is sim.start()


def test_starting_again_under_another_name_is_refused():
    with pytest.raises(
        errors.SimulatorError, match="runs as 'sim' in this process already and cannot become 'npu'"
    ) as e:
        sim.start("npu")
    assert "set DITORCH_DISABLE_MOCK=1 before that" in str(e.value)
    assert sim.started_as() == "sim"


def test_the_device_can_carry_a_chips_name(run_python):
    code = """
        import torch
        from ditorch import sim
        assert sim.started_as() is None
        module = sim.start("npu")
        tensor = torch.ones(3, device="npu")
        print(sim.started_as(), module is torch.npu, tensor.device, torch.ones(1).npu().is_npu)
        print(torch.nn.Linear(1, 1).npu().weight.device, torch.accelerator.current_accelerator())
        print(torch.distributed.is_backend_available("npuccl"), torch.npu.get_device_name(1))
        print(torch.distributed.Backend.default_device_backend_map["npu"])
        print(repr(tensor), hasattr(torch, "sim"))
        (tensor.requires_grad_() * 2).sum().backward()
        print(tensor.grad.device, torch.npu.Stream(1).device)
        with torch.autocast("npu", dtype=torch.bfloat16):
            print(torch.nn.functional.linear(tensor[None], tensor[None]).dtype)
        try:
            tensor + torch.ones(3)
        except RuntimeError as error:
            print(str(error).split("two devices, ")[1])
    """
    assert run_python(code).stdout.splitlines() == [
        "npu True npu:0 True",
        "npu:0 npu",
        "True Simulated accelerator npu:1",
        "npuccl",
        "tensor([1., 1., 1.], device='npu:0') False",
        "npu:0 npu:1",
        "torch.bfloat16",
        "npu:0 and cpu! (in aten::add.Tensor)",
    ]  # fmt: skip


def test_the_collectives_can_carry_a_chips_name(run_python, tmp_path):
    code = """
        import sys, torch
        import torch.distributed as dist
        from ditorch import sim
        sim.start("npu", collectives="hccl")
        dist.init_process_group("hccl", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
        tensor = torch.ones(2, device="npu")
        dist.all_reduce(tensor)
        print(dist.get_backend(), tensor.tolist())
        dist.destroy_process_group()
    """
    assert run_python(code, str(tmp_path / "rendezvous")).stdout.strip() == "hccl [1.0, 1.0]"


def test_an_invalid_name_is_refused_and_another_can_be_tried(run_python):
    code = """
        from ditorch import errors, sim
        for name in ("", "Sim", "my device", "1st", "cpu", "cuda", "meta", "sim:0"):
            try:
                sim.start(name)
            except errors.SimulatorError as error:
                print(f"'{name}' cannot name the simulated accelerator" in str(error))
        print(sim.started_as(), sim.start().device_count())
    """
    assert run_python(code).stdout.splitlines() == ["True"] * 8 + ["None 2"]


@pytest.mark.parametrize("name", ["xpu", "mps", "xla", "hpu", "mtia"])
def test_the_names_of_pytorchs_other_devices_are_refused(name):
    with pytest.raises(errors.SimulatorError, match=f"'{name}' cannot name the simulated accelerator"):
        sim._check_name(name)


def test_another_backend_in_its_place_is_named(run_python):
    code = """
        import torch
        from ditorch import errors, sim
        torch.utils.rename_privateuse1_backend("other")
        try:
            sim.start()
        except errors.SimulatorError as error:
            print(error)
    """
    said = run_python(code).stdout
    assert "the backend 'other' has taken PyTorch's one place for outside devices" in said
    assert "Use 'other' itself" in said


def test_a_place_taken_under_the_same_name_is_no_obstacle(run_python):
    code = """
        import torch
        from ditorch import sim
        torch.utils.rename_privateuse1_backend("sim")
        sim.start()
        print(torch.ones(2, device="sim").tolist())
    """
    assert run_python(code).stdout.strip() == "[1.0, 1.0]"
