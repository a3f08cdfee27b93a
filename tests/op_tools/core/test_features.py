"""apply_feature: a tool on chosen ops, under the user's own condition."""

from __future__ import annotations

import csv
import sys
import threading
import types
from pathlib import Path

import pytest
import torch
from torch.nn import functional

import op_tools
from op_tools.errors import OverflowFound, SettingError, UnknownOpError

FEATURES = "fallback, cast_dtype, op_capture, autocompare, dump_op_args, measure_op_time, overflow_check"


@pytest.fixture
def feature():
    """apply_feature, with every feature removed after the test."""
    applied = []

    def apply(*args, **kwargs):
        handle = op_tools.apply_feature(*args, **kwargs)
        applied.append(handle)
        return handle

    yield apply
    for handle in applied:
        handle.remove()


@pytest.fixture
def third_party():
    """A package that torch knows nothing of, and another that has imported a function of it by name."""
    package, user = types.ModuleType("third_party_package"), types.ModuleType("third_party_user")
    exec("def fused(x, scale=2.0):\n    return x * scale\n", vars(package))  # noqa: S102
    user.fused = package.fused
    sys.modules.update({"third_party_package": package, "third_party_user": user})
    yield package, user
    del sys.modules["third_party_package"], sys.modules["third_party_user"]


def tables(capsys):
    """How many calls OpObserve has shown."""
    return capsys.readouterr().out.count("forward_id: ")


def test_a_wrong_feature_name_lists_the_right_ones():
    with pytest.raises(AssertionError, match=f"'fall_back' is no feature; these are: {FEATURES}"):
        op_tools.apply_feature("torch.add", "fall_back")


@pytest.mark.parametrize("ops", ["", [], [""], ()])
def test_no_op_is_an_error(ops):
    with pytest.raises(ValueError, match="ops is empty"):
        op_tools.apply_feature(ops, "fallback")


@pytest.mark.parametrize(
    ("name", "hint"),
    [("torch.nn.functional.liner", "did you mean torch.nn.functional.linear"), ("no_such.thing", "Names are full")],
)
def test_an_unknown_op_is_an_error_with_a_hint(name, hint):
    with pytest.raises(UnknownOpError, match=f"there is no op '{name}'.*{hint}"):
        op_tools.apply_feature(name, "fallback")


def test_on_one_op_and_off_again(feature, device, capsys):
    x = torch.ones(3, device=device)
    handle = feature("torch.add", "dump_op_args")
    torch.add(x, x)
    torch.mul(x, x)
    assert tables(capsys) == 1
    handle.remove()
    torch.add(x, x)
    handle.remove()
    assert tables(capsys) == 0


def test_the_operator_is_the_method(feature, device, capsys):
    x = torch.ones(3, device=device)
    feature("torch.Tensor.add", "dump_op_args")
    x + x
    assert tables(capsys) == 1


@pytest.mark.parametrize(
    ("op", "call"),
    [
        (torch.add, lambda x: torch.add(x, x)),
        (functional.linear, lambda x: functional.linear(x, x)),
        (torch.Tensor.exp, lambda x: x.exp()),
        ("torch.einsum", lambda x: torch.einsum("ij->ji", x)),
        ("aten.mm", lambda x: torch.ops.aten.mm(x, x)),
        (torch.ops.aten.mm.default, lambda x: torch.ops.aten.mm.default(x, x)),
        ("torch._foreach_add", lambda x: torch._foreach_add([x], 1)),
        (["torch.add", functional.linear], lambda x: torch.add(x, x)),
    ],
)
def test_names_and_functions(feature, device, capsys, op, call):
    feature(op, "dump_op_args")
    call(torch.ones(3, 3, device=device))
    assert tables(capsys) == 1


def test_the_condition_gets_the_ops_own_arguments(feature, device, capsys):
    seen = []

    def condition(a, b, alpha=1):
        seen.append((a.dtype, alpha))
        return a.dtype == torch.float16

    feature("torch.add", "dump_op_args", condition_func=condition)
    half, single = torch.ones(2, 3, device=device, dtype=torch.float16), torch.ones(2, 3, device=device)
    torch.add(half, half)
    torch.add(single, single, alpha=2)
    torch.add(half, half)
    assert seen == [(torch.float16, 1), (torch.float32, 2), (torch.float16, 1)]
    text = capsys.readouterr().out
    assert text.count("forward_id: ") == 2
    assert text.count("apply OpObserveHook on torch.add") == 1
    assert text.count("skip OpObserveHook on torch.add") == 1


def test_a_condition_that_raises_is_named_and_the_op_runs(feature, device, capsys):
    feature("torch.add", "dump_op_args", condition_func=lambda a: True)
    x = torch.ones(3, device=device)
    for _ in range(2):
        assert torch.equal(torch.add(x, x).cpu(), torch.full((3,), 2.0))
    captured = capsys.readouterr()
    assert captured.err.count("the condition for OpObserveHook on torch.add raised TypeError") == 1
    assert "forward_id" not in captured.out


