"""Calls that write where they also read: nobody is blamed where PyTorch defines no order; elsewhere faults are told."""

from __future__ import annotations

import pytest
import torch

import op_tools
from ditorch.sim import faults

from ...conftest import DEVICE

references = pytest.mark.parametrize("reference", ["cpu", "device", "identities"])
REASONS = ("it writes numbers where it also reads, and PyTorch defines no order", "no identity is known")


def table(device, rows=6, columns=6):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(3)).to(device)


def shift_right(device):
    x = table(device)
    x[:, 1:] = x[:, :-1]


def shift_left(device):
    x = table(device)
    x[:, :-1] = x[:, 1:]


def add_the_column_before(device):
    x = table(device)
    x[:, 1:].add_(x[:, :-1])


def write_beside_what_is_read(device):
    x = table(device)
    torch.exp(x[:, :-1], out=x[:, 1:])


def shift_in_a_list(device):
    x = table(device)
    torch._foreach_copy_([x[:, 1:], torch.ones(3, device=device)], [x[:, :-1], torch.zeros(3, device=device)])


def shift_in_a_long_list(device):
    x = table(device)
    others = [torch.ones(3, device=device) for _ in range(12)]
    torch._foreach_add_([x[:, 1:], *others], [x[:, :-1], *[one + 1 for one in others]])


def multiply_by_itself_as_it_grows(device):
    x = table(device)
    x[:].addmm_(x, x)


# the op, for which no order is defined
FREE = {
    shift_right: "torch.Tensor.__setitem__",
    shift_left: "torch.Tensor.__setitem__",
    add_the_column_before: "torch.Tensor.add_",
    write_beside_what_is_read: "torch.exp",
    shift_in_a_list: "torch._foreach_copy_",
    shift_in_a_long_list: "torch._foreach_add_",
    multiply_by_itself_as_it_grows: "torch.Tensor.addmm_",
}


def multiply_by_its_other_name(device):
    x = table(device)
    x.detach().mul_(x)


def add_itself_as_a_view(device):
    x = table(device)
    x.view(-1).add_(x.reshape(-1))


def multiply_a_list_by_itself(device, length=6):
    numbers = [table(device) for _ in range(length)]
    torch._foreach_mul_([one.detach() for one in numbers], numbers)


def copy_a_row(device):
    x = table(device)
    x[0] = x[1]


def add_a_column(device):
    x = table(device)
    x[:, 0].add_(x[:, 1])


# the op, and the kernel that it uses
DEFINED = {
    multiply_by_its_other_name: ("torch.Tensor.mul_", "mul_.Tensor"),
    add_itself_as_a_view: ("torch.Tensor.add_", "add_.Tensor"),
    multiply_a_list_by_itself: ("torch._foreach_mul_", "_foreach_mul_.List"),
    copy_a_row: ("torch.Tensor.__setitem__", "copy_"),
    add_a_column: ("torch.Tensor.add_", "add_.Tensor"),
}


def found(program, device, **options):
    with op_tools.OpAutoCompare(verbose=0, **options) as tool:
        program(device)
    return {row["op"] for row in tool.results}, tool.results


@references
@pytest.mark.parametrize("program", FREE, ids=lambda program: program.__name__)
def test_nobody_is_blamed_where_no_order_is_defined(device, program, reference):
    blamed, results = found(program, device, reference=reference)
    assert blamed == set()
    assert all(row["what"] == FREE[program] and row["reason"] in REASONS for row in results.not_looked_at)


def test_it_is_said(device):
    _, results = found(shift_right, device)
    (row,) = results.not_looked_at
    assert (row["what"], row["reason"]) == ("torch.Tensor.__setitem__", REASONS[0])


@references
@pytest.mark.parametrize("program", DEFINED, ids=lambda program: program.__name__)
def test_a_healthy_call_is_right_where_all_is_defined(device, program, reference):
    blamed, results = found(program, device, reference=reference)
    assert (blamed, [*results.not_looked_at]) == (set(), [])


@pytest.mark.skipif(DEVICE != "sim", reason="kernels are broken on the simulated accelerator")
@references
@pytest.mark.parametrize("program", DEFINED, ids=lambda program: program.__name__)
def test_a_fault_is_found_where_all_is_defined(device, program, reference):
    op, kernel = DEFINED[program]
    with faults.inject(f"aten.{kernel}: scale=1.1"):
        blamed, _ = found(program, device, reference=reference)
    assert op in blamed


@pytest.mark.skipif(DEVICE != "sim", reason="kernels are broken on the simulated accelerator")
def test_a_long_list_by_two_names(device):
    def program(device):
        multiply_a_list_by_itself(device, 20)

    blamed, results = found(program, device)
    assert (blamed, [*results.not_looked_at]) == (set(), [])
    with faults.inject("aten._foreach_mul_.List: scale=1.1"):
        assert found(program, device)[0] == {"torch._foreach_mul_"}


@pytest.mark.skipif(DEVICE != "sim", reason="kernels are broken on the simulated accelerator")
def test_other_processes_tell_the_same(device):
    def program(device):
        for run in (*FREE, *DEFINED):
            run(device)

    assert found(program, device, worker=1)[0] == set()
    with faults.inject("aten.add_.Tensor: scale=1.1"):
        assert found(program, device, worker=1)[0] == {"torch.Tensor.add_"}
