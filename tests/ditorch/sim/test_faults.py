"""Kernels broken on purpose, on the device that the `device` fixture names."""

from __future__ import annotations

import threading
import time

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from ditorch.errors import FaultError
from ditorch.sim import faults


@pytest.fixture
def square(device):
    return torch.rand(32, 32, generator=torch.Generator().manual_seed(1)).add(0.5).to(device)


def relative_error(got, expected):
    return ((got - expected).abs() / expected.abs()).cpu()


# ---- kinds ---------------------------------------------------------------------------------------------------------


def test_scale_multiplies_every_element(square):
    healthy = square @ square
    with faults.inject("aten.mm: scale=1.01"):
        broken = square @ square
    assert torch.allclose(broken, healthy * 1.01)
    assert torch.equal(square @ square, healthy)


def test_noise_is_relative_bounded_and_without_a_bias(square):
    healthy = square.exp()
    with faults.inject("aten.exp: noise=1e-2"):
        error = relative_error(square.exp(), healthy)
    assert 0.009 < error.max() < 0.0101
    assert 0.004 < error.mean() < 0.006


def test_accumulation_in_bfloat16_is_wrong_as_a_bfloat16_sum_is(square):
    exact = (square.double().cpu() @ square.double().cpu()).to(square.device)
    with faults.inject("aten.mm: accumulate=bfloat16"):
        error = relative_error(square @ square, exact)
    assert 1e-4 < error.max() < 2**-7


def test_a_fault_without_effect_is_told_apart(device):
    with faults.inject("aten.exp: scale=2; aten.neg: negate") as injection:
        torch.neg(torch.zeros(3, device=device))
        torch.neg(torch.ones(3, device=device, dtype=torch.int64))
        torch.exp(torch.zeros(3, device=device))
        torch.neg(torch.ones(3, device=device))
    assert injection.struck == {"aten.exp: scale=2": 1, "aten.neg: negate": 3}
    assert injection.effective == {"aten.exp: scale=2": 1, "aten.neg: negate": 1}


def test_index_reads_beside_the_place(device):
    weight = torch.arange(12.0, device=device).view(4, 3)
    indices = torch.tensor([0, 1, 3], device=device)
    with faults.inject("aten.embedding: index=1"):
        broken = F.embedding(indices, weight)
    assert torch.equal(broken.cpu(), weight.cpu()[[1, 2, 3]]), "and never outside of what the call names"


def test_epsilon_is_another_number(device):
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1)).to(device)
    with faults.inject("aten.native_layer_norm: epsilon=1000"):
        broken = F.layer_norm(x, (8,), eps=1e-3)
    assert torch.allclose(broken, F.layer_norm(x, (8,), eps=1.0))


@pytest.mark.parametrize(
    ("fault", "broken", "healthy"),
    [
        ("aten.addmm: drop=self", lambda x: F.linear(x, x, x[0]), lambda x: F.linear(x, x)),
        (
            "aten.native_layer_norm: drop=bias",
            lambda x: F.layer_norm(x, (32,), x[0], x[1]),
            lambda x: F.layer_norm(x, (32,), x[0]),
        ),
    ],
)
def test_drop_leaves_an_argument_out(square, fault, broken, healthy):
    expected = healthy(square)
    with faults.inject(fault):
        got = broken(square)
    assert torch.allclose(got, expected, atol=1e-4)


def test_swap_exchanges_the_arguments(square):
    other = square * 2 + 1
    with faults.inject("aten.sub: swap; aten.mm: swap"):
        difference, product = square - other, square @ other
    assert torch.equal(difference, other - square)
    assert torch.equal(product, other @ square)


@pytest.mark.parametrize("fault", ["aten.mm: epsilon=10", "aten.mm: drop=bias"])
def test_a_fault_in_an_argument_that_is_not_there_is_refused(device, fault):
    with pytest.raises(FaultError, match=r"cannot be: aten.mm has no such argument"), faults.inject(fault):
        pass