@pytest.mark.parametrize("condition", [True, "a.dtype == torch.float16", 1])
def test_a_condition_that_cannot_be_called_is_an_error_at_once(third_party, condition):
    package, _ = third_party
    original = package.fused
    with pytest.raises(SettingError, match=r"the condition .* cannot be called: give a function of the op's own"):
        op_tools.apply_feature(["torch.add", "third_party_package.fused"], "dump_op_args", condition)
    assert package.fused is original


def test_nested_lists(feature, device, capsys, third_party):
    package, _ = third_party
    feature([["torch.add", (torch.mul,)], {"third_party_package.fused"}], "dump_op_args")
    x = torch.ones(3, device=device)
    torch.add(x, x)
    torch.mul(x, x)
    package.fused(x)
    assert tables(capsys) == 3


@pytest.mark.parametrize("op", [5, None, [["torch.add"], 5], ["torch.add", None]])
def test_what_is_no_op_is_an_error(op):
    with pytest.raises(UnknownOpError, match=r"(5|None) is no op"):
        op_tools.apply_feature(op, "dump_op_args")


def test_a_module_of_torch_is_all_of_its_ops(feature, device, capsys):
    feature(functional, "dump_op_args")
    x = torch.ones(3, 3, device=device)
    functional.relu(x)
    functional.linear(x, x)
    torch.add(x, x)
    assert tables(capsys) == 2


def test_ops_that_nobody_asked_about_have_no_line(feature, device, capsys):
    feature("torch.add", "dump_op_args")
    torch.mul(torch.ones(3, device=device), 2)
    assert capsys.readouterr().out == ""


def test_an_op_that_was_never_called_is_named(feature, device, capsys, third_party):
    handle = feature(["torch.add", "third_party_package.fused"], "dump_op_args")
    torch.add(torch.ones(3, device=device), 1)
    handle.remove()
    assert capsys.readouterr().err == "op_tools: OpObserve: no op that was called matches third_party_package.fused\n"


def test_features_compose_on_one_op(feature, device, capsys):
    feature("torch.mul", "fallback")
    feature("torch.mul", "dump_op_args")
    feature("torch.mul", "cast_dtype")
    x = torch.full((3,), 3.0, device=device, dtype=torch.bfloat16, requires_grad=True)
    y = torch.mul(x, x)
    y.sum().backward()
    assert (y.device.type, y.dtype) == (device, torch.bfloat16)
    assert torch.equal(x.grad.cpu().float(), torch.full((3,), 6.0))
    text = capsys.readouterr().out
    for hook in ("OpFallbackHook", "OpDtypeCastHook", "OpObserveHook"):
        assert f"apply {hook} on torch.mul" in text


THIRD_PARTY = """
    import sys
    import types
    import torch
    from ditorch import sim
    sim.start()
    import op_tools

    package = sys.modules["flashy"] = types.ModuleType("flashy")
    package.torch = torch
    exec("def swiglu(a, b):\\n return torch.nn.functional.silu(a) * b", vars(package))
    exec("def reciprocal(a):\\n return 1 / a", vars(package))
    x = torch.ones(8, device="sim", requires_grad=True)
    op_tools.apply_feature(package, sys.argv[1])
    package.swiglu(x, x).sum().backward()
    package.reciprocal(x.detach() - 1)
"""


