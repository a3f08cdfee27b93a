"""Seeing calls and handing them to the tools. In reading order, the way of one call first:

session.py             sees a call of torch's API, in a function mode; what modes do not see is further below
plan.py                which tools the calls of one op go through
route.py               before, the op, after; which calls are left alone
call.py                OpCall, the record of one call
where.py               its line and module; source_line.py: that line as text, and ops run in its name
gradients.py           finds an op's edges in autograd's graph, and hears what flows there
watcher.py             what the core calls of a tool; tool.py: what users start and stop
features.py            apply_feature; spelling.py: misspelt names of variables and ops
guard.py               a tool's own failure never ends the program; modes.py: no mode sees a tool's own ops
running.py             all tools at work; steps.py: which step it is
termination.py         SIGTERM; interruption.py: what must wait until the program is between two lines
autograd_functions.py  calls of autograd.Function.apply, and Python code that backward runs
third_party.py         functions that torch does not dispatch; graphs.py: CUDA graphs
compiled_code.py       the user's lines in compiled code; dynamo.py: torch.compile does not compile ours
inductor.py            fused kernels, as calls; fused_regions.py: which calls a graph is cut into;
                       generated_source.py: which kernels compute them
exemptions.py          functions of torch that run without our mode: optimizers.py, fast_paths.py
module_calls.py        hears of calls of modules; backward_passes.py: of backward passes
"""
