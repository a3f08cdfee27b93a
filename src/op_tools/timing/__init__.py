"""OpTimeMeasure: time of ops.

tool.py         OpTimeMeasure
timer.py        spans of calls on the host and the device
ledger.py       their table and sums; native_ledger.py: the same where C++ keeps it
signature.py    arguments as JSON
trace.py        the file for Perfetto
collectives.py  times of collectives
"""