class TestThirdParties:
    @pytest.mark.parametrize(
        ("name", "said"),
        [
            ("measure_op_time", "op elasped info saved to"),
            ("autocompare", "OpAutoCompare: nothing wrong in 3 calls"),
            ("overflow_check", "flashy.reciprocal made Inf out of finite inputs"),
            ("op_capture", "OpCapture: 6 files of 2 calls"),
            ("fallback", "| calls on the CPU |"),
        ],
    )
    def test_results_are_written_at_the_end_of_the_program(self, run_python, name, said):
        done = run_python(THIRD_PARTY, name)
        assert said in done.stdout
        assert done.stderr == ""

    @pytest.mark.usefixtures("way")
    def test_measure_op_time_times_backward(self, feature, device, capsys, third_party):
        package, _ = third_party
        handle = feature("third_party_package.fused", "measure_op_time")
        x = torch.ones(64, 64, device=device, requires_grad=True)
        package.fused(x).sum().backward()
        handle.remove()
        assert capsys.readouterr().err == ""
        (file,) = Path().rglob("op_elasped_info_*.csv")
        (row,) = csv.DictReader(file.read_text().splitlines())
        assert row["name"] == "third_party_package.fused"
        assert float(row["backward_elasped"]) > 0

    def test_several_functions_have_one_summary(self, feature, device, capsys, third_party):
        package, _ = third_party
        exec("def other(x):\n    return x + 1\n", vars(package))  # noqa: S102
        handle = feature(package, "measure_op_time")
        x = torch.ones(3, device=device)
        package.fused(x)
        package.other(x)
        torch.add(x, x)
        handle.remove()
        captured = capsys.readouterr()
        assert captured.out.count("op elasped info saved to") == 1
        assert captured.out.count("| third_party_package.") == 2
        assert captured.err == ""
        assert "torch.add" not in captured.out

    def test_a_module_without_functions_of_its_own_is_an_error(self):
        empty = types.ModuleType("empty_package")
        empty.add = torch.add
        with pytest.raises(UnknownOpError, match="the module empty_package has no ops"):
            op_tools.apply_feature(empty, "dump_op_args")

    def test_tools_are_told_of_steps(self, feature, device, monkeypatch, third_party):
        package, _ = third_party
        monkeypatch.setenv("OP_OVERFLOW_CHECK_ACTION", "stop")
        feature("third_party_package.fused", "overflow_check")
        package.fused(torch.full((3,), 3e38, device=device))
        with pytest.raises(OverflowFound, match=r"third_party_package\.fused made Inf"):
            op_tools.step()

    def test_a_list_of_functions_is_no_other_holder(self, feature, third_party, capsys):
        package, _ = third_party
        feature([package.fused], "dump_op_args")
        assert capsys.readouterr().out == ""

    def test_a_function_of_a_third_party(self, feature, device, capsys, third_party):
        package, _ = third_party
        handle = feature("third_party_package.fused", "dump_op_args")
        x = torch.ones(3, device=device)
        package.fused(x, scale=3.0)
        text = capsys.readouterr().out
        assert "apply OpObserveHook on third_party_package.fused" in text
        assert "third_party_package.fused inputs scale" in text
        handle.remove()
        package.fused(x)
        assert tables(capsys) == 0

    def test_a_name_in_another_module_is_covered(self, feature, device, capsys, third_party):
        package, user = third_party
        original = package.fused
        handle = feature(package.fused, "dump_op_args")
        user.fused(torch.ones(3, device=device))
        assert tables(capsys) == 1
        handle.remove()
        assert package.fused is original
        assert user.fused is original

    def test_what_is_out_of_reach_is_said(self, feature, third_party, capsys):
        package, _ = third_party
        holders = [package.fused]
        feature("third_party_package.fused", "dump_op_args")
        assert "third_party_package.fused is also held by 1 other object(s) (list)" in capsys.readouterr().out
        assert holders

    def test_two_features_and_their_removal_in_any_order(self, feature, device, capsys, third_party):
        package, _ = third_party
        original = package.fused
        first = feature("third_party_package.fused", "dump_op_args")
        second = feature("third_party_package.fused", "overflow_check")
        first.remove()
        package.fused(torch.ones(3, device=device))
        assert package.fused is not original
        second.remove()
        assert package.fused is original

    def test_every_thread(self, feature, device, capsys, third_party):
        package, _ = third_party
        feature("third_party_package.fused", "dump_op_args")
        thread = threading.Thread(target=lambda: package.fused(torch.ones(3, device=device)))
        thread.start()
        thread.join()
        assert tables(capsys) == 1

    def test_fallback_of_a_third_party(self, feature, device, third_party):
        package, _ = third_party
        devices = []

        def fused(x):
            devices.append(x.device.type)
            return x + 1

        fused.__module__, fused.__qualname__ = "third_party_package", "fused"
        package.fused = fused
        feature("third_party_package.fused", "fallback")
        result = package.fused(torch.ones(3, device=device))
        assert devices == ["cpu"]
        assert result.device.type == device

    def test_a_method_of_a_class(self, feature, device, capsys, third_party):
        package, _ = third_party

        class Kernel:
            @staticmethod
            def launch(x):
                return x * 2

            def bound(self, x):
                return x * 3

        package.Kernel = Kernel
        launch = Kernel.__dict__["launch"]
        handles = [feature(f"third_party_package.Kernel.{name}", "dump_op_args") for name in ("launch", "bound")]
        x = torch.ones(3, device=device)
        assert torch.equal(Kernel.launch(x).cpu(), torch.full((3,), 2.0))
        assert torch.equal(Kernel().bound(x).cpu(), torch.full((3,), 3.0))
        assert tables(capsys) == 2
        for handle in handles:
            handle.remove()
        assert Kernel.__dict__["launch"] is launch

    def test_a_function_that_is_not_found_under_its_name(self):
        with pytest.raises(UnknownOpError, match="cannot be replaced"):
            op_tools.apply_feature(lambda x: x, "fallback")


class Double(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x * 2

    @staticmethod
    def backward(context, gradient):
        return gradient * 2


@pytest.mark.parametrize("op", [Double, Double.apply, f"{__name__}.Double.apply"])
def test_an_autograd_function(feature, device, capsys, op):
    feature(op, "dump_op_args")
    Double.apply(torch.ones(3, device=device))
    assert f"{__name__}.Double.apply inputs" in capsys.readouterr().out
