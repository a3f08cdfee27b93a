"""Sums over rows: the kernel of ours for CUDA, which runs on the CPU here."""

from __future__ import annotations

import pytest
import torch

from op_tools.device import compiled, row_sums

from ..cuda_on_the_cpu import Kernel


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    return Kernel(tmp_path_factory.mktemp("kernel"), "row_sums", "row_sums")


@pytest.fixture
def on_the_cpu(kernel, monkeypatch):
    monkeypatch.setattr(row_sums, "_kernel", lambda index: kernel)
    monkeypatch.setattr(row_sums, "is_cuda", lambda device: True)
    monkeypatch.setattr(row_sums, "can_sum", lambda device: True)


def test_the_tables_have_the_same_size_on_both_sides(kernel):
    assert kernel.library.size_of_table() == row_sums._TABLE.size


@pytest.mark.usefixtures("on_the_cpu")
def test_it_agrees_with_torch():
    row_sums._try_out(torch.device("cpu"))


@pytest.mark.usefixtures("on_the_cpu")
def test_a_difference_is_seen(monkeypatch):
    monkeypatch.setattr(row_sums, "KINDS", {**row_sums.KINDS, torch.bfloat16: 2})
    with pytest.raises(compiled.CompileError, match=r"ours gives other numbers for torch\.bfloat16"):
        row_sums._try_out(torch.device("cpu"))


@pytest.mark.usefixtures("on_the_cpu")
def test_it_says_where_it_cannot_be_used():
    weights = torch.ones(4, 4)
    assert row_sums.row_sums(torch.ones(3, 4), weights) is not None
    assert row_sums.row_sums(torch.ones(3, 8)[:, ::2], weights) is None
    assert row_sums.row_sums(torch.ones(3, 4, dtype=torch.int64), weights) is None
    assert row_sums.row_sums(torch.ones(1, 1, 1, 3, 4), weights) is None


def test_elsewhere_torch_does_it(device):
    if device == "cuda":
        pytest.skip("for other devices")
    assert row_sums.row_sums(torch.ones(3, 4, device=device), torch.ones(4, 4, device=device)) is None


def test_it_is_right_on_a_gpu(device):
    if device != "cuda":
        pytest.skip("for CUDA")
    row_sums._try_out(torch.device(device, torch.cuda.current_device()))
