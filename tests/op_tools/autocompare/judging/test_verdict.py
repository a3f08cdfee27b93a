"""Verdicts: numbers in, right or wrong out. What an honest device may do, and what it may not."""

from __future__ import annotations

import math
import weakref

import pytest
import torch

from op_tools.autocompare.arguments import Arguments
from op_tools.autocompare.judging import error_statistics, measures, sensitivity, verdict
from op_tools.autocompare.judging.limits import LOW_SUMS, Tolerance, precision_of
from op_tools.autocompare.judging.measures import same_bits
from op_tools.autocompare.judging.verdict import judge, judge_exact
from op_tools.autocompare.observed import ObservedCall, Part
from op_tools.autocompare.prefilter.first_look import Look
from op_tools.autocompare.prefilter.screen import numbers_of
from op_tools.autocompare.reference.runs import References

ANY = Tolerance(1e-3, 1e-3)
REFERENCES = References(lambda name: None)
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def numbers(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def rounded(expected, dtype):
    return expected.to(dtype)


def verdict_on(got, expected, same=None, **options):
    return judge(got, expected, same, precision_of(got.dtype), ANY, **options)


# ---- an honest device ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_rounding_is_right(dtype):
    expected = numbers(64, 64)
    assert verdict_on(rounded(expected, dtype), expected, rounded(expected, dtype)).right


@pytest.mark.parametrize("dtype", DTYPES)
def test_another_rounding_of_the_last_place_is_right(dtype):
    expected = numbers(64, 64)
    other = rounded(expected * (1 + torch.finfo(dtype).eps / 4), dtype)
    assert verdict_on(other, expected, rounded(expected, dtype)).right


@pytest.mark.parametrize("dtype", DTYPES)
def test_another_order_of_summation_is_right(dtype):
    left, right = numbers(64, 512).to(dtype), numbers(512, 64, seed=1).to(dtype)
    expected = left.double() @ right.double()
    order = torch.randperm(512)
    total = torch.zeros(64, 64)
    for index in order.split(4):
        total = total + left[:, index].float() @ right[index].float()
    precision = precision_of(dtype, LOW_SUMS if dtype is not torch.float32 else None)
    assert judge(total.to(dtype), expected, left @ right, precision, ANY).right


def test_approximations_of_some_units_are_right_in_float32():
    expected = numbers(1000)
    got = (expected * (1 + 1e-7 * torch.randn(1000, dtype=torch.float64).clamp(-4, 4))).float()
    assert verdict_on(got, expected, expected.float()).right


def test_a_sum_near_zero_has_the_error_of_its_terms():
    expected = numbers(64, 64)
    expected[3, 5] = 1e-9  # where the CPU is lucky
    got = expected.float()
    got[3, 5] = 3e-7
    same = (expected + 1e-7 * numbers(64, 64, seed=1)).float()
    same[3, 5] = 1e-9
    assert verdict_on(got, expected, same).right


def test_what_the_cpu_costs_in_this_dtype_the_device_may_cost():
    expected = numbers(64, 64)
    noise = 0.05 * numbers(64, 64, seed=1).abs().sqrt()
    got, same = expected + noise * numbers(64, 64, seed=2), expected + noise * numbers(64, 64, seed=3)
    assert verdict_on(got.float(), expected, same.float()).right
    assert not verdict_on(got.float(), expected, expected.float()).right


def test_numbers_too_small_for_the_dtype_may_be_flushed_to_zero():
    expected = numbers(100) * 1e-40
    assert verdict_on(torch.zeros(100), expected, expected.float()).right


def test_float16_must_keep_its_subnormals():
    expected = numbers(100) * 1e-5
    assert not verdict_on(torch.zeros(100, dtype=torch.float16), expected, expected.half()).right


def test_nothing_is_right():
    assert verdict_on(torch.empty(0), torch.empty(0, dtype=torch.float64), torch.empty(0)).right


def test_one_value_that_weighs_more_than_all_others_is_no_factor():
    """The gradient of a bias before a norm: what is left of rows that cancel out, of one column more than of others."""
    generator = torch.Generator().manual_seed(2659)
    rows = torch.randn(21, 16, generator=generator)
    rows -= rows.mean(0)
    rows[0, 3] += 3e-5
    total = torch.zeros(16)
    for row in rows[torch.randperm(21, generator=generator)]:
        total = total + row
    assert verdict_on(total, rows.double().sum(0), rows.sum(0)).right


# ---- faults ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("factor", [1.01, 0.99])
def test_one_percent_is_found_in_every_dtype(dtype, factor):
    expected = numbers(64, 64)
    found = verdict_on(rounded(rounded(expected, dtype) * factor, dtype), expected, rounded(expected, dtype))
    assert not found.right
    assert "off by a factor of" in found.reason
    assert found.measures.bad_share > 0.3


def test_elements_that_are_something_else_are_not_called_a_factor():
    """Half of them stale: the slope of such values is about a half, and no factor was at work."""
    expected = numbers(64, 64)
    got = torch.cat([expected[:32], numbers(32, 64, seed=1)]).float()
    assert verdict_on(got, expected, expected.float()).reason.startswith("errors are ")
    masked = expected * (numbers(64, 64, seed=2) > 0)
    assert verdict_on((masked * 1.5).float(), masked, masked.float()).reason.startswith("off by a factor of 1.5 ")


def test_a_tenth_of_a_percent_is_found_in_float32():
    expected = numbers(8, 8)
    assert not verdict_on((expected * 1.001).float(), expected, expected.float()).right


def test_a_factor_is_found_under_the_noise_of_many_roundings():
    """As in embedding's gradient in bfloat16, where the CPU itself adds up with a loss."""
    expected = numbers(256, 64)
    same = (expected * (1 + 0.02 * numbers(256, 64, seed=1))).bfloat16()
    healthy = (expected * (1 + 0.02 * numbers(256, 64, seed=2))).bfloat16()
    assert verdict_on(healthy, expected, same).right
    assert not verdict_on(healthy * 1.1, expected, same).right


def test_bfloat16_inside_a_float32_kernel_is_found():
    expected = numbers(64, 64)
    found = verdict_on(expected.bfloat16().float(), expected, expected.float())
    assert not found.right
    assert "times those of float32 on the CPU" in found.reason


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_factor_is_found_in_few_numbers(dtype):
    expected = numbers(20)
    found = verdict_on(rounded(rounded(expected, dtype) * 1.01, dtype), expected, rounded(expected, dtype))
    assert not found.right


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_factor_is_found_beside_a_value_that_weighs_more_than_all_others(dtype):
    expected = numbers(20)
    expected[7] = 300.0
    found = verdict_on(rounded(rounded(expected, dtype) * 1.02, dtype), expected, rounded(expected, dtype))
    assert not found.right


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_wrong_element_is_found_and_named(dtype):
    expected = numbers(300, 400)
    expected[123, 321] = 1.5
    got = rounded(expected, dtype)
    got[123, 321] = -1.5
    found = verdict_on(got, expected, rounded(expected, dtype))
    assert not found.right
    assert found.measures.first_bad == (123, 321)
    assert "[123, 321]: -1.5 instead of 1.5" in found.reason


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_out_of_finite_numbers_are_found(dtype, wrong):
    expected = numbers(10, 10)
    got = rounded(expected, dtype)
    got[4, 2] = wrong
    found = verdict_on(got, expected, rounded(expected, dtype))
    assert not found.right
    assert found.severity == math.inf
    assert found.measures.nonfinite == 1
    assert found.measures.first_bad == (4, 2)
    assert not found.measures.allclose


def test_a_small_element_is_found_where_each_is_rounded_on_its_own():
    expected = numbers(64, 64)
    expected[5, 6] = 1e-3
    got = expected.bfloat16()
    got[5, 6] = 8e-3
    same = expected.bfloat16()
    fine = precision_of(torch.bfloat16, floor=2.0**-12)
    assert judge(got, expected, same, precision_of(torch.bfloat16), ANY).right
    assert judge(got, expected, same, fine, ANY).measures.first_bad == (5, 6)
    assert judge(same, expected, same, fine, ANY).right


def test_a_stale_tail_is_found():
    expected = numbers(1000)
    got = expected.float()
    got[950:] = 0
    assert verdict_on(got, expected, expected.float()).measures.first_bad == (950,)


def test_another_shape_is_wrong():
    found = verdict_on(torch.zeros(2, 3), torch.zeros(3, 2, dtype=torch.float64))
    assert not found.right
    assert "its shape is (2, 3), it should be (3, 2)" in found.reason


def test_large_tensors_are_looked_at_in_blocks():
    expected = numbers(3, 2**20)
    got = expected.float()
    got[2, 5] += 1
    found = verdict_on(got, expected, expected.float())
    assert found.measures.first_bad == (2, 5)
    assert found.measures.bad_share == pytest.approx(1 / expected.numel())
    assert verdict_on(expected.float(), expected, expected.float()).right


# ---- NaN and infinity that are nobody's fault ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("got", "expected", "reason"),
    [
        (4.5, 2.25, "errors are 28,926,234 times those of float32 on the CPU; 4.5 instead of 2.25"),
        (math.nan, 2.25, "NaN or Inf on one side only: nan instead of 2.25"),
        (
            [math.nan, 1.0],
            [2.25, 1.0],
            "NaN or Inf on one side only, at 1 of 2 elements, the first at [0]: nan instead of 2.25",
        ),
    ],
)
def test_the_reason_names_a_place_where_there_are_several(got, expected, reason):
    exact = torch.tensor(expected, dtype=torch.float64)
    found = verdict_on(torch.tensor(got), exact, exact.float())
    assert found.reason == reason


