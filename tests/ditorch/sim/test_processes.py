"""Children of a process that uses the device, and its end."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from ditorch import sim


def use_the_device(connection):
    sim.start()
    weight = torch.full((3,), 2.0, device="sim:1", requires_grad=True)
    (weight * weight).sum().backward()
    connection.send(weight.grad.tolist())


def test_a_forked_child_uses_the_device():
    tensor = torch.ones(3, device="sim")
    child = os.fork()
    if child == 0:
        right = (tensor * 2).sum().item() == 6 and torch.rand(2, device="sim:1").shape == (2,)
        os._exit(0 if right else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_forked_childs_memory_is_its_own():
    tensor = torch.ones(3, device="sim")
    child = os.fork()
    if child == 0:
        tensor.zero_()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert tensor.tolist() == [1, 1, 1]


def test_a_spawned_child_uses_the_device():
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=use_the_device, args=(sender,))
    child.start()
    assert receiver.poll(120)
    assert receiver.recv() == [4, 4, 4]
    child.join()
    assert child.exitcode == 0


@pytest.mark.slow  # ten processes; the next two tests show the guard itself
def test_a_process_that_ends_right_after_backward_does_not_abort(run_python):
    # A long graph: dropping it takes the device's thread into the interpreter's end. Without the guard about every
    # second of these aborted; a forked child never did.
    code = """
        import torch
        from ditorch import sim
        sim.start()
        leaf = torch.ones(64, 64, device="sim", requires_grad=True)
        x = leaf
        for _ in range(3000):
            x = x * 1.0
        x.sum().backward()
    """
    with ThreadPoolExecutor(2) as pool:
        codes = list(pool.map(lambda _: run_python(code, check=False, fresh=True).returncode, range(10)))
    assert codes == [0] * 10


def test_the_end_of_a_process_waits_for_the_devices_threads(run_python):
    code = """
        import torch
        from ditorch import sim
        sim.start()
        torch.ops.ditorch_sim.finish_backward_threads = lambda: print("finished")
    """
    assert run_python(code).stdout.split() == ["finished"]


def test_finishing_the_devices_threads_waits_for_what_they_do():
    began, done = threading.Event(), []
    leaf = torch.ones(1, device="sim:1", requires_grad=True)

    def linger(gradient):
        began.set()
        time.sleep(0.1)
        done.append(True)

    leaf.register_hook(linger)
    thread = threading.Thread(target=lambda: leaf.sum().backward())
    thread.start()
    began.wait()
    torch.ops.ditorch_sim.finish_backward_threads()
    finished = list(done)
    thread.join()
    assert finished == [True]


def test_a_process_ends_cleanly_with_work_queued_and_tensors_alive(run_python):
    code = """
        import torch
        from ditorch import sim
        sim.start()
        kept = torch.ones(1000, device="sim", requires_grad=True)
        loss = (kept * 2).sum()
        loss.backward()
        pinned = torch.ones(3).pin_memory()
        stream, event = torch.sim.Stream(), torch.sim.Event()
        torch.sim._sleep(3600 * 10**9)
        event.record()
    """
    done = run_python(code)
    assert done.stderr == ""


def test_a_forked_child_of_a_process_that_ran_backward_ends_cleanly(run_python):
    code = """
        import os, sys, torch
        from ditorch import sim
        sim.start()
        torch.ones(2, device="sim", requires_grad=True).sum().backward()
        child = os.fork()
        if child == 0:
            total = torch.ones(2, device="sim").sum().item()
            sys.exit(0 if total == 2 else 1)
        print(os.waitpid(child, 0)[1])
    """
    done = run_python(code)
    assert done.stdout.split() == ["0"]
    assert done.stderr == ""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_pool_uses_the_device(method):
    with multiprocessing.get_context(method).Pool(2) as pool:
        assert pool.map(square_on_the_device, [1, 2, 3]) == [1, 4, 9]
        pool.close()
        pool.join()


def square_on_the_device(number):
    sim.start()
    return (torch.tensor(float(number), device="sim") ** 2).item()
