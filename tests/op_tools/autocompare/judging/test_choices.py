"""What an op may choose freely is no fault, and what it may not choose is one: kernels of another make."""

from __future__ import annotations

import functools
import itertools
import types

import pytest
import torch

import op_tools
from ditorch.sim import faults
from op_tools.autocompare.arguments import Arguments
from op_tools.autocompare.reference import tf32

from ....conftest import DEVICE
from ..kernels import kernel, wrong
from ..net import compare_call

pytestmark = pytest.mark.skipif(DEVICE != "sim", reason="kernels are replaced on the simulated accelerator")


def another_topk(x, k, dim=-1, largest=True, sorted=True):
    values, places = x.cpu().topk(k, dim, largest, True)
    if not sorted:
        values, places = values.flip(dim), places.flip(dim)
    return values.to(x.device), places.to(x.device)


def swapped_topk(x, k, dim=-1, largest=True, sorted=True):
    values, places = another_topk(x, k, dim, largest, sorted)
    return values, places.flip(dim)


def test_topk_in_any_order_where_none_is_asked_for(device):
    x = torch.randn(6, 8, device=device)
    with kernel("topk", another_topk):
        assert wrong(lambda: x.topk(3, sorted=False)) == set()
    with kernel("topk", lambda x, k, *_: another_topk(x, k, sorted=False)):
        assert wrong(lambda: x.topk(3)) == {"topk"}
    with kernel("topk", swapped_topk):  # values and positions that do not belong together
        assert wrong(lambda: x.topk(3, sorted=False)) == {"topk"}


def other_unique(x, sorted=True, return_inverse=False, return_counts=False):
    values, inverse, counts = (one.flip(0) for one in torch._unique2(x.cpu(), True, True, True))
    return values.to(x.device), (len(values) - 1 - inverse.flip(0)).to(x.device), counts.to(x.device)


def test_unique_in_any_order_where_none_is_asked_for(device):
    x = torch.tensor([3, 1, 3, 2, 1, 3], device=device)
    with kernel("_unique2", other_unique):
        assert wrong(lambda: torch.unique(x, sorted=False, return_inverse=True, return_counts=True)) == set()
        assert wrong(lambda: torch.unique(x)) != set()
    with kernel("_unique2", lambda *args: (*other_unique(*args)[:2], other_unique(*args)[2].roll(1))):
        assert wrong(lambda: torch.unique(x, sorted=False, return_inverse=True, return_counts=True)) != set()


def another_scatter(x, dim, index, source):
    return x.cpu().scatter(dim, index.cpu().flip(dim), source.cpu().flip(dim)).to(x.device)


def another_index_put(x, indices, values, accumulate=False):
    here = x.cpu()
    here.index_put_([one.cpu().flip(0) for one in indices], values.cpu().flip(0), accumulate)
    return x.copy_(here)


def assigned(device, index, source):
    target = torch.zeros(6, 8, device=device)
    target[index] = source


@pytest.mark.parametrize("reference", ["cpu", "device"])
def test_any_of_the_values_that_are_written_to_one_place(device, reference):
    x = torch.randn(6, 8, device=device)
    index = torch.tensor([0, 0, 1, 2, 2, 3], device=device)
    rows = index[:, None].expand(-1, 8)
    with kernel("scatter.src", another_scatter):
        assert wrong(lambda: torch.zeros_like(x).scatter(0, rows, x), reference=reference) == set()
    with kernel("index_put_", another_index_put):
        assert wrong(lambda: assigned(device, index, x), reference=reference) == set()


def test_mode_may_point_to_any_of_the_equal_values(device):
    x = torch.tensor([[1.0, 2.0, 2.0, 3.0], [4.0, 4.0, 5.0, 4.0]], device=device)
    first = torch.tensor([[1, 0], [3, 2]])  # of each row: a place of the value that comes most often, and another one

    def at(column):
        def mode(x, dim=-1, keepdim=False):
            return x.cpu().mode(dim, keepdim).values.to(x.device), first[:, column].to(x.device)

        return mode

    with kernel("mode", at(0)):
        assert wrong(lambda: x.mode()) == set()
    with kernel("mode", at(1)):
        assert wrong(lambda: x.mode()) == {"mode"}


def test_mode_may_choose_any_of_the_most_frequent(device):
    x = torch.tensor([[3.0, 0, 0, 1, 1], [2, 2, 4, 4, 4]], device=device)

    def chosen(values, places):
        return lambda x, dim=-1, keepdim=False: (torch.tensor(values).to(x.device), torch.tensor(places).to(x.device))

    with kernel("mode", chosen([1.0, 4.0], [4, 2])):
        assert wrong(lambda: x.mode()) == set()
        assert wrong(lambda: x.requires_grad_().mode(-1).values.sum().backward()) == set()
    x.requires_grad_(False)
    with kernel("mode", chosen([1.0, 2.0], [4, 0])):  # comes less often
        assert wrong(lambda: x.mode()) == {"mode"}
    with kernel("mode", chosen([1.0, 4.0], [1, 2])):  # at another place
        assert wrong(lambda: x.mode()) == {"mode"}


def test_values_that_nobody_has_written_there(device):
    x = torch.randn(6, 8, device=device)
    index = torch.tensor([0, 0, 1, 2, 2, 3], device=device)
    rows = index[:, None].expand(-1, 8)
    with kernel("scatter.src", lambda *args: another_scatter(*args) + 1):
        assert wrong(lambda: torch.zeros_like(x).scatter(0, rows, x)) == {"scatter"}

    def off_at_one_place(x, indices, values, accumulate=False):
        another_index_put(x, indices, values, accumulate)
        x[1] += 1  # written to once
        return x

    with kernel("index_put_", off_at_one_place):
        assert wrong(lambda: assigned(device, index, x)) == {"__setitem__"}


def another_sort(x, *, stable, dim=-1, descending=False):
    """Equal values in the opposite order."""
    values, places = x.cpu().flip(dim).sort(stable=True, dim=dim, descending=descending)
    return values.to(x.device), (x.shape[dim] - 1 - places).to(x.device)


def test_a_sort_is_stable_where_that_is_asked_for(device):
    x = torch.tensor([1, 0, 1, 0, 1], device=device)
    with kernel("sort.stable", another_sort):
        assert wrong(lambda: torch.sort(x)) == set()
        assert wrong(lambda: torch.sort(x, stable=True)) == {"sort"}
        assert wrong(lambda: torch.argsort(x, stable=True)) == {"argsort"}


