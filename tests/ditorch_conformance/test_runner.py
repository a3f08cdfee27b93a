"""A run survives whatever a case does to its process, and whatever happens to the runner: one result per case."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter

import pytest

from ditorch_conformance import causes, engines
from ditorch_conformance import journal as journals
from ditorch_conformance.errors import ConformanceError
from ditorch_conformance.journal import Journal
from ditorch_conformance.process import STOPPED, Limits, WorkerGone, WorkerProcess
from ditorch_conformance.results import Attempt, Case
from ditorch_conformance.runner import run
from ditorch_conformance.selection import Selection

PLAIN = "\n".join(
    f"    def test_plain_{number:02}(self): self.assertNotEqual({number} % 10, 3)" for number in range(40)
)

DANGEROUS = f"""
import ctypes, os, subprocess, sys, time, unittest

class TestDangerous(unittest.TestCase):
{PLAIN}
    def test_abort(self): os.abort()
    def test_child_that_stays(self): subprocess.Popen(["sleep", "1000"]) and os._exit(0)
    def test_exit(self): os._exit(3)
    def test_hang(self): time.sleep(1000)
    def test_interrupt(self): raise KeyboardInterrupt
    def test_memory(self):
        kept = []
        while True:
            kept.append(bytearray(2**26))
    def test_prints_to_the_protocol(self): os.write(1, b'["answer", {{}}]\\n')
    def test_reads_the_protocol(self): self.assertEqual(sys.stdin.read(), "")
    def test_segfault(self): ctypes.string_at(0)
    @unittest.skip("not today")
    def test_skipped(self): pass
    @unittest.expectedFailure
    def test_expected(self): self.fail()
    def test_subtests(self):
        for number in range(3):
            with self.subTest(number=number):
                self.assertNotEqual(number, 1)
"""
EXPECTED = {
    "test_abort": ("crash", "SIGABRT"),
    "test_child_that_stays": ("crash", "exit code 0"),
    "test_exit": ("crash", "exit code 3"),
    "test_hang": ("timeout", ""),
    "test_memory": ("error", "MemoryError"),
    "test_prints_to_the_protocol": ("passed", ""),
    "test_reads_the_protocol": ("passed", ""),
    "test_segfault": ("crash", "SIGSEGV"),
    "test_skipped": ("skipped", "skip"),
    "test_expected": ("skipped", "skip"),
    "test_subtests": ("failure", "AssertionError"),
}


def check(results):
    """Every case has one result, and the dangerous ones the right one."""
    by_name = {result.case.name: (result.status, result.info) for result in results}
    assert len(results) == len(by_name) == 40 + len(EXPECTED) + 1
    assert {name: by_name[name] for name in EXPECTED} == EXPECTED
    assert by_name["test_interrupt"][0] in ("crash", "error")
    assert all(result.line for result in results)  # also of what never answered
    plain = Counter(status for name, (status, _) in by_name.items() if name.startswith("test_plain"))
    assert plain == {"passed": 36, "failure": 4}


def test_a_dangerous_case_costs_only_itself_and_a_killed_run_goes_on(checkout, tmp_path):
    source, out = checkout(test_dangerous=DANGEROUS), tmp_path / "out"
    code = f"""
        import sys
        from pathlib import Path
        from ditorch_conformance import devices, pytorch_tests
        from ditorch_conformance import engines
        from ditorch_conformance.journal import Journal
        from ditorch_conformance.process import Limits
from ditorch_conformance.results import Case
        from ditorch_conformance.runner import run
