"""Long runs: memory and file handles stay flat. Each tool in a process of its own."""

from __future__ import annotations

import pytest

STEPS = 2000
TOOLS = {
    "OpObserve": "op_tools.OpObserve()",
    "OpTimeMeasure": "op_tools.OpTimeMeasure()",
    "OpOverflowCheck": "op_tools.OpOverflowCheck()",
    "OpCapture": "op_tools.OpCapture(ops=['torch.nn.functional.linear'])",
    "OpCapture statistics": "op_tools.OpCapture(mode='statistics')",
    "OpAutoCompare": "op_tools.OpAutoCompare()",
    "OpAutoCompare once": "op_tools.OpAutoCompare(once=True)",
    "OpFallback": "op_tools.OpFallback()",
    "OpDtypeCast": "op_tools.OpDtypeCast(casts='torch.float32->torch.float64')",
}
CODE = """
    import gc, os, sys
    import torch
    torch.set_num_threads(1)
    from torch import nn
    device, make, steps = sys.argv[1:]
    if device == "sim":
        from ditorch import sim
        sim.start()
    import op_tools

    def resident():
        gc.collect()
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

    def handles():
        return len(os.listdir("/proc/self/fd"))

    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(4, 8, device=device)
    tool = eval(make).start()
    sys.stdout = open(os.devnull, "w")
    for step in range(int(steps)):
        op_tools.step()
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        if step == int(steps) // 10:
            before = resident(), handles()
    after = resident(), handles()
    tool.stop()
    print(after[0] - before[0], after[1] - before[1], file=sys.stderr)
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("tool", TOOLS)
def test_memory_and_handles_are_flat(device, run_python, tool):
    done = run_python(CODE, device, TOOLS[tool], str(STEPS))
    growth, handles = done.stderr.strip().splitlines()[-1].split()
    assert float(growth) < 50, f"{growth} MiB more after {STEPS} steps"
    assert int(handles) <= 2, f"{handles} more file handles"
