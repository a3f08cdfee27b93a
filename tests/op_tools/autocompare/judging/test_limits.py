"""Tolerances of the contract: defaults, variables from the most specific to the most general, and their mistakes."""

from __future__ import annotations

import pytest
import torch

from op_tools.autocompare.judging.limits import Tolerances
from op_tools.errors import SettingError

LINEAR = "torch.nn.functional.linear"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (torch.zeros(1, dtype=torch.float16), 1e-4),
        (torch.zeros(1, dtype=torch.bfloat16), 1e-3),
        (torch.zeros(1, dtype=torch.float32), 1e-5),
        (torch.zeros(1, dtype=torch.float64), 1e-8),
        (torch.zeros(1, dtype=torch.complex64), 1e-5),
        (torch.zeros(1, dtype=torch.int64), 1e-3),
        (True, 1e-6),
        (3.5, 1e-6),
        (None, 0.0),
    ],
)
def test_defaults(value, expected):
    assert Tolerances().of(LINEAR, value) == (expected, expected)


def test_the_most_specific_variable_wins(monkeypatch):
    monkeypatch.setenv("AUTOCOMPARE_ERROR_TOLERANCE", "1e-1,2e-1")
    monkeypatch.setenv("AUTOCOMPARE_ERROR_TOLERANCE_FLOAT16", "1e-2, 2e-2")
    monkeypatch.setenv("LINEAR_AUTOCOMPARE_ERROR_TOLERANCE_FLOAT16", "1e-3,2e-3")
    tolerances = Tolerances()
    assert tolerances.for_dtype(LINEAR, torch.float16) == (1e-3, 2e-3)
    assert tolerances.for_dtype("torch.Tensor.add", torch.float16) == (1e-2, 2e-2)
    assert tolerances.for_dtype(LINEAR, torch.float32) == (1e-1, 2e-1)
    assert tolerances.for_dtype(LINEAR, torch.int32) == (1e-1, 2e-1)


def test_bfloat16_is_not_mistaken_for_an_op_called_b(monkeypatch):
    monkeypatch.setenv("AUTOCOMPARE_ERROR_TOLERANCE_BFLOAT16", "1e-2,3e-2")
    assert Tolerances().for_dtype(LINEAR, torch.bfloat16) == (1e-2, 3e-2)
    assert Tolerances().for_dtype(LINEAR, torch.float16) == (1e-4, 1e-4)


def test_an_empty_variable_says_nothing(monkeypatch):
    monkeypatch.setenv("AUTOCOMPARE_ERROR_TOLERANCE", " ")
    assert Tolerances().for_dtype(LINEAR, torch.float32) == (1e-5, 1e-5)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1e-3", "two numbers"),
        ("1e-3,x", "two numbers"),
        ("1,2,3", "two numbers"),
        ("-1,0", "negative"),
        ("inf,0", "infinite"),
        ("nan,0", "infinite"),
    ],
)
def test_a_value_that_cannot_be_understood_is_an_error(monkeypatch, text, reason):
    monkeypatch.setenv("LINEAR_AUTOCOMPARE_ERROR_TOLERANCE_FLOAT16", text)
    with pytest.raises(SettingError, match=f"LINEAR_AUTOCOMPARE_ERROR_TOLERANCE_FLOAT16='{text}' .*{reason}"):
        Tolerances()


def test_a_dtype_that_has_no_tolerance_is_an_error(monkeypatch):
    monkeypatch.setenv("AUTOCOMPARE_ERROR_TOLERANCE_INT32", "1,1")
    with pytest.raises(SettingError, match="FLOAT16, BFLOAT16, FLOAT32, FLOAT64"):
        Tolerances()
