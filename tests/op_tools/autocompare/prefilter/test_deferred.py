"""The device as reference: a first look there, and a full verdict only where it finds something."""

from __future__ import annotations

import math
import re
import sys
import types
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn

import op_tools
from ditorch.sim import faults
from op_tools.autocompare import foreach_lists, prefilter
from op_tools.autocompare.arguments import Arguments
from op_tools.autocompare.prefilter import deferred, fused, screen
from op_tools.autocompare.reference.runs import run
from op_tools.autocompare.reference.ways import Way
from tests.op_tools.autocompare.net import LOW, ONLY_THE_PROGRAMS_CALL, found_by, rows_of, step

pytestmark = pytest.mark.usefixtures("who_looks")


def test_the_device_itself_as_reference(device):
    tool = op_tools.OpAutoCompare(verbose=0, reference="device")
    with tool:
        plain = step(device)
    assert tool.summary.ranked() == []
    assert all(torch.equal(one, other) for one, other in zip(plain, step(device)))
    x = torch.randn(64, 64, device=device)
    with faults.inject("aten.tanh: round=bfloat16"), tool:
        x.tanh()
    # the same kernel is wrong in float64, too, but the results differ by their roundings
    assert tool.summary.calls == 1


@pytest.mark.parametrize("dtype", [torch.float32, *LOW])
def test_the_cpu_confirms_what_the_device_finds(device, dtype):
    tool = op_tools.OpAutoCompare(verbose=0, reference="device,cpu")
    assert found_by(tool, device, dtype=dtype) == []
    x = torch.randn(64, 64, device=device, dtype=dtype)
    with faults.inject("aten.tanh: nan@one"), tool:
        x.tanh()
        x.clone().tanh_()
    names = [(one.name, one.what) for one in tool.summary.ranked()]
    assert names[:1] == [("torch.Tensor.tanh", "output")]


def test_a_fault_that_higher_precision_does_not_share_is_found(device):
    x = torch.randn(64, 64, device=device, requires_grad=True)
    tool = op_tools.OpAutoCompare(verbose=0, reference="device")
    with faults.inject(f"aten.tanh: scale=1.001, {ONLY_THE_PROGRAMS_CALL}"), tool:
        x.tanh().sum().backward()
    assert ("torch.Tensor.tanh", "output") in [(one.name, one.what) for one in tool.summary.ranked()]
    with faults.inject(f"aten.tanh_backward: negate@one, {ONLY_THE_PROGRAMS_CALL}"), tool:
        x.tanh().sum().backward()
    assert [(one.name, one.what) for one in tool.summary.ranked()] == [("torch.Tensor.tanh", "grad")]


def test_what_is_changed_in_place_is_decided_before(device):
    x = torch.randn(64, 64, device=device)
    tool = op_tools.OpAutoCompare(verbose=0, reference="device")
    with tool:
        for _ in range(3):
            y = x.tanh()
            y.add_(1)
            y[0] = 0
            y.view(-1).mul_(2)
    assert tool.summary.ranked() == []
    assert "not compared" not in tool.summary.text()
    with faults.inject(f"aten.tanh: nan@one, {ONLY_THE_PROGRAMS_CALL}"), tool:
        y = x.tanh()
        y.zero_()
    assert [one.name for one in tool.summary.ranked()] == ["torch.Tensor.tanh"]


def test_every_call_has_its_row_with_all_measures(device):
    x = torch.randn(16, 16, device=device, dtype=torch.bfloat16, requires_grad=True)
    with op_tools.OpAutoCompare(verbose=0, reference="device") as tool:
        for _ in range(50):  # more than are looked at together
            (x @ x).sum().backward()
    rows = [row for row in rows_of() if row["name"] == "torch.Tensor.matmul output"]
    assert len(rows) == 50
    assert tool.summary.calls == 50 * 4
    for row in rows:
        assert float(row["cosine_similarity"]) == pytest.approx(1, abs=1e-4)
        assert 0 < float(row["mean_ulp"]) <= float(row["max_ulp"])
        assert (row["bad_share"], row["nonfinite_mismatch"], row["verdict"]) == ("0", "0", "right")


def test_a_backward_pass_beside_a_forward_pass_does_not_wait_for_it(device, run_python):
    """A full look takes autograd's thread, which may have something to be looked at itself."""
    done = run_python(
        f"""
        import faulthandler, threading, torch, op_tools
        from ditorch import sim
        from op_tools.autocompare.prefilter import deferred, first_look

        if {device!r} == "sim":
            sim.start()
        faulthandler.dump_traceback_later(120, exit=True)
        deferred._MAX_CALLS = deferred._MAX_CALLS_ALONE = 2
        decide = first_look.PendingRows.decide
        # each is looked at in full
        first_look.PendingRows.decide = lambda self, verdicts: decide(self, verdicts) and False
        x = torch.randn(8, 8, device={device!r}, requires_grad=True)

        def loss():
            y = x
            for _ in range(20):
                y = (y @ x).tanh()
            return y.sum()

        with op_tools.OpAutoCompare(verbose=0, reference="device") as tool:
            previous = loss()
            for _ in range(10):
                thread = threading.Thread(target=previous.backward)
                thread.start()
                previous = loss()
                thread.join()
        assert tool.summary.ranked() == []
        print(tool.summary.values)
        """
    )
    assert int(done.stdout.split()[-1]) > 10 * 20 * 4


