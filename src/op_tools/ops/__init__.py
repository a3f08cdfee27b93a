"""What is known about ops.

catalogue.py        what an op is like, by its name: its traits; aliases.py: ops with two names
dimensions.py       along which dimensions it works
no_ops.py           what is no op at all
names.py            from a function to its name, and a name's forms; lookup.py: from a name to the function
selection.py        the lists that users give
silent_writes.py    arguments that an op changes without counting up their versions
distributions.py    what the numbers are like that random ops draw
autocast_policy.py  what torch.autocast does; cast_tables.py: OP_DTYPE_CAST_DICT
purity.py           which ops a name in a file may run
"""
