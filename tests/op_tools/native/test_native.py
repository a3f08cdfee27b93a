"""The C++ helper. Where it cannot be had, everything works without; test_gradients and test_timing test both ways."""

from __future__ import annotations

import threading
import weakref

import pytest
import torch
from torch.nn import Parameter

import op_tools
from op_tools import native
from op_tools.timing import signature
from op_tools.values import tensors

from ..recorder import Recorder

PROGRAM = """
    import sys
    import torch
    from ditorch import sim
    import op_tools

    sim.start()
    x = torch.ones(3, device="sim", requires_grad=True)
    with op_tools.OpTimeMeasure(verbose=0), op_tools.OpObserve(verbose=0):
        x.exp().sum().backward()
    print(x.grad.tolist())
"""


def test_without_a_compiler_the_tools_go_on(run_python, tmp_path):
    """The simulated accelerator is in the cache already; the helper is not."""
    from ditorch.sim import build

    built = build.library()
    (tmp_path / built.name).symlink_to(built)
    done = run_python(PROGRAM, DITORCH_CACHE=str(tmp_path), CXX="no-such-compiler")
    assert done.stdout.splitlines()[-1] == str(torch.ones(3).exp().tolist())
    (said,) = [line for line in done.stderr.splitlines() if "fast path" in line]
    assert "C++ fast path unavailable (" in said
    assert "; using Python: same results, slower" in said
    assert "no C++ compiler was found (CXX=no-such-compiler)" in said
    assert "Traceback" not in done.stderr


def test_it_can_be_left_aside(run_python, tmp_path):
    from ditorch.sim import build

    built = build.library()
    (tmp_path / built.name).symlink_to(built)
    done = run_python(PROGRAM, DITORCH_CACHE=str(tmp_path), CXX="no-such-compiler", OP_TOOLS_NATIVE="0")
    assert "fast path" not in done.stderr


def test_a_hook_that_outlives_its_tool_does_nothing(device):
    x = torch.ones(3, device=device, requires_grad=True)
    with op_tools.OpTimeMeasure(verbose=0) as tool:
        y = x.exp()
    y.sum().backward()
    assert x.grad is not None
    assert tool._ledger.timer.unread() == 0


def test_threads_that_run_backward_at_once(device):
    """Each over a graph of its own, with what the hooks see counted."""
    seen = []

    class Counter(Recorder):
        def flowed(self, call, state, gradients):
            seen.append(call.name)

    def work():
        x = torch.ones(3, device=device, requires_grad=True)
        with Counter(verbose=0), op_tools.OpTimeMeasure(verbose=0):
            for _ in range(100):
                (x.exp() * x).sum().backward()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 4 * 100 * 3


def test_what_a_listener_raises_reaches_whoever_called_backward():
    helper = native.library()

    class Listener:
        def received(self, inputs, outputs):
            raise KeyError("from the hook")

    x = torch.ones(3, requires_grad=True)
    edges = helper.edges_of_inputs((x,), {})
    result = x.exp()
    edges.watch(result, Listener(), False, ())
    with pytest.raises(KeyError, match="from the hook"):
        result.sum().backward()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # of its own making
def test_compiled_autograd_leaves_the_hooks_out():
    """Its graphs hold no hook of the helper's; the gradients are those of the plain run."""
    compiled_autograd = pytest.importorskip("torch._dynamo.compiled_autograd")
    enable = getattr(compiled_autograd, "_enable", None) or compiled_autograd.enable
    x = torch.ones(3, requires_grad=True)
    edges = native.library().edges_of_inputs((x,), {})
    result = x.exp()
    timer = native.library().Timer(None, 0, None, None, None, 0, 1)
    assert edges.watch(result, None, False, (timer.begin(1, 0, "exp", "", "", (x,), {}),))
    with enable(lambda graph: graph):
        result.sum().backward()
    assert torch.equal(x.grad, x.detach().exp())


@pytest.mark.parametrize(
    "values",
    [
        (),
        (1, -2.5, 1e-7, True, None, "sum", 2**70, float("inf")),
        (torch.ones(2, 3), torch.ones(2, 3).t(), torch.ones(()), torch.ones(0, 4, dtype=torch.bfloat16)),
        ([torch.ones(1), torch.ones(2), torch.ones(3)], (1, 2), torch.Size((4, 5)), list(range(100))),
        (torch.float16, slice(1, None), 'a "quote" and\nmore', "Maße", Parameter(torch.ones(1))),
        (torch.eye(2).to_sparse(), [None, torch.ones(1)], {"a": 1}),
    ],
)
def test_the_helper_puts_a_call_into_the_same_words(values):
    """Where it does not know a value, it leaves the call to Python."""
    helper = native.library()
    for kwargs in ({}, {"dim": 1, "other": torch.ones(3)}):
        assert helper.describe_call(values, kwargs) in (None, signature.of_call(values, kwargs))
    for value in values:
        assert helper.describe(value) in (None, signature.of(value))


def test_new_gradients_are_told_from_those_that_are_passed_on():
    arrived, other, new = (torch.ones(2) for _ in range(3))
    left, made = tensors.aliases_of([arrived, None, new, new], [None, other, arrived])
    assert left[0] is arrived
    assert left[1] is None
    assert [left[2], left[3]] == made, "each is one of its own"
    assert [one.data_ptr() for one in made] == 2 * [new.data_ptr()]
    assert not any(one is new for one in made)


def test_gradients_that_are_all_passed_on_are_looked_at():
    arrived = torch.ones(2)
    left, made = tensors.aliases_of([arrived, None], [None, arrived])
    assert left[0] is arrived
    assert [one.data_ptr() for one in made] == [arrived.data_ptr()]
    assert made[0] is not arrived
    assert tensors.aliases_of([], [None]) == ([], [])


def test_gradients_of_a_class_of_others():
    class Other(torch.Tensor):
        pass

    new = torch.ones(2).as_subclass(Other)
    left, made = tensors.aliases_of([new], [])
    assert type(left[0]) is Other
    assert left[0] is made[0]


def test_the_very_same_tensors_are_known_again():
    some = [torch.ones(2) for _ in range(5)]
    references = [weakref.ref(one) for one in some]
    assert tensors.are_these(references, some)
    assert tensors.are_these(references, tuple(some))
    assert not tensors.are_these(references, some[:4])
    assert not tensors.are_these(references, [*some[:4], some[4].clone()])
    del some[2]
    assert not tensors.are_these(references, [*some[:2], torch.ones(2), *some[2:]]), "one is gone"
