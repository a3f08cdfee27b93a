"""Misuse: each of some sixty kinds has a message that says what to do, and leaves the process as it was.

conftest.py checks after each test that nothing was left behind: no mode, no patch, no thread, no signal handler.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import cProfile
import os
import pickle
import re
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.utils.checkpoint
from torch import nn

import op_tools
from op_tools.core import running
from op_tools.errors import CaptureError, SettingError, UnknownOpError
from op_tools.output.writer import Writer

TOOLS = ("OpAutoCompare", "OpCapture", "OpDtypeCast", "OpFallback", "OpObserve", "OpOverflowCheck", "OpTimeMeasure")


@pytest.fixture(autouse=True)
def _the_process_works_as_before(device):
    """Signals are as they were; an op runs, and a tool sees it."""
    ignored = signal.signal(signal.SIGINT, signal.default_int_handler)  # in a job in the background
    before = signal.getsignal(signal.SIGTERM), sys.getprofile()
    yield
    signal.signal(signal.SIGINT, ignored)
    assert (signal.getsignal(signal.SIGTERM), sys.getprofile()) == before
    x = torch.ones(3, device=device)
    for name in [name for name in os.environ if name.startswith("OP_") or "AUTOCOMPARE" in name]:
        del os.environ[name]
    with op_tools.OpOverflowCheck(verbose=0) as tool:
        x / 0
    assert [finding.name for finding in tool.found] == ["torch.Tensor.div"]


# ---- arguments that cannot be ----------------------------------------------------------------------------------------

WRONG_ARGUMENTS = [
    ({"ops": 5}, "5 is no list of ops: give full names, such as 'torch.Tensor.add', or functions"),
    ({"ops": [5]}, "5 is no op: give its full name, such as 'torch.Tensor.add', or the function itself"),
    ({"ops": b"torch.add"}, "b'torch.add' is no list of ops: give full names"),
    ({"ops": "torch.add,(sub"}, "'(sub' is neither a name nor a regular expression"),
    ({"skip": [None]}, "None is no op: give its full name"),
    ({"out": 5}, "out=5 cannot be used: it must be the path of a folder"),
    ({"out": "a\0b"}, "out='a\\x00b' cannot be used: it must be the path of a folder"),
    ({"steps": "all"}, "steps='all' cannot be used: it must be numbers and ranges, such as 0,10-12 or 100-"),
    ({"steps": "5-2"}, "the range 5-2 runs backwards"),
    ({"steps": 5}, "steps=5 cannot be used: give numbers and ranges such as '0,10-12', a range, or a set of numbers"),
    ({"steps": ["0-1"]}, "steps=['0-1'] cannot be used: give numbers and ranges"),
    ({"steps": iter([1])}, "cannot be used: give numbers and ranges"),
    ({"ranks": "first"}, "ranks='first' cannot be used: it must be numbers and ranges"),
    ({"ranks": 3}, "ranks=3 cannot be used: give numbers and ranges"),
    ({"verbose": 3}, "verbose=3 cannot be used: it must be 0, 1 or 2"),
    ({"verbose": "loud"}, "verbose='loud' cannot be used: it must be 0, 1 or 2"),
    ({"condition": "x > 0"}, "the condition 'x > 0' cannot be called: give a function of the op's own arguments"),
    ({"step": "0-1"}, "got an unexpected keyword argument 'step'; did you mean steps? help({tool}) lists them"),
]


def test_arguments_without_their_names():
    with pytest.raises(
        SettingError, match=r"too many positional arguments; they are given by name, such as ops=\.\.\."
    ):
        op_tools.OpCapture("torch.add", 3)


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize(("arguments", "said"), WRONG_ARGUMENTS, ids=lambda value: str(value)[:30])
def test_an_argument_of_every_tool(tool, arguments, said):
    with pytest.raises(SettingError, match=re.escape(said.format(tool=tool))):
        getattr(op_tools, tool)(**arguments).start()


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        (
            "OpAutoCompare",
            {"reference": "gpu"},
            "reference='gpu' cannot be used: it is one of cpu, device,",
        ),
        ("OpAutoCompare", {"every": 0}, "every=0 cannot be used: it is a whole number, 1 or more"),
        ("OpAutoCompare", {"worker": -1}, "worker=-1 cannot be used: it is a whole number, 0 or more"),
        ("OpAutoCompare", {"worker": 1, "reference": "device"}, "worker= needs reference='cpu'"),
        ("OpAutoCompare", {"memory": "much"}, "memory='much' cannot be used"),
        ("OpAutoCompare", {"once": "yes"}, "once='yes' cannot be used: it must be 0 or 1"),
        ("OpAutoCompare", {"fail": "no"}, "fail='no' cannot be used: it must be 0 or 1"),
        ("OpCapture", {"mode": "stats"}, "mode='stats' cannot be used: it must be one of data, statistics"),
        ("OpCapture", {"memory": "much"}, "memory='much' cannot be used: it must be a number of bytes, such as"),
        ("OpDtypeCast", {"casts": "half to float"}, "half to float"),
        (
            "OpDtypeCast",
            {"casts": [torch.half]},
            "give a dictionary of dtypes, or text such as torch.float16->torch.float",
        ),
        ("OpDtypeCast", {"casts": {torch.half: torch.int32}}, "would turn floating numbers into whole ones"),
        ("OpDtypeCast", {"casts": {"half": "float"}}, "'half': 'float' are not both dtypes"),
        ("OpFallback", {"auto": "yes"}, "auto='yes' cannot be used: it must be 0 or 1"),
        ("OpOverflowCheck", {"action": "halt"}, "action='halt' cannot be used: it must be one of continue, stop, dump"),
        ("OpTimeMeasure", {"trace_events": -1}, "trace_events=-1 cannot be used: it must be a whole number, 0 or"),
    ],
)
def test_an_argument_of_one_tool(tool, arguments, said):
    with pytest.raises(SettingError, match=re.escape(said)):
        getattr(op_tools, tool)(**arguments).start()


def test_a_wrong_argument_does_not_spoil_later_tools(device):
    """steps="0-1" was taken for a container of characters, and every later start in the process failed."""
    x = torch.ones(3, device=device)
    for steps in ("0-1", [0], None):
        with op_tools.OpTimeMeasure(steps=steps, verbose=0):
            x.relu()
    with pytest.raises(SettingError):
        op_tools.OpTimeMeasure(steps="never").start()
    with op_tools.OpTimeMeasure(verbose=0):
        x.relu()


# ---- decorators ------------------------------------------------------------------------------------------------------


def test_a_decorator_without_brackets():
    with pytest.raises(SettingError, match=r"as a decorator it is @OpCapture\(\), with brackets"):

        @op_tools.OpCapture
        def work():
            """Not watched."""


def generator():
    yield 1


async def coroutine():
    """Runs in pieces."""


@pytest.mark.parametrize(
    ("decorated", "said"),
    [
        (nn.Linear, r"@OpObserve\(\) is for functions, and <class .*Linear'> is none"),
        (5, r"@OpObserve\(\) is for functions, and 5 is none"),
        (generator, r"cannot watch generator, which runs in pieces: write `with OpObserve\(\):` inside it"),
        (coroutine, r"cannot watch coroutine, which runs in pieces: write `with OpObserve\(\):` inside it"),
    ],
)
def test_a_decorator_of_what_is_no_plain_function(decorated, said):
    with pytest.raises(SettingError, match=said):
        op_tools.OpObserve()(decorated)


# ---- variables -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool", "variable", "value", "said"),
    [
        ("OpCapture", "OP_TOOLS_VERBOSE", "loud", "it must be 0, 1 or 2"),
        ("OpCapture", "OP_TOOLS_STEPS", "all", "it must be numbers and ranges, such as 0,10-12 or 100-"),
        ("OpCapture", "OP_TOOLS_RANKS", "-1", "it must be numbers and ranges"),
        ("OpCapture", "OP_CAPTURE_LIST", "(add", "'(add' is neither a name nor a regular expression"),
        ("OpCapture", "OP_CAPTURE_DISABLE_LIST", "*", "'*' is neither a name nor a regular expression"),
        ("OpCapture", "OP_CAPTURE_MEMORY", "0", "it must be a number of bytes"),
        ("OpAutoCompare", "AUTOCOMPARE_ERROR_TOLERANCE", "tight", "tight"),
        ("OpDtypeCast", "OP_DTYPE_CAST_DICT", "half to float", "half to float"),
        ("OpOverflowCheck", "OP_OVERFLOW_CHECK_ACTION", "halt", "it must be one of continue, stop, dump"),
    ],
)
def test_a_variable_that_cannot_be(monkeypatch, tool, variable, value, said):
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingError, match=re.escape(said)) as error:
        getattr(op_tools, tool)().start()
    assert variable in str(error.value)


def test_a_variable_that_is_spoilt_between_stop_and_start(monkeypatch, device, capsys):
    tool = op_tools.OpObserve(verbose=0).start()
    monkeypatch.setenv("OP_OBSERVE_LIST", "(")
    torch.ones(3, device=device) * 2  # a running tool goes by what it was started with
    tool.stop()
    with pytest.raises(SettingError, match=re.escape("'(' is neither a name nor a regular expression")):
        tool.start()
    monkeypatch.delenv("OP_OBSERVE_LIST")
    tool.start().stop()


@pytest.mark.parametrize(
    ("variable", "hint"),
    [
        ("OP_CAPTUR_LIST", "did you mean OP_CAPTURE_LIST?"),
        ("OP_CAPTURE_DISABLED_LIST", "did you mean OP_CAPTURE_DISABLE_LIST?"),
        ("OP_TOOL_VERBOSE", "did you mean OP_TOOLS_VERBOSE?"),
        ("OP_TOOLS_STEP", "did you mean OP_TOOLS_STEPS?"),
        ("OP_TOOLS_COLOUR", "docs/settings.md lists those that are."),
        ("AUTOCOMPARE_ERROR_TOLERANCE_FP16", "did you mean AUTOCOMPARE_ERROR_TOLERANCE_FLOAT16?"),
        ("LINEAR_OP_DTYPE_CAST_DCIT", "did you mean OP_DTYPE_CAST_DICT?"),
    ],
)
def test_a_variable_that_is_misspelt(monkeypatch, device, capsys, variable, hint):
    monkeypatch.setenv(variable, "torch.Tensor.add")
    for _ in range(2):  # once in a process
        with op_tools.OpObserve():
            torch.ones(3, device=device)
    assert capsys.readouterr().err == f"op_tools: the variable {variable} is set, and no tool reads it; {hint}\n"


@pytest.mark.parametrize(
    "variable",
    ["LINEAR_AUTOCOMPARE_ERROR_TOLERANCE_FLOAT16", "LINEAR_OP_DTYPE_CAST_DICT", "OP_SERVICE_ACCOUNT_TOKEN", "OPENBLAS"],
)
def test_a_variable_that_is_right_or_somebody_elses(monkeypatch, device, capsys, variable):
    monkeypatch.setenv(variable, "1e-3,1e-3")
    with op_tools.OpObserve():
        torch.ones(3, device=device)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("entry", "hint"),
    [
        ("torch.Tensor.ad", "did you mean torch.Tensor.a"),
        ("torch.nn.functional.liner", "did you mean torch.nn.functional.linear"),
        ("linear", "did you mean torch.nn.functional.linear"),
        ("F.linear", "did you mean torch.nn.functional.linear"),
        ("aten.no_such_op", "Names are full"),
    ],
)
@pytest.mark.parametrize("which", ["LIST", "DISABLE_LIST"])
def test_an_entry_of_a_list_that_is_misspelt(monkeypatch, device, capsys, entry, hint, which):
    monkeypatch.setenv(f"OP_OBSERVE_{which}", f"torch.Tensor.mul,{entry}")
    tool = op_tools.OpObserve().start()
    said = capsys.readouterr().err
    assert said.startswith(f"op_tools: OpObserve: no op is called {entry} (OP_OBSERVE_LIST or OP_OBSERVE_DISABLE_LIST)")
    assert hint in said
    assert said.count("\n") == 1
    torch.ones(3, device=device) * 2
    tool.stop()


@pytest.mark.parametrize("entry", ["torch.Tensor.add", "torch.ones", "aten.mm", "my_package.function", r"torch\..*"])
def test_an_entry_that_may_be_right(device, capsys, entry):
    tool = op_tools.OpObserve(ops=entry).start()
    assert capsys.readouterr().err == ""
    tool.stop()


@pytest.mark.parametrize("way", ["variable", "argument"])
def test_an_empty_list(monkeypatch, device, capsys, way):
    monkeypatch.setenv("OP_OBSERVE_LIST", "" if way == "variable" else "torch.Tensor.mul")
    with op_tools.OpObserve(ops=[] if way == "argument" else None):
        torch.ones(3, device=device) * 2
    captured = capsys.readouterr()
    assert "its list of ops is empty" in captured.err
    assert "and selects nothing; leave it unset to select every op" in captured.err
    assert "forward_id" not in captured.out


# ---- apply_feature ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        (("torch.add", "fall_back"), AssertionError, "'fall_back' is no feature; these are: fallback, cast_dtype"),
        (("torch.add", None), AssertionError, "None is no feature; these are: fallback"),
        (("", "fallback"), ValueError, "ops is empty: give an op's full name"),
        (([[], ()], "fallback"), ValueError, "ops is empty: give an op's full name"),
        (("torch.nn.functional.liner", "fallback"), UnknownOpError, "did you mean torch.nn.functional.linear"),
        ((5, "fallback"), UnknownOpError, "5 is no op"),
        (("torch.pi", "fallback"), UnknownOpError, "'torch.pi' is no op: it is a float, which cannot be called"),
        ((nn.Linear(1, 1), "fallback"), UnknownOpError, "Linear is a class and no op: name one of its methods, such"),
        (("torch.nn.Linear", "fallback"), UnknownOpError, "Linear is a class and no op"),
        ((lambda x: x, "fallback"), UnknownOpError, "cannot be replaced: it is not found under its own name"),
        (("torch.add", "fallback", True), SettingError, "the condition True cannot be called"),
    ],
)
def test_apply_feature(arguments, error, said):
    with pytest.raises(error, match=re.escape(said)):
        op_tools.apply_feature(*arguments)


def test_a_handle_that_is_removed_twice_and_elsewhere(device, capsys):
    x = torch.ones(3, device=device)
    first, second = (op_tools.apply_feature("torch.add", "dump_op_args") for _ in range(2))
    torch.add(x, x)
    in_thread(first.remove)
    first.remove()
    torch.add(x, x)
    second.remove()
    torch.add(x, x)
    assert seen(capsys) == 3


# ---- the order of start and stop, and threads ------------------------------------------------------------------------


def in_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def seen(capsys):
    return capsys.readouterr().out.count("forward_id: ")


@pytest.mark.parametrize("tool", TOOLS)
def test_stop_without_start_start_twice_and_stop_twice(tool, device):
    made = getattr(op_tools, tool)(verbose=0)
    made.stop()
    made.start()
    made.start()
    torch.ones(3, device=device) * 2
    made.stop()
    made.stop()
    made.end()


def test_one_tool_in_two_with_blocks(device, capsys):
    x = torch.ones(3, device=device)
    tool = op_tools.OpObserve(ops="torch.Tensor.mul")
    with tool:
        with tool:
            x * 2
        x * 2
    x * 2
    assert seen(capsys) == 2


def test_tools_stopped_in_the_order_of_their_start(device, capsys):
    first, second = op_tools.OpObserve(), op_tools.OpTimeMeasure()
    first.start()
    second.start()
    first.stop()
    torch.ones(3, device=device) * 2
    second.stop()
    assert seen(capsys) == 0


def test_a_tool_stopped_in_another_thread(device, capsys):
    x = torch.ones(3, device=device)
    tool = op_tools.OpObserve().start()
    x * 2
    in_thread(tool.stop)
    x * 2
    assert torch._C._len_torch_function_stack() == 0
    assert seen(capsys) == 1


def test_a_tool_started_in_a_thread_that_has_ended(device):
    tool = op_tools.OpObserve(verbose=0)
    in_thread(tool.start)
    tool.stop()


def test_a_tool_started_in_several_threads_at_once(monkeypatch):
    """Only the first one starts it; a second start was never stopped."""
    original = op_tools.OpObserve.started
    monkeypatch.setattr(op_tools.OpObserve, "started", lambda tool: (time.sleep(0.05), original(tool))[1])
    tool = op_tools.OpObserve(verbose=0)
    threads = [threading.Thread(target=tool.start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tool.stop()


@pytest.mark.parametrize("stopped", ["in the next backward pass", "after it"])
@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_started_in_backward(tool, stopped, device, capsys):
    """Autograd puts the stack of modes back after each node: the tool was on for good, and saw nothing."""
    x = torch.ones(3, device=device, requires_grad=True)
    made = getattr(op_tools, tool)(verbose=0)
    for change in (made.start, made.stop):
        y = x * 2
        y.register_hook(lambda gradient, change=change: (change(), gradient)[1])
        y.sum().backward()
        if stopped == "after it":
            made.stop()
    assert torch.equal(x.grad.cpu(), torch.full((3,), 4.0))
    assert capsys.readouterr().err == (
        f"op_tools: {tool} was started inside a backward pass and has seen no more than the rest of one of its nodes: "
        "start it before backward() is called\n"
    )


def test_a_tool_in_what_backward_computes_again(device, capsys):
    x = torch.ones(3, device=device, requires_grad=True)

    def layer(x):
        with op_tools.OpObserve(ops="torch.Tensor.mul"):
            return (x * 2).exp()

    torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False).sum().backward()
    captured = capsys.readouterr()
    assert (captured.out.count("forward_id: "), captured.err) == (2, "")


def test_the_end_of_a_with_block_without_its_beginning(device):
    tool = op_tools.OpObserve(verbose=0)
    tool.__exit__(None, None, None)
    tool.start()
    tool.__exit__(None, None, None)  # who has not entered does not stop it
    assert torch._C._len_torch_function_stack() == 1
    tool.stop()


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda tool: pickle.loads(pickle.dumps(tool))])
def test_a_copy_of_a_tool(device, capsys, copied):
    tool = op_tools.OpObserve(ops="torch.Tensor.mul")
    other = copied(tool)
    with tool, other:
        torch.ones(3, device=device) * 2
    assert seen(capsys) == 2


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda tool: pickle.loads(pickle.dumps(tool))])
def test_a_copy_of_a_tool_that_runs_or_has_run(tool, copied, device):
    """Its files, threads and locks are not the copy's: that one has the arguments, and begins anew."""
    x = torch.ones(3, device=device)
    with getattr(op_tools, tool)(ops="torch.Tensor.mul", verbose=0) as made:
        x * 2
        other = copied(made)
        assert (list(other.results), other.results.calls) == ([], 0)
    assert (list(copied(made).results), copied(made).results.calls) == ([], 0)
    with other:
        x * 2
        x + 2
    assert other.results.calls == made.results.calls