from ditorch_conformance.selection import Selection
        source, out = Path({str(source)!r}), Path({str(out)!r})
        recipe = pytorch_tests.recipe(source, "test_dangerous.py", devices.CPU, {{}})
        journal = Journal(out, {{}})
        limits = Limits(4, memory=2**28)
        run([("test_dangerous.py", recipe)], engines.local(2, limits, out), journal, tries=1)
    """
    command = [sys.executable, "-c", "\n".join(line.strip() for line in code.splitlines())]

    def attempts():
        path = out / "journal.jsonl"
        return path.read_text().count('"attempt"') if path.exists() else 0

    for wanted in (5, 15):  # killed twice in the middle
        runner = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        while attempts() < wanted and runner.poll() is None:
            time.sleep(0.02)
        runner.send_signal(signal.SIGKILL)
        runner.wait()
    with open(out / "journal.jsonl", "a") as file:
        file.write('{"attempt": {"case": ["test_dangerous.py", "TestDang')  # a power cut in the middle of a line
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    contents = journals.read(out)
    assert all(len(made) == 1 for made in contents.attempts.values())
    assert contents.never_run() == []
    check(contents.results())
    assert children_left(str(source)) == []


def children_left(mark):
    """Processes that cases or workers have left behind; they are given a moment to go."""
    deadline = time.monotonic() + 30
    while True:
        found = []
        for folder in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{folder}/cmdline", "rb") as file:
                    line = file.read()
                if os.readlink(f"/proc/{folder}/cwd").startswith(mark):
                    found.append(line)
            except OSError:
                continue
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


def results_of(source, out, recipes, tries=2, wanted=None):
    out.mkdir(exist_ok=True)
    journal = Journal(out, {"source": str(source)})
    try:
        run(recipes(source), engines.local(1, Limits(20), out), journal, tries=tries, wanted=wanted or Selection())
    finally:
        journal.close()
    return {result.case.name: result for result in journals.read(out).results()}


def test_what_fails_once_and_then_passes_is_flaky_and_resuming_runs_nothing_again(checkout, tmp_path, recipes):
    source = checkout(
        test_flaky=f"""
        import pathlib, unittest
        log = pathlib.Path({str(tmp_path / "log")!r})

        class TestFlaky(unittest.TestCase):
            @classmethod
            def setUpClass(cls):
                with log.open("a") as file: file.write("class ")
            def run_once(self):
                with log.open("a") as file: file.write(self._testMethodName + " ")
                return log.read_text().split().count(self._testMethodName)
            def test_always_fails(self): self.fail(f"attempt {{self.run_once()}}")
            def test_fails_once(self): self.assertEqual(self.run_once(), 2)
            def test_passes(self): self.run_once()
        """,
        test_broken="import there_is_no_such_module",
    )
    found = results_of(source, tmp_path / "out", recipes)
    assert {name: (result.status, result.tries) for name, result in found.items() if name != "import"} == {
        "test_always_fails": ("failure", ("failure", "failure")),
        "test_fails_once": ("flaky", ("failure", "passed")),
        "test_passes": ("passed", ("passed",)),
    }
    assert found["test_always_fails"].message == "attempt 2"
    assert found["test_always_fails"].where == "test_flaky.py:test_always_fails"
    assert found["test_always_fails"].line > 0
    assert found["import"].status == "crash"
    [broken] = [cause for cause in causes.group(found.values()) if cause.kind == "crash"]
    assert broken.raising == "import"
    assert broken.message == "exit code 1: ModuleNotFoundError: No module named 'there_is_no_such_module'"
    log = (tmp_path / "log").read_text()
    # set up once per class and process; the second attempts are made after all first ones, in a fresh process
    failing = ["test_always_fails", "test_fails_once"]
    assert log.split() == ["class", *failing, "test_passes", "class", *reversed(failing)]
    assert results_of(source, tmp_path / "out", recipes) == found
    assert (tmp_path / "log").read_text() == log


def test_what_fails_for_a_neighbour_that_fails_itself_is_flaky(checkout, tmp_path, recipes):
    source = checkout(
        test_dirty="""
        import unittest
        class TestDirty(unittest.TestCase):
            is_dirty = False
            def test_a_leaves_something_behind(self):
                TestDirty.is_dirty = True
                self.fail()
            def test_b_finds_it(self): self.assertFalse(self.is_dirty)
        """
    )
    found = results_of(source, tmp_path / "out", recipes)
    assert {name: result.status for name, result in found.items()} == {
        "test_a_leaves_something_behind": "failure",
        "test_b_finds_it": "flaky",
    }


def test_what_another_process_raised_comes_first(checkout, tmp_path, recipes):
    source = checkout(
        test_ranks="""
        import traceback, unittest
        class TestRanks(unittest.TestCase):
            def test_a(self):
                try:
                    self.assertEqual(19, 0)
                except AssertionError:
                    raise RuntimeError("Exception in worker process:\\n" + traceback.format_exc()) from None
        """
    )
    message = results_of(source, tmp_path / "out", recipes)["test_a"].message
    assert message.startswith("AssertionError: 19 != 0\n\nException in worker process:\nTraceback")


def test_only_wanted_cases_run(checkout, tmp_path, recipes):
    source = checkout(
        test_two="""
        import unittest
        class TestOne(unittest.TestCase):
            def test_a(self): pass
        class TestTwo(unittest.TestCase):
            def test_a(self): pass
            def test_b(self): pass
        """
    )
    out = tmp_path / "out"
    assert set(results_of(source, out, recipes, wanted=Selection("TestTwo.*b"))) == {"test_b"}
    with pytest.raises(ConformanceError, match="holds a run with other options"):
        Journal(out, {"source": "elsewhere"})


def test_a_choice_without_a_case_is_said_and_leaves_the_folder_free(checkout, tmp_path, recipes):
    source = checkout(test_one="import unittest\nclass TestOne(unittest.TestCase):\n    def test_a(self): pass\n")
    out = tmp_path / "out"
    with pytest.raises(ConformanceError, match=r"No case fits -k 'TestTwo\*'\."):
        results_of(source, out, recipes, wanted=Selection("TestTwo*"))
    Journal(out, {"source": "elsewhere"}).close()


def test_each_name_that_no_case_has_is_said():
    cases = [Case("ops", "add", "float32"), Case("ops", "nn.functional.gelu", "float32")]
    Selection(names=("add", "nn.*")).check(cases)
    with pytest.raises(
        ConformanceError, match=r"no 'ad' in torch's lists in these dtypes\. Names are such as add, nn\.f"
    ):
        Selection(names=("ad", "add")).check(cases)
    Selection(names=("ad", "add"), one_in=2).check(cases)  # it may be among those that are left out
    Selection(names=("add",)).check([Case("ops", "", "import")])  # the worker did not start, which is told
    with pytest.raises(ConformanceError, match="--one-in 1000 leaves no case"):
        Selection(one_in=1000).check([])


def test_a_file_without_a_case_is_named_and_nothing_empty_is_left(checkout, tmp_path, ditorch_command):
    source = checkout(
        test_empty="import unittest\nclass TestOne(unittest.TestCase): pass\n",
        test_one="import unittest\nclass TestOne(unittest.TestCase):\n    def test_a(self): pass\n",
    )
    command = ["conformance", "pytorch", "--source", source, "--device", "cpu"]
    done = ditorch_command(*command, "test_one", "test_empty", python=LIGHT)
    assert done.returncode == 0, done.stderr
    assert "No case for this device, or that was asked for: test_empty.py\n" in done.stdout
    found = json.loads(ditorch_command("conformance", "report", "conformance_cpu", "--json", python=LIGHT).stdout)
    assert found["without_cases"] == ["test_empty.py"]

    done = ditorch_command(*command, "--out", "none", "test_empty", python=LIGHT)
    assert done.returncode == 2
    assert not (tmp_path / "none" / "report.html").exists()


def test_no_worker_is_left_with_all_the_slow_cases(checkout, tmp_path, recipes):
    source = checkout(test_plain=f"import unittest\nclass TestPlain(unittest.TestCase):\n{PLAIN}\n")
    engine, shards = engines.local(2, Limits(20), tmp_path), []
    plain_run = engine.run
    engine.run = lambda some, deliver: shards.extend(some) or plain_run(some, deliver)
    journal = Journal(tmp_path / "out", {})
    try:
        run(recipes(source), engine, journal, tries=1)
    finally:
        journal.close()
    assert [len(shard.cases) for shard in shards] == [5] * 8  # four for each worker, and not one of 40 for the first
    assert len(journals.read(tmp_path / "out").results()) == 40


def test_a_worker_is_stopped_once_by_two_threads(checkout, tmp_path, recipes, monkeypatch):
    """Ctrl-C pressed twice: the second one finds the first one's thread at it."""
    source = checkout(test_one="import unittest\nclass TestOne(unittest.TestCase):\n    def test_a(self): pass\n")
    worker = WorkerProcess(recipes(source)[0][1], Limits(), tmp_path / "log", threading.Event())
    both, kill, failures = threading.Barrier(2), os.killpg, []

    def killpg(*args):
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.5)
        kill(*args)

    def stop():
        try:
            worker.stop()
        except OSError as error:
            failures.append(error)

    monkeypatch.setattr(os, "killpg", killpg)
    threads = [threading.Thread(target=stop) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_case_whose_worker_the_runner_ends_has_not_crashed(checkout, tmp_path, recipes):
    """Ctrl-C pressed twice: the runner ends the worker while a thread still waits for its answer."""
    begun = tmp_path / "begun"
    source = checkout(
        test_one=f"""
        import pathlib, time, unittest
        class TestOne(unittest.TestCase):
            def test_a(self):
                pathlib.Path({str(begun)!r}).touch()
                time.sleep(1000)
        """
    )
    worker = WorkerProcess(recipes(source)[0][1], Limits(), tmp_path / "log", threading.Event())
    outcomes = []

    def ask():
        try:
            worker.run("TestOne", "test_a")
        except WorkerGone as gone:
            outcomes.append(gone.outcome["status"])

    thread = threading.Thread(target=ask)
    thread.start()
    while not begun.exists():
        time.sleep(0.02)
    worker.stop()
    thread.join(60)
    assert outcomes == [STOPPED]


def test_one_case_in_so_many_is_the_same_on_every_device():
    names = [f"test_add_{{device}}_float{number}" for number in range(300)]
    taken = {}
    for device in ("cpu", "cuda"):
        cases = [Case("test_ops.py", f"TestCommon{device.upper()}", name.format(device=device)) for name in names]
        taken[device] = [case.name.replace(device, "{device}") for case in Selection(one_in=10).of(cases)]
    assert taken["cpu"] == taken["cuda"]
    assert 10 < len(taken["cpu"]) < 60
    assert Selection("*Common*", one_in=10).options() == {"wanted": "*Common*", "one_in": 10}


def test_a_full_disk_leaves_whole_lines_and_is_said(tmp_path):
    code = f"""
        import resource
        from pathlib import Path
        from ditorch_conformance.errors import ConformanceError
        from ditorch_conformance.journal import Journal
        from ditorch_conformance.results import Attempt, Case
        journal = Journal(Path({str(tmp_path)!r}), {{}})
        journal.add(Attempt(Case("a", "B", "c"), "passed"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (journal.path.stat().st_size + 20, resource.RLIM_INFINITY))
        try:
            journal.add(Attempt(Case("a", "B", "d"), "passed"))
        except ConformanceError as error:
            print(error)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        journal.add(Attempt(Case("a", "B", "e"), "passed"))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    why = "cannot be written (File too large). What is in it is whole: the same command goes on."
    assert (done.stdout, done.stderr) == (f"{tmp_path}/journal.jsonl {why}\n", "")
    assert [case.name for case in journals.read(tmp_path).attempts] == ["c", "e"]


@pytest.mark.parametrize("damage", [b"\xff", b"\x00", b'", "status": "passing'])
def test_a_damaged_journal_is_named_with_its_line(tmp_path, damage):
    journal = Journal(tmp_path, {})
    journal.add(Attempt(Case("a", "B", "c"), "passed"))
    journal.close()
    content = journal.path.read_bytes()
    journal.path.write_bytes(content.replace(b"passed", b"pass" + damage + b"ed"))
    for reader in (journals.read, lambda folder: Journal(folder, {})):
        with pytest.raises(ConformanceError, match=r"journal.jsonl line 2 is not a run's: .*Remove the line, or"):
            reader(tmp_path)


def test_two_runners_on_one_folder_are_refused(tmp_path):
    first = Journal(tmp_path, {})
    with pytest.raises(ConformanceError, match="is in use by another run"):
        Journal(tmp_path, {})
    first.close()
    Journal(tmp_path, {}).close()


# As the command `ditorch` starts it: this process imports no torch.
LIGHT = ("-c", "import ditorch_cli; ditorch_cli.main()")


def test_a_folder_that_is_no_checkout_is_named(tmp_path, ditorch_command):
    done = ditorch_command("conformance", "pytorch", "--source", tmp_path / "nowhere", python=LIGHT)
    assert done.returncode == 2
    assert done.stderr.startswith(f"ditorch: {tmp_path / 'nowhere'} is not a checkout of PyTorch")


DEVICE_FILE = """
    import os, torch
    from torch.testing._internal.common_device_type import instantiate_device_type_tests, onlyCPU, onlyCUDA, ops
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.common_utils import TestCase, run_tests

    class TestDevice(TestCase):
        def test_sum(self, device):
            self.assertEqual(torch.ones(3, device=device).sum().item(), 3)
        @onlyCUDA
        def test_for_cuda(self, device):
            assert "CI" not in os.environ
        @onlyCPU
        def test_for_cpu(self, device): pass
        @ops([op for op in op_db if op.name == "linalg.vander"], allowed_dtypes=(torch.float32,))
        def test_op(self, device, dtype, op):
            self.assertEqual(1, 2)
        @ops([op for op in op_db if op.name == "linalg.vander"], allowed_dtypes=(torch.float32,))
        def test_exit(self, device, dtype, op):
            os._exit(3)

    instantiate_device_type_tests(TestDevice, globals())
    if __name__ == "__main__":
        run_tests()
"""


@pytest.mark.parametrize(("device", "suffix"), [("cuda", "cuda"), ("own", "sim")])
def test_torchs_classes_are_made_once_for_the_accelerator(checkout, ditorch_command, tmp_path, device, suffix):
    pytest.importorskip("expecttest")
    pytest.importorskip("numpy")
    source = checkout(test_device=DEVICE_FILE)
    out = tmp_path / "out"
    command = ["conformance", "pytorch", "--source", source, "--device", device, "--out", out, "--tries", "1"]
    done = ditorch_command(*command, "--json", "test_device", python=LIGHT, CI="1")
    assert done.returncode == 1, done.stderr  # there is a failure that nobody knew
    found = json.loads(done.stdout)
    results = journals.read(out).results()
    classname = f"TestDevice{suffix.upper()}"
    assert {(str(r.case).partition("::")[2], r.status, r.op) for r in results} == {
        (f"{classname}.test_sum_{suffix}", "passed", ""),
        (f"{classname}.test_for_cuda_{suffix}", "passed", ""),
        (f"{classname}.test_for_cpu_{suffix}", "skipped", ""),
        (f"{classname}.test_op_linalg_vander_{suffix}_float32", "failure", "linalg.vander"),
        (f"{classname}.test_exit_linalg_vander_{suffix}_float32", "crash", "linalg.vander"),
    }
    assert found["statuses"] == {"passed": 2, "skipped": 1, "failure": 1, "crash": 1}
    assert [cause["dtypes"] for cause in found["causes"]] == [{"float32": 1}] * 2
    assert found["ops"] == {"linalg.vander": {"failure": 1, "crash": 1}}
    for cause in found["causes"]:
        told = pasted(cause["reproducer"], tmp_path)
        assert ("Scalars are not equal" in told) == (cause["kind"] == "wrong"), told
        assert ("exit code 3" in told) == (cause["kind"] == "crash"), told


def pasted(command, folder):
    """What a line of the summary comes to in any folder: all that it prints, and its exit code."""
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "DITORCH_DISABLE_MOCK": "0", "DITORCH_BACKEND": "sim"}
    environment.pop("CI", None)  # a person pastes it; torch's run_tests would want packages of its own
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, cwd=elsewhere, env=environment)
    return f"{done.stdout}{done.stderr}\nexit code {done.returncode}"
