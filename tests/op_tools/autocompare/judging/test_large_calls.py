"""Calls on large tensors: compared piece by piece, with the verdict and the figures of a comparison as a whole."""

from __future__ import annotations

import csv
import sys

import pytest
import torch
from torch.nn import functional

import op_tools
from ditorch.sim import faults
from op_tools.autocompare.judging import comparer, error_statistics, in_pieces
from op_tools.autocompare.judging.limits import Tolerance, precision_of
from op_tools.autocompare.judging.verdict import judge as verdict_of

from ....conftest import DEVICE

CALLS = {
    "exp": lambda x: torch.exp(x),
    "a number": lambda x: x * 1.1,
    "two tensors": lambda x: torch.mul(x, x.detach() + 1),
    "broadcast": lambda x: x + torch.linspace(0, 1, x.shape[-1], device=x.device, dtype=x.dtype),
    "a column": lambda x: x / (2 + x.detach()[:, :1]).abs(),
    "softmax": lambda x: torch.softmax(x, -1),
    "log_softmax": lambda x: functional.log_softmax(x, dim=1),
    # with a weight of float32 its gradient has the CPU's bits
    "layer_norm": lambda x: functional.layer_norm(x, x.shape[1:], torch.ones(x.shape[1:], device=x.device)),
}

_LEFT_OUT = ("forward_id", "where", "cosine_distance")


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def dtype(request):
    return request.param


def _compared(function, device, dtype, out):
    """The rows of the CSV. `where` is a place in this file; the distance of a cosine is 1e-16 of rounding in a sum."""
    x = torch.randn(60, 50, device=device).to(dtype).requires_grad_()
    grad = torch.randn(60, 50, device=device).to(dtype)
    with op_tools.OpAutoCompare(verbose=0, out=out) as tool:
        y = function(x)
        y.backward(grad)
    (path,) = (out / "op_autocompare_result").glob("*.csv")
    with path.open() as file:
        return [{key: row[key] for key in row if key not in _LEFT_OUT} for row in csv.DictReader(file)], tool.summary


@pytest.mark.skipif(DEVICE != "sim", reason="on a quick device, the device looks first, at the whole")
@pytest.mark.parametrize("name", CALLS)
def test_pieces_give_the_same_rows_as_the_whole(name, device, dtype, monkeypatch, tmp_path):
    torch.manual_seed(1)
    whole, _ = _compared(CALLS[name], device, dtype, tmp_path / "whole")
    torch.manual_seed(1)
    for module in (in_pieces, comparer):
        monkeypatch.setattr(module, "LARGE_ELEMENTS", 1000)
    monkeypatch.setattr(in_pieces, "PIECE_ELEMENTS", 700)
    done = []
    original = in_pieces._Merged.outcome
    monkeypatch.setattr(in_pieces._Merged, "outcome", lambda self: done.append(original(self)) or done[-1])
    in_parts, _ = _compared(CALLS[name], device, dtype, tmp_path / "pieces")
    assert in_parts == whole
    assert len(done) >= 2  # forward and backward
    assert all(one is not None for one in done)


@pytest.mark.parametrize("name", ["exp", "softmax"])
def test_a_wrong_element_in_the_last_piece_is_found(name, device, monkeypatch, tmp_path):
    for module in (in_pieces, comparer):
        monkeypatch.setattr(module, "LARGE_ELEMENTS", 1000)
    monkeypatch.setattr(in_pieces, "PIECE_ELEMENTS", 700)
    with faults.inject("aten.exp: tail=0.01; aten._softmax: tail=0.01"):
        _, summary = _compared(CALLS[name], device, torch.float32, tmp_path)
    assert ("output", 1) in [(found.what, found.calls) for found in summary.ranked()]


WRONG = {
    "a factor": ("a number", "aten.mul: scale=1.01"),
    "noise": ("exp", "aten.exp: noise=1e-3"),
    "a few elements": ("softmax", "aten._softmax: tail=0.02"),
    "NaN": ("exp", "aten.exp: nan@0.01"),
    "gradients": ("layer_norm", "aten.native_layer_norm_backward: scale=1.01"),
}


@pytest.mark.skipif(DEVICE != "sim", reason="on a quick device, the device looks first, at the whole")
@pytest.mark.parametrize("kind", WRONG)
def test_what_is_wrong_is_told_in_pieces_as_of_the_whole(kind, device, monkeypatch, tmp_path):
    name, fault = WRONG[kind]

    def wrong_rows(out):
        torch.manual_seed(1)
        with faults.inject(fault):
            rows, _ = _compared(CALLS[name], device, torch.float32, out)
        return [row for row in rows if row["verdict"] != "right"]

    whole = wrong_rows(tmp_path / "whole")
    for module in (in_pieces, comparer):
        monkeypatch.setattr(module, "LARGE_ELEMENTS", 1000)
    monkeypatch.setattr(in_pieces, "PIECE_ELEMENTS", 700)
    done = []
    original = in_pieces._Judged.outcome
    monkeypatch.setattr(in_pieces._Judged, "outcome", lambda self: done.append(1) or original(self))
    in_parts = wrong_rows(tmp_path / "pieces")
    assert done
    assert [row["name"] for row in in_parts] == [row["name"] for row in whole]
    for one, other in zip(in_parts, whole):
        # the reason is of the worst piece, and where the first wrong element is may depend on what is usual there
        assert one["reason"].split(" ")[:2] == other["reason"].split(" ")[:2]
        for column in ("allclose", "max_abs_diff", "max_relative_diff", "max_ulp", "nonfinite_mismatch"):
            assert one[column] == other[column], column
        assert float(one["bad_share"]) == pytest.approx(float(other["bad_share"]), rel=0.4)
        if kind in ("a few elements", "NaN"):
            assert one["reason"].partition("the first at ")[2] == other["reason"].partition("the first at ")[2]
    saved = {path.parent.name for path in tmp_path.glob("pieces/**/input.pth")}
    assert saved == {"device", "cpu"}


