"""Ops that torch has under two names: the facts of either (catalogue.py) are those of both."""

from __future__ import annotations

ALIASES = {
    "arccos": "acos", "arccosh": "acosh", "arcsin": "asin", "arcsinh": "asinh", "arctan": "atan", "arctan2": "atan2",
    "arctanh": "atanh", "fix": "trunc", "greater": "gt", "greater_equal": "ge", "igamma": "special.gammainc",
    "igammac": "special.gammaincc", "inverse": "linalg.inv", "less": "lt", "less_equal": "le",
    "matrix_exp": "linalg.matrix_exp", "matrix_power": "linalg.matrix_power", "not_equal": "ne",
    "orgqr": "linalg.householder_product", "pinverse": "linalg.pinv", "sigmoid": "special.expit",
}  # fmt: skip
