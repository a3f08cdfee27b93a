"""The kernel of ours that finds the largest values on CUDA: by itself, on the CPU; and in use, where there is a GPU."""

from __future__ import annotations

import ctypes
import math
import struct

import pytest
import torch

import op_tools
from op_tools.device import compiled, largest
from op_tools.overflow import finite

from ..cuda_on_the_cpu import Kernel


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    return Kernel(tmp_path_factory.mktemp("kernel"), "largest", "largest_of_tensors")


@pytest.fixture
def found(kernel, monkeypatch):
    """Finds the largest values of tensors on the CPU."""
    monkeypatch.setattr(largest, "_kernel", lambda index: kernel)
    return lambda *tensors: largest.values(list(tensors)).tolist()


def test_the_tables_have_the_same_size_on_both_sides(kernel):
    assert kernel.library.size_of_table() == largest._TABLE_SIZE < 4096, "what a launch takes"


def test_it_agrees_with_torch(found):
    samples = largest._samples()
    assert largest._are_right(samples, found(*samples))


@pytest.mark.parametrize("wrong", [0.0, math.nan, math.inf])
def test_a_difference_is_seen(found, wrong):
    samples = largest._samples()
    values = found(*samples)
    assert not largest._are_right(samples, [wrong, *values[1:]])


def test_more_tensors_than_one_launch_takes(found):
    assert found(*(torch.full((3,), -float(number)) for number in range(450))) == list(range(450))


def test_what_lies_with_gaps_or_nowhere(found):
    matrix = torch.arange(40.0).view(5, 8)
    matrix[0, 1] = math.inf
    zeros = torch._efficientzerotensor((9,), dtype=torch.float32)
    negative = torch.view_as_complex(torch.ones(4, 2) * 3).conj().imag
    assert negative.is_neg()
    assert found(matrix[:, ::2], matrix.t(), zeros, negative, torch.ones(3)) == [38.0, math.inf, 0.0, 3.0, 1.0]


def test_numbers_that_a_float_cannot_hold_are_not_infinite(found):
    (value,) = found(torch.tensor([1e300, -1e-300], dtype=torch.float64))
    assert math.isfinite(value)
    assert found(torch.tensor([6e-8, 0.0], dtype=torch.float16)) == [2.0**-24]


# ---- how it is launched ---------------------------------------------------------------------------------------------

LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3)


class Driver(compiled.Kernel):
    """Notes what is asked of cuLaunchKernel, with the tables."""

    def __init__(self, status=0):
        self.asked, self.status, self.device, self._function = [], status, 3, 2**40 + 8
        self._launch = LAUNCH(self._note)

    def _note(self, *arguments):
        *numbers, places, more = arguments
        table = ctypes.string_at(ctypes.c_void_p.from_address(places).value, largest._TABLE_SIZE)
        self.asked.append((numbers, table, more))
        return self.status


@pytest.fixture
def current(monkeypatch):
    """The device that is the current one."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)


@pytest.mark.usefixtures("current")
def test_each_tensor_has_its_place_in_the_table():
    tensors = largest._samples()[:-1]
    assert 3 * largest._PIECE > max(map(torch.numel, tensors)) > 2 * largest._PIECE
    driver = Driver()
    largest.launch(driver, tensors, 2**47 + 16, 2**33)
    (((function, blocks, *_, stream), table, _),) = driver.asked
    count = len(tensors)
    found, number, *items = struct.unpack_from(f"<{2 + 2 * count}Q", table)
    first_blocks = struct.unpack_from(f"<{count}L", table, largest._BLOCKS_AT)
    assert (function, stream, found, number) == (2**40 + 8, 2**33, 2**47 + 16, count)
    assert items[::2] == [tensor.data_ptr() for tensor in tensors]
    assert [item // 4 for item in items[1::2]] == [tensor.numel() for tensor in tensors]
    ends = [*first_blocks[1:], blocks]
    assert [end - start for start, end in zip(first_blocks, ends)] == [
        max(1, math.ceil(tensor.numel() / largest._PIECE)) for tensor in tensors
    ]


@pytest.mark.usefixtures("current")
def test_a_launch_that_fails_is_an_error(monkeypatch):
    monkeypatch.setattr(largest, "_kernel", lambda index: Driver(status=700))
    with pytest.raises(RuntimeError, match="cuLaunchKernel: CUDA error 700"):
        largest.values([torch.ones(3)])


# ---- with a GPU ----------------------------------------------------------------------------------------------------


@pytest.fixture
def gpu(device, monkeypatch):
    if device != "cuda":
        pytest.skip("for CUDA")
    largest.can_find.cache_clear()
    monkeypatch.setattr(finite, "_finders", {})
    yield torch.device(device, torch.cuda.current_device())
    largest.can_find.cache_clear()


def test_it_is_used_on_a_gpu(gpu):
    assert largest.can_find(gpu)
    with op_tools.OpOverflowCheck(verbose=0) as tool:
        x = torch.full((100,), 80.0, device=gpu)
        for dtype in (torch.bfloat16, torch.float64, torch.float16):
            x.to(dtype).exp()
    assert finite._finders == {gpu: largest.values}, "it was in use"
    assert [one.name for one in tool.found] == ["torch.Tensor.exp"]


def test_without_it_torch_does_the_work(gpu, monkeypatch, capsys):
    def cannot(*arguments):
        raise compiled.CompileError("there is no libnvrtc.so.13")

    monkeypatch.setattr(largest, "_kernel", cannot)
    assert finite._choose(gpu) is finite.by_lists
    assert "OpOverflowCheck takes torch's kernels, a bit slower: there is no libnvrtc.so.13" in capsys.readouterr().err
