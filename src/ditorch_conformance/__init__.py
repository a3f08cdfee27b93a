"""How good is this chip? PyTorch's own tests and its list of ops, run case by case; results, comparisons, profiles.

From a case to a page:

    worker.py        one process that runs cases when it is told to; unittest_file.py and ops/ are what it can run
    forked_children.py   what cases spawn, with the file imported (preloaded_file.py)
    process.py       the runner's end of such a process: time limit, memory limit, death
    executor.py      the cases of one shard, one after the other; a case that kills its worker costs only itself
    engines.py       shards side by side: threads of this machine; ray_engine.py: a cluster
    journal.py       every attempt, written as it comes: all that is needed to go on after a kill
    runner.py        discovery, first attempts, second attempts; selection.py: of which cases
    results.py       one result per case; tables.py, causes.py, summary.py, known.py, diff.py, page.py show them
    profiles.py      what a chip lacks and where it errs, distilled; `ditorch rehearse` makes sim behave like it

Only what runs in a worker imports torch.
"""
