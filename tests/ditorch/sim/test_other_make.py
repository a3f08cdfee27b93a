"""Healthy kernels of another make: other bits, and as right as those of the CPU."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from ditorch.errors import FaultError
from ditorch.sim import faults

EVERYTHING = "aten.*: remake"


def numbers(*shape, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def flat(result):
    return [result] if isinstance(result, torch.Tensor) else list(result)


def with_gradient(call):
    """The results of a call, and the gradients of what it is given."""

    def run(*tensors):
        leaves = [tensor.detach().requires_grad_(tensor.is_floating_point()) for tensor in tensors]
        results = flat(call(*leaves))
        weights = [numbers(*result.shape, seed=7).to(result) for result in results]
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        gradients = torch.autograd.grad(results, wanted, weights, allow_unused=True)
        return [one.detach() for one in (*results, *gradients) if one is not None]

    return run


COMPUTED = {
    "mm": (lambda a, b: a @ b, (24, 40), (40, 16)),
    "bmm": (torch.bmm, (3, 12, 30), (3, 30, 8)),
    "addmm": (lambda a, b: F.linear(a, b, b[:, 0]), (24, 40), (16, 40)),
    "baddbmm": (lambda c, a, b: torch.baddbmm(c, a, b, beta=2, alpha=0.5), (3, 12, 8), (3, 12, 30), (3, 30, 8)),
    "mv": (torch.mv, (24, 40), (40,)),
    "conv2d": (lambda x, w: F.conv2d(x, w, w[:, 0, 0, 0], padding=1), (2, 6, 9, 9), (8, 6, 3, 3)),
    "conv2d of groups": (lambda x, w: F.conv2d(x, w, groups=6), (2, 6, 9, 9), (6, 1, 3, 3)),
    "conv_transpose2d": (lambda x, w: F.conv_transpose2d(x, w, stride=2), (2, 6, 5, 5), (6, 4, 3, 3)),
    "sum": (lambda x: x.sum(1), (6, 300)),
    "mean": (lambda x: x.mean(), (6, 300)),
    "var": (lambda x: x.var(1), (6, 300)),
    "std": (lambda x: x.std(), (6, 300)),
    "vector_norm": (lambda x: torch.linalg.vector_norm(x, 3, 1), (40, 70)),
    "cumsum": (lambda x: x.cumsum(1), (6, 90)),
    "softmax": (lambda x: F.softmax(4 * x, -1), (8, 90)),
    "log_softmax": (lambda x: F.log_softmax(4 * x, -1), (8, 90)),
    "cross_entropy": (lambda x: F.cross_entropy(x, torch.arange(len(x), device=x.device)), (30, 40)),
    "layer_norm": (lambda x, w: F.layer_norm(x, (40,), w, w), (24, 40), (40,)),
    "group_norm": (lambda x, w: F.group_norm(x, 2, w, w), (3, 6, 5, 5), (6,)),
    "batch_norm": (lambda x, w: F.batch_norm(x, None, None, w, w, True), (6, 5, 7, 7), (5,)),
    "attention": (F.scaled_dot_product_attention, (2, 3, 20, 16), (2, 3, 20, 16), (2, 3, 20, 16)),
    "causal attention": (
        lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True, scale=0.3),
        (2, 3, 20, 16),
    ),
    "exp": (lambda x: torch.exp(8 * x), (40, 40)),
    "log": (lambda x: torch.log(x.abs() + 0.1), (40, 40)),
    "rsqrt": (lambda x: torch.rsqrt(x.abs() + 0.1), (40, 40)),
    "pow": (lambda x: (x.abs() + 0.1) ** 2.3, (40, 40)),
    "sigmoid": (lambda x: torch.sigmoid(4 * x), (40, 40)),
    "tanh": (torch.tanh, (40, 40)),
    "gelu": (F.gelu, (40, 40)),
    "gelu by tanh": (lambda x: F.gelu(x, approximate="tanh"), (40, 40)),
    "silu": (F.silu, (40, 40)),
    "softplus": (F.softplus, (40, 40)),
    "addcmul": (lambda a, b: torch.addcmul(a, b, b, value=0.3), (40, 40), (40, 40)),
    "lerp": (lambda a, b: torch.lerp(a, b, 0.3), (40, 40), (40, 40)),
    "add with alpha": (lambda a, b: torch.add(a, b, alpha=0.3), (40, 40), (40, 40)),
    "div by a number": (lambda a: a / 3.0, (40, 40)),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 3), (2, 3, 12, 12)),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear"), (2, 3, 9, 9)),
    "embedding": (lambda w: F.embedding(torch.arange(90, device=w.device) % 4, w), (4, 30)),
    "scatter_add": (
        lambda a, b: a.scatter_add(0, (torch.arange(90, device=a.device) % 4).view(90, 1).expand(90, 8), b),
        (4, 8),
        (90, 8),
    ),
    "index_add": (lambda a, b: a.index_add(0, torch.arange(90, device=a.device) % 4, b), (4, 8), (90, 8)),
    "mse_loss": (F.mse_loss, (30, 40), (30, 40)),
    "fft": (lambda x: torch.view_as_real(torch.fft.rfft(x)), (6, 60)),
    "lstm_cell": (
        lambda x, h, w: torch.lstm_cell(x, (h, h), w, w),
        (6, 12),
        (6, 12),
        (48, 12),
    ),
    "cholesky": (
        lambda x: torch.linalg.cholesky(x @ x.mT + 12 * torch.eye(12, dtype=x.dtype, device=x.device)),
        (12, 12),
    ),
    "cdist": (torch.cdist, (30, 8), (30, 8)),
}


@pytest.mark.parametrize("name", COMPUTED)
def test_a_kernel_of_another_make_has_other_bits_and_is_as_right(device, name):
    call, *shapes = COMPUTED[name]
    given = [numbers(*shape, seed=place) for place, shape in enumerate(shapes)]
    exact = with_gradient(call)(*(one.double() for one in given))
    healthy = with_gradient(call)(*(one.to(device) for one in given))
    with faults.inject(EVERYTHING) as injection:
        made = with_gradient(call)(*(one.to(device) for one in given))
    assert injection.struck[EVERYTHING]
    if name != "embedding":  # it only moves data; its gradient is a sum
        assert injection.effective[EVERYTHING]
    assert any(not torch.equal(one, other) for one, other in zip(healthy, made))
    for right, own, other in zip(exact, healthy, made):
        assert other.shape == own.shape
        assert other.dtype == own.dtype
        size = float(right.abs().max())
        usual, error = (float((one.cpu().double() - right).abs().max()) for one in (own, other))
        assert error <= max(4 * usual, 4 * torch.finfo(own.dtype).eps * size)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["mm", "conv2d", "softmax", "layer_norm", "batch_norm", "gelu", "attention", "sum"])
def test_16_bits_are_rounded_once(device, name, dtype):
    call, *shapes = COMPUTED[name]
    given = [numbers(*shape, seed=place).to(dtype) for place, shape in enumerate(shapes)]
    exact = flat(call(*(one.double() for one in given)))
    with faults.inject(EVERYTHING):
        made = flat(call(*(one.to(device) for one in given)))
    for right, other in zip(exact, made):
        unit = torch.finfo(dtype).eps * right.abs().clamp_min(float(right.abs().max()) * 2**-12)
        assert bool(((other.cpu().double() - right).abs() <= 0.51 * unit).all())


def test_batch_norm_of_another_make_keeps_running_statistics(device):
    x, found = numbers(6, 5, 7, 7).to(device), {}
    for make in ("healthy", "other"):
        mean, variance = torch.zeros(5, device=device), torch.ones(5, device=device)
        with faults.inject(EVERYTHING if make == "other" else "aten.sinh: nan"):
            F.batch_norm(x, mean, variance, None, None, True, 0.1)
        found[make] = torch.stack([mean, variance])
    assert torch.allclose(found["healthy"], found["other"], rtol=1e-6, atol=1e-7)
    assert float(found["other"][0].abs().max()) > 0


def test_in_place_and_out_forms_write_where_they_should(device):
    x, y = numbers(40, 40).to(device), numbers(40, 40, seed=2).to(device)
    with faults.inject(EVERYTHING) as injection:
        expected = torch.sigmoid(x)
        assert torch.equal(x.clone().sigmoid_(), expected)
        assert torch.equal(torch.sigmoid(x, out=torch.empty(0, device=device)), expected)
        lists = [x.clone(), y.clone()]
        torch._foreach_addcmul_(lists, [y, x], [x, y], value=0.1)
    assert torch.allclose(lists[0], x + 0.1 * x * y)
    assert injection.effective[EVERYTHING] >= 4


def test_another_of_several_equals_is_chosen(device):
    equal = torch.tensor([3.0, 1.0, 3.0, 2.0, 1.0, 3.0], device=device)
    with faults.inject(EVERYTHING):
        values, places = equal.sort()
        _, stable = equal.sort(stable=True)
        top = equal.topk(2)
        mode = equal.mode()
        target = torch.zeros(2, device=device)
        target[torch.tensor([0, 0, 1], device=device)] = torch.tensor([1.0, 2.0, 3.0], device=device)
    assert torch.equal(values, equal.sort().values)
    assert torch.equal(equal[places], values)
    assert places.tolist() != equal.sort(stable=True).indices.tolist()
    assert stable.tolist() == equal.sort(stable=True).indices.tolist()
    assert top.values.tolist() == [3.0, 3.0]
    assert equal[mode.indices] == 3.0
    assert mode.indices != equal.mode().indices
    assert target.tolist() == [1.0, 3.0]


def test_vectors_may_point_the_other_way(device):
    x = numbers(12, 8)
    with faults.inject(EVERYTHING):
        left, sizes, right = torch.linalg.svd(x.to(device), full_matrices=False)
        q, r = torch.linalg.qr(x.to(device))
    assert torch.allclose((left * sizes @ right).cpu(), x, atol=1e-5)
    assert torch.allclose((q @ r).cpu(), x, atol=1e-5)
    assert not torch.allclose(left.cpu(), torch.linalg.svd(x, full_matrices=False)[0], atol=1e-3)


def test_infinity_and_masked_rows_are_as_before(device):
    x = torch.tensor([[math.inf, 1.0, 2.0], [-math.inf, 0.0, 1.0], [1.0, 2.0, 3.0]], device=device)
    calls = (torch.exp, F.gelu, F.silu, torch.sigmoid, torch.tanh, lambda x: x @ x, lambda x: F.softmax(x, -1))
    with faults.inject(EVERYTHING):
        made = [call(x) for call in calls]
    for call, one in zip(calls, made):
        assert torch.allclose(one, call(x), equal_nan=True)


def test_its_own_arithmetic_passes_autocast_by_and_leaves_its_cache(device):
    weight = numbers(16, 16).to(device).requires_grad_()
    x = numbers(4, 16, seed=2).to(device)
    with torch.autocast(device, dtype=torch.bfloat16):
        healthy = F.gelu(F.layer_norm(x, (16,)))
        first = F.linear(x, weight)
        with faults.inject("aten.gelu: remake; aten.native_layer_norm: remake") as injection:
            made = F.gelu(F.layer_norm(x, (16,)))
        second = F.linear(x, weight)
    assert list(injection.struck.values()) == [1, 1]
    assert made.dtype == healthy.dtype == torch.float32
    assert float((made - healthy).abs().max()) < 1e-5
    # the weight's one cast serves both calls
    casts = [call.grad_fn.next_functions[-1][0].next_functions[0][0] for call in (first, second)]
    assert casts[0] is casts[1]


def test_kernels_without_another_make_are_refused(device):
    with pytest.raises(FaultError, match=r"remake is known for aten\.mm, .* and others\."):
        faults.inject("aten.relu: remake")
