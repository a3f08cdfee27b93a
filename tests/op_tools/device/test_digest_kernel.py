"""The kernel of ours that digests tensors on CUDA: by itself, on the CPU; and in use, where there is a GPU."""

from __future__ import annotations

import math

import pytest
import torch

import op_tools
from op_tools.device import compiled, digest, digests, digests_cuda
from op_tools.device.tensor_groups import grouped
from op_tools.output.writer import Writer
from op_tools.storage import pack

from ..cuda_on_the_cpu import Kernel


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    return Kernel(tmp_path_factory.mktemp("kernel"), "digest", "digest_tensors")


@pytest.fixture
def on_the_cpu(kernel, monkeypatch):
    """Stages take tensors of the CPU."""
    monkeypatch.setattr(digests_cuda, "_kernel", lambda index: kernel)
    monkeypatch.setattr(digests, "is_cuda", lambda device: True)


@pytest.fixture
def other_weights(monkeypatch):
    """Torch's weights become others than the kernel's."""

    def change(name):
        right = getattr(digest, name)
        monkeypatch.setattr(digest, name, lambda number, other: right(number, other + 1))
        digest._of_columns.cache_clear()
        digest._of_rows.cache_clear()

    yield change
    monkeypatch.undo()
    digest._of_columns.cache_clear()
    digest._of_rows.cache_clear()


SHAPES = [
    (5000,),
    (3, 1400),
    (9, 1400),
    (40, 512),
    (300, 257),
    (4, 100, 64),
    (6, 64, 7, 7),
    (64, 3, 3, 3),
    (700, 2),
    (2, 3, 4, 5, 6),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_way_to_cut_a_tensor(on_the_cpu, shape):
    tensor = torch.randn(shape)
    (line,), right = lines(tensor), digests._expected(tensor)
    assert torch.equal(line[:4], right[:4])
    numbers, others = line[4:].view(torch.float64), right[4:].view(torch.float64)
    assert torch.allclose(numbers, others, rtol=1e-9, atol=1e-9 * float(others[4]))


QUICK = [(5000,), (3, 1408), (9, 1408), (40, 512), (300, 264), (4, 100, 64), (20, 3, 192), (17, 80), (2, 3, 60, 128)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", QUICK, ids=str)
def test_16_bits_by_products_of_matrices(on_the_cpu, shape, dtype):
    assert digests_cuda._is_quick(shape, dtype)
    check_line(torch.randn(shape).to(dtype))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e30, 1e-18, 1e-30], ids=str)
def test_16_bits_that_single_precision_cannot_square(on_the_cpu, value):
    tensor = torch.randn(40, 512) * (value if abs(value) < 1 else 1)
    tensor[7, 9] = value
    check_line(tensor.bfloat16())


def test_zeros_of_16_bits(on_the_cpu):
    check_line(torch.zeros(20, 128, dtype=torch.bfloat16))
    check_line(torch.full((20, 128), -2.5, dtype=torch.float16))


def test_16_bits_that_begin_between_two_vectors(on_the_cpu):
    check_line(torch.randn(20 * 128 + 3).bfloat16()[3:].view(20, 128))


def check_line(tensor, atol=1e-6):
    (line,), right = lines(tensor), digests._expected(tensor)
    assert torch.equal(line[:4], right[:4])
    numbers, others = line[4:].view(torch.float64), right[4:].view(torch.float64)
    allowed = atol * float(others[4].nan_to_num()) + 1e-300
    assert torch.allclose(numbers, others, rtol=1e-6, atol=allowed, equal_nan=True), (numbers - others) / others[4]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int64], ids=str)
def test_what_has_whole_rows_is_read_where_it_lies(on_the_cpu, monkeypatch, dtype):
    """What is cut, transposed or repeated is not copied."""
    tensor = (torch.randn(3, 12, 6, 72) * 100).to(dtype)
    views = [
        tensor.transpose(0, 2),
        tensor[:, ::2, 1:],
        tensor.permute(2, 0, 1, 3)[..., :64],
        tensor[0, :, 0].expand(5, 12, 72),
        tensor[..., 1:66],
    ]
    expected = [lines(view.contiguous())[0] for view in views]
    monkeypatch.setattr(digests_cuda, "plain", None)
    assert torch.equal(lines(*views), torch.stack(expected))


def test_ever_new_strides_are_copied(on_the_cpu):
    (group,) = grouped([torch.zeros(4, 64, dtype=torch.bfloat16)], [0])
    whole = torch.randn(4, 20 * 64).bfloat16()
    for count in range(1, 20):
        view = whole[:, : count * 64].view(4, count, 64)[:, 0]
        found = torch.zeros(1, digest.LINE, dtype=torch.int64)
        digests_cuda.CudaDigests(torch.device("cpu")).write([view], group, None, found, 0)
        assert torch.equal(found, lines(view.contiguous()))
    assert len(group.layouts) <= digests_cuda._MAX_LAYOUTS + 1