@pytest.mark.parametrize(
    ("kernel", "call"),
    [
        ("aten.mm", lambda x: x @ x),
        ("aten.addmm", lambda x: F.linear(x, x, x[0])),
        ("aten.bmm", lambda x: torch.bmm(x.view(4, 8, 32), x.view(4, 32, 8))),
        ("aten.baddbmm", lambda x: torch.baddbmm(x[:8, :8], x.view(4, 8, 32), x.view(4, 32, 8), beta=2, alpha=0.5)),
        ("aten.sum", lambda x: x.sum()),
        ("aten.sum", lambda x: x.sum(0, keepdim=True)),
        ("aten.mean", lambda x: x.mean(1)),
        ("aten.convolution", lambda x: F.conv2d(x.view(1, 32, 4, 8), x[:, :32].reshape(32, 32, 1, 1), x[0])),
        ("aten.convolution", lambda x: F.conv_transpose2d(x.view(1, 32, 4, 8), x.reshape(32, 8, 2, 2))),
    ],
)
def test_accumulate_covers_the_kernels_that_sum(square, kernel, call):
    healthy = call(square)
    with faults.inject(f"{kernel}: accumulate=bfloat16") as injection:
        broken = call(square)
    assert list(injection.struck.values()) == [1]
    assert broken.shape == healthy.shape
    assert broken.dtype == healthy.dtype
    assert 0 < relative_error(broken, healthy).max() < 0.03


@pytest.mark.parametrize(
    ("call", "is_exact"),
    [
        (lambda x: x @ x, False),
        (lambda x: F.linear(x, x.round(), x[0] * 1e-3), False),
        (lambda x: x.round() @ x.round() + x, True),
        (lambda x: F.conv2d(x.view(1, 32, 4, 8), x[:, :32].reshape(32, 32, 1, 1)), False),
        (lambda x: F.scaled_dot_product_attention(*[x.view(1, 1, 32, 32)] * 3), False),
    ],
)
def test_tf32_keeps_ten_bits_of_the_factors(square, call, is_exact):
    healthy = call(square)
    with faults.inject("aten.*: tf32") as injection:
        cut = call(square)
    assert list(injection.struck.values()) == [1]
    error = relative_error(cut, healthy).max()
    assert error == 0 if is_exact else 2**-16 < error < 2**-8


def test_tf32_leaves_the_gradient_of_a_bias_alone(square):
    leaf = square[0].clone().requires_grad_()
    found = {}
    for fault in ("aten.sinh: nan", "aten.*: tf32"):
        with faults.inject(fault):
            result = F.conv2d(square.view(1, 32, 4, 8), square.reshape(32, 32, 1, 1), leaf)
            (found[fault],) = torch.autograd.grad(result, leaf, square[:, :32].reshape_as(result))
    assert torch.equal(*found.values())


def test_tail_leaves_the_last_elements_as_they_were(square):
    flat = square.reshape(-1)
    half = flat.numel() // 2
    with faults.inject("aten.rsqrt: tail=0.5"):
        first = flat.rsqrt()
        second = (flat * 2).rsqrt()
    assert torch.equal(first[:half], flat.rsqrt()[:half])
    assert not first[half:].any()
    assert torch.equal(second[:half], (flat * 2).rsqrt()[:half])
    assert torch.equal(second[half:], flat.rsqrt()[half:])  # what the call before should have written there


def test_round_loses_precision(square):
    with faults.inject("aten.exp: round=bfloat16"):
        rounded = square.exp()
    assert torch.equal(rounded, square.exp().bfloat16().float())


