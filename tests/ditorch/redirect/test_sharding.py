"""DTensor and the attention of chips: the rules come and go; sim/test_collectives.py shows what they do."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.skipif(
    not hasattr(torch.ops.aten, "_scaled_dot_product_fused_attention_overrideable"),
    reason="this torch has no attention kernel for chips",
)

CODE = """
    import torch, sys
    from ditorch import sharding
    attention = torch.ops.aten._scaled_dot_product_fused_attention_overrideable.default

    def knows():
        return attention in sharding._strategies()

    early, late = sys.argv[1] == "early", sys.argv[1] == "late"
    if late:
        import torch.distributed.tensor
        assert not knows()
    forget = sharding.teach_attention()
    sharding.teach_attention()()  # somebody else, who takes nothing away
    assert late or "torch.distributed.tensor" not in sys.modules
    import torch.distributed.tensor
    assert knows()
    forget()
    assert not knows()

    def own(schema): ...
    propagator = torch.distributed.tensor.DTensor._op_dispatcher.sharding_propagator
    propagator.register_op_strategy(attention, own)
    forget = sharding.teach_attention()
    assert sharding._strategies()[attention] is own  # a torch that knows better, or the program itself
    forget()
    assert sharding._strategies()[attention] is own
"""


def test_rules_come_when_dtensor_is_imported_and_go_again(run_python):
    run_python(CODE, "early")


def test_rules_come_at_once_where_dtensor_is_imported_and_go_again(run_python):
    run_python(CODE, "late")
