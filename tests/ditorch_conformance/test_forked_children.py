"""`--forked`: what a case spawns has the file imported already, and is otherwise as if it were spawned."""

from __future__ import annotations

import multiprocessing
import multiprocessing.context
import threading

import pytest

from ditorch_conformance import devices, forked_children, pytorch_tests
from ditorch_conformance.errors import ConformanceError
from ditorch_conformance.process import Limits, WorkerProcess

from .test_runner import children_left

SPAWNING = """
import multiprocessing, os, sys, unittest

IMPORTED_BY, IMPORTED_WITH = os.getpid(), sys.argv[0]

def _tell(queue): queue.put((IMPORTED_BY, os.getpid(), os.environ.get("VARIABLE"), sys.argv[0], IMPORTED_WITH))
def _exit(code): sys.exit(code)

class TestSpawning(unittest.TestCase):
    def tell(self):
        context = multiprocessing.get_context("spawn")
        queue = context.Queue()
        child = context.Process(target=_tell, args=(queue,))
        child.start()
        told = queue.get()
        child.join()
        return (*told, child.pid)

    def test_who_imported(self):
        importer, child, _, arguments, arguments_then, pid = self.tell()
        self.assertEqual(child, pid)
        self.assertEqual((arguments, arguments_then), (sys.argv[0], sys.argv[0]))
        self.assertEqual(importer == child, not FORKED)
        self.assertNotEqual(importer, IMPORTED_BY)

    def test_variables(self):
        os.environ["VARIABLE"] = "one"
        self.assertEqual(self.tell()[2], "one")
        del os.environ["VARIABLE"]
        self.assertEqual(self.tell()[2], None)

    def test_exit_code(self):
        child = multiprocessing.get_context("spawn").Process(target=_exit, args=(7,))
        child.start()
        child.join()
        self.assertEqual(child.exitcode, 7)
"""


def outcomes(source, folder, forked):
    recipe = pytorch_tests.recipe(source, "test_spawning.py", devices.CPU, {}, forked)
    worker = WorkerProcess(recipe, Limits(300), folder / "log", threading.Event())
    try:
        return {name: worker.run(classname, name) for classname, name in worker.cases}
    finally:
        worker.stop()


@pytest.mark.parametrize("forked", [True, False])
def test_a_forked_process_is_like_a_spawned_one_but_for_the_import(checkout, tmp_path, forked):
    source = checkout(test_spawning=SPAWNING.replace("FORKED", str(forked)))
    made = outcomes(source, tmp_path, forked)
    assert {name: outcome["status"] for name, outcome in made.items()} == dict.fromkeys(made, "passed"), made
    assert len(made) == 3
    assert children_left(str(source)) == []


def test_a_platform_without_forkserver_is_told_so(checkout, monkeypatch):
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    source = checkout(test_spawning=SPAWNING)

    with pytest.raises(ConformanceError, match=r"--forked does not work here: this platform's .* Leave it out"):
        pytorch_tests.recipe(source, "test_spawning.py", devices.CPU, {}, forked=True)
    pytorch_tests.recipe(source, "test_spawning.py", devices.CPU, {})


def test_a_python_that_keeps_its_start_methods_elsewhere_is_told_so(monkeypatch):
    monkeypatch.delattr(multiprocessing.context, "_concrete_contexts")

    assert forked_children.why_unavailable() == "this Python's multiprocessing keeps its start methods elsewhere"
