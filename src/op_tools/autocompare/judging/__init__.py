"""Verdicts: errors, limits, and what excuses an error."""
