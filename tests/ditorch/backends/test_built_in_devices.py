"""The chips whose device names are PyTorch's own: only what PyTorch says about them is rehearsed."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from ditorch.backends import APPLE, BUILT_IN, CPU, CUDA, HABANA, INTEL


def test_apple_is_found_by_what_every_release_of_torch_says(monkeypatch):
    assert APPLE.unavailable() == "this PyTorch is built without mps"
    monkeypatch.setattr(torch.backends.mps, "is_built", lambda: True)
    assert APPLE.unavailable() == "torch.backends.mps.is_available() is False"
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert APPLE.unavailable() is None


def test_intel_is_found_by_torch_xpu(monkeypatch):
    monkeypatch.delenv("ZE_AFFINITY_MASK", raising=False)
    assert INTEL.unavailable() == "torch.xpu.is_available() is False"
    monkeypatch.setattr(torch.xpu, "is_available", lambda: True)
    assert INTEL.unavailable() is None


def test_intel_on_an_old_torch_is_found_by_its_extension(monkeypatch, tmp_path):
    monkeypatch.delattr(torch, "xpu")
    assert INTEL.unavailable() == "this PyTorch has no torch.xpu"
    (tmp_path / "intel_extension_for_pytorch.py").write_text(
        "import sys, torch\ntorch.xpu = sys.modules['torch.xpu']\ntorch.xpu.is_available = lambda: True\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys.modules["torch.xpu"], "is_available", lambda: False)  # is put back afterwards
    assert INTEL.unavailable() is None
    monkeypatch.delitem(sys.modules, "intel_extension_for_pytorch")


def test_habana_is_found_by_torch_hpu(monkeypatch):
    monkeypatch.delenv("HABANA_VISIBLE_MODULES", raising=False)
    assert HABANA.unavailable() == "habana_frameworks.torch is not installed"
    monkeypatch.setitem(sys.modules, "habana_frameworks", ModuleType("habana_frameworks"))
    monkeypatch.setitem(sys.modules, "habana_frameworks.torch", ModuleType("habana_frameworks.torch"))
    assert HABANA.unavailable() == "habana_frameworks.torch has no torch.hpu"
    hpu = ModuleType("torch.hpu")
    hpu.is_available = lambda: False
    monkeypatch.setattr(torch, "hpu", hpu, raising=False)
    assert HABANA.unavailable() == "torch.hpu.is_available() is False"
    hpu.is_available = lambda: True
    assert HABANA.unavailable() is None


def test_cuda_says_whether_the_build_or_the_device_is_missing(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch, "version", SimpleNamespace(cuda=None, hip=None))
    assert CUDA.unavailable() == "this PyTorch is built without CUDA"
    monkeypatch.setattr(torch, "version", SimpleNamespace(cuda="12.8", hip=None))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    assert CUDA.unavailable() == "torch.cuda.is_available() is False (CUDA_VISIBLE_DEVICES=7 may hide the devices)"


def test_the_plain_cpu_is_always_there():
    assert CPU.unavailable() is None


@pytest.mark.parametrize("backend", BUILT_IN.values(), ids=list(BUILT_IN))
def test_what_a_chip_lacks_is_written_in_pytorchs_words(backend):
    assert all(isinstance(getattr(torch, name), torch.dtype) for name in backend.lacks_dtypes)
    assert all(hasattr(torch.distributed.ReduceOp, name) for name in backend.lacks_reductions)
