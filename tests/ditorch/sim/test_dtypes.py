"""Dtypes that chips compute in and the CPU does not, and 16-bit products in float32."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

TWO = {"mm": (), "bmm": (2,)}
THREE = {"addmm": (), "baddbmm": (2,)}


def factors(batch, dtype, device="sim"):
    torch.manual_seed(0)
    return [torch.randn(*batch, 5, 5).to(dtype).to(device) for _ in range(2)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", TWO)
def test_a_product_of_16_bit_matrices_has_a_float32_result(name, dtype):
    one, other = factors(TWO[name], dtype)
    product = getattr(torch, name)
    expected = product(one.float().cpu(), other.float().cpu())
    assert torch.equal(product(one, other, out_dtype=torch.float32).cpu(), expected)
    out = torch.empty_like(one, dtype=torch.float32)
    assert product(one, other, out_dtype=torch.float32, out=out) is out
    assert torch.equal(out.cpu(), expected)


@pytest.mark.parametrize("added", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", THREE)
def test_what_is_added_may_be_wide_or_narrow(name, added):
    one, other = factors(THREE[name], torch.bfloat16)
    start = torch.ones_like(one, dtype=added)
    product = getattr(torch, name)
    options = {"beta": 0.5, "alpha": 2}
    expected = product(*(tensor.float().cpu() for tensor in (start, one, other)), **options)
    assert torch.equal(product(start, one, other, out_dtype=torch.float32, **options).cpu(), expected)


def test_a_product_is_added_in_place():
    one, other = factors((), torch.bfloat16)
    total = torch.zeros(5, 5, device="sim")
    for _ in range(2):
        torch.addmm(total, one, other, out_dtype=torch.float32, out=total)
    expected = one.float().cpu() @ other.float().cpu()
    torch.testing.assert_close(total.cpu(), expected * 2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_a_dtype_that_cuda_refuses_is_refused(dtype):
    with pytest.raises(RuntimeError, match="out_dtype must be the inputs' own dtype, or float32"):
        torch.mm(*factors((), torch.float16), out_dtype=dtype)


COUNTS = [
    ([0, 1, 1, 3, 7], {"bins": 8, "min": 0, "max": 7}),
    ([0, 1, 1, 3, 7, 9, -4], {"bins": 4, "min": 0, "max": 7}),
    ([5, 5, 5], {"bins": 3}),
    ([2, 4, 9], {"bins": 5}),
    ([], {"bins": 2}),
]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8], ids=str)
@pytest.mark.parametrize(("numbers", "options"), COUNTS, ids=str)
def test_whole_numbers_are_counted_in_bins(numbers, options, dtype):
    numbers = torch.tensor(numbers, dtype=torch.int64).to(dtype)
    counted = torch.histc(numbers.to("sim"), **options)
    assert counted.dtype is dtype
    assert counted.tolist() == torch.histc(numbers.double(), **options).tolist()


MISSING = {
    "avg_pool3d": (lambda x: F.avg_pool3d(x.view(1, 2, 2, 2, 3), 2), (24,)),
    "antialiased": (lambda x: F.interpolate(x, (3, 3), mode="bilinear", antialias=True), (1, 2, 5, 5)),
    "multi_margin_loss": (lambda x: F.multi_margin_loss(x, torch.tensor([1, 0], device=x.device)), (2, 3)),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", MISSING)
def test_a_kernel_that_the_cpu_lacks_in_16_bits_is_rounded_from_float32(name, dtype):
    compute, shape = MISSING[name]
    torch.manual_seed(0)
    narrow = torch.randn(shape).to(dtype)
    there, wide = narrow.to("sim").requires_grad_(), narrow.float().requires_grad_()
    got, expected = compute(there), compute(wide)
    got.sum().backward()
    expected.sum().backward()
    assert got.dtype is dtype
    assert torch.equal(got.cpu(), expected.to(dtype))
    assert torch.equal(there.grad.cpu(), wide.grad.to(dtype))


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_16_bit_numbers_and_complex_ones_of_16_bits_meet():
    numbers = torch.tensor([1.0, 2.0], device="sim", dtype=torch.float16)
    turn = torch.tensor(1j, device="sim", dtype=torch.complex32)
    expected = [1j, -1.0]
    for result in (turn**numbers, 1j**numbers, turn.expand(2) ** numbers):
        assert result.dtype is torch.complex32
        assert torch.allclose(result.cpu().to(torch.complex64), torch.tensor(expected), atol=1e-3)
    for result in (numbers**turn, numbers**1j, torch.pow(numbers, turn.expand(2))):
        assert result.dtype is torch.complex32
        assert torch.allclose(result[0].cpu().to(torch.complex64), torch.tensor(1 + 0j), atol=1e-3)


def test_what_no_dtype_has_is_refused_as_the_cpu_does():
    with pytest.raises(NotImplementedError, match="not implemented for 'Half'"):
        torch.bincount(torch.ones(3, dtype=torch.float16, device="sim"))


CHECK = """
import torch
from ditorch import sim
sim.start()
torch.manual_seed(0)
for dtype in (torch.float16, torch.bfloat16):
    x, w, b = torch.randn(2, 3, 6, 6), torch.randn(4, 3, 3, 3), torch.randn(4)
    one, other, start = torch.randn(4, 64), torch.randn(64, 5), torch.randn(4, 5)

    def once(compute, *tensors):
        narrow = [t.to(dtype) for t in tensors]
        there = [t.to("sim").requires_grad_() for t in narrow]
        wide = [t.float().requires_grad_() for t in narrow]
        got, expected = compute(*there), compute(*wide).to(dtype)
        assert got.dtype is dtype
        assert torch.equal(got.cpu(), expected), compute
        grad = torch.randn_like(expected)
        got.backward(grad.to("sim"))
        compute(*wide).backward(grad.float())
        for mine, right in zip(there, wide):
            assert torch.equal(mine.grad.cpu(), right.grad.to(dtype)), compute

    once(torch.nn.functional.conv2d, x, w, b)
    once(torch.mm, one, other)
    once(torch.addmm, start, one, other)
    once(lambda a, b: torch.bmm(a[None], b[None]), one, other)
    once(torch.nn.functional.linear, one, other.t().contiguous())
    query = torch.randn(1, 2, 5, 8)
    there = query.to("sim", dtype).requires_grad_()
    output = torch.nn.functional.scaled_dot_product_attention(there, there, there)
    wide = torch.nn.functional.scaled_dot_product_attention(*[query.to(dtype).float()] * 3)
    assert torch.equal(output.cpu(), wide.to(dtype))
    output.sum().backward()
    assert there.grad.dtype is dtype
    out = torch.empty(0, dtype=dtype, device="sim")
    torch.mm(one.to("sim", dtype), other.to("sim", dtype), out=out)
    assert torch.equal(out.cpu(), (one.to(dtype).float() @ other.to(dtype).float()).to(dtype))
    total = start.to("sim", dtype)
    total.addmm_(one.to("sim", dtype), other.to("sim", dtype))
    assert torch.equal(total.cpu(), torch.addmm(*(t.to(dtype).float() for t in (start, one, other))).to(dtype))