def test_nan_at_the_same_place_is_equal():
    expected = torch.tensor([1.0, math.nan, math.inf, -math.inf], dtype=torch.float64)
    found = verdict_on(expected.float(), expected, expected.float())
    assert found.right
    assert found.measures.allclose


def test_what_the_cpu_cannot_hold_in_this_dtype_either_is_no_fault():
    expected = torch.tensor([1.0, 7e4, 1e5], dtype=torch.float64)
    got = torch.tensor([1.0, math.inf, math.inf], dtype=torch.float16)
    assert verdict_on(got, expected, got).right


def test_infinity_beyond_the_range_of_the_dtype_is_right():
    expected = torch.tensor([1.0, 1e39, -1e39], dtype=torch.float64)
    assert verdict_on(torch.tensor([1.0, math.inf, -math.inf]), expected).right


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_largest_number_stands_for_an_overflow_but_not_for_an_infinity(dtype):
    """A chip may stop at the end of its range; one over zero is infinite in every range."""
    most = torch.finfo(dtype).max
    got = torch.tensor([1.0, most, -most], dtype=dtype)
    overflow = torch.tensor([1.0, 1.5 * most, -1.5 * most], dtype=torch.float64)
    assert verdict_on(got, overflow, overflow.to(dtype)).right
    infinite = torch.tensor([1.0, math.inf, -math.inf], dtype=torch.float64)
    assert not verdict_on(got, infinite, infinite.to(dtype)).right