@pytest.mark.parametrize("tool", TOOLS)
def test_results_before_the_start(tool):
    results = getattr(op_tools, tool)().results
    assert (list(results), results.calls) == ([], 0)


def test_a_process_that_forks_while_a_tool_is_on(device):
    tool = op_tools.OpTimeMeasure(verbose=0).start()
    x = torch.ones(3, device=device) * 2
    child = os.fork()
    if child == 0:
        ended = 1
        try:
            tool.stop()
            ended = torch._C._len_torch_function_stack()
        finally:
            os._exit(ended)
    assert os.waitpid(child, 0)[1] == 0
    x * 2
    tool.stop()


def test_a_handler_for_sigterm_that_is_set_while_a_tool_is_on():
    before = signal.getsignal(signal.SIGTERM)

    def own(number, frame):
        """The program's."""

    tool = op_tools.OpObserve(verbose=0).start()
    signal.signal(signal.SIGTERM, own)
    tool.stop()
    assert signal.getsignal(signal.SIGTERM) is own
    signal.signal(signal.SIGTERM, before)


def test_a_tool_stopped_by_its_own_condition(device):
    x = torch.ones(3, device=device)
    tool = op_tools.OpObserve(ops="torch.Tensor.mul", condition=lambda *args: tool.stop())
    tool.start()
    assert torch.equal((x * 2).cpu(), torch.full((3,), 2.0))
    x * 2
    assert torch._C._len_torch_function_stack() == 0


