"""OpCapture: saves what a call saw.

tool.py          OpCapture; collectives.py: calls that are saved once the program has waited for them
copies.py        copies of tensors that wait to be written
statistics.py    the mode "statistics": a few numbers of each tensor
descriptions.py  what is written once of a place in the program; notes.py: what is noted at every call
repeats.py       tensors that are what they were, and not digested again
pieces.py        parts of a rank's tensors, for sketches that add up over ranks; placements.py: where a DTensor lies
outside.py       the model's weights, and each step's first inputs
"""