def test_nan_instead_of_infinity_depends_on_the_order_of_operations():
    expected = torch.tensor([1.0, math.inf], dtype=torch.float64)
    assert verdict_on(torch.tensor([1.0, math.nan]), expected).right
    assert not verdict_on(torch.tensor([1.0, -math.inf]), expected).right


@pytest.mark.parametrize(("dtype", "is_excused"), [(torch.float32, True), (torch.bfloat16, False)])
def test_in_float32_a_small_number_may_be_off_by_a_share_of_the_largest(dtype, is_excused):
    """By what roundings on the way leave where numbers cancel out; not by more."""
    expected = rounded(numbers(10_000) * 1e-6, dtype).double()
    expected[0] = 1.0
    share = float(torch.finfo(dtype).eps) / 2
    for times, right in ((8, is_excused), (1000, False)):
        got = expected.clone()
        got[7] += times * share
        assert verdict_on(rounded(got, dtype), expected, rounded(expected, dtype)).right is right


# ---- a second look ---------------------------------------------------------------------------------------------------


def test_what_moves_with_the_inputs_is_not_blamed():
    expected = numbers(100)
    got = expected.float()
    got[7] += 0.5
    sensitivity = torch.zeros(100, dtype=torch.float64)
    assert not verdict_on(got, expected, expected.float(), sensitivity=sensitivity).right
    sensitivity[7] = 1.0
    assert verdict_on(got, expected, expected.float(), sensitivity=sensitivity).right


# ---- a first look on the device --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("factor", [1.0, 1 + 1e-7, 1 + 1e-5, 1.001, 1.004, 1.008, 1.02])
@pytest.mark.parametrize("shape", [(), (3,), (64, 64)])
def test_a_first_look_clears_only_what_a_full_verdict_clears(dtype, factor, shape):
    expected = numbers(*shape)
    got = rounded(factor * rounded(expected, dtype), dtype)
    precision = precision_of(dtype)
    found = error_statistics.Found(*verdict.first_look(got, expected, precision, ANY).tolist())
    seen = verdict.cleared(found, precision, ANY, got.numel())
    full = judge(got, expected, None, precision, ANY)
    assert (seen is not None) is full.right
    if seen is not None:
        assert seen.severity == full.severity
        assert seen.measures == full.measures or math.isnan(seen.measures.rmse_ratio)
        assert seen.measures._replace(rmse_ratio=0) == full.measures._replace(rmse_ratio=0)


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_a_first_look_clears_nothing_that_is_not_finite(wrong):
    expected = numbers(100)
    got = expected.float()
    got[3] = wrong
    precision = precision_of(torch.float32)
    found = error_statistics.Found(*verdict.first_look(got, expected, precision, ANY).tolist())
    assert verdict.cleared(found, precision, ANY, 100) is None


