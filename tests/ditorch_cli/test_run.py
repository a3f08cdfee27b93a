"""`ditorch run`: the program runs as Python would run it, and torch has the accelerator, in child processes too."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

import ditorch
from ditorch_cli.run import run

AUTOLOAD = Path(ditorch.__file__).parent / "autoload"

# What a program can see of how it was started.
SELF_PORTRAIT = """
    '''A program that describes itself.'''
    import json, os, sys
    print(json.dumps({
        "arguments": sys.argv, "path": sys.path, "name": __name__, "file": __file__, "documentation": __doc__,
        "package": __package__, "spec": __spec__ and __spec__.name, "folder": os.getcwd(), "flags": str(sys.flags),
        "is main": sys.modules["__main__"].__dict__ is globals(), "options": sys._xoptions,
        "warnings": sys.warnoptions, "input": sys.stdin.read(), "buffered": not sys.stdout.write_through,
        "modules": sorted(name for name in sys.modules if name.split(".")[0] in ("torch", "ditorch", "click")),
    }))
"""


def announced(stderr: str) -> list[str]:
    """The pids of the processes in which ditorch said what it found."""
    line = r"^ditorch: sim \(simulated accelerator\) torch \S+ pid (\d+) ditorch\.framework: \S+$"
    return re.findall(line, stderr, re.MULTILINE)


@pytest.fixture
def program(tmp_path):
    def write(source: str, name: str = "program.py") -> str:
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(textwrap.dedent(source))
        return name

    return write


@pytest.fixture
def started(monkeypatch):
    """What `ditorch run` would turn the process into: the command, and the environment that it adds."""
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)  # as in an activated environment

    def parse(*arguments):
        calls = []
        monkeypatch.setattr(os, "execve", lambda *call: calls.append(call))
        result = CliRunner().invoke(run, arguments, catch_exceptions=False)
        if result.exit_code:
            return result.exit_code, result.output
        [(executable, command, environment)] = calls
        assert executable == command[0] == sys.executable
        return command[1:], {name: value for name, value in environment.items() if os.environ.get(name) != value}

    return parse


class TestTheProgram:
    @pytest.mark.parametrize(
        "how",
        [
            pytest.param(["program.py"], id="script"),
            pytest.param(["-m", "package.program"], id="module"),
        ],
    )
    def test_sees_itself_as_under_python(self, ditorch_command, program, how):
        program(SELF_PORTRAIT)
        program(SELF_PORTRAIT, "package/program.py")
        arguments = [*how, "--help", "-x", "--", "-m", "two words", ""]
        options = ["-u", "-B", "-X", "faulthandler", "-W", "ignore"]
        plain = ditorch_command(*arguments, python=options, input="typed\n")
        ours = ditorch_command(*arguments, python=[*options, "-m", "ditorch", "run"], input="typed\n")
        assert json.loads(ours.stdout) == json.loads(plain.stdout)
        assert (ours.returncode, ours.stderr) == (0, "")
        assert json.loads(ours.stdout)["arguments"][1:] == ["--help", "-x", "--", "-m", "two words", ""]
        assert json.loads(ours.stdout)["modules"] == []

    def test_ends_with_its_own_traceback(self, ditorch_command, program):
        program("def fail():\n    raise OSError('no such disk')\nfail()\n")
        plain = ditorch_command("program.py", python=())
        ours = ditorch_command("run", "program.py")
        assert (ours.returncode, ours.stdout, ours.stderr) == (1, "", plain.stderr)
        assert "OSError: no such disk" in ours.stderr

    def test_ends_with_its_own_exit_code(self, ditorch_command, program):
        program("import sys, atexit\natexit.register(print, 'goodbye')\nsys.exit(7)\n")
        done = ditorch_command("run", "program.py")
        assert (done.returncode, done.stdout, done.stderr) == (7, "goodbye\n", "")

    def test_is_interrupted_as_under_python(self, ditorch_command, program):
        # its own handler: a job in the background is started with the signal ignored
        program(
            "import signal\n"
            "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
            "signal.raise_signal(signal.SIGINT)\n"
        )
        done = ditorch_command("run", "program.py")
        assert done.returncode == -signal.SIGINT  # a shell says 130
        assert done.stderr.endswith("\nKeyboardInterrupt\n")
        assert "click" not in done.stderr


class TestTheCommandLine:
    def test_all_after_the_program_is_the_programs(self, started):
        command, _ = started("train.py", "-m", "--help", "run", "--", "--")
        assert command == [*_options_of_this_process(), "train.py", "-m", "--help", "run", "--", "--"]

    def test_an_executable_by_its_path_is_no_script(self, started):
        command, _ = started(sys.executable, "x.py")
        assert command == ["x.py"]

    def test_all_after_the_module_is_the_modules(self, started):
        command, _ = started("-m", "package.train", "-m", "--help")
        assert command == [*_options_of_this_process(), "-m", "package.train", "-m", "--help"]

    def test_its_folder_comes_before_the_others_on_the_path(self, started, monkeypatch):
        monkeypatch.setenv("PYTHONPATH", "one:two")
        variables = started("train.py")[1]
        assert (variables["DITORCH_RUN"], variables["PYTHONPATH"]) == ("1", f"{AUTOLOAD}:one:two")

    def test_its_folder_is_put_on_the_path_once(self, started, monkeypatch):
        monkeypatch.setenv("DITORCH_RUN", "1")
        monkeypatch.setenv("PYTHONPATH", f"one:{AUTOLOAD}")
        assert started("train.py")[1]["PYTHONPATH"] == f"{AUTOLOAD}:one"

    def test_an_empty_path_stays_without_the_working_folder(self, started, monkeypatch):
        monkeypatch.setenv("PYTHONPATH", "")
        assert started("train.py")[1]["PYTHONPATH"] == str(AUTOLOAD)

    def test_without_a_program_it_says_what_is_missing(self, started):
        code, output = started()
        assert code == 2
        assert output.endswith("Error: Missing argument 'PROGRAM'.\n")

    def test_an_option_of_its_own_that_does_not_exist_is_an_error(self, started):
        code, output = started("-x", "train.py")
        assert code == 2
        assert re.search("Error: No such option:? '?-x", output)

    @pytest.mark.parametrize("tools", [(), ("--time", "--autocompare")])
    def test_a_file_that_does_not_exist_is_one_message(self, ditorch_command, tmp_path, tools):
        done = ditorch_command("run", *tools, "missing.py")
        assert done.returncode == 2
        assert done.stdout == ""
        assert done.stderr == (
            f"{sys.executable}: can't open file '{tmp_path}/missing.py': [Errno 2] No such file or directory\n"
        )
        assert list(tmp_path.iterdir()) == []

    def test_a_module_that_does_not_exist_is_one_message(self, ditorch_command):
        done = ditorch_command("run", "-m", "missing")
        assert (done.returncode, done.stderr) == (1, f"{sys.executable}: No module named missing\n")

    @pytest.mark.parametrize("option", ["ignore_environment", "no_site"])
    def test_a_python_that_would_not_run_the_hook_is_refused(self, started, monkeypatch, option):
        flags = SimpleNamespace(**{"ignore_environment": 0, "no_site": 0, option: 1})
        monkeypatch.setattr(sys.modules["ditorch_cli.run"], "sys", SimpleNamespace(flags=flags))
        code, output = started("train.py")
        assert code == 2
        assert output.endswith(
            "Error: Python was started with -I, -E or -S, and `ditorch run` cannot work under these.\n"
        )


class TestTorch:
    def test_has_the_accelerator_once_the_program_imports_it(self, ditorch_command, program):
        program(
            """
            import importlib.util, os, sys
            importlib.util.find_spec("torch")  # only a look
            os.environ["DITORCH_SIM_DEVICES"] = "5"  # what is set before the import counts
            assert "torch" not in sys.modules
            import torch.nn
            import ditorch
            print(torch.ones(2, device="sim").tolist(), torch.sim.device_count(), ditorch.backend().name)
            hooks = [hook for hook in sys.meta_path if type(hook).__name__ == "_AfterTorch"]
            print(vars(torch.__spec__.loader).keys() & {"exec_module"}, hooks, os.getpid())
            """
        )
        done = ditorch_command("run", "program.py")
        assert done.stderr.count("\n") == 1
        first, second = done.stdout.splitlines()
        assert first == "[1.0, 1.0] 5 sim"
        assert second == f"set() [] {announced(done.stderr)[0]}"

    def test_is_left_alone_when_ditorch_is_disabled(self, ditorch_command, program):
        program("import sys, torch; print(hasattr(torch, 'sim'), 'ditorch' in sys.modules)")
        done = ditorch_command("run", "program.py", DITORCH_DISABLE_MOCK="1")
        assert (done.stdout, done.stderr) == ("False False\n", "")


class TestChildren:
    def test_of_every_kind_have_the_accelerator(self, ditorch_command, program):
        program(
            """
            import multiprocessing, subprocess, sys
            import torch

            CODE = "import torch; print(torch.full((1,), 3.0, device='sim').item())"

            class Squares(torch.utils.data.Dataset):
                def __len__(self):
                    return 2
                def __getitem__(self, index):
                    return (torch.tensor(index + 1.0, device="sim") ** 2).item()

            def double(number):
                return (torch.tensor(number, device="sim") * 2).item()

            if __name__ == "__main__":
                child = subprocess.Popen([sys.executable, "-c", CODE], stdout=subprocess.PIPE, text=True)
                with multiprocessing.get_context("spawn").Pool(1) as pool:
                    print("spawn", pool.map(double, [1.0]))
                with multiprocessing.get_context("forkserver").Pool(1) as pool:
                    print("forkserver", pool.map(double, [2.0]))
                loader = torch.utils.data.DataLoader(Squares(), num_workers=1, multiprocessing_context="spawn")
                print("loader", [batch.item() for batch in loader])
                print("subprocess", child.communicate()[0].strip())
                subprocess.run([sys.executable, "-c", "print('without torch')"])
            """
        )
        done = ditorch_command("run", "program.py", PYTHONUNBUFFERED="1")
        assert done.stdout.splitlines() == [
            "spawn [2.0]",
            "forkserver [4.0]",
            "loader [1.0, 4.0]",
            "subprocess 3.0",
            "without torch",
        ]
        pids = announced(done.stderr)
        assert len(set(pids)) == len(pids) == 5  # the program and four children; not the one without torch
        assert done.stderr.count("\n") == 5

    def test_under_torchrun_train_together(self, ditorch_command, program):
        program(
            """
            import sys, torch
            import torch.distributed as dist
            dist.init_process_group("simccl")
            total = torch.tensor([dist.get_rank() + 1.0], device=f"sim:{dist.get_rank()}")
            dist.all_reduce(total)
            print(f"rank {dist.get_rank()} {sys.argv[1:]} {total.item()}\\n", end="", flush=True)
            dist.destroy_process_group()
            """
        )
        torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m", "ditorch", "run")
        done = ditorch_command("program.py", "--steps", "3", python=torchrun)
        assert done.returncode == 0, done.stderr
        assert sorted(done.stdout.splitlines()) == ["rank 0 ['--steps', '3'] 3.0", "rank 1 ['--steps', '3'] 3.0"]
        assert len(set(announced(done.stderr))) == len(announced(done.stderr)) == 2

    def test_torchrun_of_an_environment_that_is_not_activated_is_found(self, ditorch_command):
        """Users call .venv/bin/ditorch by its path, and torchrun stands beside it."""
        done = ditorch_command("run", "torchrun", "--help", PATH="/nowhere")
        assert done.returncode == 0, done.stderr
        assert "usage: torchrun" in done.stdout


class TestTheHook:
    """The file that Python runs when a child starts, on its own."""

    @pytest.fixture
    def child(self, run_python):
        def run(code: str, *folders: Path, check: bool = True, **environment: str):
            path = os.pathsep.join(map(str, [AUTOLOAD, *folders]))
            variables = {"DITORCH_RUN": "1", "DITORCH_DISABLE_MOCK": "0", "DITORCH_BACKEND": "sim", **environment}
            return run_python(code, check=check, PYTHONPATH=path, **variables)

        return run

    def test_imports_neither_torch_nor_ditorch_and_leaves_the_path_as_it_was(self, child):
        done = child(
            "import sys; print({'torch', 'ditorch'} & set(sys.modules), [p for p in sys.path if 'autoload' in p])"
        )
        assert (done.stdout, done.stderr) == ("set() []\n", "")

    def test_runs_the_sitecustomize_that_it_hides(self, child, tmp_path):
        (tmp_path / "sitecustomize.py").write_text("name = __name__\nprint('hello from', name)")
        done = child("import sitecustomize; print(sitecustomize.__file__)", tmp_path)
        assert done.stdout == f"hello from sitecustomize\n{tmp_path}/sitecustomize.py\n"

    def test_runs_the_sitecustomize_that_it_hides_when_switched_off(self, child, tmp_path):
        (tmp_path / "sitecustomize.py").write_text("print('hello')")
        done = child("import sys; print([type(f).__name__ for f in sys.meta_path][0])", tmp_path, DITORCH_RUN="0")
        assert done.stdout.splitlines()[0] == "hello"
        assert "_AfterTorch" not in done.stdout

    def test_a_missing_import_of_the_hidden_sitecustomize_is_reported_as_ever(self, child, tmp_path):
        (tmp_path / "sitecustomize.py").write_text("import missing_module")
        done = child("print('goes on')", tmp_path)
        assert done.stdout == "goes on\n"
        assert "No module named 'missing_module'" in done.stderr

    def test_an_import_of_torch_that_failed_may_be_tried_again(self, child, tmp_path):
        (tmp_path / "torch.py").write_text("raise ImportError('libtorch.so')")
        done = child(
            f"""
            import sys
            try:
                import torch
            except ImportError as error:
                print("failed:", error)
            sys.path.remove({str(tmp_path)!r})
            import torch
            print(torch.ones(1, device="sim").item())
            """,
            tmp_path,
        )
        assert done.stdout == "failed: libtorch.so\n1.0\n"
        assert len(announced(done.stderr)) == 1

    def test_installs_once_where_the_program_imports_ditorch_first(self, child):
        done = child("import ditorch, torch; print(torch.ones(1, device='sim').item())")
        assert done.stdout == "1.0\n"
        assert len(announced(done.stderr)) == 1

    def test_a_backend_that_does_not_exist_is_one_message_and_the_end(self, child):
        code = "try:\n    import torch\nexcept Exception:\n    print('must not go on without an accelerator')\n"
        done = child(code, check=False, DITORCH_BACKEND="sym")
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("ditorch: DITORCH_BACKEND=sym: there is no such backend. Did you mean sim?")
        assert done.stderr.count("\n") == 1

    def test_finds_its_ditorch_where_the_program_cannot(self, child):
        code = """
            import sys
            class Nowhere:
                def find_spec(self, name, path=None, target=None):
                    if name == "ditorch":
                        raise ModuleNotFoundError("it is not on the path")
            sys.meta_path.insert(0, Nowhere())
            import torch
            print(torch.ones(1, device="sim").item(), sys.modules["ditorch"].__file__)
        """
        assert child(code).stdout == f"1.0 {ditorch.__file__}\n"


def _options_of_this_process() -> list[str]:
    """Not those of `ditorch run` but of pytest; they are kept."""
    return subprocess._args_from_interpreter_flags()


def test_what_processes_announce_at_once_does_not_mix(tmp_path):
    """Unbuffered, as under torchrun, each write to stderr is on its own: a line must be one."""
    mine, childs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)  # keeps writes apart
    environment = {**os.environ, "DITORCH_DISABLE_MOCK": "0", "DITORCH_BACKEND": "sim"}
    environment["DITORCH_FAULTS"] = "aten.mm: scale=1.01"
    command = [sys.executable, "-u", "-c", "import torch, ditorch"]
    with mine, childs:
        subprocess.run(command, stderr=childs, check=True, cwd=tmp_path, env=environment)
        mine.setblocking(False)
        writes = []
        with contextlib.suppress(BlockingIOError):
            while True:
                writes.append(mine.recv(10_000).decode())
    (announcement,) = [write for write in writes if announced(write)]
    assert announcement.endswith("kernels broken by DITORCH_FAULTS: aten.mm: scale=1.01\n")
