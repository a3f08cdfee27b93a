"""Streams and events on the simulated clock.

What must not wait is tried in a forked child with an hour of device time queued: waiting would never end, however busy
the machine is. What must wait is tried here, against lower bounds only.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from contextlib import contextmanager

import pytest
import torch

HOUR = 3600 * 10**9  # in nanoseconds
SHORT = 20 * 10**6
with_accelerator = pytest.mark.skipif(not hasattr(torch, "accelerator"), reason="torch.accelerator came with torch 2.6")


@contextmanager
def takes_at_least(nanoseconds):
    began = time.monotonic_ns()
    yield
    assert time.monotonic_ns() - began >= nanoseconds


@pytest.fixture
def in_child():
    """Runs a function in a forked child, whose clock is its own, and expects it to succeed within a minute."""

    def run(function):
        child = multiprocessing.get_context("fork").Process(target=function)
        child.start()
        child.join(timeout=60)
        if child.is_alive():
            child.kill()
            child.join()
            pytest.fail("the child waits for the device")
        assert child.exitcode == 0

    return run


def timing_event():
    return torch.Event(device="sim", enable_timing=True)


def test_streams_are_different_queues():
    first, second = torch.Stream(device="sim"), torch.Stream(device="sim")
    assert first != second
    assert first.stream_id != second.stream_id
    assert first.device == torch.device("sim:0")
    assert torch.sim.Stream(1).device == torch.device("sim:1")
    assert isinstance(torch.sim.Stream(), torch.Stream)


def test_the_current_stream_is_the_default_one():
    assert torch.sim.current_stream() == torch.sim.default_stream()
    assert torch.sim.default_stream().stream_id == 0


def test_a_stream_is_current_inside_its_context():
    stream, before = torch.sim.Stream(), torch.sim.current_stream()
    with torch.sim.stream(stream):
        assert torch.sim.current_stream() == stream
    assert torch.sim.current_stream() == before


@with_accelerator
def test_a_stream_is_a_context():
    with torch.sim.Stream() as stream:
        assert torch.sim.current_stream() == stream
    assert torch.sim.current_stream() == torch.sim.default_stream()


@with_accelerator
def test_the_accelerators_stream_is_the_devices():
    assert torch.accelerator.current_stream() == torch.sim.default_stream()
    with torch.sim.stream(torch.sim.Stream()):
        assert torch.accelerator.current_stream() == torch.sim.current_stream() != torch.sim.default_stream()


def test_no_stream_changes_nothing():
    before = torch.sim.current_stream()
    with torch.sim.stream(None):
        assert torch.sim.current_stream() == before


def test_a_stream_of_another_device_makes_it_current():
    with torch.sim.stream(torch.sim.Stream("sim:1")):
        assert torch.sim.current_device() == 1
    assert torch.sim.current_device() == 0


def test_a_stream_can_be_set():
    stream, before = torch.sim.Stream(), torch.sim.current_stream()
    try:
        torch.sim.set_stream(stream)
        assert torch.sim.current_stream() == stream
    finally:
        torch.sim.set_stream(before)


@with_accelerator
def test_a_stream_can_be_set_by_the_accelerators_name():
    stream, before = torch.sim.Stream(), torch.sim.current_stream()
    try:
        torch.accelerator.set_stream(stream)
        assert torch.sim.current_stream() == stream
    finally:
        torch.sim.set_stream(before)


def test_each_thread_has_its_own_current_stream():
    seen = []
    with torch.sim.stream(torch.sim.Stream()):
        thread = threading.Thread(target=lambda: seen.append(torch.sim.current_stream()))
        thread.start()
        thread.join()
    assert seen == [torch.sim.default_stream()]


def test_events_measure_device_time():
    torch.sim._sleep(SHORT)
    begin, end = timing_event(), timing_event()
    begin.record()
    torch.sim._sleep(2 * SHORT)
    end.record()
    end.synchronize()
    assert begin.elapsed_time(end) >= 2 * SHORT / 1e6


def test_events_measure_host_time_too():
    begin, end = torch.sim.Event(enable_timing=True), torch.sim.Event(enable_timing=True)
    begin.record()
    time.sleep(0.02)
    end.record()
    end.synchronize()
    assert begin.elapsed_time(end) >= 20


def test_the_host_goes_on_while_the_device_works(in_child):
    def go_on():
        event = torch.sim.Event()
        torch.sim._sleep(HOUR)
        (torch.ones(8, 8, device="sim") @ torch.ones(8, 8, device="sim")).relu_()
        event.record()
        assert not event.query()
        assert not torch.sim.current_stream().query()
        assert torch.sim.Stream().query()

    in_child(go_on)


@pytest.mark.parametrize(
    "wait",
    [
        lambda: torch.sim.synchronize(),
        lambda: torch.sim.current_stream().synchronize(),
        lambda: torch.sim.current_stream().record_event().synchronize(),
        lambda: torch.ones(2, device="sim").cpu(),
        lambda: torch.ones(2, device="sim").sum().item(),
        lambda: torch.ones(2, device="sim").tolist(),
        lambda: torch.ones(2).to("sim"),
        lambda: torch.empty(2).copy_(torch.ones(2, device="sim"), non_blocking=True),
        lambda: torch.empty(2).copy_(torch.ones(2, device="sim")),
        lambda: torch.empty(2, pin_memory=True).copy_(torch.ones(2, device="sim")),
        lambda: bool((torch.ones(2, device="sim") > 0).all()),
    ],
    ids=[
        "sim.synchronize", "stream.synchronize", "event.synchronize", "cpu", "item",
        "tolist", "copy to the device", "non_blocking to pageable memory", "copy_", "copy_ to pinned memory", "bool",
    ],
)  # fmt: skip
def test_these_wait_for_the_device(wait):
    with takes_at_least(SHORT):
        torch.sim._sleep(SHORT)
        wait()


@with_accelerator
def test_the_accelerator_waits_for_its_device(in_child):
    with takes_at_least(SHORT):
        torch.sim._sleep(SHORT)
        torch.accelerator.synchronize()

    def synchronize_another():
        torch.sim._sleep(HOUR)
        torch.accelerator.synchronize(1)

    in_child(synchronize_another)


@pytest.mark.parametrize("direction", ["to the host", "to the device"])
def test_a_non_blocking_copy_with_pinned_memory_does_not_wait(in_child, direction):
    def copy():
        pinned, device = torch.empty(3, pin_memory=True).fill_(1), torch.zeros(3, device="sim")
        source, target = (device.fill_(7), pinned) if direction == "to the host" else (pinned, device)
        torch.sim._sleep(HOUR)
        target.copy_(source, non_blocking=True)
        assert not torch.sim.current_stream().query()

    in_child(copy)


@pytest.mark.skipif(not hasattr(torch, "accelerator"), reason="before torch 2.6, such memory is pinned for CUDA only")
def test_a_non_blocking_copy_to_new_host_memory_pins_it_and_does_not_wait(in_child):
    def copy():
        torch.sim._sleep(HOUR)
        assert torch.ones(3, device="sim").to("cpu", non_blocking=True).is_pinned()

    in_child(copy)


def test_a_copy_on_the_device_does_not_wait(in_child):
    def copy():
        tensor = torch.ones(3, device="sim")
        torch.sim._sleep(HOUR)
        tensor.clone()
        tensor.to("sim:1")

    in_child(copy)


def test_synchronize_waits_for_every_stream_of_its_device():
    with takes_at_least(SHORT):
        with torch.sim.stream(torch.sim.Stream()):
            torch.sim._sleep(SHORT)
        torch.sim.synchronize()


def test_synchronize_does_not_wait_for_another_device(in_child):
    def synchronize():
        torch.sim._sleep(HOUR)
        torch.sim.synchronize(1)
        with torch.sim.stream(torch.sim.Stream()):
            torch.ones(3, device="sim").cpu()  # nor a copy for another stream

    in_child(synchronize)


def test_device_time_counts_for_the_current_device(in_child):
    def sleep():
        with torch.sim.device(1):
            torch.sim._sleep(HOUR)
        torch.sim.synchronize(0)
        assert not torch.sim.current_stream(1).query()

    in_child(sleep)


WAITS = {
    "wait_stream": lambda waiting, first, event: waiting.wait_stream(first),
    "wait_event": lambda waiting, first, event: waiting.wait_event(event),
    "event.wait": lambda waiting, first, event: event.wait(waiting),
}


@pytest.mark.parametrize("wait", WAITS)
def test_one_stream_waits_for_another(wait):
    first, second = torch.sim.Stream(), torch.sim.Stream()
    with torch.sim.stream(first):
        torch.sim._sleep(SHORT)
        end_of_first = first.record_event(timing_event())
    WAITS[wait](second, first, end_of_first)
    with torch.sim.stream(second):
        torch.sim._sleep(SHORT)
        end_of_second = second.record_event(timing_event())
    second.synchronize()
    assert end_of_first.elapsed_time(end_of_second) >= SHORT / 1e6


@pytest.mark.parametrize("wait", WAITS)
def test_a_stream_that_waits_is_busy_and_the_others_are_not(in_child, wait):
    def order():
        first, second, third = (torch.sim.Stream() for _ in range(3))
        with torch.sim.stream(first):
            torch.sim._sleep(HOUR)
        WAITS[wait](second, first, first.record_event())
        assert not second.query()
        third.synchronize()

    in_child(order)


def test_waiting_for_an_event_is_not_waiting_for_what_follows_it(in_child):
    def order():
        first, second = torch.sim.Stream(), torch.sim.Stream()
        event = first.record_event()
        with torch.sim.stream(first):
            torch.sim._sleep(HOUR)
        second.wait_event(event)
        second.synchronize()
        assert not first.query()

    in_child(order)


def test_an_event_that_was_not_recorded_holds_nobody_up():
    event = torch.sim.Event()
    assert event.query()
    event.synchronize()
    stream = torch.sim.Stream()
    stream.wait_event(event)
    assert stream.query()


def test_elapsed_time_needs_two_recorded_events_with_timing():
    recorded = timing_event()
    recorded.record()
    with pytest.raises((ValueError, RuntimeError), match=r"must be recorded|not marked for recording"):
        recorded.elapsed_time(timing_event())
    untimed = torch.sim.Event()
    untimed.record()
    with pytest.raises((ValueError, RuntimeError), match="timing"):
        recorded.elapsed_time(untimed)


def test_record_stream_is_accepted():
    tensor = torch.ones(2, device="sim")
    tensor.record_stream(torch.sim.Stream())
    assert tensor.tolist() == [1, 1]


def test_streams_do_not_change_results():
    tensor = torch.ones(3, device="sim")
    stream = torch.sim.Stream()
    stream.wait_stream(torch.sim.current_stream())
    with torch.sim.stream(stream):
        doubled = tensor * 2
    torch.sim.current_stream().wait_stream(stream)
    assert doubled.tolist() == [2, 2, 2]


# ---- calls that wait for the device ----------------------------------------------------------------------------------

_VALUES, _MASK, _INDEX = [1.0, 0.0, 2.0], [True, False, True], [0, 2]
WAITING = {
    "item": lambda x, y, mask, index: y.item(),
    "truth": lambda x, y, mask, index: bool(y),
    "cpu": lambda x, y, mask, index: x.cpu(),
    "from the host": lambda x, y, mask, index: x.copy_(torch.ones(3)),
    "nonzero": lambda x, y, mask, index: x.nonzero(),
    "mask": lambda x, y, mask, index: x[mask],
    "index on the host": lambda x, y, mask, index: x[index.cpu()],
    "repeat_interleave": lambda x, y, mask, index: torch.repeat_interleave(x, index[:1]),
}
GOING_ON = {
    "arithmetic": lambda x, y, mask, index: (x + y).sum(),
    "number at a mask": lambda x, y, mask, index: x.__setitem__(mask, 1.0),
    "index": lambda x, y, mask, index: x[index],
    "known size": lambda x, y, mask, index: torch.repeat_interleave(x, index[:1], output_size=0),
    "non_blocking": lambda x, y, mask, index: x.copy_(torch.ones(3), non_blocking=True),
}


@pytest.fixture
def sync_debug():
    yield torch.sim.set_sync_debug_mode
    torch.sim.set_sync_debug_mode("default")


def inputs():
    made = (torch.tensor(values, device="sim") for values in (_VALUES, 1.0, _MASK, _INDEX))
    return tuple(made)


@pytest.mark.parametrize("name", WAITING)
def test_a_call_that_waits_for_the_device_warns_or_is_refused(sync_debug, name):
    given = inputs()
    WAITING[name](*given)
    sync_debug("warn")
    with pytest.warns(UserWarning, match="called a synchronizing CUDA operation"):
        WAITING[name](*given)
    sync_debug(2)
    assert torch.sim.get_sync_debug_mode() == 2
    with pytest.raises(RuntimeError, match="called a synchronizing CUDA operation"):
        WAITING[name](*given)


@pytest.mark.parametrize("name", GOING_ON)
def test_what_need_not_wait_is_let_through(sync_debug, name):
    given = inputs()
    sync_debug("error")
    GOING_ON[name](*given)


def test_an_unknown_mode_is_refused(sync_debug):
    with pytest.raises(RuntimeError, match="expected one of default, warn, error: loud"):
        sync_debug("loud")
