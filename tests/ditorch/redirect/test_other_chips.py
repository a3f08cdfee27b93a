"""Chips that have more than the simulated one, or less: their memory in other processes, their handles."""

from __future__ import annotations

import dataclasses
import multiprocessing

import pytest
import torch
from torch.multiprocessing import reductions

from ditorch.backends.sim import SIM
from ditorch.errors import MissingOnBackendError
from ditorch.redirect import Redirect, sharing


@pytest.fixture
def without_shared_memory(monkeypatch):
    """A chip whose memory processes cannot share, as most are to PyTorch."""
    module = SIM.device_module()
    for name in ("_share_storage", "_follow_storage", "_adopt_storage"):
        monkeypatch.delattr(module, name)
    redirect = Redirect(dataclasses.replace(SIM, name="chip", title="A chip"))
    yield
    redirect.undo()


def test_memory_that_cannot_be_shared_is_sent_as_a_copy_and_that_is_said(without_shared_memory, capfd):
    tensor = torch.arange(3.0, device="cuda")
    rebuild, arguments = reductions.reduce_tensor(tensor)
    copy = rebuild(*arguments)
    assert copy.tolist() == [0, 1, 2]
    assert copy.is_cuda
    copy.zero_()
    assert tensor.tolist() == [0, 1, 2]
    reductions.reduce_tensor(tensor)
    said = capfd.readouterr().err
    assert said.count("the memory of chip is not shared between processes") == 1


def test_sharing_memory_that_cannot_be_shared_is_refused(without_shared_memory):
    with pytest.raises(
        MissingOnBackendError, match=r"share_memory_\(\) on chip \(A chip\): its memory cannot be shared"
    ):
        torch.nn.Linear(2, 2).cuda().share_memory()
    assert torch.ones(2).share_memory_().is_shared()


def test_a_vendors_own_way_of_sending_is_left_alone(monkeypatch):
    reducers = multiprocessing.reduction.ForkingPickler._extra_reducers
    monkeypatch.setitem(reducers, torch.Tensor, lambda tensor: (list, ()))
    before = vars(torch.UntypedStorage).get("_share_cuda_")
    redirect = Redirect(SIM)
    try:
        assert sharing._sends_by_itself()
        assert vars(torch.UntypedStorage).get("_share_cuda_") is before
    finally:
        redirect.undo()


def test_a_vendors_handles_are_taken(monkeypatch):
    monkeypatch.setattr(torch.sim.Stream, "sim_stream", property(lambda self: 4711), raising=False)
    redirect = Redirect(SIM)
    try:
        assert torch.cuda.Stream().cuda_stream == 4711
    finally:
        redirect.undo()


def test_a_stream_without_a_handle_says_so(monkeypatch):
    monkeypatch.delattr(SIM.device_module(), "_stream_handle")
    redirect = Redirect(dataclasses.replace(SIM, name="chip", title="A chip"))
    try:
        with pytest.raises(AttributeError, match=r"a stream of chip \(A chip\) has no handle"):
            torch.cuda.Stream().cuda_stream  # noqa: B018
    finally:
        redirect.undo()


MANAGEMENT = ["utilization", "memory_usage", "temperature", "power_draw", "clock_rate"]


@pytest.mark.parametrize("name", MANAGEMENT)
def test_what_the_chips_own_module_tells_about_its_load_is_taken(monkeypatch, name):
    monkeypatch.setattr(torch.sim, name, lambda device=None: (name, torch.device(device or "sim").type), raising=False)
    redirect = Redirect(SIM)
    try:
        assert getattr(torch.cuda, name)() == getattr(torch.cuda, name)("cuda:1") == (name, "sim")
    finally:
        redirect.undo()


@pytest.mark.parametrize("name", MANAGEMENT)
def test_a_chip_that_tells_nothing_about_its_load_says_so(name):
    redirect = Redirect(dataclasses.replace(SIM, name="chip", title="A chip"))
    try:
        with pytest.raises(
            MissingOnBackendError,
            match=rf"^torch\.cuda\.{name} does not exist on chip \(A chip\): it needs NVIDIA's management library\. "
            r"Leave it out when ditorch\.backend\(\)\.name is 'chip'\.$",
        ):
            getattr(torch.cuda, name)(0)
    finally:
        redirect.undo()
