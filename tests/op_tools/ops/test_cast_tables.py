"""OP_DTYPE_CAST_DICT and its variants for single ops: what they mean, and what is said when that is unclear."""

from __future__ import annotations

import pytest
import torch

from op_tools.errors import SettingError
from op_tools.ops import cast_tables


@pytest.mark.parametrize(
    ("text", "table"),
    [
        ("torch.float16->torch.float32", {torch.float16: torch.float32}),
        (
            "torch.float16->torch.float32,torch.bfloat16->torch.float32",
            {torch.float16: torch.float32, torch.bfloat16: torch.float32},
        ),
        (
            " torch.half -> torch.bfloat16 , double->float ,",
            {torch.float16: torch.bfloat16, torch.float64: torch.float32},
        ),
        ("torch.int64->torch.int32", {torch.int64: torch.int32}),
        ("torch.float16->torch.float32,torch.half->torch.float", {torch.float16: torch.float32}),
    ],
)
def test_what_can_be_understood(monkeypatch, text, table):
    assert cast_tables.parse_casts(text) == table
    monkeypatch.setenv("OP_DTYPE_CAST_DICT", text)
    assert cast_tables.read_cast_tables().cast_table("torch.add") == table


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("torch.float16", "'torch.float16' has no arrow, as in torch.float16->torch.float32"),
        ("torch.float16->", "'' is no dtype"),
        ("torch.float16->torch.flaot32", "'torch.flaot32' is no dtype"),
        ("torch.float16->torch.add", "'torch.add' is no dtype"),
        ("torch.float32->torch.int32", "torch.float32->torch.int32 would turn floating numbers into whole ones"),
        ("torch.float32->torch.complex64", "would turn floating numbers into complex ones"),
        ("torch.half->torch.float,torch.float16->torch.double", "cannot become both torch.float32 and torch.float64"),
        (",", "it names no dtypes"),
    ],
)
@pytest.mark.parametrize("variable", ["OP_DTYPE_CAST_DICT", "LINEAR_OP_DTYPE_CAST_DICT"])
def test_what_cannot_be_understood_is_named(monkeypatch, variable, text, said):
    monkeypatch.setenv(variable, text)
    with pytest.raises(SettingError) as error:
        cast_tables.read_cast_tables()
    assert str(error.value).startswith(f"{variable}={text!r} cannot be used: ")
    assert said in str(error.value)
    assert "It means: dtypes to replace, and by which" in str(error.value)


def test_a_variable_of_one_op_goes_before_the_general_one(monkeypatch):
    monkeypatch.setenv("OP_DTYPE_CAST_DICT", "torch.bfloat16->torch.float32")
    monkeypatch.setenv("LINEAR_OP_DTYPE_CAST_DICT", "torch.bfloat16->torch.float64")
    monkeypatch.setenv("ADD__OP_DTYPE_CAST_DICT", "torch.float16->torch.float64")
    monkeypatch.setenv("MUL_OP_DTYPE_CAST_DICT", "  ")
    tables = cast_tables.read_cast_tables()
    assert tables.cast_table("torch.nn.functional.linear") == {torch.bfloat16: torch.float64}
    assert tables.cast_table("torch.Tensor.add_") == {torch.float16: torch.float64}
    assert tables.cast_table("torch.Tensor.add") == {torch.bfloat16: torch.float32}
    assert tables.cast_table("torch.mul") == {torch.bfloat16: torch.float32}


def test_nothing_said_is_none():
    assert cast_tables.read_cast_tables().cast_table("torch.add") is None


def test_tables_are_those_of_the_time_they_were_read(monkeypatch):
    monkeypatch.setenv("OP_DTYPE_CAST_DICT", "torch.bfloat16->torch.float32")
    tables = cast_tables.read_cast_tables()
    monkeypatch.setenv("OP_DTYPE_CAST_DICT", "torch.bfloat16->torch.float64")
    assert tables.cast_table("torch.add") == {torch.bfloat16: torch.float32}


@pytest.mark.parametrize("casts", ["torch.bfloat16->torch.float32", {torch.bfloat16: torch.float32}])
def test_an_argument_is_the_same_for_every_op(monkeypatch, casts):
    monkeypatch.setenv("LINEAR_OP_DTYPE_CAST_DICT", "torch.bfloat16->torch.float64")
    assert cast_tables.tables_from(casts).cast_table("torch.nn.functional.linear") == {torch.bfloat16: torch.float32}


@pytest.mark.parametrize("casts", ["bfloat16", {"bfloat16": torch.float32}, {torch.float32: torch.int8}, 3, ["a"]])
def test_an_argument_that_cannot_be_understood(casts):
    with pytest.raises(SettingError, match="casts="):
        cast_tables.tables_from(casts)


def test_a_table_as_text():
    text = "torch.float16->torch.float32,torch.bfloat16->torch.float32"
    assert cast_tables.casts_text(cast_tables.parse_casts(text)) == text