try:
    torch.mm(one.to("sim").half(), other.to("sim").bfloat16())
except RuntimeError as error:
    print("refused", error)
"""


def test_float32_arithmetic_rounds_once(run_python):
    done = run_python(CHECK, DITORCH_SIM_16BIT="float32")
    assert "refused expected m1 and m2 to have the same dtype" in done.stdout


def test_16_bit_products_are_the_cpus_unless_told():
    one, other = factors((), torch.float16, "cpu")
    assert torch.equal((one.to("sim") @ other.to("sim")).cpu(), one @ other)


def test_a_malformed_setting_is_reported(run_python):
    done = run_python("from ditorch import sim; sim.start()", check=False, DITORCH_SIM_16BIT="fast")
    assert "DITORCH_SIM_16BIT='fast' cannot be used: it must be float32, or unset" in done.stderr


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex32], ids=str)
def test_complex_numbers_are_summed_without_those_that_are_nan(dtype):
    nan = float("nan")
    numbers = torch.tensor([[1 + 2j, complex(nan, 1)], [3j, 4]]).to(dtype).to("sim")
    assert numbers.nansum().cpu() == 5 + 5j
    assert numbers.nansum(1, keepdim=True).tolist() == [[1 + 2j], [4 + 3j]]
    out = torch.empty(0, dtype=dtype, device="sim")
    torch.nansum(numbers, 0, out=out)
    assert out.tolist() == [1 + 5j, 4]


@pytest.mark.parametrize("inner_tiles", [2, 4])
def test_a_product_with_packed_4_bit_weights(inner_tiles):
    rows, columns, group = 16, 128, 32
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randint(0, 16, (rows, columns), generator=generator, dtype=torch.int32)
    scales, zeros = torch.rand(2, columns // group, rows, generator=generator).bfloat16()
    factor = torch.randn(3, columns, generator=generator).bfloat16()
    pairs = (numbers[:, ::2] << 4 | numbers[:, 1::2]).to(torch.uint8)

    packed = torch._convert_weight_to_int4pack(pairs.to("sim"), inner_tiles)
    assert packed.dtype is torch.int32
    assert packed.shape == (rows // 8, columns // (16 * inner_tiles), 32, inner_tiles // 2)
    by_row = [one.float().repeat_interleave(group, 0).t() for one in (scales, zeros)]
    weights = ((numbers - 8) * by_row[0] + by_row[1]).bfloat16()
    made = torch._weight_int4pack_mm(factor.to("sim"), packed, group, torch.stack([scales, zeros], -1).to("sim"))
    assert torch.equal(made.cpu(), (factor.to("sim") @ weights.t().to("sim")).cpu())

    with pytest.raises(RuntimeError, match=r"rows in multiples of 8 .* got 2, 15 and 128"):
        torch._convert_weight_to_int4pack(pairs[:15].to("sim"), 2)
    with pytest.raises(RuntimeError, match=r"expected factors and scales in bfloat16, got torch\.float32"):
        torch._weight_int4pack_mm(factor.float().to("sim"), packed, group, torch.stack([scales, zeros], -1).to("sim"))


def test_ldexp_takes_whole_exponents():
    """torch 2.11 and 2.12 have a kernel of their own for these."""
    mantissas, exponents = torch.tensor([1.5, -3.0, 0.25]), torch.tensor([3, 1, 0])
    expected = [12.0, -6.0, 0.25]
    for dtype in (torch.float32, torch.float16):
        numbers = mantissas.to("sim", dtype).requires_grad_()
        result = torch.ldexp(numbers, exponents.to("sim"))
        assert (result.tolist(), result.dtype) == (expected, dtype)
        result.sum().backward()
        assert numbers.grad.tolist() == [8.0, 2.0, 1.0]
        assert numbers.detach().ldexp_(exponents.to("sim")).tolist() == expected


FOURIER = {
    "_fft_c2c": (torch.complex64, ([0, 1], 1, True)),
    "_fft_r2c": (torch.float32, ([1], 0, True)),
    "_fft_c2r": (torch.complex64, ([1], 0, 5)),
}
NARROW = {torch.float32: torch.float16, torch.complex64: torch.complex32}


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("name", FOURIER)
def test_a_fourier_transform_in_16_bits_is_rounded_from_float32(name):
    torch.manual_seed(0)
    dtype, options = FOURIER[name]
    signal = torch.randn(4, 3, dtype=dtype).to(NARROW[dtype])
    kernel = getattr(torch.ops.aten, name)
    wide = kernel(signal.to(dtype), *options)
    result = kernel(signal.to("sim"), *options)
    assert result.dtype is NARROW[wide.dtype]
    assert result.tolist() == wide.to(NARROW[wide.dtype]).tolist()
    out = torch.empty_like(result)
    assert kernel.out(signal.to("sim"), *options, out=out) is out
    assert out.tolist() == result.tolist()
