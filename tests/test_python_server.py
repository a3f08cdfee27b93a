"""A process of the server's is what a fresh one is, but that torch is there."""

from __future__ import annotations

import pytest

PORTRAIT = """
import atexit, os, sys
atexit.register(print, "goodbye")
print(sys.argv, sys.path[:2], __name__, os.getcwd(), os.environ["OWN"], "PYTEST_OWN" in os.environ, sys.stdin.read())
print("to the other one", file=sys.stderr)
def twice(x):
    return x * 2
print(sys.modules["__main__"].twice(2), end="")
"""


@pytest.mark.parametrize(
    "end",
    [
        "",
        "sys.exit(3)",
        "sys.exit('why it ends')",
        "os._exit(4)",
        "os.abort()",
        "import signal; signal.raise_signal(signal.SIGALRM)",
        "os.close(1)",
    ],
)
def test_it_is_as_python_would_start_it(run_python, tmp_path, monkeypatch, end):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "module.py").write_text("")
    environment = {"OWN": "of this process", "PYTHONPATH": str(tmp_path)}
    code = f"{PORTRAIT}\nimport module\n{end}\n"
    ours, fresh = (
        run_python(code, "--an", "argument", "", check=False, fresh=is_fresh, **environment) for is_fresh in (0, 1)
    )
    assert (ours.returncode, ours.stdout, ours.stderr) == (fresh.returncode, fresh.stdout, fresh.stderr)


def test_torch_is_there_and_nothing_of_ours(run_python):
    code = "import sys; print(*(name for name in ('torch', 'ditorch', 'op_tools') if name in sys.modules))"
    assert run_python(code).stdout == "torch\n"


def test_an_error_is_told_and_ends_it(run_python):
    done = run_python("def fail():\n    raise OSError('no such disk')\nfail()", check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback (most recent call last):\n")
    assert done.stderr.endswith("OSError: no such disk\n")


def test_what_is_decided_earlier_starts_anew(run_python):
    code = "import sys; print('torch' in sys.modules, sys.flags.utf8_mode)"
    assert run_python(code, PYTHONUTF8="1").stdout == "False 1\n"


def test_a_start_of_its_own_starts_anew(run_python, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.began = 'torch' in sys.modules")
    assert run_python("import sys; print(sys.began)", PYTHONPATH=str(tmp_path)).stdout == "False\n"
