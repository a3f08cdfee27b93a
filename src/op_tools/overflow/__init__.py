"""OpOverflowCheck: the first op that makes NaN or Inf out of finite numbers.

tool.py      OpOverflowCheck: what a call is judged to have done
intent.py    what an op means to do: an infinity that the user wrote is no fault
calls.py     a call until it is judged, and the window in which the device looks at many
checks.py    fills windows and reads their answers; finite.py: how the device finds NaN and Inf
known.py     tensors that have been looked at already
findings.py  what was found, and its tables; statistics.py: the numbers of a tensor in them
spread.py    which calls it reached from there
dump.py      saves the inputs of a guilty call
"""