def lines(*tensors):
    """The digests of these tensors, in one batch."""
    found = []
    writer = Writer("test")
    stage = digests.DigestStage(torch.device("cpu"), writer, lambda labels, lines: found.append((labels, lines)))
    for group in grouped(list(tensors), range(len(tensors))):
        stage.add(list(tensors), group, "label")
    stage.flush()
    writer.close()
    assert [number for labels, _ in found for _, numbers in labels for number in numbers] == list(range(len(tensors)))
    return torch.cat([line for _, line in found])


def test_the_tables_have_the_same_size_on_both_sides(kernel):
    assert kernel.library.size_of_table() == digests_cuda._TABLE_SIZE < 4096, "what a launch takes"


def test_it_agrees_with_torch(on_the_cpu):
    """On all that it is tried out on before it is used."""
    digests._try_out(torch.device("cpu"))


@pytest.mark.parametrize("name", ["_hash", "turn"])
def test_a_difference_is_seen(on_the_cpu, other_weights, name):
    other_weights(name)
    with pytest.raises(compiled.CompileError, match=r"ours gives other numbers for torch\.float32"):
        digests._try_out(torch.device("cpu"))


def test_a_tensor_has_the_same_digest_wherever_it_stands(on_the_cpu):
    tensor = torch.randn(50_000)
    others = [torch.randn(size) for size in (3, 70_000, 512)]
    assert torch.equal(lines(*others, tensor)[3], lines(tensor)[0])


def test_more_tensors_than_one_launch_takes(on_the_cpu):
    tensors = [torch.full((number,), float(number)) for number in range(400)]
    found = lines(*tensors)
    assert found[:, 0].tolist() == list(range(400))
    assert found[1:, 4].view(torch.float64).tolist() == list(range(1, 400))


def test_more_digests_than_the_device_keeps(on_the_cpu, monkeypatch):
    monkeypatch.setattr(digests, "_MAX_LINES", 200)
    assert lines(*(torch.ones(2) for _ in range(500)))[:, 0].tolist() == [2] * 500


def test_what_does_not_lie_in_order(on_the_cpu):
    tensor = torch.randn(30, 40)
    complex = torch.randn(300, dtype=torch.complex64)
    found = lines(tensor.t(), tensor[:, ::2], complex.conj().imag, complex.conj())
    conjugate = torch.view_as_real(complex.conj().resolve_conj())
    assert torch.equal(found, lines(tensor.t().clone().contiguous(), tensor[:, ::2].clone(), -complex.imag, conjugate))


def test_zeros_without_memory(on_the_cpu):
    """Such as the gradient of `sgn`: autograd knows them to be zero, and they lie nowhere."""
    zeros = torch._efficientzerotensor((700,), dtype=torch.float32)
    assert not zeros.data_ptr()
    wide = torch._efficientzerotensor((30,), dtype=torch.complex64)
    assert torch.equal(lines(zeros, wide), lines(torch.zeros(700), torch.zeros(30, dtype=torch.complex64)))


def test_nothing_finite(on_the_cpu):
    (line,) = lines(torch.tensor([math.nan, math.inf, -math.inf] * 1000))
    assert line[:3].tolist() == [3000, 1000, 2000]
    assert line[4:9].view(torch.float64).isnan().all()
    assert line[9:].view(torch.float64).tolist() == [0] * digest.SKETCH


# ---- with a GPU ----------------------------------------------------------------------------------------------------


@pytest.fixture
def gpu(device):
    if device != "cuda":
        pytest.skip("for CUDA")
    known = digests._is_right
    known.cache_clear()
    yield torch.device(device, torch.cuda.current_device())
    known.cache_clear()


def records(out):
    with op_tools.OpCapture(mode="statistics", ops="torch.Tensor.neg", out=out, verbose=0):
        for dtype in (torch.float32, torch.bfloat16, torch.float64):
            torch.arange(100_000, device="cuda").sin().to(dtype).neg()
    return sorted(pack.read(out), key=lambda record: (record.forward_id, record.part))


def test_it_is_used_on_a_gpu_and_says_the_same(gpu, monkeypatch, capsys):
    assert digests.can_digest(gpu)
    ours = records("ours")
    monkeypatch.setattr(digests, "can_digest", lambda device: False)
    torchs = records("torchs")
    assert len(ours) == len(torchs) == 6
    for one, other in zip(ours, torchs):
        assert (one.checksum, one.numel, one.min, one.max) == (other.checksum, other.numel, other.min, other.max)
        assert one.norm == pytest.approx(other.norm, rel=1e-5)
        assert one.sketch == pytest.approx(other.sketch, rel=1e-4, abs=1e-3 * one.norm)
    assert "more slowly" not in capsys.readouterr().err


def test_without_it_torch_does_the_work(gpu, monkeypatch, capsys):
    def cannot(*arguments):
        raise compiled.CompileError("there is no libnvrtc.so.13")

    monkeypatch.setattr(digests, "_try_out", cannot)
    assert len(records("out")) == 6
    said = capsys.readouterr().err
    assert said.count("OpCapture takes torch's kernels for statistics, more slowly: there is no libnvrtc.so.13") == 1
