"""Saving, loading, copying and pickling; where a checkpoint's tensors land."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import nn

VALUES = [0.0, 1.0, 2.0]


def saved(value, **options):
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    buffer.seek(0)
    return buffer


def keep_on_host(storage, location):
    return storage


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize("zip_format", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize(
    ("map_location", "expected"),
    [
        (None, "sim:0"),
        ("cpu", "cpu"),
        ("sim", "sim:0"),
        ("sim:1", "sim:1"),
        (torch.device("cpu"), "cpu"),
        ("device", "sim:1"),
        ({"sim:0": "sim:1"}, "sim:1"),
        ({"sim:0": "cpu"}, "cpu"),
        ({"cuda:0": "cpu"}, "sim:0"),
        pytest.param(keep_on_host, "cpu", id="function-cpu"),
    ],
    ids=str,
)
def test_map_location_says_where_tensors_land(map_location, expected, zip_format, weights_only):
    if map_location == "device":
        map_location = torch.device("sim", 1)  # cannot be made before the device has its name
    buffer = saved(torch.tensor(VALUES, device="sim"), _use_new_zipfile_serialization=zip_format)
    loaded = torch.load(buffer, map_location=map_location, weights_only=weights_only)
    assert str(loaded.device) == expected
    assert loaded.tolist() == VALUES


def test_a_host_checkpoint_lands_on_the_device():
    loaded = torch.load(saved(torch.tensor(VALUES)), map_location="sim", weights_only=True)
    assert str(loaded.device) == "sim:0"
    assert loaded.tolist() == VALUES


def test_a_tensor_remembers_its_device():
    loaded = torch.load(saved(torch.tensor(VALUES, device="sim:1")), weights_only=True)
    assert str(loaded.device) == "sim:1"


def test_a_device_that_is_not_there_is_refused_by_name(run_python, tmp_path):
    path = tmp_path / "checkpoint.pt"
    torch.save(torch.ones(2, device="sim:1"), path)
    code = """
        import sys, torch
        from ditorch import sim
        sim.start()
        torch.load(sys.argv[1], weights_only=True)
    """
    done = run_python(code, str(path), check=False, DITORCH_SIM_DEVICES="1")
    assert done.returncode != 0
    assert "sim" in done.stderr.splitlines()[-1]
    assert "map_location" in done.stderr


def test_a_checkpoint_loads_without_the_device(run_python, tmp_path):
    path = tmp_path / "checkpoint.pt"
    torch.save({"weight": torch.tensor(VALUES, device="sim")}, path)
    code = "import sys, torch; print(torch.load(sys.argv[1], map_location='cpu', weights_only=True)['weight'].tolist())"
    assert run_python(code, str(path)).stdout.strip() == str(VALUES)


def test_a_checkpoint_can_be_mapped_into_memory(tmp_path):
    path = tmp_path / "checkpoint.pt"
    torch.save(torch.tensor(VALUES, device="sim"), path)
    loaded = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    assert loaded.tolist() == VALUES


def test_model_and_optimizer_state_survive():
    model = nn.Linear(3, 3).to("sim")
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3, device="sim")).sum().backward()
    optimizer.step()
    state = torch.load(saved({"model": model.state_dict(), "optimizer": optimizer.state_dict()}), weights_only=True)

    restored = nn.Linear(3, 3).to("sim:1")
    restored.load_state_dict(state["model"])
    assert str(restored.weight.device) == "sim:1"
    assert torch.equal(restored.weight.cpu(), model.weight.cpu())
    again = torch.optim.AdamW(restored.parameters())
    again.load_state_dict(state["optimizer"])
    average = optimizer.state[model.weight]["exp_avg"].cpu()
    assert torch.equal(again.state[restored.weight]["exp_avg"].cpu(), average)


def test_a_whole_module_survives():
    model = torch.load(saved(nn.Linear(2, 2).to("sim")), weights_only=False)
    assert isinstance(model.weight, nn.Parameter)
    assert str(model(torch.ones(1, 2, device="sim")).device) == "sim:0"


def test_views_saved_together_still_share_memory():
    base = torch.arange(4.0, device="sim")
    loaded, view = torch.load(saved([base, base[1:3]]), weights_only=True)
    view.fill_(9)
    assert loaded.tolist() == [0, 9, 9, 3]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int8, torch.bool, torch.complex64])
def test_other_dtypes_survive(dtype):
    tensor = torch.tensor([1, 0], device="sim").to(dtype)
    loaded = torch.load(saved(tensor), weights_only=True)
    assert loaded.dtype == dtype
    assert torch.equal(loaded.cpu(), tensor.cpu())


def test_a_deep_copy_is_on_the_device_and_independent():
    model = nn.Linear(3, 3).to("sim:1")
    twin = copy.deepcopy(model)
    assert str(twin.weight.device) == "sim:1"
    assert torch.equal(twin.weight.cpu(), model.weight.cpu())
    with torch.no_grad():
        twin.weight.zero_()
    assert model.weight.cpu().count_nonzero() == 9


def test_a_pickled_tensor_comes_back_on_its_device():
    tensor = torch.tensor(VALUES, device="sim:1")
    again = pickle.loads(pickle.dumps(tensor))
    assert again.device == tensor.device
    assert again.tolist() == VALUES
    again.zero_()
    assert tensor.tolist() == VALUES


def test_a_pickled_parameter_stays_a_parameter():
    again = pickle.loads(pickle.dumps(nn.Parameter(torch.ones(2, device="sim"))))
    assert isinstance(again, nn.Parameter)
    assert str(again.device) == "sim:0"


def test_a_storage_copies_itself():
    tensor = torch.tensor(VALUES, device="sim")
    twin = copy.deepcopy(tensor.untyped_storage())
    assert twin.device == tensor.device
    assert twin.data_ptr() != tensor.data_ptr()
    assert torch.tensor([], device="sim").set_(twin, 0, (3,), (1,)).tolist() == VALUES