# ---- jumps -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reference", ["cpu", "device"])
@pytest.mark.parametrize(
    ("name", "function", "run"),
    [
        ("floor", lambda x: (x.cpu().floor() - 1).to(x.device), lambda x: x.floor()),
        ("ceil", lambda x: (x.cpu().ceil() + 1).to(x.device), lambda x: x.ceil()),
        ("round", lambda x: (x.cpu().sign() * (x.cpu().abs() + 0.5).floor()).to(x.device), lambda x: (x / 2).round()),
        ("ge.Scalar", lambda x, number: (x.cpu() > number).to(x.device), lambda x: x >= 0),
        ("sign", lambda x: ((x.cpu() >= 0).float() * 2 - 1).to(x.device), lambda x: x.sign()),
        (
            "remainder.Tensor",
            lambda x, y: torch.where(x.cpu() % y.cpu() == 0, y.cpu(), x.cpu() % y.cpu()).to(x.device),
            lambda x: torch.remainder(x, x.new_full((), 3.0)),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_rounding_error_excuses_nothing_where_nothing_was_rounded(device, name, function, run, reference):
    x = torch.arange(-6.0, 7.0, device=device)
    assert wrong(lambda: run(x), reference=reference) == set()
    if reference == "device":
        return  # the reference has the same kernel
    with kernel(name, function):
        assert wrong(lambda: run(x)) == {{"ge.Scalar": "ge"}.get(name, name.partition(".")[0])}


@pytest.mark.parametrize(
    ("name", "function", "run"),
    [
        ("threshold_backward", lambda grad, x, bend: grad.cpu() * (x.cpu() >= bend), lambda x: x.relu()),
        ("div.Scalar", lambda x, number: x.cpu() * 0.75, lambda x: torch.maximum(x, torch.zeros_like(x))),
    ],
    ids=["relu", "maximum"],
)
def test_a_gradient_has_one_right_value_at_a_bend(device, name, function, run):
    x = torch.randn(300, device=device)
    x[7] = 0
    x.requires_grad_()
    assert wrong(lambda: run(x).sum().backward()) == set()
    with kernel(name, lambda *args: function(*args).to(device)):
        assert wrong(lambda: run(x).sum().backward()) == {"relu" if name == "threshold_backward" else "maximum"}


def test_a_rounding_error_still_excuses_what_is_rounded_before(device):
    """0.1 is no number of float16: on which side of it its neighbours lie depends on how it was rounded."""
    x = torch.tensor([0.1, 0.2], device=device, dtype=torch.float16)
    with kernel("gt.Scalar", lambda x, number: (x.cpu().float() > number).to(x.device)):
        assert wrong(lambda: x > 0.1) == set()


def test_the_size_of_a_complex_number_is_rounded(device):
    x = torch.randn(64, dtype=torch.complex64, device=device)
    with kernel("abs", lambda x: (x.cpu().real.square() + x.cpu().imag.square()).sqrt().to(x.device)):
        assert wrong(lambda: x.abs()) == set()


def test_the_direction_of_a_complex_number_is_rounded(device):
    x = torch.randn(64, dtype=torch.complex64, device=device)
    with kernel("sgn", lambda x: (x.cpu() * (1 / x.cpu().abs())).to(x.device)):
        assert wrong(lambda: x.sgn()) == set()
    with kernel("sgn", lambda x: (x.cpu() * (1.001 / x.cpu().abs())).to(x.device)):
        assert wrong(lambda: x.sgn()) == {"sgn"}


# ---- in place, with another shape ------------------------------------------------------------------------------------


@pytest.mark.parametrize("reference", ["cpu", "device"])
def test_ops_that_change_the_shape_in_place(device, reference):
    changes = [
        lambda x: x.unsqueeze_(0),
        lambda x: x.transpose_(0, 1),
        lambda x: x.t_(),
        lambda x: x.swapaxes_(0, 1),
        lambda x: x.squeeze_(),
    ]

    def run():
        for change in changes:
            change(torch.randn(3, 1, device=device))
            leaf = torch.randn(3, 4, device=device, requires_grad=True)
            change(leaf.clone()).sum().backward()

    with op_tools.OpAutoCompare(verbose=0, reference=reference) as tool:
        run()
    assert (tool.results[:], tool.results.not_looked_at) == ([], [])


# ---- tf32, and the user's own tolerances -----------------------------------------------------------------------------


def as_tf32(x):
    return (x.cpu().contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32)


def test_a_pool_may_send_its_gradient_to_any_of_the_equal_values(device):
    x = torch.randint(0, 3, (4, 4, 32, 32)).float().to(device).requires_grad_()
    weight = torch.randn(4, 4, 16, 16, device=device)

    def sends_to(place):
        """The first, the last or the smallest value of each window of four."""

        def backward(gradient, given, *_):
            windows = given.cpu().unfold(2, 2, 2).unfold(3, 2, 2).flatten(-2)
            chosen = {"first": windows.argmax(-1), "last": 3 - windows.flip(-1).argmax(-1), "least": windows.argmin(-1)}
            made = torch.zeros_like(windows).scatter_(-1, chosen[place][..., None], gradient.cpu()[..., None])
            return made.unflatten(-1, (2, 2)).transpose(3, 4).reshape(given.shape).to(given.device)

        return kernel("max_pool2d_with_indices_backward", backward)

    run = lambda: (torch.nn.functional.max_pool2d(x, 2) * weight).sum().backward()  # noqa: E731
    for place in ("first", "last"):
        with sends_to(place):
            assert wrong(run) == set()
    with sends_to("least"):
        assert wrong(run) == {"max_pool2d"}


def test_attention_to_nothing_may_be_anything(device):
    query, key = torch.randn(1, 2, 3, 4, device=device), torch.randn(1, 2, 5, 4, device=device)
    mask = torch.ones(3, 5, dtype=torch.bool, device=device)
    mask[1] = False
    run = lambda: torch.nn.functional.scaled_dot_product_attention(query, key, key, mask)  # noqa: E731

    def with_row(row):
        def attention(query, key, value, attn_bias=None, *_):
            scores = query.cpu() @ key.cpu().mT / 2 + (0 if attn_bias is None else attn_bias.cpu())
            made = torch.softmax(scores, -1).nan_to_num(0.0) @ value.cpu()
            made[..., row, :] = 0.5
            numbers = torch.zeros(1, dtype=torch.int64)
            log = torch.zeros(query.shape[:-1]).to(query.device)
            return made.to(query.device), log, numbers, numbers, 5, 3, numbers, numbers, numbers

        return kernel("_scaled_dot_product_fused_attention_overrideable", attention)

    with with_row(1):
        assert wrong(run) == set()
    with with_row(2):
        assert wrong(run) == {"scaled_dot_product_attention"}


def test_products_inside_of_an_op_are_rounded_by_autocast(device):
    x = torch.randn(8, 20, device=device)

    def run():
        given = x.clone().requires_grad_()
        with torch.autocast(device, torch.bfloat16):
            torch.corrcoef(given)[0, 1:].sum().backward()

    assert wrong(run, reference="device") == set()


def test_the_places_of_a_condition_are_compared(device):
    condition = torch.randn(9, 2, device=device) > 0
    with op_tools.OpAutoCompare(verbose=0, reference="device") as tool:
        torch.where(condition)
    assert not tool.results
    assert not tool.results.not_looked_at


def test_tf32_of_complex_numbers(device):
    left, right = (torch.randn(12, 16, 16, dtype=torch.complex64, device=device, requires_grad=True) for _ in range(2))
    with faults.inject("aten.*: tf32"):
        run = lambda: torch.einsum("bij,bjk->bik", left, right.conj()).abs().sum().backward()  # noqa: E731
        assert wrong(run) == {"einsum"}
        torch.backends.cuda.matmul.allow_tf32 = True
        try:
            assert wrong(run) == set()
            assert wrong(run, reference="device") == set()
        finally:
            torch.backends.cuda.matmul.allow_tf32 = False


def test_tf32_that_the_program_allows(device):
    a, b = torch.randn(64, 64, device=device), torch.randn(64, 64, device=device)
    with kernel("mm", lambda a, b: (as_tf32(a) @ as_tf32(b)).to(a.device)):
        assert wrong(lambda: a @ b) == {"matmul"}
        torch.backends.cuda.matmul.allow_tf32 = True
        try:
            assert wrong(lambda: a @ b) == set()
        finally:
            torch.backends.cuda.matmul.allow_tf32 = False


def products(device):
    """Products of many kinds, small ones and those inside of other ops, forward and backward."""
    numbers = torch.Generator().manual_seed(3)
    x, narrow = (torch.randn(shape, generator=numbers).to(device).requires_grad_() for shape in ((6, 6), (6, 3)))
    attention = torch.nn.MultiheadAttention(16, 2, batch_first=True).to(device)
    words = torch.randn(2, 12, 16, generator=numbers).to(device).requires_grad_()

    def run():
        heads = words.unflatten(-1, (4, 4)).transpose(1, 2)
        seen = torch.nn.functional.scaled_dot_product_attention(heads, heads * 2, heads, is_causal=True)
        straight = x + 6 * torch.eye(6, device=device)
        results = (
            narrow @ narrow.t(),
            seen,
            attention(words, words, words)[0],
            torch.linalg.inv(straight),
            torch.linalg.solve(straight, narrow),
            torch.linalg.matrix_power(x, 3),
            torch.linalg.matrix_norm(x, "nuc"),
            torch.linalg.pinv(narrow),
            torch.nn.functional.conv2d(words.view(2, 12, 4, 4), words.view(12, 2, 4, 4)[:, :1].repeat(1, 12, 1, 1)),
        )
        for number, result in enumerate(results):
            weights = torch.randn(result.shape, generator=torch.Generator().manual_seed(number)).to(device)
            result.backward(weights, retain_graph=True)

    return run


def test_a_switch_of_the_vendors_own_counts_as_tf32(device, monkeypatch):
    """Ascend has torch.npu.matmul.allow_hf32."""
    switch = types.SimpleNamespace(allow_hf32=False)
    monkeypatch.setattr(torch.get_device_module(device), "matmul", switch, raising=False)
    tf32._switches_of_vendor.cache_clear()
    a, b = torch.randn(64, 64, device=device), torch.randn(64, 64, device=device)
    try:
        with kernel("mm", lambda a, b: (as_tf32(a) @ as_tf32(b)).to(a.device)):
            assert wrong(lambda: a @ b) == {"matmul"}
            switch.allow_hf32 = True
            assert wrong(lambda: a @ b) == set()
    finally:
        monkeypatch.undo()
        tf32._switches_of_vendor.cache_clear()


@pytest.mark.parametrize("reference", ["cpu", "device"])
def test_tf32_inside_of_other_ops_that_the_program_allows(device, reference):
    run = products(device)
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        with faults.inject("aten.*: tf32") as injection:
            assert wrong(run, reference=reference) == set()
        assert sum(injection.struck.values()) > 20
        with faults.inject("aten.*: tf32; aten.mm: scale=1.01; aten._scaled_dot_product_fused*: scale=1.01"):
            found = wrong(run)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False
    assert {"matmul", "scaled_dot_product_attention"} <= found


@pytest.mark.parametrize("reference", ["cpu", "device"])
def test_a_tolerance_that_the_user_has_set_decides(device, monkeypatch, reference):
    x = torch.rand(64, device=device) + 1
    with kernel("exp", lambda x: (x.cpu().double().exp() * (1 + 3e-4)).to(x.dtype).to(x.device)):
        if reference == "cpu":
            assert wrong(lambda: x.exp()) == {"exp"}
        monkeypatch.setenv("EXP_AUTOCOMPARE_ERROR_TOLERANCE", "1e-3,1e-3")
        assert wrong(lambda: x.exp(), reference=reference) == set()
    monkeypatch.setenv("AUTOCOMPARE_ERROR_TOLERANCE_FLOAT32", "0,0")
    monkeypatch.delenv("EXP_AUTOCOMPARE_ERROR_TOLERANCE")
    another_log = kernel("log", lambda x: torch.nextafter(x.cpu().log(), torch.tensor(9.0)).to(x.device))
    with another_log, op_tools.OpAutoCompare(verbose=0) as tool:
        x.log()
    assert "not within the tolerance that was set (atol 0, rtol 0)" in tool.results[0]["reason"]


# ---- factors of a matrix ---------------------------------------------------------------------------------------------

SQUARE = torch.randn(3, 6, 6, generator=torch.Generator().manual_seed(0))
TALL = SQUARE[..., :4]
# the kernel, what uses it, and on what
FACTORIZATIONS = {
    "eig": ("linalg_eig", torch.linalg.eig, SQUARE),
    "eigh": ("_linalg_eigh", torch.linalg.eigh, SQUARE + SQUARE.mT),
    "geqrf": ("geqrf", torch.geqrf, TALL),
    "lu_factor": ("linalg_lu_factor_ex", torch.linalg.lu_factor, SQUARE),
    "lu": ("linalg_lu", torch.linalg.lu, SQUARE),
    "qr": ("linalg_qr", torch.linalg.qr, TALL),
    "svd": ("_linalg_svd", torch.linalg.svd, TALL),
}


@pytest.mark.parametrize("name", FACTORIZATIONS)
def test_factors_must_give_their_matrix(device, name):
    broken, factorize, given = FACTORIZATIONS[name]
    given = given.to(device)
    assert wrong(lambda: factorize(given)) == set()
    with faults.inject(f"aten.{broken}: tail=0.3"):
        assert wrong(lambda: factorize(given)) == {name}


@pytest.mark.parametrize("name", ["qr", "lu_factor"])
def test_the_gradient_of_the_same_factors_is_the_same(device, name):
    _, factorize, given = FACTORIZATIONS[name]

    def run():
        made = factorize(given.to(device).requires_grad_())
        sum(part.sin().sum() for part in made if part.requires_grad).backward()

    assert wrong(run) == set()
    with faults.inject("aten.linalg_solve_triangular: scale=1.5, phase=backward"):
        assert wrong(run) == {name}


def test_the_signs_of_factors_are_free(device):
    tall = TALL.to(device).requires_grad_()

    def turned(x, full_matrices=False, compute_uv=True, *, driver=None):
        left, sizes, right = torch.linalg.svd(x.cpu(), full_matrices)
        return [one.to(x.device) for one in (-left, sizes, -right)]

    def run():
        left, _, right = torch.linalg.svd(tall, full_matrices=False)
        (left[..., :4, :] * right.mT * SQUARE[:, :4, :4].to(device)).sum().backward()

    with kernel("_linalg_svd", turned):
        assert wrong(run) == set()


# ---- no room for a number --------------------------------------------------------------------------------------------


def converting(into_bytes):
    """A kernel that converts numbers to bytes in its own way."""

    def convert(x, *, dtype=None, device=None, **others):
        made = torch.empty(x.shape, dtype=x.dtype).copy_(x)
        made = into_bytes(made).to(torch.uint8) if dtype is torch.uint8 else made.to(dtype or x.dtype)
        return torch.empty(made.shape, dtype=made.dtype, device=device or x.device).copy_(made)

    return convert


def test_a_number_that_the_dtype_has_no_room_for_becomes_what_it_will(device):
    x = torch.tensor([-1.0, 300.0, float("nan"), 7.9], device=device)
    with kernel("_to_copy", converting(lambda x: x.nan_to_num(0).clamp(0, 255))):
        assert wrong(lambda: x.to(torch.uint8)) == set()
    with kernel("_to_copy", converting(lambda x: x.nan_to_num(0).clamp(0, 255).round())):
        assert wrong(lambda: x.to(torch.uint8)) == {"to"}


# ---- autocast --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_cross_entropy_under_autocast_in_all_its_forms(device, dtype):
    scores = torch.randn(32, 16, device=device).to(dtype).requires_grad_()
    target = torch.randint(16, (32,), device=device)
    shares = torch.rand(32, 16, device=device)

    def run():
        with torch.autocast(device, dtype):
            for wanted, smoothing in ((target, 0.1), (shares, 0.0), (shares, 0.2), (target, 0.0)):
                torch.nn.functional.cross_entropy(scores, wanted, label_smoothing=smoothing).backward()

    assert wrong(run) == set()


# ---- random ops ------------------------------------------------------------------------------------------------------


def test_what_no_chance_can_draw(device):
    shares = torch.tensor([[0.5, 0.5, 0.0, 0.0]], device=device).expand(64, 4)
    assert wrong(lambda: torch.multinomial(shares, 2)) == set()
    assert wrong(lambda: torch.multinomial(shares, 9, replacement=True)) == set()
    assert wrong(lambda: torch.randperm(50, device=device)) == set()

    def always(place):
        return lambda x, number, *more, **others: torch.full((*x.shape[:-1], number), place, device=x.device)

    with kernel("multinomial", always(3)):
        assert wrong(lambda: torch.multinomial(shares, 1)) == {"multinomial"}
    with kernel("multinomial", always(1)):
        assert wrong(lambda: torch.multinomial(shares, 2)) == {"multinomial"}
    with kernel("randperm.generator_out", lambda number, *, generator, out: out.fill_(1)):
        assert wrong(lambda: torch.randperm(50, device=device)) == {"randperm"}
    with kernel("randperm.generator_out", lambda number, *, generator, out: out.copy_(torch.arange(number))):
        assert wrong(lambda: torch.randperm(50, device=device)) == {"randperm"}


def test_draws_that_do_not_have_their_probabilities(device):
    shares = torch.tensor([[0.1, 0.2, 0.3, 0.4]], device=device).expand(100, 4)
    assert wrong(lambda: torch.multinomial(shares, 1)) == set()
    assert wrong(lambda: torch.multinomial(shares, 9, replacement=True)) == set()
    likeliest = lambda x, number, *more, **others: x.argmax(-1, keepdim=True).expand(-1, number).clone()  # noqa: E731
    with kernel("multinomial", likeliest):
        assert wrong(lambda: torch.multinomial(shares, 1)) == {"multinomial"}


def test_bernoulli_and_poisson_by_the_probability_of_each_element(device):
    shares = torch.linspace(0, 1, 200, device=device)
    assert wrong(lambda: (torch.bernoulli(shares), shares.bernoulli(0.3), torch.poisson(3 * shares))) == set()
    with kernel("bernoulli", lambda p, *, generator=None: torch.zeros_like(p)):
        assert wrong(lambda: torch.bernoulli(shares)) == {"bernoulli"}
    with kernel("poisson", lambda rates, generator=None: torch.ones_like(rates)):
        assert wrong(lambda: torch.poisson(3 * shares)) == {"poisson"}


# ---- steps between whole numbers -------------------------------------------------------------------------------------


def in_single(start, end, steps, whole, off=0.0):
    """As CUDA does: the steps in float32, from both ends, cut off."""
    start, end = (torch.tensor(float(int(one))) for one in (start, end))
    places = torch.arange(steps, dtype=torch.float32)
    step = (end - start) / max(steps - 1, 1)
    return whole(torch.where(places < steps // 2, start + step * places, end - step * (steps - 1 - places)) + off)


SPACES = [(-128, 127, 7), (0, 100, 11), (-7, 93, 101), (0.7, 90.2, 34), (5, 5, 1), (100, -100, 41), (0, 120, 49)]


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64], ids=str)
def test_steps_between_whole_numbers_may_be_single(device, dtype):
    def linspace(start, end, steps, *, out):
        return out.resize_(steps).copy_(in_single(start, end, steps, lambda x: x).to(dtype))

    def logspace(start, end, steps, base=10.0, *, out):
        return out.resize_(steps).copy_(in_single(start, end, steps, lambda x: base**x).to(dtype))

    def run():
        for start, end, steps in SPACES:
            torch.linspace(start, end, steps, dtype=dtype, device=device)
        torch.logspace(0, 6, 7, base=2, dtype=dtype, device=device)
        torch.logspace(0, 2, steps=9, dtype=dtype, device=device)
        if dtype is torch.int64:
            torch.linspace(-(2**40), 2**41, 1001, dtype=dtype, device=device)
            torch.logspace(0, 12, 25, dtype=dtype, device=device)

    with kernel("linspace.out", linspace), kernel("logspace.out", logspace):
        assert wrong(run) == set()


@pytest.mark.parametrize(("off", "steps"), [(0.5, 8), (1.0, 8), (-0.01, 11), (-0.01, 201)])
def test_steps_between_whole_numbers_that_are_wrong(device, off, steps):
    """Of 201 steps each is half a number, which float32 has: nothing is rounded."""

    def linspace(start, end, steps, *, out):
        return out.resize_(steps).copy_(in_single(start, end, steps, lambda x: x, off).to(out.dtype))

    with kernel("linspace.out", linspace):
        assert wrong(lambda: torch.linspace(0, 100, steps, dtype=torch.int32, device=device)) == {"linspace"}


# ---- labels ----------------------------------------------------------------------------------------------------------


def test_a_label_is_exactly_what_it_is(device):
    scores, labels = torch.randn(20, device=device), torch.tensor([1.0, -1.0], device=device).repeat(10)
    with faults.inject("aten.mean: scale=1.5"):
        assert wrong(lambda: torch.nn.functional.hinge_embedding_loss(scores, labels)) == {"hinge_embedding_loss"}


# ---- small elements ----------------------------------------------------------------------------------------------


def small_and_large(device, dtype=torch.float32):
    x = torch.logspace(-12, 0, 400, device=device)
    return torch.cat([x, -x / 2]).to(dtype)


BY_ABSOLUTE_SIZE = {  # formulas that lose small numbers beside one
    "log1p": lambda x: (1 + x).log(),
    "expm1": lambda x: x.exp() - 1,
    "tanh": lambda x: 1 - 2 / ((2 * x).exp() + 1),
    "asinh": lambda x: (x + (x * x + 1).sqrt()).log(),
    "sin": lambda x: (x + 2) - 2 - x**3 / 6 + x**5 / 120 - x**7 / 5040 + x**9 / 362880,
}


@pytest.mark.parametrize("name", BY_ABSOLUTE_SIZE)
def test_small_elements_are_held_to_their_own_size(device, name):
    x = small_and_large(device)
    with kernel(name, lambda x: BY_ABSOLUTE_SIZE[name](x.cpu()).to(x.device)):
        assert wrong(lambda: getattr(torch, name)(x)) == {name}


def test_a_difference_of_neighbours_is_exact(device):
    x = torch.rand(300, device=device) + 1
    with kernel("sub.Tensor", lambda a, b, alpha=1: ((a.cpu() + 64) - (b.cpu() + 64)).to(a.device)):
        assert wrong(lambda: torch.cat([x, x]) - torch.cat([x * (1 - 2**-12), x / 2])) == {"sub"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_small_elements_of_another_make_are_right(device, dtype):
    x = small_and_large(device, dtype)

    def run():
        for name in (*BY_ABSOLUTE_SIZE, "tan", "atan", "erf", "sigmoid", "exp", "square"):
            getattr(torch, name)(x)
        for name in ("sqrt", "log", "rsqrt", "reciprocal"):
            getattr(torch, name)(x.abs())
        torch.add(x, x.flip(0), alpha=-0.3)
        (x - x.flip(0)) * x / 3.0

    with faults.inject("aten.*: remake"):
        assert wrong(run) == set()


# ---- sums that cancel out --------------------------------------------------------------------------------------------


def test_running_means_that_cancel_out_everywhere(device):
    """Two numbers of opposite sign in each channel: of their mean, only the roundings of some algorithm are left."""
    half = torch.rand(1, 256, 1, 1, device=device)
    x = torch.cat([half, -half * (1 + 2**-20)])

    def run():
        for momentum in (0.1, 0.997):
            statistics = torch.zeros(256, device=device), torch.ones(256, device=device)
            torch.nn.functional.batch_norm(x, *statistics, training=True, momentum=momentum)

    with faults.inject("aten.native_batch_norm: remake"):
        assert wrong(run) == set()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("reference", ["cpu", "device"])
def test_one_less_a_momentum_has_the_error_of_the_momentum(device, reference, dtype):
    """0.997 is rounded to the dtype of the statistics: of the old ones, 0.003 stay more or less."""
    x = 0.02 * torch.randn(4, 32, 5, 5, device=device, dtype=dtype)
    statistics = torch.zeros(32, device=device, dtype=dtype), torch.ones(32, device=device, dtype=dtype)

    def run():
        torch.nn.functional.batch_norm(x, *statistics, training=True, momentum=0.997)

    assert wrong(run, reference=reference) == set()
    with faults.inject("aten.native_batch_norm: scale=1.5"):  # which float64 on the device has as well: the CPU has not
        assert wrong(run, reference=reference) == {"batch_norm"}


@pytest.mark.parametrize("reference", ["cpu", "device"])
def test_a_sum_beyond_the_range_of_float16_may_overflow_on_the_way(device, reference):
    """Split products keep parts of a sum in float16: 65,504 is soon exceeded, whatever they add up to in the end."""

    def run(size):
        x = torch.cat([torch.full((4, 4), size), torch.full((4, 4), -size + 1)], 1).to(device, torch.float16)
        return lambda: torch.mm(x, x.abs().t())

    def in_parts(left, right):
        parts = zip(left.cpu().double().chunk(2, 1), right.cpu().double().chunk(2, 0))
        return sum((one @ other).to(left.dtype) for one, other in parts).to(left.device)

    def infinite(left, right):
        exact = (left.cpu().double() @ right.cpu().double()).to(left.device, left.dtype)
        return exact + torch.inf if left.dtype is torch.float16 else exact

    with kernel("mm", in_parts):
        assert wrong(run(190.0), reference=reference) == set()
    with kernel("mm", infinite):
        assert wrong(run(70.0), reference=reference) == {"mm"}


def test_sums_of_a_batch_norm_may_be_kept_in_the_dtype_of_the_data(device):
    """cuDNN does so for float32 parameters under autocast: their gradients have the errors of bfloat16."""
    x = torch.randn(16, 8, 6, 6, device=device, dtype=torch.bfloat16, requires_grad=True)
    weight, bias = torch.ones(8, device=device, requires_grad=True), torch.zeros(8, device=device, requires_grad=True)
    factor = 1.0

    def rough(grad_output, given, weight, mean, variance, saved_mean, saved_deviation, train, eps, mask):
        found = torch.ops.aten.native_batch_norm_backward(
            *(one if one is None else one.cpu() for one in (grad_output, given, weight, mean, variance)),
            saved_mean.cpu(), saved_deviation.cpu(), train, eps, mask,
        )  # fmt: skip
        return tuple((factor * one.to(torch.bfloat16).to(one.dtype)).to(device) for one in found)

    def run():
        result = torch.nn.functional.batch_norm(x, None, None, weight, bias, training=True)
        result.backward(torch.randn(result.shape, device=device).to(result.dtype))

    with kernel("native_batch_norm_backward", rough):
        assert wrong(run) == set()
        factor = 1.02
        assert wrong(run) == {"batch_norm"}


@pytest.mark.parametrize("reference", ["cpu", "device"])
def test_residuals_of_lstsq_depend_on_the_driver(device, reference):
    x, y = torch.randn(8, 3, device=device), torch.randn(8, 2, device=device)

    def by_gels(x, y, rcond=None, *, driver=None):
        found = torch.linalg.lstsq(x.cpu(), y.cpu(), rcond, driver="gels")
        return tuple(one.to(device) for one in found)

    with kernel("linalg_lstsq", by_gels):
        assert wrong(lambda: torch.linalg.lstsq(x, y), reference=reference) == set()


@pytest.mark.parametrize("reference", ["cpu", "device"])
def test_gradients_of_one_place_that_cancel_out(device, reference):
    """Large numbers and their opposites go to one place: what is left has the errors of the large ones."""
    index = torch.arange(16, device=device).repeat(3)
    large = torch.linspace(1.1, 1.9, 16)
    gradient = torch.cat([large, torch.linspace(1e-7, 9e-7, 16), -large]).to(device)
    x = torch.randn(16, device=device, requires_grad=True)

    def in_another_order(x, indices, values, accumulate=False):
        exact = x.cpu().index_put([one.cpu() for one in indices], values.cpu(), accumulate)
        if values.dtype is torch.float32:
            first, second, third = values.cpu().chunk(3)
            exact = (first + third) + second if values.cpu()[0] > 1 else exact
        return exact.to(device)

    with kernel("index_put", in_another_order):
        assert wrong(lambda: x[index].backward(gradient), reference=reference) == set()
        assert wrong(lambda: x[index].backward(gradient.roll(16)), reference=reference) == set()


def test_memory_that_nobody_has_written_is_not_compared(device):
    x = torch.ones(3, device=device)
    with op_tools.OpAutoCompare(verbose=0) as tool:
        x.new(64, 64)
    assert tool.results[:] == []
    assert tool.summary.values == 0


@pytest.mark.parametrize("reference", ["device", "identities"])
def test_the_first_call_of_a_product_is_compared_as_well(device, reference):
    x = torch.randn(6, 6, device=device)
    with op_tools.OpAutoCompare(verbose=0, reference=reference) as tool:
        torch.mm(x, x)
    assert tool.summary.values == 1


def test_an_op_that_nobody_knows_is_compared_from_its_first_call_on(device):
    x = torch.randn(4, 4, device=device)
    library = torch.library.Library("unknown_to_all", "FRAGMENT")
    library.define("double_it(Tensor x) -> Tensor")
    library.impl("double_it", lambda x: x * 2, "CompositeExplicitAutograd")
    try:
        with op_tools.OpAutoCompare(verbose=0, reference="device") as tool:
            torch.ops.unknown_to_all.double_it(x)
        assert tool.summary.values > 0
    finally:
        library._destroy()


def test_autocast_to_16_bits_leaves_no_room_for_tf32(device):
    """Where both are allowed, a product is one of bfloat16, whatever the device as reference computes."""
    x = torch.randn(24, 32, device=device, requires_grad=True)
    cell = torch.nn.GRUCell(32, 32).to(device)
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True

    def run():
        with torch.autocast(device, torch.bfloat16):
            cell(x, torch.zeros(24, 32, device=device)).float().square().sum().backward()

    try:
        assert wrong(run, reference="device") == set()
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def test_16_bits_are_compared_with_float32_where_a_device_has_no_float64_kernel(device):
    x = torch.randn(16, 16, device=device, dtype=torch.bfloat16)
    factor = 1.0

    def only_low(left, right):
        if left.dtype is torch.float64:
            raise RuntimeError("no double")
        found = (left.cpu().float() @ right.cpu().float()).to(device, left.dtype)
        return factor * found if left.dtype is torch.bfloat16 else found

    with kernel("mm", only_low):
        assert wrong(lambda: torch.mm(x, x), reference="device") == set()
        factor = 1.05
        assert wrong(lambda: torch.mm(x, x), reference="device") == {"mm"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("op", ["silu", "mish"])
def test_a_gradient_that_is_differentiated_again_has_a_formula_of_its_own(device, op, dtype):
    """It is made of several ops then, each rounded to 16 bits."""
    function = getattr(torch.nn.functional, op)

    def run():
        for seed in range(4):
            torch.manual_seed(seed)
            x = torch.randn(8, 16).to(device, dtype).requires_grad_()
            y = function(x)
            (gradient,) = torch.autograd.grad(y, x, torch.randn_like(y), create_graph=True)
            gradient.square().sum().backward()

    assert wrong(run) == set()
    with faults.inject(f"aten.{'sigmoid' if op == 'silu' else 'tanh'}: scale=1.05, phase=backward"):
        assert op in wrong(run)


@pytest.mark.parametrize("reference", ["cpu", "device"])
def test_a_loss_of_scores_in_16_bits_may_be_computed_in_them(device, reference):
    scores = torch.randn(6, 8, device=device).to(torch.bfloat16).requires_grad_()
    truth = torch.randint(2, (6, 8), device=device).float()

    def run():
        torch.nn.functional.multilabel_soft_margin_loss(scores, truth).backward()
        torch.nn.functional.soft_margin_loss(scores, 2 * truth - 1).backward()
        torch.nn.functional.binary_cross_entropy_with_logits(scores, truth.to(scores.dtype)).backward()

    assert wrong(run, reference=reference) == set()
    with faults.inject("aten.log_sigmoid_forward: scale=1.1"):
        assert "multilabel_soft_margin_loss" in wrong(run)


# ---- optimizers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_scaled", [False, True])
@pytest.mark.parametrize("reference", ["cpu", "device"])
def test_a_fused_optimizer_may_keep_its_constants_in_float32(device, reference, is_scaled):
    """One less beta2 is 0.001 with an error of 1.3e-5 then, as on CUDA."""
    parameters = [torch.randn(64, device=device, requires_grad=True) for _ in range(3)]

    def in_float32(*lists, **options):
        steps = [one.cpu() for one in lists[5]]
        exact = [[one.detach().cpu().double() for one in some] for some in lists[:5]]
        options["found_inf"] = None
        if lists[0][0].dtype is torch.float32:
            options.update({name: float(torch.tensor(options[name])) for name in ("beta1", "beta2")})
        torch._fused_adamw_(*exact, steps, **options)
        for one, other in zip(itertools.chain(*lists[:5]), itertools.chain(*exact)):
            one.copy_(other)

    def run():
        for one in parameters:
            one.grad = torch.randn(64, device=device)
        optimizer = torch.optim.AdamW(parameters, fused=True, lr=1e-3)
        if is_scaled:  # as a GradScaler hands it on
            optimizer.grad_scale, optimizer.found_inf = None, torch.zeros((), device=device)
        optimizer.step()

    with kernel("_fused_adamw_", in_float32):
        assert wrong(run, reference=reference) == set()


@pytest.mark.parametrize("reference", ["cpu", "device"])
def test_a_fused_step_of_parameters_without_dimensions_has_one_dtype(device, reference):
    """CUDA refuses lists that mix dtypes: such parameters are no plain numbers, as the count of steps is."""
    shapes = ((), (3,), (2, 2))
    parameters = [torch.randn(shape, device=device, requires_grad=True) for shape in shapes]
    seen = []

    def refuses_mixtures(*lists, factor=1.0, **options):
        kinds = {one.dtype for one in itertools.chain(*lists[:4])}
        seen.append((kinds, {one.dtype for one in lists[5]}))
        if len(kinds) > 1:
            raise RuntimeError("params, grads, exp_avgs, and exp_avg_sqs must have same dtype, device, and layout")
        here = [[one.detach().cpu() for one in some] for some in lists[:6]]
        torch._fused_adamw_(*here, **options)
        for one, other in zip(itertools.chain(*lists[:5]), itertools.chain(*here)):
            one.copy_(other * factor if one.dtype is torch.float32 and not one.dim() else other)

    def run():
        for one in parameters:
            one.grad = torch.ones_like(one)
        torch.optim.AdamW(parameters, fused=True, lr=0.1).step()

    with kernel("_fused_adamw_", refuses_mixtures), op_tools.OpAutoCompare(verbose=0, reference=reference) as tool:
        run()
    assert (tool.results[:], tool.results.not_looked_at) == ([], [])
    assert all(steps == {torch.float32} for _, steps in seen)
    with kernel("_fused_adamw_", functools.partial(refuses_mixtures, factor=1.01)):
        assert wrong(run, reference=reference) == {"_fused_adamw_"}


@pytest.mark.parametrize("reference", ["cpu", "device"])
def test_scaled_steps_of_a_fused_optimizer_are_compared(device, reference):
    parameter = torch.randn(8, 3, device=device, requires_grad=True)
    optimizer = torch.optim.Adam([parameter], fused=True)
    scaler = torch.amp.GradScaler(device, init_scale=2.0)

    def run():
        scaler.scale((torch.randn(16, 8, device=device) @ parameter).square().mean()).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()

    with op_tools.OpAutoCompare(verbose=0, reference=reference) as tool:
        run()
    assert (tool.results[:], tool.results.not_looked_at) == ([], [])


@pytest.mark.parametrize("reference", ["cpu", "device"])
def test_whole_numbers_are_counted_though_the_cpu_only_counts_others(device, reference):
    def counted(x, bins, low=0, high=0):
        return x.cpu().float().histc(bins, low, high).to(x.dtype).to(x.device)

    def program():
        places = torch.arange(20, dtype=torch.int32).to(device) % 5
        torch.histc(places, 5, 0, 4)

    with kernel("histc", counted), op_tools.OpAutoCompare(verbose=0, reference=reference) as tool:
        program()
    assert not list(tool.results)
    assert not tool.results.not_looked_at
    with kernel("histc", lambda *given: counted(*given) + 1):
        assert wrong(program, reference="cpu") == {"histc"}


GROUPS = {"rows": ((12, 8), (3, 8, 4)), "columns": ((3, 4, 8), (8, 12)), "sums": ((8, 12), (12, 4))}


@pytest.mark.skipif(not hasattr(torch, "_grouped_mm"), reason="this torch has no grouped products")
@pytest.mark.parametrize("shapes", GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize("reference", ["cpu", "device"])
def test_grouped_products_are_compared_with_float64(device, reference, shapes):
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(shape, generator=generator).to(device).requires_grad_() for shape in shapes)
    ends = torch.tensor([4, 4, 12], dtype=torch.int32).to(device)

    def program():
        torch._grouped_mm(left, right, offs=ends).square().sum().backward()

    with op_tools.OpAutoCompare(verbose=0, reference=reference) as tool:
        program()
    assert not list(tool.results)
    assert not tool.results.not_looked_at
    with faults.inject("aten._grouped_mm: scale=1.0001, phase=forward"):
        assert wrong(program, reference=reference) == {"_grouped_mm"}


@pytest.mark.parametrize("reference", ["cpu", "device"])
def test_the_gradient_of_msort_may_go_to_any_of_equal_values(device, reference):
    def backwards(x, *, stable=False, dim=-1, descending=False):
        values, places = x.cpu().flip(dim).sort(dim=dim, descending=descending, stable=True)
        return values.to(x.device), (x.shape[dim] - 1 - places).to(x.device)

    x = torch.randn(700, generator=torch.Generator().manual_seed(0)).bfloat16().to(device).requires_grad_()
    weights = torch.randn(700, generator=torch.Generator().manual_seed(1)).bfloat16().to(device)
    with kernel("sort.stable", backwards):
        assert wrong(lambda: (torch.msort(x) * weights).sum().backward(), reference=reference) == set()


def test_what_a_batch_norm_keeps_for_its_gradient_may_be_there_or_not(device):
    x, ones, zeros = (torch.full((2, 3, 4), 0.5), torch.ones(3), torch.zeros(3))
    given = [one.to(device) for one in (x, ones, zeros, zeros, ones)]

    def normed(x, weight, bias, mean, variance, training, momentum, eps):
        made = torch.native_batch_norm(
            *(one.cpu() for one in (x, weight, bias, mean, variance)), training, momentum, eps
        )
        return made[0].to(x.device), torch.zeros_like(mean), torch.ones_like(mean)

    with kernel("native_batch_norm", normed):
        assert wrong(lambda: torch.native_batch_norm(*given, False, 0.1, 1e-5)) == set()


def test_a_pool_by_fractions_draws_its_windows_also_where_it_tells_their_places(device):
    x = torch.randn(2, 3, 5, 5, 5, device=device)
    pool = torch.nn.functional.fractional_max_pool3d
    assert wrong(lambda: (x + 1, pool(x, 2, output_size=(2, 3, 2), return_indices=True))) == set()


def with_rounded_statistics(x, weight, bias, batch, channels, area, groups, eps):
    """As CUDA has it: mean and deviation are kept in the dtype of the data."""
    whole = x.cpu().float().view(batch, groups, -1)
    mean, scale = whole.mean(-1).to(x.dtype), (whole.var(-1, unbiased=False) + eps).rsqrt().to(x.dtype)
    made = ((whole - mean[..., None].float()) * scale[..., None].float()).view(batch, channels, area)
    made = made * weight.cpu().float()[:, None] + bias.cpu().float()[:, None]
    return made.view(x.shape).to(x.device, x.dtype), mean.to(x.device), scale.to(x.device)


def test_a_group_norm_may_keep_its_statistics_in_16_bits(device):
    for seed in range(6):
        x = torch.randn(2, 8, 12, 12, generator=torch.Generator().manual_seed(seed)).bfloat16().to(device)
        norm = torch.nn.GroupNorm(2, 8).to(device, torch.bfloat16)
        with kernel("native_group_norm", with_rounded_statistics):
            assert wrong(lambda x=x, norm=norm: norm(x)) == set()
    with faults.inject("aten.native_group_norm: scale=1.01"):
        assert wrong(lambda: norm(x)) == {"group_norm"}


def test_where_the_cpu_lacks_a_dtype_nobody_knows_what_roundings_on_the_way_cost(device):
    library = torch.library.Library("lacking", "DEF")
    library.define("softened(Tensor x) -> Tensor")

    def softened(x):
        if x.is_cpu and x.dtype is torch.bfloat16:
            raise NotImplementedError("no kernel for BFloat16")
        for _ in range(12):
            x = x * 1.07 + x.abs().sqrt() * 0.03  # rounded each time
        return x

    for key in ("CPU", "PrivateUse1"):
        library.impl("softened", softened, key)
    x = torch.randn(40, 50, generator=torch.Generator().manual_seed(0)).bfloat16().to(device)
    try:
        assert wrong(lambda: torch.ops.lacking.softened(x)) == set()
        with faults.inject("aten.sqrt: scale=1.2"):
            assert wrong(lambda: torch.ops.lacking.softened(x)) == {"softened"}
    finally:
        library._destroy()


def test_attention_in_16_bits_may_cut_off_its_float32_products_to_tf32(device):
    """PyTorch's own, with dropout, multiplies in float32, whatever its inputs are."""
    torch.manual_seed(0)
    attention = torch.nn.MultiheadAttention(16, 4, 0.1, batch_first=True).to(device)
    queries, memory = (torch.randn(2, length, 16).to(device).requires_grad_() for length in (4, 16))

    def program():
        with torch.autocast(device, torch.float16):
            made = attention(queries, memory, memory, need_weights=False)[0]
        made.float().square().sum().backward()

    def plain():
        query, key = (one.half().view(len(one), -1, 4, 4).transpose(1, 2) for one in (queries, memory))
        torch.nn.functional.scaled_dot_product_attention(query, key, key, dropout_p=0.1).square().sum().backward()

    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        with faults.inject("aten.*: tf32"):
            assert wrong(program) == set()
            assert wrong(plain) == set()
        with faults.inject("aten.bmm: scale=1.01"):
            assert wrong(program) == {"multi_head_attention_forward"}
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


def test_other_signs_of_vectors_are_right_by_the_names_of_compiled_code():
    given = torch.randn(6, 4)
    u, s, v = torch.linalg.svd(given, full_matrices=False)
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0])
    result = (u * signs, s, v * signs[:, None])
    function = torch.ops.aten._linalg_svd.default
    (found,) = compare_call("aten._linalg_svd.default", function, Arguments((given, False), {}), result)
    assert not found.is_wrong
    (found,) = compare_call(
        "aten._linalg_svd.default", function, Arguments((given, False), {}), (u, s, v * signs[:, None])
    )
    assert found.is_wrong