def test_a_reference_that_is_too_large_is_not_saved(device, monkeypatch, tmp_path, capsys):
    for module in (in_pieces, comparer):
        monkeypatch.setattr(module, "LARGE_ELEMENTS", 1000)
    monkeypatch.setattr(comparer, "MAX_SAVED_REFERENCE_BYTES", 10_000)
    with faults.inject("aten.exp: scale=1.01"), op_tools.OpAutoCompare(out=tmp_path):
        torch.exp(torch.randn(60, 50, device=device))
    assert {path.parent.name for path in tmp_path.glob("**/input.pth")} == {"device"}
    assert "the reference is too large to be saved beside it: replay computes it again" in capsys.readouterr().out


def test_gradients_of_what_was_broadcast_are_compared_as_a_whole(device, monkeypatch, tmp_path):
    for module in (in_pieces, comparer):
        monkeypatch.setattr(module, "LARGE_ELEMENTS", 1000)
    x = torch.randn(60, 50, device=device, requires_grad=True)
    row = torch.randn(50, device=device, requires_grad=True)
    with op_tools.OpAutoCompare(verbose=0, out=tmp_path) as tool:
        (x * row).sum().backward()
    assert tool.summary.wrong_calls == 0
    (path,) = (tmp_path / "op_autocompare_result").glob("*.csv")
    with path.open() as file:
        assert "torch.Tensor.mul grad[1]" in {line["name"] for line in csv.DictReader(file)}


def test_a_long_row_is_judged_in_blocks_as_in_one(monkeypatch):
    expected = torch.randn(5000, dtype=torch.float64)
    got = expected.float()
    got[4321] += 0.01
    precision, tolerance = precision_of(torch.float32), Tolerance(1e-5, 1e-5)
    at_once = verdict_of(got, expected, expected.float(), precision, tolerance)
    monkeypatch.setattr(error_statistics, "_MIN_LONG_ROW", 600)
    monkeypatch.setattr(error_statistics, "block_size", lambda tensor: 512)
    in_blocks = verdict_of(got, expected, expected.float(), precision, tolerance)
    assert in_blocks.measures.first_bad == (4321,)
    assert in_blocks.reason == at_once.reason
    assert in_blocks.severity == pytest.approx(at_once.severity)


def test_long_rows_share_their_columns_errors(monkeypatch):
    expected = torch.randn(300, 900, dtype=torch.float64)
    same = (expected + torch.linspace(0, 1e-3, 900) * torch.randn(300, 900)).float()
    got = (expected + torch.linspace(0, 1e-3, 900) * torch.randn(300, 900)).float()
    precision, tolerance = precision_of(torch.float32), Tolerance(1e-5, 1e-5)
    at_once = verdict_of(got, expected, same, precision, tolerance)
    monkeypatch.setattr(error_statistics, "_MIN_LONG_ROW", 256)
    monkeypatch.setattr(error_statistics, "block_size", lambda tensor: 256)
    in_blocks = verdict_of(got, expected, same, precision, tolerance)
    assert (in_blocks.right, in_blocks.reason) == (at_once.right, at_once.reason)
    assert in_blocks.severity == pytest.approx(at_once.severity)


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in other units elsewhere")
@pytest.mark.parametrize(
    "broken",
    [pytest.param("", id="right"), pytest.param("aten.exp: tail=0.01", id="wrong", marks=pytest.mark.slow)],
)
def test_memory_is_bounded(broken, run_python, tmp_path):
    """In sizes of the tensor in float32: three copies on the host are needed, the reference takes pieces."""
    done = run_python(
        """
        import contextlib, resource, sys, torch
        from ditorch import sim
        from ditorch.sim import faults
        import op_tools
        sim.start()
        def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        warm = torch.randn(1000, device="sim")
        tool = op_tools.OpAutoCompare(verbose=0)
        with tool:
            torch.exp(warm)
        x = torch.randn(2**24, device="sim")
        before = peak()
        with faults.inject(sys.argv[1]) if sys.argv[1] else contextlib.nullcontext():
            with tool:
                y = torch.exp(x)
        print((peak() - before) / x.nbytes, tool.summary.wrong_calls)
        """,
        broken,
        OP_TOOLS_OUT=str(tmp_path),
    )
    sizes, wrong = done.stdout.split()[-2:]
    assert int(wrong) == bool(broken)
    # of a wrong one the reference is saved as well, in float64, and one piece of 2**22 elements is looked at closely,
    # which takes the same for a call of any size
    assert float(sizes) < (36 if broken else 8), done.stdout