def test_a_condition_that_takes_other_arguments(device, capsys):
    x = torch.ones(3, device=device)
    with op_tools.OpObserve(ops="torch.Tensor.mul", condition=lambda: True):
        assert torch.equal((x * 2).cpu(), torch.full((3,), 2.0))
    assert "the condition for OpObserveHook on torch.Tensor.mul raised TypeError" in capsys.readouterr().err


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, SystemExit])
def test_an_error_inside_the_with_block(device, error):
    def fail():
        torch.ones(3, device=device) * 2
        raise error

    with pytest.raises(error), op_tools.OpTimeMeasure(verbose=0), op_tools.OpCapture(verbose=0):
        fail()


def press_ctrl_c(monkeypatch, owner, name, times):
    """The first time that this function is called."""
    function, pressed = getattr(owner, name), []

    def pressing(*arguments):
        while len(pressed) < times:
            pressed.append(None)
            signal.raise_signal(signal.SIGINT)
        return function(*arguments)

    monkeypatch.setattr(owner, name, pressing)


@pytest.mark.parametrize(
    ("tool", "arguments"), [*((tool, {}) for tool in TOOLS), ("OpCapture", {"mode": "statistics"})], ids=str
)
def test_ctrl_c_while_a_tool_stops(tool, arguments, device, capsys, monkeypatch):
    """It is raised when all is written."""
    x = torch.ones(3, device=device)
    stopped = getattr(op_tools, tool)(ops="torch.Tensor.mul", verbose=1, **arguments).start()
    for _ in range(50):
        x * 2
    press_ctrl_c(monkeypatch, os, "write", 1)  # which tells the thread that hears SIGTERM to end
    with pytest.raises(KeyboardInterrupt):
        stopped.stop()
    said = f"op_tools: {tool} writes what it has, then Ctrl-C ends the program; once more, and it does so now\n"
    assert capsys.readouterr().err == said
    assert stopped.results.calls == (0 if tool == "OpDtypeCast" else 50)  # nothing is to be cast
    if tool == "OpCapture" and not arguments:
        assert len(list(Path().rglob("output.pth"))) == 50