def test_looks_at_several_pairs_are_answered_in_order():
    precision = precision_of(torch.float32)
    expected = [numbers(10, seed=seed) for seed in range(4)]
    looks = [Look(one.float(), one, precision, ANY) for one in expected]
    looks[1] = Look(expected[1].float() + 1, expected[1], precision, ANY)
    looks[2] = Look(torch.arange(5), torch.arange(5), None, ANY)
    looks.append(Look(torch.arange(5), torch.arange(5) + 1, None, ANY))
    looks.append(Look(torch.empty(0), torch.empty(0), precision, ANY))
    with torch.no_grad():
        verdicts = map(Look.verdict, looks, numbers_of(looks).tolist())
    assert [one is not None and one.right for one in verdicts] == [True, False, True, True, False, True]


# ---- complex, exact, bits --------------------------------------------------------------------------------------------


def test_complex_numbers_are_measured_by_their_magnitude():
    expected = torch.complex(numbers(50), 1e-12 * numbers(50))
    got = expected.to(torch.complex64)
    got += 1e-8j  # nothing beside the real part
    precision = precision_of(torch.float32)
    assert judge(got, expected, expected.to(torch.complex64), precision, ANY).right
    assert not judge(got * 1.001, expected, expected.to(torch.complex64), precision, ANY).right


def test_whole_numbers_must_be_equal():
    expected = torch.arange(12).view(3, 4)
    assert judge_exact(expected.clone(), expected).right
    found = judge_exact(expected + (expected == 6), expected)
    assert not found.right
    assert found.measures.first_bad == (1, 2)
    assert "[1, 2]: 7 instead of 6" in found.reason


def test_moved_data_may_hold_nan():
    data = torch.tensor([1.0, math.nan])
    assert judge_exact(data.clone(), data).right


def test_places_can_be_excused():
    got, expected = torch.tensor([1, 2, 3]), torch.tensor([1, 2, 4])
    assert judge_exact(got, expected, torch.tensor([False, False, True])).right


def test_bits():
    assert same_bits(torch.tensor([math.nan]), torch.tensor([math.nan]))
    assert not same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert not same_bits(torch.zeros(2), torch.zeros(2, dtype=torch.float16))
    assert same_bits(torch.ones(2, dtype=torch.bool), torch.ones(2, dtype=torch.bool))
    assert same_bits(torch.ones(2, dtype=torch.complex64), torch.ones(2, dtype=torch.complex64).conj())


# ---- the contract's measures -----------------------------------------------------------------------------------------


def test_measures():
    expected = torch.tensor([1.0, 2.0, -4.0], dtype=torch.float64)
    got = torch.tensor([1.0, 2.5, -4.0])
    measures = verdict_on(got, expected, expected.float()).measures
    assert measures.max_abs_diff == 0.5
    assert measures.max_relative_diff == 0.25
    assert measures.cosine == pytest.approx(22 / math.sqrt(21 * 23.25))
    assert measures.max_ulp == pytest.approx(0.5 / (2 * 2**-23))
    assert measures.mean_ulp == pytest.approx(measures.max_ulp / 3)
    assert not measures.allclose
    assert judge(got, expected, None, precision_of(torch.float32), Tolerance(0.1, 0.2)).measures.allclose


def test_measures_of_a_result_that_equals_the_cpus():
    expected = numbers(20, 30)
    got = expected.bfloat16()
    found = measures.measured(got, expected, got, precision_of(torch.bfloat16), ANY)
    full = verdict_on(got, expected, got).measures
    for name in ("allclose", "max_abs_diff", "max_relative_diff", "max_ulp"):
        assert getattr(found, name) == getattr(full, name)
    assert found.cosine == pytest.approx(full.cosine)
    assert found.mean_ulp == pytest.approx(full.mean_ulp)


def test_a_difference_from_zero_is_infinitely_large_relatively():
    expected = torch.zeros(3, dtype=torch.float64)
    assert verdict_on(torch.tensor([0.0, 1e-3, 0.0]), expected, torch.zeros(3)).measures.max_relative_diff == math.inf
    assert verdict_on(torch.zeros(3), expected, torch.zeros(3)).measures.max_relative_diff == 0


def test_a_second_look_at_gradients_has_runs_of_its_own():
    """Those at the results were made before there were gradients."""
    x = torch.randn(20, requires_grad=True)
    call = ObservedCall("torch.sin", torch.sin, Arguments((x,), {}), None, x.sin())
    reference = REFERENCES.of(call, with_graph=True)
    precision = precision_of(torch.float32)
    assert sensitivity.of(reference).sensitivity(Part("output", (0,)), precision, 1) is not None
    assert reference.run_backward([torch.ones(20)])
    assert sensitivity.of(reference).sensitivity(Part("gradient", (0,)), precision, 1) is not None


def test_runs_are_let_go_at_once():
    x = torch.randn(20)
    reference = REFERENCES.of(ObservedCall("torch.sin", torch.sin, Arguments((x,), {}), None, x.sin()))
    sensitivity.of(reference).sensitivity(Part("output", (0,)), precision_of(torch.float32), 1)
    known = weakref.ref(reference)
    del reference
    assert known() is None
