"""The simulated accelerator with other kernels than its own."""

from __future__ import annotations

import contextlib
import warnings

import torch

import op_tools


@contextlib.contextmanager
def kernel(name, function):
    """The simulated accelerator with another kernel."""
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library.impl(name, function, "PrivateUse1")
    try:
        yield
    finally:
        library._destroy()


def wrong(run, **options):
    """The ops that are blamed, without the names of their modules."""
    with op_tools.OpAutoCompare(verbose=0, **options) as tool:
        run()
    assert tool.summary.values
    return {row["op"].rpartition(".")[2] for row in tool.results}