def test_ctrl_c_at_the_programs_end(device, capsys, monkeypatch):
    """All tools are stopped before it is raised."""
    for tool in TOOLS:
        getattr(op_tools, tool)(ops="torch.Tensor.mul", verbose=0).start()
    torch.ones(3, device=device) * 2
    press_ctrl_c(monkeypatch, Writer, "_end_threads", 1)
    with pytest.raises(KeyboardInterrupt):
        running.stop_everything()
    assert torch._C._len_torch_function_stack() == 0
    assert len(list(Path().rglob("output.pth"))) == 1


def test_ctrl_c_twice_while_a_tool_stops(device, capsys, monkeypatch):
    """Nobody waits any more; the thread that writes does what is left, and ends."""
    x = torch.ones(3, device=device)
    stopped = op_tools.OpCapture(ops="torch.Tensor.mul", verbose=0).start()
    for _ in range(50):
        x * 2
    press_ctrl_c(monkeypatch, Writer, "_end_threads", 2)
    with pytest.raises(KeyboardInterrupt):
        stopped.stop()
    monkeypatch.undo()
    for thread in threading.enumerate():
        if thread.name.startswith("OpCapture writer"):
            thread.join(60)


def test_ctrl_c_twice_before_the_writer_is_closed_loses_nothing(run_python):
    """What the writer was given is written before the process ends, by Ctrl-C as without a tool."""
    program = """
        import signal, time, torch
        from ditorch import sim
        sim.start()
        import op_tools
        from op_tools.output.writer import Writer
        write, close = Writer._do, Writer.close

        def slowly(self, work):
            time.sleep(0.01)
            write(self, work)

        def pressed_twice(self):
            Writer.close = close
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

        signal.signal(signal.SIGINT, signal.default_int_handler)
        Writer._do, Writer.close = slowly, pressed_twice
        x = torch.ones(3, device="sim")
        tool = op_tools.OpCapture(ops="torch.Tensor.mul", out=".").start()
        for _ in range(50):
            x * 2
        tool.stop()
    """
    done = run_python(program, check=False)
    assert done.returncode == -signal.SIGINT
    assert done.stderr.endswith("\nKeyboardInterrupt\n")
    names = [torch.load(path, weights_only=True)["name"] for path in Path().rglob("output.pth")]
    assert names == ["torch.Tensor.mul"] * 50


