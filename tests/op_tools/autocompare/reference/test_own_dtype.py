"""The call in the device's own dtype on the CPU tells what rounding costs: where the CPU's kernel is sound."""

from __future__ import annotations

import pytest
import torch

from op_tools.autocompare.arguments import Arguments
from op_tools.autocompare.judging.comparer import Comparer
from op_tools.autocompare.judging.limits import Tolerances
from op_tools.autocompare.observed import ObservedCall
from op_tools.autocompare.reference.runs import References

RATES = {"weight_decay": 0.01, "momentum": 0.9, "lr": 0.05, "dampening": 0.0, "nesterov": True, "maximize": False}


@pytest.mark.skipif(not hasattr(torch, "_fused_sgd_"), reason="this release has no fused SGD")
@pytest.mark.parametrize("fault", ["", "parameters stay as they are", "momenta are something else"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_fused_step_is_not_held_to_the_cpus_in_sixteen_bits(dtype, fault):
    """The CPU's own kernel leaves parameters in 16 bits as they are, and reads their momenta as if they were wider."""
    torch.manual_seed(0)
    before = [[torch.randn(100).to(dtype) for _ in range(2)] for _ in range(3)]
    wide = [[one.float().clone() for one in some] for some in before]
    options = {**RATES, "is_first_step": False, "grad_scale": None, "found_inf": None}
    torch._fused_sgd_(*wide, **options)
    after = [[one.to(dtype) for one in some] for some in wide]
    if fault:
        place = 0 if fault.startswith("parameters") else 2
        after[place] = before[place]
    given, kept = Arguments(tuple(before), options), Arguments(tuple(after), options)
    call = ObservedCall("torch._fused_sgd_", torch._fused_sgd_, given, kept, None, changed=True)
    found = Comparer(Tolerances(), References(lambda name: None)).forward(call)
    assert (found.failure, found.is_wrong) == ("", bool(fault))