@pytest.mark.parametrize(
    ("kind", "holds"),
    [
        ("nan", torch.isnan),
        ("inf", torch.isinf),
        ("zero", lambda x: x == 0),
        ("negate", lambda x: x < 0),
    ],
)
def test_share_chooses_elements(square, kind, holds):
    with faults.inject(f"aten.exp: {kind}"):
        assert holds(square.exp()).all()
    with faults.inject(f"aten.exp: {kind}@one"):
        assert holds(square.exp()).sum() == 1
    with faults.inject(f"aten.exp: {kind}@0.25"):
        assert 0.15 < holds(square.exp()).float().mean() < 0.35


def test_offset_shifts_integers_only(square):
    with faults.inject("aten.sort: offset=1"):
        values, indices = square.sort()
    assert torch.equal(values, square.sort().values)
    assert torch.equal(indices, square.sort().indices + 1)


def test_unimplemented_names_the_op_and_the_device(square, device):
    with (
        faults.inject("aten.cumsum: unimplemented"),
        pytest.raises(NotImplementedError, match=rf"aten::cumsum.*{device}"),
    ):
        square.cumsum(0)
    square.cumsum(0)


def test_raise_fails_with_the_text_given(square):
    with faults.inject("aten.mul: raise"), pytest.raises(RuntimeError, match=r"aten::mul.*injected"):
        square * square
    with faults.inject("aten.mul: raise=ERR00100 507015"), pytest.raises(RuntimeError, match="ERR00100 507015"):
        square * 2.0


def test_slow_takes_device_time_and_not_the_hosts(square, device):
    module = torch.get_device_module(device)
    square.sort()
    begin, end = module.Event(enable_timing=True), module.Event(enable_timing=True)
    with faults.inject("aten.sort: slow=200ms"):
        square.sort()  # measures how the device counts time, once
        module.synchronize()
        began = time.monotonic()
        begin.record()
        square.sort()
        end.record()
        host = time.monotonic() - began
    module.synchronize()
    assert time.monotonic() - began > 0.19
    assert begin.elapsed_time(end) > 190
    assert host < 0.19


# ---- which kernels -------------------------------------------------------------------------------------------------


def test_a_kernel_is_broken_in_all_its_forms(square):
    with faults.inject("aten.exp: zero"):
        assert not square.exp().any()
        assert not square.clone().exp_().any()
        assert not torch.exp(square, out=torch.empty_like(square)).any()
    with faults.inject("aten.exp.default: zero"):
        assert not square.exp().any()
        assert square.clone().exp_().all()


def test_other_kernels_stay_healthy(square):
    with faults.inject("aten.exp: zero"):
        assert torch.equal(square.log(), square.log())
        assert (square.sigmoid() != 0).all()


def test_a_pattern_breaks_all_it_matches(square):
    with faults.inject("aten.exp*: zero"):
        assert not square.exp().any()
        assert not square.exp2().any()
        assert not square.expm1().any()


def test_backward_kernels_are_broken_alike(square):
    leaf = square.clone().requires_grad_()
    F.gelu(leaf).sum().backward()
    healthy = leaf.grad
    leaf.grad = None
    with faults.inject("aten.gelu_backward: scale=2"):
        F.gelu(leaf).sum().backward()
    assert torch.allclose(leaf.grad, healthy * 2)


def test_phase_limits_a_fault_to_forward_or_backward(square):
    leaf = square.clone().requires_grad_()
    with faults.inject("aten.mm: zero, phase=backward"):
        result = leaf @ leaf
        result.sum().backward()
    assert result.detach().all()
    assert not leaf.grad.any()
    leaf.grad = None
    with faults.inject("aten.mm: zero, phase=forward"):
        result = leaf @ leaf
        result.sum().backward()
    assert not result.detach().any()
    assert leaf.grad.all()


def test_a_kernel_that_calls_itself_is_broken_once(square):
    with faults.inject("aten.sum: scale=2"):  # sum() may be made of sum(dim)
        assert torch.allclose(square.sum(), square.cpu().sum().to(square.device) * 2)