def start_and_stop_by_signals(tool, work, times):
    """The handler starts and stops the tool in turn, as one does to look into a run that goes on."""
    count = 0

    def toggle(number, frame):
        nonlocal count
        count += 1
        tool.start() if count % 2 else tool.stop()

    before = signal.signal(signal.SIGUSR1, toggle)
    is_over = threading.Event()

    def send():
        for _ in range(times):
            signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
            is_over.wait(0.01)
        is_over.set()

    thread = threading.Thread(target=send)
    thread.start()
    try:
        while not is_over.is_set():
            work()
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, before)
    tool.stop()


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("tool", "arguments"), [*((tool, {}) for tool in TOOLS), ("OpCapture", {"mode": "statistics"})], ids=str
)
def test_a_tool_started_and_stopped_in_a_signal_handler(tool, arguments, device):
    """The handler comes in the middle of the tools' own work, in the thread that holds their locks."""
    x = torch.ones(3, device=device, requires_grad=True)
    start_and_stop_by_signals(
        getattr(op_tools, tool)(verbose=0, **arguments), lambda: (x * 2).exp().mean().backward(), 60
    )
    x * 2
    assert torch._C._len_torch_function_stack() == 0


def test_a_tool_stopped_in_a_signal_handler_is_stopped_when_it_returns(device):
    """In the program's own code nothing is put off."""
    tool = op_tools.OpTimeMeasure(verbose=0).start()
    torch.ones(3, device=device) * 2
    before = signal.signal(signal.SIGUSR1, lambda number, frame: tool.stop())
    signal.raise_signal(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)
    assert torch._C._len_torch_function_stack() == 0
    assert tool.results.calls == 2


