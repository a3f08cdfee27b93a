"""What is known about ops.

catalogue.py        every fact about an op, by its name; aliases.py: ops with two names
names.py            from a function to its name, and a name's forms; lookup.py: from a name to the function
selection.py        the lists that users give
silent_writes.py    arguments that an op changes without counting up their versions
distributions.py    what random ops draw
autocast_policy.py  what torch.autocast does; cast_tables.py: OP_DTYPE_CAST_DICT
purity.py           which ops a name in a file may run
"""
