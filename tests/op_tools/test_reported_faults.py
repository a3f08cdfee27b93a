"""The benchmark of reported faults: its table is sound, and what it counts as found is the guilty call alone."""

from __future__ import annotations

import re

import pytest
from benchmarks import reported_faults
from benchmarks.reported import REPORTED

NUMBERS = {fault.name: number for number, fault in enumerate(REPORTED)}


def ran(name, dtype="float32"):
    return reported_faults.run((NUMBERS[name], dtype, "sim", "cpu", False, False))


def test_every_fault_has_a_name_of_its_own_a_report_and_an_explanation():
    assert len(NUMBERS) == len(REPORTED) > 100
    for fault in REPORTED:
        assert fault.what, fault.name
        assert fault.reports
        assert all(re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", report) for report in fault.reports), fault.name


def test_each_half_has_its_share_of_the_faults():
    counts = {half: sum(fault.half == half for fault in REPORTED) for half in reported_faults.HALVES}
    assert sum(counts.values()) == len(REPORTED)
    by_number = sum(fault.own_half is None for fault in REPORTED)
    assert by_number / 3 < min(counts["tuned"], counts["held-out"])


@pytest.mark.parametrize("name", ["elu_reads_transposed_memory_in_order", "assignment_to_a_column_writes_a_row"])
def test_a_broken_kernel_is_found_and_the_healthy_program_is_not_blamed(name):
    result = ran(name)
    assert (result.strikes, result.found, result.others, result.healthy) == (True, True, (), ())


def test_what_is_allowed_blames_nobody():
    result = ran("topk_orders_equal_values_otherwise")
    assert (result.strikes, result.found, result.is_well) == (True, False, True)
