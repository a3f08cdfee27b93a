"""The op matrix: every entry of torch's own lists of ops, modules and optimizers, in every dtype, on one device.

    databases.py   the entries of op_db, python_ref_db, module_db and optim_db; samples.py: the calls of each
    moving.py      inputs are made on the CPU and brought to the device
    attempts.py    runs a call, or blames what kept it from running
    checks.py      one call, forward, backward, twice, in place, … judged by op_tools
    stream.py      the kernels that a call went through, and the one that raised; fallbacks.py: those that go to the CPU
    speed.py       how long a call takes there and on the CPU
    kernels.py     kernels in several sizes: their time, and the dtype of their sums
    suite.py       the cases of a worker: one entry in one dtype each; findings.py sums up its checks

Only recipe.py is imported outside of workers: it needs no torch.
"""
