"""Graphs of references are made in a thread of their own: those of the program keep their order."""

from __future__ import annotations

import os
import threading

import pytest

from op_tools.autocompare.reference import graph_thread

# Of a process, the first sums count: later numbers of the main thread are far beyond those of autograd's.
PROGRAM = """
    import contextlib, hashlib, sys, torch
    from ditorch import sim
    sim.start()
    import op_tools
    torch.set_num_threads(1)
    depth, width, reference = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.manual_seed(0)
    weights = [(torch.randn(width, width) / width**0.5).to("sim").requires_grad_() for _ in range(depth)]
    shared = torch.randn(width).to("sim").requires_grad_()
    x = torch.randn(16, width).to("sim").requires_grad_()
    tool = op_tools.OpAutoCompare(verbose=0, reference=reference) if reference else contextlib.nullcontext()
    bits = hashlib.sha256()
    with tool:
        for step in range(3):
            hidden = x
            for weight in weights:
                hidden = torch.tanh(hidden @ weight + shared) * shared
            (first,) = torch.autograd.grad(hidden.sum(), x, create_graph=True)
            (second,) = torch.autograd.grad(first.square().sum() + hidden.square().mean(), x, create_graph=True)
            (first.square().sum() + second.square().mean() + hidden.square().mean()).backward()
            for tensor in (*weights, shared):
                bits.update(tensor.grad.cpu().numpy().tobytes())
    print(bits.hexdigest())
"""


@pytest.mark.parametrize(("depth", "width"), [(1, 4), (3, 4)])
def test_gradients_of_gradients_keep_their_bits(run_python, depth, width):
    plain, *watched = [
        run_python(PROGRAM, str(depth), str(width), reference, DITORCH_DISABLE_MOCK="1").stdout.splitlines()[-1]
        for reference in ("", "cpu", "device", "identities")
    ]
    assert watched == [plain] * 3


WITH_DROPOUT = """
    import contextlib, hashlib, sys, torch
    from ditorch import sim
    sim.start()
    import op_tools
    torch.set_num_threads(1)
    calls, reference = int(sys.argv[1]), sys.argv[2]
    torch.manual_seed(0)
    shared = torch.randn(4).to("sim").requires_grad_()
    x = torch.randn(3, 5, 4).to("sim").requires_grad_()
    layer = torch.nn.MultiheadAttention(4, 2, dropout=0.3, batch_first=True).to("sim")
    tool = op_tools.OpAutoCompare(verbose=0, reference=reference) if reference else contextlib.nullcontext()
    bits = hashlib.sha256()
    with tool:
        for step in range(2):
            hidden = torch.tanh(x * shared)
            for call in range(calls):
                hidden = layer(hidden, hidden, hidden)[0]
                hidden = torch.tanh(hidden * shared) if call < calls - 1 else hidden
            hidden = torch.tanh(hidden * shared) * shared
            (first,) = torch.autograd.grad(hidden.sum(), x, create_graph=True)
            (second,) = torch.autograd.grad(first.square().sum() + hidden.square().mean(), x, create_graph=True)
            (first.square().sum() + second.square().mean() + hidden.square().mean()).backward()
            for tensor in (*layer.parameters(), shared, x):
                bits.update(tensor.grad.cpu().numpy().tobytes())
    print(bits.hexdigest())
"""


def test_they_keep_their_bits_where_attention_drops_numbers(run_python):
    plain, *watched = [
        run_python(WITH_DROPOUT, "3", reference, DITORCH_DISABLE_MOCK="1").stdout.splitlines()[-1]
        for reference in ("", "cpu", "device", "identities")
    ]
    assert watched == [plain] * 3


@pytest.fixture
def begun():
    graph_thread.begin()
    yield
    graph_thread.end()


def test_errors_come_where_the_work_is_waited_for(begun):
    def fail():
        raise KeyError("graph")

    with pytest.raises(KeyError, match="graph"):
        graph_thread.run_there(fail)


def test_work_inside_of_work_runs_in_the_same_thread(begun):
    thread = graph_thread.run_there(lambda: graph_thread.run_there(threading.current_thread))
    assert thread.name == "OpAutoCompare graphs"


def test_it_works_on_the_device_and_the_stream_of_the_tensors(run_python):
    run_python(
        """
        import torch
        from ditorch import sim
        sim.start()
        from op_tools.autocompare.reference import graph_thread
        graph_thread.begin()
        x = torch.ones(2, device="sim:1")
        here = lambda: (torch.sim.current_device(), torch.sim.current_stream(1))
        with torch.sim.stream(torch.sim.Stream(1)):
            assert graph_thread.run_there(here, [x]) == (1, torch.sim.current_stream(1))
            assert torch.sim.current_stream(1) != torch.sim.default_stream(1)
        graph_thread.end()
        """,
        DITORCH_DISABLE_MOCK="1",
        DITORCH_SIM_DEVICES="2",
    )


def test_without_a_tool_there_is_no_other_thread():
    assert graph_thread.run_there(threading.current_thread) is threading.current_thread()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_process_has_a_thread_of_its_own(run_python):
    run_python(
        """
        import os
        from op_tools.autocompare.reference import graph_thread
        graph_thread.begin()
        assert graph_thread.run_there(os.getpid) == os.getpid()
        child = os.fork()
        if not child:
            os._exit(graph_thread.run_there(os.getpid) != os.getpid())
        assert os.waitpid(child, 0)[1] == 0
        """
    )
