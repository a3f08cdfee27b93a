"""Faults after bugs that were reported, for benchmarks/reported_faults.py. Read fault.py first; then a file per family.

A fault is a function that says how a kernel's result is wrong, under a decorator with the kernel, the reports and the
program in which it shows. Sizes are scaled down where a report speaks of gigabytes. Where a report does not say what
the kernel does, but only what comes out, the fault is a guess that gives the like.
"""

from benchmarks.reported import (
    attention,
    blocks,
    convolutions,
    copies,
    eighth,
    eighth_moves,
    eighth_pictures,
    eighth_values,
    indexing,
    later,
    latest,
    layouts,
    legal,
    linear_algebra,
    losses,
    ninth,
    ninth_moves,
    ninth_pictures,
    ninth_values,
    norms,
    optimizers,
    pointwise,
    random_numbers,
    recent,
    recent_moves,
    reductions,
    seventh,
    seventh_moves,
    seventh_values,
    sixth,
    sixth_moves,
    sixth_values,
    special_values,
)
from benchmarks.reported.fault import REPORTED, ReportedFault, Work

__all__ = [
    "REPORTED", "ReportedFault", "Work", "attention", "blocks", "convolutions", "copies", "eighth", "eighth_moves",
    "eighth_pictures", "eighth_values", "indexing", "later", "latest", "layouts", "legal", "linear_algebra", "losses",
    "ninth", "ninth_moves", "ninth_pictures", "ninth_values", "norms", "optimizers", "pointwise", "random_numbers",
    "recent", "recent_moves", "reductions", "seventh", "seventh_moves", "seventh_values", "sixth", "sixth_moves",
    "sixth_values", "special_values",
]  # fmt: skip
