"""`python -m ditorch.sim.probe LIBRARY`: loads a freshly built simulated accelerator and tries the essentials.

Run in a process of its own, because a library that does not fit its torch may end the process.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from ditorch import sim


def main(library: str) -> None:
    sim.register(Path(library), "sim", "simccl")
    weight = torch.full((2, 2), 0.5).to("sim").requires_grad_()
    loss = (torch.ones(2, 2).to("sim") @ weight).relu().sum()
    loss.backward()
    assert weight.grad is not None
    assert loss.item() == 4.0, f"the loss is {loss.item()}, not 4"
    assert weight.grad.cpu().tolist() == [[2.0, 2.0], [2.0, 2.0]], f"wrong gradient: {weight.grad.cpu().tolist()}"


if __name__ == "__main__":
    main(sys.argv[1])
