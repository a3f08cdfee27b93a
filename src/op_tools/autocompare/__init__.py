"""OpAutoCompare: is a result right? In reading order:

tool.py          OpAutoCompare: chooses a strategy, and sends calls to it; turns.py: which calls a step takes
strategy.py      what all strategies share: a call in progress, and calls that wait for their gradients
on_host.py       the reference is computed by the CPU; in_workers.py: by other processes (workers/)
on_device.py     by the device itself; by_identities.py: there is none, results are proven (identities/)
arguments.py     what a call was given; foreach_lists.py: lists of tensors as one tensor each
shared_memory.py which of its tensors lie in the same memory; clones.py: copies of them on their device
observed.py      one call with all values to be compared, and the walk over them
examiner.py      compares one call (reference/, judging/), formats it, saves it if it is wrong
views.py         ops that compute nothing; without_dropout.py: ops with dropout inside, run again with known masks
                 (drawn_masks.py), or without
checkpointed.py  calls that checkpointing runs twice
report.py        the whole run: the CSV file and the summary; call_tables.py: what is printed of one call
histograms.py    of values of wrong calls, for the page
"""
