"""flex_attention, as a program written for CUDA calls it: the whole op is compared, forward and backward."""

from __future__ import annotations

import pytest

from ...conftest import DEVICE

pytest.importorskip("torch.nn.attention.flex_attention")
pytestmark = pytest.mark.skipif(DEVICE != "sim", reason="kernels are broken on the simulated accelerator")

PROGRAM = """
import torch, ditorch, op_tools
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

torch.manual_seed(0)
query, key, value = (torch.randn(1, 2, 128, 16, device="cuda", requires_grad=True) for _ in range(3))
mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 128, 128, device="cuda")
with op_tools.OpAutoCompare(verbose=0) as tool:
    made = flex_attention(query, key, value, lambda score, b, h, i, j: score - 0.1 * (i - j), mask)
    made.square().sum().backward()
names = sorted({row["op"].rpartition(".")[2] for row in tool.results})
print("found", names, "left out", [row["what"] for row in tool.results.not_looked_at])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "found"),
    [("", "[]"), ("aten._softmax: scale=1.05", "['flex_attention']"), ("aten.exp: scale=1.05", "_backward'")],
)
def test_a_program_with_flex_attention(run_python, fault, found):
    done = run_python(PROGRAM, DITORCH_FAULTS=fault, DITORCH_DISABLE_MOCK="0")
    (told,) = [line for line in done.stdout.splitlines() if line.startswith("found")]
    assert found in told
    assert told.endswith("left out []")