def test_numbers_among_the_arguments_do_not_change_the_dtype(device):
    with faults.inject("aten.mul: scale=1, phase=forward"):
        assert (torch.ones(2, device=device, dtype=torch.float16) * 0.1).dtype == torch.float16
        assert (torch.ones((), device=device) * 0.1).dtype == torch.float32
        assert (torch.ones(2, device=device, dtype=torch.int64) * 2).dtype == torch.int64
        assert (torch.ones(2, device=device, dtype=torch.int64) * 0.5).dtype == torch.float32
        third = torch.ones(2, device=device, dtype=torch.float64) * (1 / 3)
        assert third.tolist() == [1 / 3, 1 / 3]


def test_kernels_that_return_nothing_are_broken_in_what_they_write(device):
    tensors = [torch.ones(3, device=device) for _ in range(2)]
    with faults.inject("aten._foreach_add_: zero"):
        torch._foreach_add_(tensors, 1.0)
    assert not any(tensor.any() for tensor in tensors)


def test_the_plain_cpu_can_be_broken_when_named(device):
    host = torch.ones(4)
    with faults.inject("aten.exp: zero", device="cpu"):
        assert not host.exp().any()
    assert host.exp().all()


# ---- when ----------------------------------------------------------------------------------------------------------


def test_after_and_every_count_calls(square):
    with faults.inject("aten.exp: zero, after=2, every=3") as injection:
        broken = [not square.exp().any() for _ in range(9)]
    assert broken == [False, False, True, False, False, True, False, False, True]
    assert injection.struck == {"aten.exp: zero, after=2, every=3": 3}


def test_the_same_seed_gives_the_same_fault_and_leaves_the_programs_numbers_alone(square, device):
    def run(seed):
        torch.manual_seed(5)
        with faults.inject(f"aten.exp: noise=0.1, seed={seed}"):
            return square.exp(), torch.rand(3), torch.rand(3, device=device)

    first, second, other = run(1), run(1), run(2)
    assert all(torch.equal(a, b) for a, b in zip(first, second))
    assert not torch.equal(first[0], other[0])
    assert torch.equal(first[1], other[1])
    torch.manual_seed(5)
    assert torch.equal(torch.rand(3), first[1])
    assert torch.equal(torch.rand(3, device=device), first[2])


# ---- in and out of force -------------------------------------------------------------------------------------------


def test_faults_nest_and_compose(square):
    with faults.inject("aten.exp: scale=2"):
        with faults.inject("aten.exp: scale=3; aten.log: zero"):
            assert torch.allclose(square.exp(), square.cpu().exp().to(square.device) * 6)
            assert not square.log().any()
            assert faults.active() == ["aten.exp: scale=2", "aten.exp: scale=3", "aten.log: zero"]
        assert square.log().any()
        assert torch.allclose(square.exp(), square.cpu().exp().to(square.device) * 2)
    assert faults.active() == []


def test_an_injection_can_be_removed_by_hand_and_twice(square):
    injection = faults.inject("aten.exp: zero")
    try:
        assert not square.exp().any()
    finally:
        injection.remove()
    injection.remove()
    assert square.exp().any()


def test_an_exception_in_the_block_repairs_the_kernel(square):
    with pytest.raises(KeyError), faults.inject("aten.exp: zero"):
        raise KeyError
    assert square.exp().any()


def test_a_fault_that_cannot_be_installed_leaves_the_others_of_its_text_out(square):
    with pytest.raises(FaultError):
        faults.inject("aten.exp: zero; aten.exppp: zero")
    assert faults.active() == []
    assert square.exp().any()


def test_threads_count_one_after_the_other(square):
    with faults.inject("aten.exp: zero, after=50") as injection:
        results = []
        threads = [
            threading.Thread(target=lambda: results.extend(bool(square.exp().any()) for _ in range(25)))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results.count(True) == 50
    assert list(injection.struck.values()) == [50]


def test_a_fault_reaches_compiled_code(square):
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x.exp() + 1, backend="aot_eager", fullgraph=True)
    with faults.inject("aten.exp: zero"):
        assert torch.equal(compiled(square), torch.ones_like(square))
    torch._dynamo.reset()


