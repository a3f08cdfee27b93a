"""Large calls of which the CPU computes a slice: what they do at some indices has nothing to do with others."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  its usual name
from benchmarks.reported import REPORTED

from ditorch.sim import faults
from op_tools.autocompare.identities import whole

from ....conftest import DEVICE


@pytest.fixture(autouse=True)
def _as_if_large(monkeypatch):
    monkeypatch.setattr(whole, "MAX_ELEMENTS", 0)


def numbers(device, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(device).requires_grad_()


def rows(device):
    """A whole number for each of 3 × 5 × 7."""
    return torch.arange(105, device="cpu").remainder(7).reshape(3, 5, 7).to(device)


# an op, and a kernel of it that can be broken: forward, and where there is one, backward
CALLS = {
    "max_pool1d": (lambda d: F.max_pool1d(numbers(d, 3, 5, 12), 3), "max_pool2d_with_indices"),
    "avg_pool2d": (lambda d: F.avg_pool2d(numbers(d, 3, 5, 6, 6), 2), "avg_pool2d*"),
    "adaptive_avg_pool3d": (lambda d: F.adaptive_avg_pool3d(numbers(d, 2, 3, 4, 4, 4), 2), "_adaptive_avg_pool3d*"),
    "nearest": (lambda d: F.interpolate(numbers(d, 3, 5, 6), 9), "upsample_nearest1d*"),
    "bicubic": (lambda d: F.interpolate(numbers(d, 3, 2, 6, 6), 9, mode="bicubic"), "upsample_bicubic2d*"),
    "grid_sample": (
        lambda d: F.grid_sample(numbers(d, 3, 2, 6, 6), numbers(d, 3, 4, 4, 2), align_corners=False),
        "grid_sampler_2d*",
    ),
    "pad": (lambda d: F.pad(numbers(d, 3, 5, 7), (2, 1), "reflect"), "reflection_pad1d*"),
    "conv_transpose2d": (lambda d: F.conv_transpose2d(numbers(d, 3, 4, 5, 5), numbers(d, 4, 2, 3, 3)), "convolution*"),
    "group_norm": (lambda d: F.group_norm(numbers(d, 3, 6, 5), 2, numbers(d, 6), numbers(d, 6)), "native_group_norm*"),
    "batch_norm": (
        lambda d: F.batch_norm(numbers(d, 3, 6, 5), torch.zeros(6).to(d), torch.ones(6).to(d),
                               numbers(d, 6), numbers(d, 6), training=True),
        "native_batch_norm*",
    ),
    "prelu": (lambda d: F.prelu(numbers(d, 3, 5, 7), numbers(d, 5)), "_prelu_kernel*"),
    "glu": (lambda d: F.glu(numbers(d, 3, 5, 8)), "glu*"),
    "cumsum": (lambda d: numbers(d, 3, 5, 7).cumsum(1), "cumsum"),
    "sort": (lambda d: numbers(d, 3, 5, 7).sort(1)[0], "sort*"),
    "topk": (lambda d: numbers(d, 3, 5, 7).topk(2, 1)[0], "topk"),
    "amax": (lambda d: numbers(d, 3, 5, 7).amax((0, 2)), "amax"),
    "max": (lambda d: numbers(d, 3, 5, 7).max(1)[0], "max*"),
    "std": (lambda d: numbers(d, 3, 5, 7).std(1), "std*"),
    "norm": (lambda d: torch.linalg.vector_norm(numbers(d, 3, 5, 7), dim=1), "linalg_vector_norm"),
    "logsumexp": (lambda d: numbers(d, 3, 5, 7).logsumexp(1), "logsumexp"),
    "gather": (lambda d: numbers(d, 3, 7, 7).gather(1, rows(d)), "gather*"),
    "scatter_add": (lambda d: numbers(d, 3, 5, 7).scatter_add(2, rows(d), numbers(d, 3, 5, 7)), "scatter_add*"),
    "index_add": (
        lambda d: numbers(d, 3, 5, 7).index_add(1, torch.tensor([0, 4, 4]).to(d), numbers(d, 3, 3, 7)),
        "index_add*",
    ),
    "index_add_": (
        lambda d: numbers(d, 3, 5, 7).detach().index_add_(1, torch.tensor([0, 4]).to(d), numbers(d, 3, 2, 7)),
        "index_add*",
    ),
    "cat": (lambda d: torch.cat([numbers(d, 3, 5, 7), numbers(d, 3, 4, 7)], 1), "cat"),
    "roll": (lambda d: numbers(d, 3, 5, 7).roll(2, 1), "roll"),
    "flip": (lambda d: numbers(d, 3, 5, 7).flip(1), "flip"),
    "rot90": (lambda d: numbers(d, 3, 5, 7).rot90(1, (0, 2)), "flip"),
    "norms of a list": (lambda d: torch._foreach_norm([numbers(d, 3, 5).detach()] * 20)[0], "_foreach_norm"),
    "remainder": (lambda d: numbers(d, 3, 5, 7).detach().remainder(0.3), "remainder"),
    "huber_loss": (lambda d: F.huber_loss(numbers(d, 3, 5), numbers(d, 3, 5) + 2, reduction="none"), "huber_loss*"),
    "a masked row": (
        lambda d: (numbers(d, 3, 5).detach() + torch.tensor([[float("-inf")], [0], [0]]).to(d)).softmax(-1),
        "_softmax",
    ),
    "tril": (lambda d: numbers(d, 3, 5, 5).tril(), "tril"),
    "solve": (lambda d: torch.linalg.solve(numbers(d, 3, 4, 4), numbers(d, 3, 4, 2)), "_linalg_solve_ex*"),
    "fft": (lambda d: torch.fft.rfft(numbers(d, 3, 5, 8), dim=1).abs(), "_fft_r2c"),
    "embedding": (lambda d: F.embedding(rows(d)[0], numbers(d, 9, 6)), "embedding*"),
    "normalize": (lambda d: F.normalize(numbers(d, 3, 5, 7)), "linalg_vector_norm"),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_slice_of_a_healthy_call_is_right_and_one_of_a_broken_kernel_is_not(compared, device, name):
    call, kernel = CALLS[name]

    def program():
        torch.manual_seed(0)
        result = call(device)
        if result.requires_grad:
            result.backward(torch.randn(result.shape, generator=torch.Generator().manual_seed(1)).to(device))

    healthy = compared(program)
    assert list(healthy) == []
    unseen = {one["what"] for one in healthy.not_looked_at if "gradients" not in one["reason"]}
    assert unseen <= {"torch.randn", "torch.Tensor.backward"}, unseen
    with faults.inject(f"aten.{kernel}: scale=1.02") as injection:
        broken = compared(program)
    assert sum(injection.struck.values()), "the call does not use this kernel"
    assert list(broken)


@pytest.mark.skipif(DEVICE != "sim", reason="its kernels are broken")
def test_buckets_of_a_slice_are_proven(compared, device):
    """The bounds belong to each slice as a whole; a single row of numbers may be as long as they are."""
    (broken,) = (one for one in REPORTED if one.name == "buckets_are_written_to_a_copy")
    bounds = torch.arange(5.0).to(device)

    def program():
        torch.bucketize(numbers(device, 3, 5).detach() + 2, bounds)
        torch.bucketize(bounds, bounds)

    healthy = compared(program)
    assert list(healthy) == []
    assert [one["calls"] for one in healthy.not_looked_at if "bucketize" in one["what"]] == [1]
    with broken.inject("sim"):
        assert {row["op"].rpartition(".")[2] for row in compared(program)} == {"bucketize"}


def test_the_gradient_of_an_embedding_is_proven_by_columns(compared, device):
    def program():
        F.embedding(rows(device)[0], numbers(device, 9, 6), padding_idx=3).sum().backward()

    assert {one["what"] for one in compared(program).not_looked_at} <= {"torch.ones_like"}
    with faults.inject("aten.embedding_dense_backward: scale=1.02"):
        assert {row["op"] for row in compared(program)} == {"torch.nn.functional.embedding"}


def test_a_piece_of_a_copy_has_no_memory_format(compared, device):
    results = compared(lambda: numbers(device, 2, 3, 4, 5).detach().to(memory_format=torch.channels_last))
    assert list(results.not_looked_at) == []


def test_a_flag_over_all_tensors_of_a_list_is_not_told_by_one_of_them(compared, device):
    def program():
        gradients = [torch.full((3,), float("inf") if number == 7 else 1.0).to(device) for number in range(20)]
        found, scale = torch.zeros(1).to(device), torch.ones(1).to(device)
        for _ in range(6):
            torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, scale)
            found.zero_()

    assert list(compared(program)) == []
