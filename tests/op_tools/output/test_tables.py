"""Tables of arguments: what is remembered of them, with the C++ helper and without, is what they would be anew."""

from __future__ import annotations

import math
import sys
from collections import OrderedDict, namedtuple

import pytest
import torch
from torch.nn import Parameter

from op_tools import native
from op_tools.core.call import OpCall
from op_tools.core.where import NOWHERE
from op_tools.output import tables
from op_tools.values import trees

Pair = namedtuple("Pair", ["first", "second"])


class Label(str):
    __slots__ = ()


def moved():
    """A dictionary whose order is not that in its memory."""
    values = OrderedDict(a=1, b=torch.ones(2), c=1000)
    values.move_to_end("a")
    return values


VALUES = {
    "nothing": (),
    "None and bools": (None, True, [False, None]),
    "ints": (0, -1, 2**62, -(2**63), 2**64, -(10**40), True),
    "floats": (0.0, -0.0, 1.5, 1e-300, -1e30, math.nan, math.inf, -math.inf, 0.1),
    "texts": ("", "añ", "漢字", "𝄞 é", "a\nb", "100%s {} %%", "x" * 100),
    "texts of the letters that mark gaps": ("\0", "a\0\0b", "\1", "\0\1\2", 7),
    "half a letter": ("\ud800", 5),
    "lists": ([], (), [[]], [1, [2.5, (3, [4])]], [None, "a", []]),
    "named tuples": (Pair(1, torch.ones(2)), [Pair(None, "a")]),
    "what a function of torch returns": (torch.max(torch.ones(2, 3), 1),),
    "dictionaries": ({}, {"a": 1, 2: {"b": [torch.ones(1)]}}, moved(), {"é": "é"}),
    "sizes, dtypes, devices": (torch.Size([2, 3]), torch.Size([]), torch.float16, torch.device("cpu"), slice(1, None)),
    "other classes": (Label("a"), 1j, Ellipsis, b"\0", {1}),
    "one tensor": (torch.ones(2, 3),),
    "tensors": (torch.tensor(1.5), torch.ones(0), torch.ones(2, 0, 3), Parameter(torch.ones(2, 99)), torch.ones(2) > 1),
    "views": (torch.ones(4, 5).t(), torch.ones(300)[::3], torch.ones(1, 5).expand(4, 5), torch.ones(5)[2:]),
    "no memory": (torch.ones(2, 3, device="meta"), 1, torch.ones(2, device="meta")),
    "sparse": (torch.eye(3).to_sparse(), 2.5, torch.ones(2)),
    "a list with a sparse one": ([*torch.ones(4, 2), torch.eye(3).to_sparse()], 3),
    "many tensors": ([torch.ones(2) for _ in range(60)], 1.0),
    "other numbers": (torch.ones(2, dtype=torch.complex64).conj(), torch.ones(2, dtype=torch.bfloat16)),
}  # fmt: skip


@pytest.fixture(params=["python", "native"])
def _way(request, monkeypatch):
    helper = native.library()
    if request.param == "native" and helper is None:
        pytest.skip("there is no C++ helper here")
    monkeypatch.setattr(tables, "_helper", helper if request.param == "native" else None)
    monkeypatch.setattr(tables, "_known", {})


def called(*args, result=None, name="torch.some", **kwargs):
    call = OpCall(name, print, args, kwargs, NOWHERE, 0)
    call.result = result
    return call


def anew(name, **parts):
    """The table with nothing remembered."""
    rows = [row for role, places in parts.items() for row in tables.argument_rows(name, role, places)]
    return tables.table(tables.ARGUMENT_COLUMNS, rows)


def shown_and_anew(call, above="", below=""):
    shown = tables.arguments_table(call, tables.inputs(call), above, below)
    inputs, outputs = trees.arguments(call.args, call.kwargs), trees.results(call.result)
    return shown, above + anew(call.name, inputs=inputs, outputs=outputs) + below


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_a_remembered_table_is_what_it_would_be_anew(values):
    calls = [
        called(*values),
        called(1, *values, result=torch.ones(2)),
        called(values, result=values),
        called(a=1000, b=list(values), result=[values, 1]),
    ]
    for _ in range(2):  # made, and remembered
        for call in calls:
            shown, expected = shown_and_anew(call)
            assert shown == expected


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_gradients_are_shown_likewise(values):
    flowing = (torch.ones(2), None)
    for _ in range(2):
        shown = tables.gradients_table("torch.some", list(flowing), list(values))
        outputs, inputs = trees.arguments(flowing, {}), trees.arguments(values, {})
        assert shown == anew("torch.some", grad_outputs=outputs, grad_inputs=inputs)