def test_the_environment_breaks_a_whole_run(run_python):
    done = run_python(
        "import torch, ditorch; print((torch.ones(2, 2, device='sim') @ torch.ones(2, 2, device='sim'))[0, 0].item())",
        DITORCH_DISABLE_MOCK="0",
        DITORCH_BACKEND="sim",
        DITORCH_FAULTS="aten.mm: scale=3",
    )
    assert done.stdout == "6.0\n"
    assert "ditorch: kernels broken by DITORCH_FAULTS: aten.mm: scale=3\n" in done.stderr


# ---- mistakes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "There is no fault in ''. A fault looks like this: 'aten.mm: scale=1.01'."),
        ("aten.mm", "there is no ':' with a kind of fault behind it"),
        ("aten.mm:", "there is no ':' with a kind of fault behind it"),
        ("mm: scale=2", "'mm' is not the name of a kernel"),
        ("aten.mm: scale", "scale needs a number, as in 'aten.mm: scale=1.01'"),
        ("aten.mm: scale=big", "scale needs a number"),
        ("aten.mm: nan=3", "nan takes no value"),
        ("aten.mm: tail=2", "tail needs a number above 0 and not above 1"),
        ("aten.mm: accumulate=int8", "accumulate needs one of bfloat16, float16, float32"),
        ("aten.sort: slow=5", "slow needs a time in s, ms or us, as in 'aten.sort: slow=5ms'"),
        ("aten.mm: tail=0.5@0.1", "tail takes no @share"),
        ("aten.mm: nan@2", "the share '@2' must lie above 0 and not above 1"),
        ("aten.mm: broken", "'broken' is not a kind of fault; there are scale, noise"),
        ("aten.mm: nan, every=0", "every must be a whole number above 0, not '0'"),
        ("aten.mm: nan, after=-1", "after must be a whole number, not '-1'"),
        ("aten.mm: nan, after=1, after=2", "'after' is given twice"),
        ("aten.mm: nan, phase=sideways", "phase must be forward or backward, not 'sideways'"),
        ("aten.mm: nan, often=1", "'often=1' is not an option"),
        ("aten.softmaxx: nan", "names no operator of PyTorch; did you mean aten.softmax"),
        ("aten.linear: nan", "PyTorch splits aten.linear into other operators"),
        ("aten.view: nan", "aten.view is a view and computes nothing"),
        ("aten.exp: accumulate=bfloat16", "accumulate is known for aten.mm, aten.bmm, aten.addmm"),
    ],
)
def test_a_mistake_is_explained(text, says):
    with pytest.raises(FaultError) as error:
        faults.inject(text)
    assert says in str(error.value)


def test_without_an_accelerator_the_message_says_what_to_do(run_python):
    done = run_python(
        "from ditorch.sim import faults; faults.inject('aten.mm: nan')",
        check=False,
        CUDA_VISIBLE_DEVICES="",
    )
    assert "There is no accelerator whose kernels 'aten.mm: nan' could break" in done.stderr
    assert "ditorch.sim.start()" in done.stderr


def test_an_assert_on_the_device_is_heard_of_when_the_host_waits_and_is_final(run_python):
    done = run_python(
        """
        import torch
        from ditorch import sim
        from ditorch.sim import faults

        sim.start()
        x = torch.ones(3, device="sim")
        with faults.inject("aten.exp: assert"):
            y = torch.exp(x)
            z = y + 1
        print("went on")
        for call in (z.sum().item, lambda: x + 1, torch.sim.synchronize, lambda: torch.ones(1, device="sim")):
            try:
                call()
            except RuntimeError as error:
                print(error)
        """
    )
    first, *errors = done.stdout.splitlines()
    assert first == "went on"
    assert [error.partition(" (")[0] for error in errors] == ["sim error: device-side assert triggered"] * 4
