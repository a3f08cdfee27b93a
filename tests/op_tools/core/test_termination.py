"""SIGTERM: the tools' summaries and whole files, and the exit status that it has without them."""

from __future__ import annotations

import json
import os
import signal
import textwrap
import threading

import pytest

import op_tools

BEGINNING = """
    import ctypes, os, signal, subprocess, sys, threading, time
    import torch
    from ditorch import sim
    sim.start()
    import op_tools

    x = torch.ones(3, device="sim", requires_grad=True)

    def work():
        (x * 2).sum().backward()

    def ready():
        subprocess.Popen(["sh", "-c", f"sleep 0.2; kill {os.getpid()}"])

    def wait():
        work()
        ready()
        while True:
            work()
"""


@pytest.fixture
def terminated(run_python):
    """Runs a program that gets SIGTERM from outside once it is ready, and returns its status and output."""

    def run(code):
        done = run_python(textwrap.dedent(BEGINNING) + textwrap.dedent(code), check=False)
        return done.returncode, done.stdout, done.stderr

    return run


def test_a_summary_and_a_whole_trace(terminated, tmp_path):
    status, output, error = terminated("op_tools.OpTimeMeasure().start(); wait()")
    assert status == -signal.SIGTERM, error
    assert "op elasped info saved to" in output
    assert "| torch.Tensor.mul |" in output
    trace = next(tmp_path.rglob("op_elasped_info_*.json"))
    assert {event["name"] for event in json.loads(trace.read_text())} >= {"torch.Tensor.mul", "torch.Tensor.sum"}


def test_functions_of_third_parties_have_theirs_as_well(terminated):
    status, output, _ = terminated("""
        def twice(x):
            return x * 2

        def work():
            twice(x)

        op_tools.apply_feature("__main__.twice", "measure_op_time")
        wait()
    """)
    assert status == -signal.SIGTERM
    assert "| __main__.twice |" in output


def test_a_main_thread_that_never_comes_back(terminated):
    """As in a collective that waits for a rank which is gone."""
    status, output, _ = terminated("""
        op_tools.OpTimeMeasure().start()
        work()
        ready()
        mutex = ctypes.create_string_buffer(64)  # no signal wakes who waits for it
        ctypes.CDLL(None).pthread_mutex_lock(mutex)
        ctypes.CDLL(None).pthread_mutex_lock(mutex)
    """)
    assert status == -signal.SIGTERM
    assert "| torch.Tensor.mul |" in output


def test_a_program_that_ends_at_that_very_moment(terminated):
    status, output, _ = terminated("""
        op_tools.OpTimeMeasure().start()
        work()
        ready()
        while not [thread for thread in threading.enumerate() if thread.name == "op_tools stop"]:
            time.sleep(0.001)
    """)
    assert status == -signal.SIGTERM
    assert "| torch.Tensor.mul |" in output


def test_a_tool_that_is_writing_its_report(terminated, tmp_path):
    status, output, _ = terminated("""
        from op_tools.output.writer import Writer

        def slowly(writer, close=Writer.close):
            ready()
            time.sleep(1)
            close(writer)

        Writer.close = slowly
        tool = op_tools.OpCapture(ops="torch.Tensor.mul").start()
        for _ in range(20):
            work()
        tool.stop()
        time.sleep(60)
    """)
    assert status == -signal.SIGTERM
    assert "OpCapture: 80 files of 20 calls" in output
    assert len(list(tmp_path.rglob("grad_inputs.pth"))) == 20


def test_the_programs_own_handler_is_kept(terminated):
    status, output, _ = terminated("""
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(7))
        op_tools.OpTimeMeasure().start()
        wait()
    """)
    assert status == 7
    assert "| torch.Tensor.mul |" in output


def test_a_handler_that_the_program_puts_in_place_of_ours(terminated):
    status, output, _ = terminated("""
        op_tools.OpTimeMeasure().start()
        def mine(number, frame):
            time.sleep(1)
            sys.exit(7)
        signal.signal(signal.SIGTERM, mine)
        wait()
    """)
    assert status == 7
    assert "| torch.Tensor.mul |" in output


def test_a_handler_that_the_program_puts_before_ours(terminated):
    status, output, _ = terminated("""
        op_tools.OpTimeMeasure().start()
        def mine(number, frame):
            print("checkpoint written", flush=True)
            before(number, frame)
        before = signal.signal(signal.SIGTERM, mine)
        wait()
    """)
    assert status == -signal.SIGTERM
    assert "checkpoint written" in output
    assert "| torch.Tensor.mul |" in output


def test_a_forked_worker_ends_at_once(terminated):
    status, output, _ = terminated("""
        op_tools.OpTimeMeasure().start()
        work()
        child = os.fork()
        if child == 0:
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL and signal.set_wakeup_fd(-1) == -1
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(1)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGTERM
        print("the child is gone")
        wait()
    """)
    assert status == -signal.SIGTERM
    assert "the child is gone" in output
    assert output.count("op elasped info saved to") == 1


def test_the_last_tool_leaves_no_handler(device):
    first, second = op_tools.OpObserve(verbose=0), op_tools.OpObserve(verbose=0)
    first.start()
    second.start()
    first.stop()
    assert callable(signal.getsignal(signal.SIGTERM))
    second.stop()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.set_wakeup_fd(-1) == -1
    assert not [thread for thread in threading.enumerate() if "SIGTERM" in thread.name]


def test_another_ones_pipe_for_signals_is_left_alone(device):
    """asyncio has one."""
    ends = os.pipe()
    os.set_blocking(ends[1], False)
    signal.set_wakeup_fd(ends[1])
    try:
        with op_tools.OpObserve(verbose=0):
            assert signal.set_wakeup_fd(ends[1]) == ends[1]
    finally:
        assert signal.set_wakeup_fd(-1) == ends[1]
        for end in ends:
            os.close(end)
