"""OpAutoCompare finds what is wrong, where it is."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import op_tools
from ditorch.sim import faults
from tests.op_tools.autocompare.net import (
    ATTENTION,
    ATTENTION_BACKWARD,
    CONVOLUTION,
    CONVOLUTION_BACKWARD,
    LOW,
    broken,
    found_by,
)

pytestmark = pytest.mark.usefixtures("who_looks")


FORWARD = [
    ("aten.addmm", "torch.nn.functional.linear", "output", "qkv"),
    ("aten.bmm", "torch.Tensor.matmul", "output", "Net"),
    ("aten._softmax", "torch.nn.functional.softmax", "output", "Net"),
    ("aten.native_layer_norm", "torch.nn.functional.layer_norm", "output", "norm"),
    ("aten.embedding", "torch.nn.functional.embedding", "output", "embedding"),
    (CONVOLUTION, "torch.nn.functional.conv1d", "output", "convolution"),
    (ATTENTION, "torch.nn.functional.scaled_dot_product_attention", "output", "Net"),
    ("aten.gelu", "torch.nn.functional.gelu", "output", "Net"),
]


BACKWARD = [
    ("aten.mm", "torch.nn.functional.linear", "grad", "qkv"),
    ("aten._softmax_backward_data", "torch.nn.functional.softmax", "grad", "Net"),
    ("aten.native_layer_norm_backward", "torch.nn.functional.layer_norm", "grad", "norm"),
    ("aten.embedding_dense_backward", "torch.nn.functional.embedding", "grad", "embedding"),
    (CONVOLUTION_BACKWARD, "torch.nn.functional.conv1d", "grad", "convolution"),
    (
        ATTENTION_BACKWARD,
        "torch.nn.functional.scaled_dot_product_attention",
        "grad",
        "Net",
    ),
    ("aten.gelu_backward", "torch.nn.functional.gelu", "grad", "Net"),
]


@pytest.mark.parametrize(("kernel", "op", "what", "module"), FORWARD + BACKWARD)
@pytest.mark.parametrize("dtype", [torch.float32, *LOW])
def test_one_percent_is_blamed_on_the_right_call(device, kernel, op, what, module, dtype):
    found = found_by(op_tools.OpAutoCompare(verbose=0), device, broken(kernel, "scale=1.01"), dtype)
    mine = [one for one in found if one.name == op and one.what.startswith(what)]
    assert mine, found
    assert module in [one.module for one in mine]
    assert all("net.py" in one.where or "modules" in one.where for one in mine)
    assert {one.name for one in found} == {op}


@pytest.mark.parametrize(
    "kind", ["scale=1.001", "negate@one", "nan@one", "tail=0.1", "round=bfloat16", "negate", "zero@0.1"]
)
@pytest.mark.parametrize(("kernel", "op"), [(kernel, op) for kernel, op, _, _ in FORWARD[:3] + BACKWARD[:3]])
def test_every_kind_of_fault_is_found_in_float32(device, kernel, op, kind):
    found = found_by(op_tools.OpAutoCompare(verbose=0), device, f"{kernel}: {kind}")
    assert {one.name for one in found} == {op}


@pytest.mark.parametrize(
    ("fault", "op"),
    [
        ("aten.addmm: accumulate=bfloat16", "torch.nn.functional.linear"),
        ("aten.mm: accumulate=bfloat16", "torch.nn.functional.linear"),
        ("aten.addmm: drop=self", "torch.nn.functional.linear"),
        ("aten.native_layer_norm: epsilon=100", "torch.nn.functional.layer_norm"),
        ("aten.embedding: index=1", "torch.nn.functional.embedding"),
    ],
)
def test_faults_inside_a_kernel_are_found(device, fault, op):
    found = found_by(op_tools.OpAutoCompare(verbose=0), device, fault)
    assert op in {one.name for one in found}


def test_swapped_arguments_are_found(device):
    x, y = torch.randn(2, 8, 8, device=device)
    tool = op_tools.OpAutoCompare(verbose=0)
    with faults.inject("aten.sub: swap"), tool:
        x - y
    assert [one.name for one in tool.summary.ranked()] == ["torch.Tensor.sub"]


def test_ten_percent_in_embeddings_gradient_in_bfloat16(device):
    """It drowns in the noise of a fixed tolerance: the CPU itself adds up with a loss there."""
    found = found_by(
        op_tools.OpAutoCompare(verbose=0), device, "aten.embedding_dense_backward: scale=1.1", torch.bfloat16
    )
    assert [(one.name, one.what) for one in found] == [("torch.nn.functional.embedding", "grad[1]")]
    assert "off by a factor of 1.09" in found[0].reason


def test_faults_are_found_under_autocast(device):
    tool = op_tools.OpAutoCompare(verbose=0)
    found = found_by(tool, device, "aten.mm: scale=1.01", autocast=torch.bfloat16)
    assert {one.name for one in found} == {"torch.nn.functional.linear"}


def test_an_optimizers_step_is_compared(device):
    parameters = [nn.Parameter(torch.randn(8, 8, device=device)) for _ in range(12)]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    tool = op_tools.OpAutoCompare(verbose=0)
    with tool:
        torch.optim.AdamW(parameters, foreach=True).step()
    assert tool.summary.ranked() == []
    with faults.inject("aten._foreach_addcdiv_: scale=1.01"), tool:
        torch.optim.AdamW(parameters, foreach=True).step()
    names = {(one.name, one.what) for one in tool.summary.ranked()}
    assert ("torch._foreach_addcdiv_", "input[0]") in names


def test_a_list_behind_a_number_is_compared(device):
    """As a compiled optimizer has it: powers of a number."""
    steps = [torch.full((), 3.0 + number, device=device) for number in range(12)]
    tool = op_tools.OpAutoCompare(verbose=0)
    with faults.inject("aten._foreach_pow: round=bfloat16"), tool, torch.no_grad():
        torch.ops.aten._foreach_pow.ScalarAndTensor(0.9, steps)
    assert tool.summary.ranked()[0].name == "aten._foreach_pow.ScalarAndTensor"


def test_nan_in_complex_numbers_is_no_change_of_an_input(device):
    x = torch.tensor([1 + 1j, complex(math.nan, 0), complex(0, math.nan), complex(math.inf, math.nan)], device=device)
    tool = op_tools.OpAutoCompare(verbose=0)
    with tool:
        torch.fft.ifft(x * 2)
    assert tool.summary.ranked() == []


@pytest.fixture
def leaky(device):
    """An op that adds, and on the device writes into an input that it must leave alone."""
    library = torch.library.Library("autocompare_test", "FRAGMENT")
    library.define("leaky(Tensor x, Tensor y) -> Tensor")
    library.define("only_here(Tensor x) -> Tensor")
    library.impl("leaky", lambda x, y: x + y, "CPU")

    def damaging(x, y):
        result = x + y
        y.detach()[0] = 7
        return result

    key = torch._C._dispatch_key_for_device(device)
    library.impl("leaky", damaging, key)
    library.impl("only_here", lambda x: x + 1, key)
    yield torch.ops.autocompare_test
    library._destroy()


def test_an_input_that_is_damaged_is_found(device, leaky):
    tool = op_tools.OpAutoCompare(verbose=0)
    with tool:
        leaky.leaky(torch.ones(3, device=device), torch.ones(3, device=device))
    (found,) = [one for one in tool.summary.ranked() if "leaky" in one.name]
    assert found.what == "input[1]"
    assert "changed an input that it must leave alone" in found.reason
    assert "[0]: 7 instead of 1" in found.reason


def test_an_op_that_the_cpu_lacks_is_named_and_counted(device, leaky, capfd):
    tool = op_tools.OpAutoCompare()
    with tool:
        for _ in range(3):
            leaky.only_here(torch.ones(3, device=device))
    printed = capfd.readouterr()
    assert printed.err.count("OpAutoCompare could not compare autocompare_test.only_here: NotImplementedError") == 1
    assert "not compared: autocompare_test.only_here (3 calls, 50 %): NotImplementedError" in printed.out