@pytest.mark.parametrize(("free", "together"), [(0.0, 1), (math.inf, 8)])
def test_with_little_room_few_calls_wait_to_be_looked_at(device, monkeypatch, free, together):
    launched = []
    original = screen.numbers_of
    monkeypatch.setattr(screen, "numbers_of", lambda looks: launched.append(len(looks)) or original(looks))
    monkeypatch.setattr(deferred, "free_memory", lambda device: free)
    x = torch.randn(16, 16, device=device)
    with op_tools.OpAutoCompare(verbose=0, reference="device") as tool:
        for _ in range(8):
            x.tanh()
    assert tool.summary.ranked() == []
    assert launched == [together] * (8 // together)


def test_with_little_room_references_are_run_again_for_their_gradients(device):
    def rows(memory):
        with op_tools.OpAutoCompare(verbose=0, reference="device", out=str(memory), memory=memory) as tool:
            step(device)
        assert tool.summary.ranked() == []
        return sorted((row["name"], row["mean_ulp"]) for row in rows_of(Path(str(memory))))

    assert rows(2_000_000) == rows(2**32)


def test_no_tensor_is_held_when_it_is_over(device):
    tool = op_tools.OpAutoCompare(verbose=0, reference="device")
    x = torch.randn(16, 16, device=device, requires_grad=True)
    with tool:
        y = x.tanh()
        y.sum().backward()
        held = [weakref.ref(y)]
        del y
    assert [one() for one in held] == [None]


def test_infinities_of_a_mask_need_no_second_look(device, monkeypatch):
    x = torch.randn(16, 16, device=device)
    tool = op_tools.OpAutoCompare(verbose=0, reference="device")
    with tool:
        masked = x.masked_fill(torch.ones(16, 16, device=device, dtype=torch.bool).triu(1), -math.inf)
        masked.softmax(-1)
    assert tool.summary.ranked() == []


def test_lists_that_are_changed_without_being_counted_are_seen_as_they_are(device):
    """As torch._foreach_lerp_ does on CUDA."""
    changed = [torch.zeros(4, device=device) for _ in range(12)]
    others = [torch.ones(4, device=device) for _ in range(12)]
    together = foreach_lists.joined(Arguments((changed, others, 0.5), {}))
    with torch.autograd._unsafe_preserve_version_counter(tuple(changed)):
        torch._foreach_lerp_(changed, others, 0.5)
    assert together.args[0][0].unique().tolist() == [0]
    assert together.now().args[0][0].unique().tolist() == [0.5]


@pytest.mark.parametrize("reference", ["cpu", "device"])
def test_an_optimizers_lists_are_looked_at_together(device, reference):
    parameters = [nn.Parameter(torch.randn(8, 8, device=device)) for _ in range(12)]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer = torch.optim.AdamW(parameters, foreach=True)
    with op_tools.OpAutoCompare(verbose=0, reference=reference) as tool:
        optimizer.step()
    assert tool.summary.ranked() == []
    rows = {row["name"]: row for row in rows_of()}
    assert rows["torch._foreach_addcdiv_ input[0..11]"]["verdict"] == "right"
    assert float(rows["torch._foreach_addcdiv_ input[0..11]"]["max_ulp"]) > 0
    assert rows["torch._foreach_addcdiv_ input[12..23]"]["max_ulp"] == "0"
    broken_once = f"aten._foreach_addcdiv_: scale=1.5@one, {ONLY_THE_PROGRAMS_CALL}"
    with faults.inject(broken_once), op_tools.OpAutoCompare(verbose=0, reference=reference, out="other") as tool:
        optimizer.step()
    # tensor by tensor where something is wrong
    found = {(one.name, one.what) for one in tool.summary.ranked()}
    assert found
    assert all(re.fullmatch(r"(input|output)\[\d+\]", what) for _, what in found)
    assert list(Path("other").rglob("device/input.pth"))


def test_gradients_of_a_reference_are_there_below_autograd():
    """Inside a kernel that is written in Python, where a comparison may have to be decided."""
    x = torch.randn(4, requires_grad=True)
    with torch._C._AutoDispatchBelowAutograd():
        again = run(torch.mul, Arguments((x, 3.0), {}), Way("again", {}), graph=True)
        (gradient,) = again.gradients([torch.ones(4)])
    assert gradient.tolist() == [3.0] * 4


def test_without_a_compiler_there_is_no_fused_look_and_one_line_says_so(monkeypatch, capfd):
    def fails(*arguments):
        raise RuntimeError("no C compiler was found")

    broken = types.SimpleNamespace(run=fails)
    monkeypatch.setitem(sys.modules, "op_tools.autocompare.prefilter.kernels", broken)
    monkeypatch.setattr(prefilter, "kernels", broken, raising=False)
    monkeypatch.setattr(fused, "_known", {})
    monkeypatch.setattr(fused, "is_genuine", lambda device: True)
    assert fused._kernels(torch.device("cpu")) is None
    assert fused._kernels(torch.device("cpu")) is None
    assert capfd.readouterr().err.count("does without Triton: RuntimeError: no C compiler was found") == 1


def test_the_fused_look_sees_what_torch_sees(device):
    here = torch.zeros(1, device=device).device
    if not fused.is_there(here):
        pytest.skip("Triton and CUDA are not there")
    fused._compare_with_torch(fused._kernels(here), here)
