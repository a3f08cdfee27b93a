"""Warnings of torch name the line of the user's program, whatever tool is on."""

from __future__ import annotations

import inspect
import warnings

import pytest
import torch
from torch.nn import functional

import op_tools

pytestmark = pytest.mark.usefixtures("way")

TOOLS = {
    "observing": lambda: op_tools.OpAutoCompare(verbose=0),
    "timing": lambda: op_tools.OpTimeMeasure(verbose=0),
    "changing": lambda: op_tools.OpDtypeCast(verbose=0),
}


def in_cpp(x):
    return torch.add(x, x, out=torch.empty(1, device=x.device)), inspect.currentframe().f_lineno


def in_python(x):
    return functional.softmax(x), inspect.currentframe().f_lineno


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("call", [in_cpp, in_python])
def test_a_warning_names_the_users_line(device, call, tool):
    x = torch.rand(2, 3, device=device)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with TOOLS[tool]():
            for _ in range(3):  # the first call of an op takes another way
                _, line = call(x)
    assert [(warning.filename, warning.lineno) for warning in caught] == 3 * [(__file__, line)]


def test_each_line_is_told_once_and_can_be_silenced_by_its_module(device):
    x = torch.rand(2, 3, device=device)
    with warnings.catch_warnings(record=True) as caught, op_tools.OpObserve(verbose=0):
        warnings.simplefilter("default")
        for _ in range(3):
            functional.softmax(x)
        functional.softmax(x)
        assert len(caught) == 2
        warnings.filterwarnings("ignore", module=__name__.replace(".", r"\."))
        functional.softmax(x)
        assert len(caught) == 2
