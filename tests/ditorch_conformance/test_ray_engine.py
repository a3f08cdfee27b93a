"""Shards on a Ray cluster: the same results as on one machine, also where a case kills its worker or a machine goes."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import textwrap
import types

import pytest

from ditorch_conformance import journal, ray_engine
from ditorch_conformance.errors import ConformanceError

FILE = """
import ctypes, os, time, unittest

class TestOne(unittest.TestCase):
    def test_fails(self): self.fail("on purpose")
    def test_hangs(self): time.sleep(1000)
    def test_segfault(self): ctypes.string_at(0)
    @unittest.skip("not today")
    def test_skipped(self): pass
""" + "\n".join(f"    def test_plain_{number:02}(self): time.sleep(0.05)" for number in range(60))

CLUSTER = """
import os, subprocess, sys, time
from pathlib import Path
from ray.cluster_utils import Cluster

out, command = Path(sys.argv[1]), sys.argv[2:]
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
runner = subprocess.Popen(command, env={**os.environ, "RAY_ADDRESS": cluster.address})
journal = out / "journal.jsonl"
while runner.poll() is None and (not journal.exists() or journal.read_text().count('"attempt"') < 5):
    time.sleep(0.1)
cluster.add_node(num_cpus=1)
cluster.remove_node(nodes[0])  # a machine goes while it runs cases
code = runner.wait()
cluster.shutdown()
sys.exit(code)
"""


@pytest.mark.slow
def test_a_cluster_gives_the_results_of_one_machine_and_may_lose_a_machine(checkout, tmp_path, ditorch_command):
    if importlib.util.find_spec("ray") is None:  # not imported here: it changes the environment
        pytest.skip("there is no Ray")
    source = checkout(test_one=textwrap.dedent(FILE))
    options = ["conformance", "pytorch", "--source", source, "--device", "cpu", "--tries", "1", "--timeout", "3"]
    light = ("-c", "import ditorch_cli; ditorch_cli.main()")
    here = ditorch_command(*options, "--out", tmp_path / "here", "test_one", python=light)
    assert here.returncode == 1, here.stderr
    out = tmp_path / "there"
    command = [sys.executable, *light, *options, "--out", out, "--engine", "ray", "--jobs", "2", "test_one"]
    script = tmp_path / "cluster.py"
    script.write_text(CLUSTER)
    there = subprocess.run(
        [sys.executable, str(script), str(out), *map(str, command)], capture_output=True, text=True, timeout=280
    )
    assert there.returncode == 1, there.stderr[-3000:]

    def results(folder):
        contents = journal.read(folder)
        assert all(len(attempts) == 1 for attempts in contents.attempts.values())
        assert contents.never_run() == []
        return {(r.case, r.status, r.info) for r in contents.results()}

    assert results(out) == results(tmp_path / "here")
    assert {status for _, status, _ in results(out)} == {"passed", "failure", "timeout", "crash", "skipped"}


def test_a_missing_cluster_is_named(monkeypatch):
    def init(**_):
        raise ConnectionError("Could not find any running Ray instance")

    monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace(is_initialized=lambda: False, init=init))
    with pytest.raises(ConformanceError, match=r"There is no Ray cluster at 'auto' \(Could not find any running Ray"):
        ray_engine.on_cluster(1, None)


def test_ray_is_an_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConformanceError, match=r'needs Ray: pip install "ditorch\[ray\]"'):
        ray_engine.on_cluster(1, None)
