"""Memory: what is counted, the limit, and that the device goes on after running out."""

from __future__ import annotations

import gc

import pytest
import torch

from ditorch.errors import SettingError

MEGABYTE = 1 << 20


@pytest.fixture(autouse=True)
def _collected():
    gc.collect()  # garbage of an earlier test must not be freed in the middle of this one


@pytest.fixture
def limit_memory():
    """Sets how many bytes may be allocated on top of what is in use."""
    before = torch.sim.mem_get_info()[1]
    yield lambda more: torch.sim.set_memory_limit(torch.sim.memory_allocated() + more)
    torch.sim.set_memory_limit(before)


def test_allocations_are_counted_and_given_back():
    before = torch.accelerator.memory_allocated()
    tensor = torch.empty(MEGABYTE, dtype=torch.uint8, device="sim")
    assert torch.accelerator.memory_allocated() == before + MEGABYTE
    assert torch.sim.memory_allocated() == torch.sim.memory_reserved() == before + MEGABYTE
    del tensor
    assert torch.accelerator.memory_allocated() == before


def test_the_result_of_a_kernel_is_counted():
    tensor = torch.ones(MEGABYTE // 4, device="sim")
    before = torch.sim.memory_allocated()
    result = tensor + 1
    assert torch.sim.memory_allocated() == before + MEGABYTE
    del result
    assert torch.sim.memory_allocated() == before


def test_a_view_costs_no_memory():
    tensor = torch.ones(16, 16, device="sim")
    before = torch.sim.memory_allocated()
    views = tensor.t(), tensor[3:], tensor.view(-1), tensor.detach()
    assert torch.sim.memory_allocated() == before
    assert {view.untyped_storage().data_ptr() for view in views} == {tensor.data_ptr()}


def test_each_device_counts_for_itself():
    before = torch.sim.memory_allocated(0), torch.sim.memory_allocated(1)
    tensor = torch.empty(100, dtype=torch.uint8, device="sim:1")
    assert torch.sim.memory_allocated(0) == before[0]
    assert torch.sim.memory_allocated("sim:1") == before[1] + tensor.numel()


def test_the_peak_stays_until_it_is_reset():
    torch.accelerator.reset_peak_memory_stats()
    before = torch.accelerator.memory_allocated()
    assert torch.accelerator.max_memory_allocated() == before
    torch.empty(MEGABYTE, dtype=torch.uint8, device="sim")
    assert torch.accelerator.max_memory_allocated() == before + MEGABYTE
    assert torch.sim.max_memory_allocated() == torch.sim.max_memory_reserved() == before + MEGABYTE
    torch.sim.reset_peak_memory_stats()
    assert torch.sim.max_memory_allocated() == before


def test_memory_statistics_have_the_names_of_the_other_accelerators():
    torch.accelerator.reset_accumulated_memory_stats()
    before = torch.sim.memory_stats()
    tensor = torch.empty(MEGABYTE, dtype=torch.uint8, device="sim")
    for after in (torch.sim.memory_stats(), torch.accelerator.memory_stats()):
        for kind in ("allocated_bytes", "reserved_bytes", "active_bytes"):
            assert after[f"{kind}.all.current"] == before[f"{kind}.all.current"] + tensor.nbytes
            assert after[f"{kind}.all.allocated"] == before[f"{kind}.all.allocated"] + tensor.nbytes
        assert after["allocation.all.allocated"] == before["allocation.all.allocated"] + 1
    freed = torch.sim.memory_stats()["allocated_bytes.all.freed"]
    del tensor
    assert torch.sim.memory_stats()["allocated_bytes.all.freed"] == freed + MEGABYTE


def test_emptying_the_cache_frees_nothing_in_use():
    tensor = torch.ones(3, device="sim")
    before = torch.sim.memory_allocated()
    torch.accelerator.empty_cache()
    torch.sim.empty_cache()
    assert torch.sim.memory_allocated() == before
    assert tensor.tolist() == [1, 1, 1]


def test_free_memory_and_total_memory(limit_memory):
    limit_memory(MEGABYTE)
    free, total = torch.sim.mem_get_info()
    assert free == MEGABYTE
    assert total == torch.sim.memory_allocated() + MEGABYTE
    assert torch.accelerator.get_memory_info() == (free, total)


def test_the_limit_raises_out_of_memory(limit_memory):
    limit_memory(MEGABYTE)
    ooms = torch.sim.memory_stats()["num_ooms"]
    with pytest.raises(
        torch.OutOfMemoryError, match=rf"sim out of memory. Tried to allocate {MEGABYTE + 1} bytes. Device 0"
    ):
        torch.empty(MEGABYTE + 1, dtype=torch.uint8, device="sim")
    assert torch.sim.memory_stats()["num_ooms"] == ooms + 1


def test_exactly_the_limit_can_be_allocated(limit_memory):
    limit_memory(MEGABYTE)
    torch.empty(MEGABYTE, dtype=torch.uint8, device="sim")


def test_a_kernels_result_can_run_out_of_memory_and_the_device_goes_on(limit_memory):
    tensor = torch.ones(MEGABYTE // 4, device="sim")
    limit_memory(MEGABYTE // 2)
    used = torch.sim.memory_allocated()
    with pytest.raises(torch.OutOfMemoryError):
        tensor + 1
    assert torch.sim.memory_allocated() == used
    assert (tensor[:10] + 1).sum().item() == 20
    assert tensor.add_(1).sum().item() == 2 * tensor.numel()


def test_a_result_written_to_out_can_run_out_of_memory_and_the_device_goes_on(limit_memory):
    tensor, out = torch.ones(MEGABYTE // 4, device="sim"), torch.empty(0, device="sim")
    limit_memory(MEGABYTE // 2)
    used = torch.sim.memory_allocated()
    with pytest.raises(torch.OutOfMemoryError):
        torch.add(tensor, 1, out=out)
    assert torch.sim.memory_allocated() == used
    assert torch.add(tensor[:3], 1, out=torch.empty(0, device="sim")).tolist() == [2, 2, 2]


def test_a_tensor_that_cannot_grow_keeps_its_memory(limit_memory):
    tensor = torch.arange(4.0, device="sim")
    limit_memory(MEGABYTE)
    with pytest.raises(torch.OutOfMemoryError):
        tensor.resize_(MEGABYTE)
    assert tensor.tolist() == [0, 1, 2, 3]
    assert torch.ops.ditorch_sim.host_alias(tensor).data_ptr() == tensor.data_ptr()


def test_training_goes_on_after_running_out_of_memory_in_backward(limit_memory):
    weight = torch.ones(MEGABYTE // 4, device="sim", requires_grad=True)
    loss = (weight * 2).sum()
    limit_memory(MEGABYTE // 2)
    with pytest.raises(torch.OutOfMemoryError):
        loss.backward()
    limit_memory(16 * MEGABYTE)
    (weight * 2).sum().backward()
    assert weight.grad.unique().tolist() == [2]


def test_storage_resize_can_run_out_of_memory(limit_memory):
    tensor = torch.ones(4, device="sim")
    limit_memory(MEGABYTE)
    with pytest.raises(torch.OutOfMemoryError):
        tensor.untyped_storage().resize_(2 * MEGABYTE)
    assert tensor.tolist() == [1, 1, 1, 1]


def test_the_limit_counts_per_device(limit_memory):
    limit_memory(MEGABYTE)
    first = torch.empty(MEGABYTE, dtype=torch.uint8, device="sim:0")
    room = torch.sim.mem_get_info(1)[0]
    second = torch.empty(room, dtype=torch.uint8, device="sim:1")
    assert torch.sim.mem_get_info(0)[0] == torch.sim.mem_get_info(1)[0] == 0
    del first, second


def test_memory_is_the_hosts_unless_told(run_python):
    code = """
        import os, torch
        from ditorch import sim
        print(sim.start().mem_get_info()[1] == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    """
    assert run_python(code, DITORCH_SIM_MEMORY="").stdout.split() == ["True"]


def test_the_environment_sets_memory_and_device_count(run_python):
    code = """
        import torch
        from ditorch import sim
        module = sim.start()
        print(module.mem_get_info()[1], module.device_count(), torch.ones(1, device="sim:4").device)
        try:
            torch.empty(3 << 20, dtype=torch.uint8, device="sim")
        except torch.OutOfMemoryError as error:
            print("DITORCH_SIM_MEMORY" in str(error))
    """
    done = run_python(code, DITORCH_SIM_MEMORY="2MiB", DITORCH_SIM_DEVICES="5")
    assert done.stdout.split() == [str(2 << 20), "5", "sim:4", "True"]


@pytest.mark.parametrize("devices", ["0", "65", "-1", "two", "1.5"])
def test_a_malformed_device_count_is_refused(monkeypatch, devices):
    from ditorch.settings import SIM_DEVICES

    monkeypatch.setenv("DITORCH_SIM_DEVICES", devices)
    with pytest.raises(SettingError, match=rf"DITORCH_SIM_DEVICES='{devices}' cannot be used.*from 1 to 64"):
        SIM_DEVICES.get()


@pytest.mark.parametrize(
    ("text", "bytes"), [("123", 123), ("1kB", 1000), ("512MB", 512 * 10**6), ("2 GiB", 2 << 30), ("1.5k", 1500)]
)
def test_memory_is_given_in_bytes_or_with_a_unit(monkeypatch, text, bytes):
    from ditorch.settings import SIM_MEMORY

    monkeypatch.setenv("DITORCH_SIM_MEMORY", text)
    assert SIM_MEMORY.get() == bytes


@pytest.mark.parametrize("memory", ["lots", "-5", "5 apples", "1e9"])
def test_a_malformed_memory_size_is_refused(monkeypatch, memory):
    from ditorch.settings import SIM_MEMORY

    monkeypatch.setenv("DITORCH_SIM_MEMORY", memory)
    with pytest.raises(SettingError, match=rf"DITORCH_SIM_MEMORY='{memory}' cannot be used.*512MB or 2GiB"):
        SIM_MEMORY.get()


def test_a_malformed_setting_stops_the_start_before_anything_is_registered(run_python):
    code = """
        import os, torch
        from ditorch import errors, sim
        for name in ("DITORCH_SIM_DEVICES", "DITORCH_SIM_MEMORY"):
            os.environ[name] = "nonsense"
            try:
                sim.start()
            except errors.SettingError as error:
                print(name in str(error), sim.started_as(), hasattr(torch, "sim"))
            del os.environ[name]
        print(sim.start().device_count())  # and it can be tried again
    """
    assert run_python(code).stdout.splitlines() == ["True None False", "True None False", "2"]
