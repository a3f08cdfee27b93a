"""The kernel of ours that digests tensors in the host's memory: it says what torch's kernels say."""

from __future__ import annotations

import ctypes
import math
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import op_tools
from op_tools import native
from op_tools.device import digest, digests, digests_host, staging
from op_tools.device.tensor_groups import KINDS
from op_tools.storage import pack

FLOATS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
DTYPES = [*FLOATS, *INTEGERS, torch.bool, torch.complex64, torch.complex128]
BAD = [math.nan, math.inf, -math.inf, 3e38, 1e-30, 0.0, -0.0]
VIEWS = {
    "as it is": lambda x: x,
    "every second one": lambda x: x[::2],
    "from the second on": lambda x: x[1:],
    "in reverse": lambda x: x.flip(0),
    "one of them": lambda x: x[len(x) // 2] if len(x) else x,
    "again and again": lambda x: x[:3].unsqueeze(1).expand(-1, 7),
    "transposed": lambda x: x[: len(x) // 5 * 5].view(5, -1).t(),
    "of three dimensions": lambda x: x[: len(x) // 21 * 21].view(3, -1, 7),
    "of long rows": lambda x: x[: len(x) // 9 * 9].view(9, -1),
    "of few long rows": lambda x: x[: len(x) // 2 * 2].view(2, -1),
    "of four dimensions": lambda x: x[: len(x) // 30 * 30].view(2, 3, 5, -1),
    "conjugated": lambda x: x.conj(),
    "negated lazily": lambda x: x.conj().imag if x.is_complex() else x,
}


@pytest.fixture(autouse=True)
def _tried_out_again():
    digests._is_right.cache_clear()
    yield
    digests._is_right.cache_clear()


def records(tensor, out):
    with op_tools.OpCapture(mode="statistics", ops="torch.Tensor.eq", out=out, verbose=0):
        tensor.eq(tensor)
    return [record for record in pack.read(out) if record.part == "input"]


def both_ways(tensor, tmp_path, monkeypatch):
    found = []
    for native_is_on in "10":
        monkeypatch.setenv("OP_TOOLS_NATIVE", native_is_on)
        found.append(records(tensor, tmp_path / f"{len(list(tmp_path.iterdir()))}"))
    return zip(*found)


def same(one, other):
    return one == other or (one != one and other != other)


def check(one, other):
    for name in ("numel", "nan", "inf", "min", "max", "shape", "dtype"):
        assert same(getattr(one, name), getattr(other, name)), name
    if one.dtype != "float16" or not one.nan:  # torch itself converts NaN in two ways: at a tensor's end, and before
        assert one.checksum == other.checksum
    size = 0.0 if math.isnan(one.min) else max(abs(one.min), abs(one.max))
    assert one.mean == pytest.approx(other.mean, rel=1e-6, abs=1e-6 * size, nan_ok=True)
    assert one.norm == pytest.approx(other.norm, rel=1e-6, nan_ok=True)
    assert one.std == pytest.approx(other.std, rel=1e-6, abs=3e-4 * max(abs(one.mean), 1e-3 * size), nan_ok=True)
    # a product of torch's with 4096 weights is the least precise of them
    assert one.sketch == pytest.approx(other.sketch, rel=1e-5, abs=1e-5 * (0.0 if math.isnan(one.norm) else one.norm))


def made(dtype, length, seed, bad):
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randn(length, generator=generator, dtype=torch.float64) * 50
    if dtype.is_floating_point or dtype.is_complex:
        for value in bad:
            if length:
                numbers[torch.randint(length, (1,), generator=generator)] = value
    if dtype.is_complex:
        return torch.complex(numbers, numbers.flip(0)).to(dtype)
    return numbers > 0 if dtype is torch.bool else (numbers if dtype.is_signed else numbers.abs()).to(dtype)


lengths = st.one_of(
    st.integers(0, 40), st.integers(500, 1100), st.sampled_from([65_535, 65_536, 65_537, 70_001, 131_073])
)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    dtype=st.sampled_from(DTYPES),
    length=lengths,
    seed=st.integers(0, 1000),
    bad=st.lists(st.sampled_from(BAD), max_size=4),
    view=st.sampled_from(list(VIEWS)),
)
def test_the_numbers_are_those_of_torchs_kernels(device, tmp_path, monkeypatch, dtype, length, seed, bad, view):
    tensor = VIEWS[view](made(dtype, length, seed, bad).to(device))
    for one, other in both_ways(tensor, tmp_path, monkeypatch):
        check(one, other)


def test_zeros_without_memory(device, tmp_path, monkeypatch):
    """Such as the gradient of `sgn`: autograd knows them to be zero, and they lie nowhere."""
    zeros = torch._efficientzerotensor((700,), dtype=torch.float32, device=device)
    with monkeypatch.context() as patch:
        for one, other in both_ways(zeros, tmp_path, patch):
            check(one, other)
            assert (one.numel, one.min, one.max) == (700, 0, 0)


# ---- where it is used ----------------------------------------------------------------------------------------------


@pytest.fixture
def staged(monkeypatch):
    """Tensors that went through torch's kernels."""
    found = []
    add = staging.Stage.add
    monkeypatch.setattr(staging.Stage, "add", lambda *arguments: (found.append(arguments), add(*arguments))[1])
    return found


def test_it_is_used_for_the_simulated_device_and_the_cpu(staged, device):
    if device != "sim":
        pytest.skip("for the simulated device")
    tensor = torch.ones(3, device=device)
    with op_tools.OpCapture(mode="statistics", ops="torch.Tensor.add", verbose=0):
        tensor.add(torch.tensor(2.0))
    assert sorted(record.mean for record in pack.read(".")) == [1, 2, 3]
    assert not staged


def test_without_the_helper_torch_does_the_work(staged, device, monkeypatch):
    if device != "sim":
        pytest.skip("for the simulated device")
    monkeypatch.setenv("OP_TOOLS_NATIVE", "0")
    assert records(torch.ones(3, device=device), "out")[0].mean == 1
    assert staged


class _Elsewhere:
    """A device that copies its tensors to the host for the CPU's kernels."""

    def address(self, tensor):
        return tensor.clone().data_ptr() + 64


class _Nowhere:
    def address(self, tensor):
        raise NotImplementedError("there is no kernel for it")


@pytest.mark.parametrize("library", [_Elsewhere(), _Nowhere(), object(), None])
def test_it_is_left_alone_where_it_does_not_get_at_the_devices_memory(library, device, monkeypatch, capsys):
    monkeypatch.setattr(native, "library", lambda: library)
    assert not digests_host.reaches(torch.device(device))
    assert not capsys.readouterr().err


def test_a_kernel_that_is_wrong_is_not_used(staged, device, monkeypatch, capsys):
    if device != "sim":
        pytest.skip("for the simulated device")
    right = digest.turn
    monkeypatch.setattr(digest, "turn", lambda number, dimension: right(number, dimension + 1))
    digest._of_columns.cache_clear()
    monkeypatch.setattr(digest, "_of_columns", digest._of_columns.__wrapped__)
    assert records(torch.ones(3, device=device), "out")[0].mean == 1
    assert staged
    said = "OpCapture takes torch's kernels for statistics, more slowly: ours gives other numbers for torch.float32"
    assert capsys.readouterr().err.count(said) == 1


# ---- on a processor with small registers ---------------------------------------------------------------------------

SOURCE = """
#include "digest.h"
using namespace digest;
extern "C" void run(int kind, const void* data, long length, int64_t* line) {
  const auto layout = layout_of({length});
  switch (kind) {
    case 0: return narrow<Plain<float, float>>(data, *layout, line);
    case 1: return narrow<BFloat16>(data, *layout, line);
    case 2: return narrow<Float16>(data, *layout, line);
    case 3: return narrow<Plain<double, double>>(data, *layout, line);
    case 4: return narrow<Int64>(data, *layout, line);
    case 5: return narrow<Plain<int32_t, double>>(data, *layout, line);
    case 6: return narrow<Plain<int16_t, float>>(data, *layout, line);
    case 7: return narrow<Plain<int8_t, float>>(data, *layout, line);
    case 8: return narrow<Plain<uint8_t, float>>(data, *layout, line);
  }
}
"""


@pytest.fixture(scope="module")
def narrow(tmp_path_factory):
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("there is no compiler")
    folder = tmp_path_factory.mktemp("narrow")
    (folder / "narrow.cpp").write_text(SOURCE)
    headers = Path(native.__file__).parent / "csrc"
    options = ["-std=c++17", "-O2", "-w", "-shared", "-fPIC", f"-I{headers}"]
    subprocess.run([compiler, *options, folder / "narrow.cpp", "-o", folder / "narrow.so"], check=True)
    return ctypes.CDLL(str(folder / "narrow.so")).run


@pytest.mark.slow  # it compiles the kernel once more
@pytest.mark.parametrize("dtype", KINDS, ids=str)
@pytest.mark.parametrize("length", [0, 1, 7, 513, 65_537])
def test_small_registers_hold_the_same_numbers(narrow, dtype, length):
    tensor = made(dtype, length, 0, BAD)
    line = torch.zeros(digest.LINE, dtype=torch.int64)
    narrow(KINDS[dtype], ctypes.c_void_p(tensor.data_ptr()), length, ctypes.c_void_p(line.data_ptr()))
    right = digests._expected(tensor)
    assert torch.equal(line[:4], right[:4])
    numbers, expected = line[4:].view(torch.float64), right[4:].view(torch.float64)
    allowed = 1e-5 * float(expected[4].nan_to_num())
    assert torch.allclose(numbers, expected, rtol=1e-5, atol=allowed, equal_nan=True)