def test_a_tool_stopped_elsewhere_while_a_profiler_is_on(device):
    """Python has one hook for profilers: what needs it is done once it is free."""
    x = torch.ones(3, device=device)
    tool = op_tools.OpObserve(verbose=0).start()
    x * 2
    profile = cProfile.Profile()
    profile.enable()
    in_thread(tool.stop)
    x * 2
    profile.disable()
    x * 2
    assert torch._C._len_torch_function_stack() == 0


def test_an_op_at_the_limit_of_recursion(device, capsys):
    """To ask the device whether it has failed takes a few frames more: that is no failure of the device."""
    x = torch.ones(3, device=device)

    def descend():
        try:
            return descend()
        except RecursionError:
            return x * 2

    with op_tools.OpAutoCompare(verbose=0), op_tools.OpCapture(verbose=0):
        with contextlib.suppress(RecursionError):
            descend()
        x * 2
    assert "the device has failed" not in capsys.readouterr().err
    with op_tools.OpAutoCompare(verbose=0) as tool:
        x * 2
    assert tool.results.calls == 1


def test_tools_in_tasks_of_asyncio(device):
    x = torch.ones(3, device=device)

    async def work():
        with op_tools.OpObserve(ops="torch.Tensor.mul", verbose=0):
            for _ in range(3):
                x * 2
                await asyncio.sleep(0)

    async def everything():
        await asyncio.gather(work(), work(), work())

    asyncio.run(everything())
    assert torch._C._len_torch_function_stack() == 0


