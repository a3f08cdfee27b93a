"""Runs a program again and again until its fault has a name: `ditorch bisect`, `ditorch diagnose`. Imports no torch.

In reading order: losses.py (what a run's losses are, and how far two curves are apart), checks.py (what makes a run
good), trial.py (one run of the program, with some ops elsewhere), journal.py (what is known of trials that ended),
search.py (the smallest set of ops), bisection.py (which leads through all of these); stages.py (commands of ditorch,
one after the other), diagnosis.py (which leads through them).
"""
