"""ProcessMonitor: a thread that samples memory and CPU time of its own process, and memory of its devices."""

from __future__ import annotations

import csv
import threading
import time

import pytest
import torch

from op_tools import monitor as monitor_module
from op_tools.errors import SettingError
from op_tools.monitor import ProcessMonitor


def test_memory_of_the_device_is_sampled(device, tmp_path):
    with ProcessMonitor(0.01, out=tmp_path) as monitor:
        held = torch.zeros(4_000_000, device=device)
        until = time.monotonic() + 5
        while time.monotonic() < until and not (len(monitor.results) and monitor.results[0]["device_memory_peak"]):
            time.sleep(0.01)
        del held
    (row,) = monitor.results
    assert row["device_memory_peak"] >= 16_000_000
    assert row["device_memory_reserved_peak"] >= 16_000_000
    assert row["host_memory_peak"] > 10_000_000
    assert row["cpu_seconds"] > 0
    with open(monitor.results.files[0], newline="") as file:
        assert len(list(csv.DictReader(file))) == row["samples"]
    assert not [thread for thread in threading.enumerate() if thread.name == "op_tools monitor"]


def test_temperature_and_utilization_are_those_that_the_device_tells(device, tmp_path, monkeypatch):
    module = torch.get_device_module(device)
    monkeypatch.setattr(module, "temperature", lambda index: 55 + index, raising=False)
    monkeypatch.setattr(module, "utilization", lambda index: 80, raising=False)
    monkeypatch.setattr(monitor_module, "_silent", set())
    held = torch.zeros(1000, device=device)
    with ProcessMonitor(0.01, out=tmp_path) as monitor:
        pass
    del held
    (row,) = monitor.results
    assert (row["device_temperature_peak"], row["device_utilization"]) == (55.0, 80.0)


def test_it_can_be_started_again(tmp_path):
    monitor = ProcessMonitor(out=tmp_path)
    for _ in range(2):
        monitor.start()
        monitor.start()
        monitor.stop()
        monitor.stop()
        assert monitor.results[0]["samples"] == 1


def test_a_folder_that_cannot_be_written_ends_no_training(capsys):
    with ProcessMonitor(out="/proc/nothing") as monitor:
        assert len(monitor.results) == 0
    assert "ProcessMonitor cannot write /proc/nothing" in capsys.readouterr().err


@pytest.mark.parametrize("interval", [0, -1, "often", float("inf")])
def test_an_interval_is_a_number_of_seconds(interval):
    with pytest.raises(SettingError, match=r"it must be a number of seconds, 0\.01 or above"):
        ProcessMonitor(interval)
