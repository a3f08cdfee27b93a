"""Training steps are counted at the end of an optimizer's step, unless the program counts them itself."""

from __future__ import annotations

import gc

import pytest
import torch

import op_tools
from ditorch_shared.steps import MAX_STEPS_OF_ANOTHER
from op_tools.core.steps import STEPS

from ..recorder import Recorder


@pytest.fixture
def parameter(device):
    return torch.ones(3, device=device, requires_grad=True)


def sgd(parameter):
    return torch.optim.SGD([parameter], lr=0.1)


def train(parameter, *optimizers):
    for optimizer in optimizers:
        parameter.square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def steps_of(recorder, name="torch.Tensor.square"):
    return [call.step for call in recorder.calls if call.name == name]


def test_the_end_of_an_optimizers_step_ends_a_training_step(parameter):
    optimizer = sgd(parameter)
    with Recorder() as recorder:
        for _ in range(3):
            train(parameter, optimizer)
    assert steps_of(recorder) == [0, 1, 2]
    assert STEPS.current == 3


def test_a_selection_of_steps_needs_no_call_of_step(parameter):
    optimizer = sgd(parameter)
    with Recorder(steps="1-2") as recorder:
        for _ in range(4):
            train(parameter, optimizer)
    assert steps_of(recorder) == [1, 2]


def test_tools_hear_of_each_step(parameter):
    class Hearing(Recorder):
        def step_began(self, step):
            self.steps_heard.append(step)

        def started(self):
            super().started()
            self.steps_heard = []

    optimizer = sgd(parameter)
    with Hearing() as tool:
        for _ in range(2):
            train(parameter, optimizer)
    assert tool.steps_heard == [1, 2]


@pytest.mark.parametrize("when", ["begin", "end"])
def test_a_program_that_counts_itself_wins(parameter, when):
    optimizer = sgd(parameter)
    returned = []
    with Recorder() as recorder:
        for _ in range(3):
            if when == "begin":
                returned.append(op_tools.step())
            train(parameter, optimizer, optimizer)  # as with several optimizer steps for one of the program's
            if when == "end":
                returned.append(op_tools.step())
    first = int(when == "begin")
    # at the very first step nobody knows yet that the program will count
    assert steps_of(recorder)[2:] == [step for step in (first + 1, first + 2) for _ in range(2)]
    assert steps_of(recorder)[0] == first
    assert returned[-1] - returned[0] == 2


def test_a_step_that_ended_before_the_programs_first_call_is_counted_once(parameter):
    optimizer = sgd(parameter)
    with Recorder():
        train(parameter, optimizer)
        assert op_tools.step() == 1
        train(parameter, optimizer)
        assert op_tools.step() == 2


def test_two_optimizers_are_one_step(parameter):
    generator, discriminator = sgd(parameter), sgd(parameter)
    with Recorder() as recorder:
        for _ in range(3):
            train(parameter, discriminator, generator)
    assert STEPS.current == 3
    assert steps_of(recorder) == [0, 1, 1, 2, 2, 3]


def test_the_next_optimizer_leads_when_the_first_is_gone(parameter):
    with Recorder():
        first = sgd(parameter)
        train(parameter, first)
        del first
        gc.collect()
        train(parameter, sgd(parameter))
    assert STEPS.current == 2


def test_another_optimizer_leads_when_the_first_steps_no_more(parameter):
    first, second = sgd(parameter), sgd(parameter)
    with Recorder():
        train(parameter, first)
        for _ in range(MAX_STEPS_OF_ANOTHER + 3):
            train(parameter, second)
    assert STEPS.current == 1 + 3


def test_a_step_that_the_scaler_leaves_out_is_a_step(parameter, device):
    optimizer = sgd(parameter)
    scaler = torch.amp.GradScaler(device, init_scale=4.0)
    original = torch.amp.GradScaler.step
    with Recorder() as recorder:
        for factor in (1.0, float("inf"), 1.0):
            before = parameter.detach().clone()
            scaler.scale(parameter.square().sum() * factor).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            assert torch.equal(before, parameter) == (factor != 1.0)
    assert steps_of(recorder) == [0, 1, 2]
    assert torch.amp.GradScaler.step is original


def test_nothing_is_counted_without_a_tool(parameter):
    train(parameter, sgd(parameter))
    assert STEPS.current == 0


def test_a_compiled_optimizer_step_has_no_more_graphs_than_without_a_tool(parameter):
    from torch._dynamo.testing import CompileCounter

    def graphs():
        torch._dynamo.reset()
        counter = CompileCounter()
        optimizer = sgd(parameter)
        parameter.grad = torch.ones_like(parameter)
        torch.compile(optimizer.step, backend=counter)()
        torch._dynamo.reset()
        return counter.frame_count

    plain = graphs()
    with Recorder():
        assert graphs() == plain
    assert torch.allclose(parameter.cpu().detach(), torch.full((3,), 0.8))


class TestNothingMatched:
    def test_steps_that_never_came_are_said_at_the_end(self, parameter, capsys):
        with Recorder(steps="10-12"):
            train(parameter, sgd(parameter))
        assert (
            "op_tools: Recorder looked at nothing: no step of steps=10-12 (OP_TOOLS_STEPS) came; the last one was 1, "
            "counted at the end of each optimizer step\n"
        ) in capsys.readouterr().err

    def test_it_says_who_counted(self, parameter, capsys):
        with Recorder(steps=[7]):
            parameter + 1
        assert "none was counted: no optimizer stepped, and the program did not call op_tools.step()" in (
            capsys.readouterr().err
        )
        with Recorder(steps=range(7, 9)):
            op_tools.step()
        error = capsys.readouterr().err
        assert "steps=range(7, 9)" in error
        assert "the last one was 1, counted by op_tools.step()" in error

    def test_steps_that_came_are_not(self, parameter, capsys):
        with Recorder(steps="1"):
            train(parameter, sgd(parameter))
        assert "looked at nothing" not in capsys.readouterr().err

    def test_ranks_that_there_are_not_are_said_by_the_first_rank(self, device, capsys, monkeypatch):
        for rank in ("0", "1"):
            monkeypatch.setenv("RANK", rank)
            monkeypatch.setenv("WORLD_SIZE", "2")
            with Recorder(ranks="2-3"):
                torch.ones(3, device=device)
        assert capsys.readouterr().err == (
            "op_tools: Recorder looks at nothing: none of the 2 rank(s) of this run is in ranks=2-3 (OP_TOOLS_RANKS); "
            "the first rank is 0\n"
        )

    def test_a_rank_that_is_another_ones_turn_says_nothing(self, device, capsys, monkeypatch):
        monkeypatch.setenv("WORLD_SIZE", "2")
        with Recorder(ranks={1}) as recorder:
            torch.ones(3, device=device)
        assert not recorder.active
        assert capsys.readouterr().err == ""