@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_a_generator_that_is_never_resumed(device, where):
    def watched():
        with op_tools.OpObserve(verbose=0):
            yield torch.ones(3, device=device) * 2

    kept = [watched()]
    next(kept[0])
    kept.clear() if where == "here" else in_thread(kept.clear)
    torch.ones(3, device=device) * 2
    assert torch._C._len_torch_function_stack() == 0


# ---- folders, steps and ranks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("out", ["a_file", "a_file/below", "/proc/nope"])
@pytest.mark.parametrize("tool", ["OpCapture", "OpTimeMeasure", "OpAutoCompare"])
def test_a_folder_that_cannot_be_written(tool, out, device, capsys, tmp_path):
    (tmp_path / "a_file").write_text("")
    with getattr(op_tools, tool)(out=out):
        torch.ones(3, device=device) * 2
    said = capsys.readouterr().err
    assert re.search(r"cannot (write|be written)", said)
    assert "training goes on" in said
    assert "RecursionError" not in said


def test_a_folder_that_goes_away(device, capsys):
    x = torch.ones(3, device=device)
    with op_tools.OpCapture(out="captures", verbose=0) as tool:
        x * 2
        shutil.rmtree("captures", ignore_errors=True)
        x * 3
    said = capsys.readouterr().err
    # a file that was being written just then is a disk that fails, which is said
    assert tool.results.calls == 2 or "it writes nothing more until it is started again" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("tool", ["OpCapture", "OpTimeMeasure", "OpAutoCompare"])
