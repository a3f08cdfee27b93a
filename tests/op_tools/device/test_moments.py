"""A few numbers of many tensors: by torch's kernels, and by ours, which runs on the CPU here."""

from __future__ import annotations

import math

import pytest
import torch

from op_tools.device import largest, moments

from ..cuda_on_the_cpu import Kernel


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    return Kernel(tmp_path_factory.mktemp("kernel"), "moments", "moments_of_tensors")


def expected(tensor):
    """In float64, without anything of ours."""
    numbers = tensor.double().flatten()
    finite = numbers.isfinite()
    return [
        numbers.sum().item(),
        numbers.square().sum().item(),
        numbers.abs().max().item(),
        float(numbers.ne(0).sum()),
        float((~finite).sum()),
    ]


def close(numbers, right):
    return all(
        math.isclose(one, other, rel_tol=1e-3, abs_tol=1e-2) or (math.isnan(one) and math.isnan(other))
        for one, other in zip(numbers, right)
    )


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_numbers_of_tensors_on_the_device(device, dtype):
    plain = torch.randn(3, 40, dtype=torch.float64).to(dtype)
    spoiled = torch.tensor([1.0, math.nan, -math.inf, 0.0]).to(dtype)
    large = torch.randn(70_001).to(dtype)  # alone
    tensors = [plain, plain * 2, spoiled, large, plain.t(), torch.zeros(120, dtype=dtype), plain[:, ::2]]
    rows, order = moments.look([tensor.to(device) for tensor in tensors])
    numbers, bits = moments.read(rows.cpu())
    assert sorted(order) == list(range(len(tensors)))
    for place, row, sum_of_bits in zip(order, numbers.tolist(), bits.tolist()):
        assert close(row, expected(tensors[place])), tensors[place]
        size = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensors[place].element_size()]
        assert sum_of_bits == tensors[place].contiguous().view(size).sum().item()


def test_a_single_tensor(device):
    numbers, bits = moments.read(moments.look([torch.tensor([3.0, -4.0]).to(device)])[0].cpu())
    assert numbers.tolist() == [[-1.0, 25.0, 4.0, 2.0, 0.0]]
    assert len(bits) == 1


def test_one_bit_that_differs_shows(device):
    one = torch.randn(1000, device=device)
    other = one.clone()
    other[3] = math.nextafter(other[3].item(), math.inf) * (1 + 2**-22)
    _, bits = moments.read(moments.look([one, other])[0].cpu())
    assert bits[0] != bits[1]


def test_the_tables_have_the_same_size_on_both_sides(kernel):
    assert kernel.library.size_of_table() == largest._TABLE_SIZE < 4096, "what a launch takes"


def test_the_kernel_for_the_host_agrees_with_torch(device):
    if device != "sim":
        pytest.skip("for memory of the host")
    samples = moments._samples()
    assert moments._are_right(samples, moments._on_host([sample.to(device) for sample in samples]).cpu())
    assert moments._are_right(samples, moments._on_host(samples))


def test_our_kernel_agrees_with_torch(kernel, monkeypatch):
    monkeypatch.setattr(moments, "_kernel", lambda index: kernel)
    samples = moments._samples()
    assert moments._are_right(samples, moments._by_kernel(samples))
    many = [torch.full((3,), -float(number)) for number in range(450)]
    numbers, _ = moments.read(moments._by_kernel(many))
    assert numbers[:, 0].tolist() == [-3.0 * number for number in range(450)]
    wrong = moments._by_kernel(samples)
    wrong[0, 3] += 1
    assert not moments._are_right(samples, wrong)


def test_it_is_used_on_a_gpu(device):
    if device != "cuda":
        pytest.skip("for CUDA")
    assert moments._can_launch(torch.device("cuda", torch.cuda.current_device()))


def test_what_cannot_be_looked_at(device):
    sparse = torch.eye(3, device=device).to_sparse() if device != "sim" else torch.eye(3).to_sparse()
    assert not moments.can_be_looked_at(sparse)
    assert not moments.can_be_looked_at(torch.zeros(0, device=device))
    assert not moments.can_be_looked_at(torch.zeros(3, dtype=torch.int64, device=device))
    assert moments.can_be_looked_at(torch.zeros((), device=device))