@pytest.mark.usefixtures("_way")
@pytest.mark.filterwarnings("ignore:.*(beta|prototype) sta")
@pytest.mark.parametrize("layout", ["sparse_csr", "_mkldnn", "jagged"])
def test_other_layouts_have_no_addresses(layout):
    if not hasattr(torch, layout) or (layout == "_mkldnn" and not torch.backends.mkldnn.is_available()):
        pytest.skip("this torch has none")
    if layout == "jagged":
        x = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    else:
        x = torch.eye(3).to_mkldnn() if layout == "_mkldnn" else torch.eye(3).to_sparse_csr()
    for number in (1, 1, 10):
        shown, expected = shown_and_anew(called(x, number, [torch.ones(2), x], result=x))
        assert layout in shown
        assert shown == expected


@pytest.mark.usefixtures("_way")
def test_numbers_of_other_widths_get_other_tables():
    x = torch.ones(2)
    for number in (2, 3, 10, 100, 7, -1, 1.5, 0.1 + 0.2, 10**20, 2):
        for result in (x, 5, 50000):
            shown, expected = shown_and_anew(called(x, number, [number, 1], result=result))
            assert shown == expected
    for number in range(20):  # more tables than are remembered
        shown, expected = shown_and_anew(called(x, 10**number))
        assert shown == expected


@pytest.mark.usefixtures("_way")
def test_what_stands_above_and_below_keeps_its_letters():
    for values in ((torch.ones(2), 1), ("漢字", 2), ("é", 3)):
        for text in ("", "plain\n", "é\n", "漢字\n", "𝄞\n", "\0"):
            shown, expected = shown_and_anew(called(*values, result=torch.ones(3)), text, "\n" + text)
            assert shown == expected
            assert shown.isascii() == expected.isascii()
            assert hash(shown) == hash(expected)


@pytest.mark.usefixtures("_way")
def test_a_number_of_very_many_digits_is_shown_whole():
    for exponent in (254, 255, 256, 300, 300, 301, 256):
        call = called(10**exponent, 1)
        shown = tables.arguments_table(call, tables.inputs(call))
        assert f" {10**exponent} " in shown
        assert len({len(line) for line in shown.splitlines()}) == 1


@pytest.mark.usefixtures("_way")
@pytest.mark.skipif(not hasattr(sys, "get_int_max_str_digits"), reason="this Python writes any number")
def test_a_number_that_python_does_not_write_is_an_error():
    with pytest.raises(ValueError, match="digits"):
        tables.inputs(called(10**5000, torch.ones(2)))
    shown, expected = shown_and_anew(called(10, torch.ones(2)))
    assert shown == expected


class Silent:
    def __str__(self):
        raise KeyError("no words")


@pytest.mark.usefixtures("_way")
def test_a_value_that_cannot_be_put_into_words_is_an_error_of_its_own():
    with pytest.raises(KeyError, match="no words"):
        tables.inputs(called(torch.ones(2), Silent()))


def test_the_helper_writes_into_gaps_only():
    helper = native.library()
    if helper is None:
        pytest.skip("there is no C++ helper here")
    rows, more = helper.rows_with([12, 3.5]), helper.rows_with([7])
    assert rows.key is None
    assert memoryview(rows.widths(more)).cast("I").tolist() == [2, 3, 1]
    assert rows.fill(("a__b___c_d", (1, 4, 8)), more, "<", "é>") == "<a12b3.5c7dé>"
    assert rows.fill(("a__b___c", (1, 4)), None, "漢", "") == "漢a12b3.5c"
    for starts in ((), (1,), (1, 4, 8), (-1, 4), (1, 6), (1, 2**62), (1, 2**70), ("a", 4)):
        with pytest.raises(ValueError, match="other gaps"):
            rows.fill(("a__b___c", starts), None, "", "")
    no_tables = [("a", (), 1), ["a", ()], ("a", [0]), (1, ())]
    for wrong in (
        (),
        *((table, None, "", "") for table in no_tables),
        (("a", ()), None, 1, ""),
        (("a", ()), 3, "", ""),
    ):
        with pytest.raises(TypeError):
            rows.fill(*wrong)
    for function, wrong in ((rows.widths, []), (helper.rows_with, 3)):
        with pytest.raises(TypeError):
            function(wrong)
    assert helper.rows_of((torch.eye(2).to_sparse(),), {}) is None
    assert helper.rows_of((Silent(),), {}) is None
    assert helper.rows_of(([1, 2],), {}).key != helper.rows_of(((1, 2),), {}).key


def test_the_helper_lets_go_of_what_it_was_given():
    helper = native.library()
    if helper is None:
        pytest.skip("there is no C++ helper here")
    text, known, number = "".join(["some ", "text"]), [], 10**30
    before = [sys.getrefcount(value) for value in (text, known, number)]
    for _ in range(10):
        rows = helper.rows_of(([text, number],), {text: number})
        rows.known = known
        rows.fill((text * 9, (0, 31)), None, text, text)
        with pytest.raises(ValueError, match="other gaps"):
            rows.fill((text, (0,)), rows, text, text)
    del rows
    assert [sys.getrefcount(value) for value in (text, known, number)] == before