@pytest.mark.parametrize("way", ["argument", "variable"])
def test_a_program_that_changes_its_folder(tool, way, device, capsys, tmp_path, monkeypatch):
    """A relative folder is the one at the start: a program that goes elsewhere does not spread its results."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    if way == "variable":
        monkeypatch.setenv("OP_TOOLS_OUT", "results")
    with getattr(op_tools, tool)(out="results" if way == "argument" else None) as made:
        torch.ones(3, device=device) * 2
        os.chdir("elsewhere")
        torch.ones(3, device=device) * 2
    os.chdir(tmp_path)
    assert not list(Path("elsewhere").iterdir())
    root = Path("results")
    assert [path for path in root.rglob("*") if path.is_file()]
    assert made.results.files
    assert all(Path(file).is_absolute() for file in made.results.files)
    capsys.readouterr()
    with getattr(op_tools, tool)(out=root, verbose=2):
        torch.ones(3, device=device) * 2
    saved = [line for line in capsys.readouterr().out.splitlines() if "saved" in line]
    assert saved
    assert not [line for line in saved if str(tmp_path) in line]  # told from where the user stands


@pytest.mark.parametrize(
    ("folder", "said"),
    [
        ("nowhere", "nowhere holds no statistics: there is no such file or folder"),
        ("a_file", "a_file cannot be used: it holds no statistics that OpCapture wrote"),
        (".", 'there is no op_capture_statistics_*.pack below it. OpCapture(mode="statistics") makes them.'),
    ],
)
def test_statistics_that_are_not_there(folder, said):
    Path("a_file").write_text("something else")
    with pytest.raises(CaptureError, match=re.escape(said)):
        list(op_tools.read_statistics(folder))


def test_the_name_of_an_op_that_has_another_one(device, capsys):
    """torch.conv2d is torch.nn.functional.conv2d where a module calls it."""
    with op_tools.OpFallback(ops="torch.conv2d") as tool:
        nn.Conv2d(1, 1, 1).to(device)(torch.ones(1, 1, 2, 2, device=device))
    assert (
        "op_tools: OpFallback: no op that was called matches torch.conv2d (torch.nn.functional.conv2d was called) in "
        "its list (OP_FALLBACK_LIST)" in capsys.readouterr().err
    )
    (row,) = tool.results.not_looked_at
    assert row["reason"] == "no op that was called matches it (torch.nn.functional.conv2d was called)"


def test_a_name_that_no_file_system_takes(device, capsys, tmp_path, monkeypatch):
    names = ["f" + "x" * 400 + "a", "f" + "x" * 400 + "b"]
    (tmp_path / "long_names.py").write_text("".join(f"def {name}(x): return x * 2\n" for name in names))
    monkeypatch.syspath_prepend(tmp_path)
    import long_names

    features = [op_tools.apply_feature(f"long_names.{name}", "op_capture") for name in names]
    for name in names:
        getattr(long_names, name)(torch.ones(3, device=device))
    for feature in features:
        feature.remove()
    assert "cannot write" not in capsys.readouterr().err
    saved = {torch.load(path, weights_only=True)["name"] for path in Path().glob("op_tools_results/**/output.pth")}
    assert saved == {f"long_names.{name}" for name in names}


def test_a_limit_on_the_size_of_files(run_python):
    """As a quota has it: what was written is whole, and training goes on."""
    program = """
        import resource, torch
        from ditorch import sim
        sim.start()
        import op_tools
        x = torch.ones(64, 64, device="sim")
        with op_tools.OpCapture(), op_tools.OpTimeMeasure(verbose=0):
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
            for _ in range(30):
                x * 2
        print("trained")
    """
    done = run_python(program, check=False)
    assert done.returncode == 0, done.stderr
    assert "trained" in done.stdout
    assert "OpCapture cannot write" in done.stderr
    assert "Traceback" not in done.stderr


def test_steps_and_ranks_that_never_come(device, capsys):
    with op_tools.OpObserve(steps="10-12"), op_tools.OpTimeMeasure(ranks="5"):
        torch.ones(3, device=device) * 2
    said = capsys.readouterr().err
    assert "OpObserve looked at nothing: no step of steps=10-12 (OP_TOOLS_STEPS) came; none was counted" in said
    assert "OpTimeMeasure looks at nothing: none of the 1 rank(s) of this run is in ranks=5" in said


# ---- the end of the program ------------------------------------------------------------------------------------------

PROGRAM = """
    import os, signal, sys, time
    import torch
    from ditorch import sim
    sim.start()
    import op_tools
    signal.signal(signal.SIGINT, signal.default_int_handler)
    x = torch.ones(3, device="sim")
    op_tools.OpTimeMeasure().start()
    x * 2
    {end}
"""


def test_a_tool_started_by_a_function_for_the_programs_end(run_python):
    """One that comes after ours: nobody will stop the tool."""
    program = """
        import atexit
        def late():
            op_tools.OpTimeMeasure().start()
            x * 2
        atexit.register(late)
        import torch
        from ditorch import sim
        sim.start()
        import op_tools
        x = torch.ones(3, device="sim")
    """
    done = run_python(program, check=False)
    assert done.returncode == 0, done.stderr
    assert "op_tools: OpTimeMeasure was started after the program's end: only stop() writes what it" in done.stderr


@pytest.mark.parametrize("closed", ["sys.stdout.close()", "os.close(1)", "sys.stdout = None", "sys.stderr = None"])
def test_a_program_without_output(run_python, closed):
    program = f"""
        import os, sys, torch
        from ditorch import sim
        sim.start()
        import op_tools
        {closed}
        with op_tools.OpTimeMeasure(), op_tools.OpCapture(out="/proc/nope"):
            torch.ones(3, device="sim") * 2
        open("trained", "w").close()
        os._exit(0)
    """
    done = run_python(program, check=False)
    assert done.returncode == 0, done.stderr
    assert Path("trained").exists()
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("", 0),
        ("sys.exit(3)", 3),
        ("os.kill(os.getpid(), signal.SIGINT); time.sleep(60)", -signal.SIGINT),
        ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)", -signal.SIGTERM),
    ],
)
def test_a_program_that_ends_without_stop(run_python, end, status):
    done = run_python(PROGRAM.format(end=end), check=False)
    assert done.returncode == status
    assert "| torch.Tensor.mul |" in done.stdout
    assert "op elasped info saved to" in done.stdout
