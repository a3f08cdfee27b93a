"""The command `ditorch` as a whole: help, version, what it says to a mistake, and the boundary for foreseen errors."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys

import click
import pytest
from click.shell_completion import get_completion_class

import ditorch
import ditorch_cli as cli
from ditorch.errors import BackendError


@pytest.fixture
def command(monkeypatch, capsys):
    """Runs `ditorch …` in this process: its exit code, output and errors."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["ditorch", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code, *capsys.readouterr()

    return run


@pytest.fixture
def failing_command(monkeypatch):
    """A subcommand `fail` that raises."""

    def add(error):
        @click.command()
        def fail():
            raise error

        monkeypatch.setattr(cli, "fail", fail, raising=False)
        monkeypatch.setitem(cli._COMMANDS, "fail", ("ditorch_cli:fail", "Fail."))

    return add


def test_help_lists_every_command_with_a_line_of_its_own(command):
    code, output, errors = command("--help")
    assert (code, errors) == (0, "")
    assert output.startswith("Usage: ditorch [OPTIONS] COMMAND [ARGS]...")
    for name in cli._COMMANDS:
        assert f"\n  {name} " in output


@pytest.mark.parametrize("name", cli._COMMANDS)
def test_every_command_has_help(command, name):
    code, output, errors = command(name, "--help")
    assert (code, errors) == (0, "")
    assert output.startswith(f"Usage: ditorch {name} [OPTIONS]")


def every_command(command=cli._group, *names):
    """The command itself, its subcommands, and theirs."""
    yield names
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from every_command(command.get_command(context, name), *names, name)


def test_every_command_is_found():
    assert {(), ("run",), ("compare",), ("reproduce",), ("conformance", "diff")} <= set(every_command())


@pytest.mark.parametrize("names", list(every_command()), ids=lambda names: " ".join(("ditorch", *names)))
def test_help_does_not_import_torch(names):
    code = f"""if True:
        import atexit, sys
        import ditorch_cli
        atexit.register(lambda: print("torch" in sys.modules))
        sys.argv = {["ditorch", *names, "--help"]}
        ditorch_cli.main()
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "False"


def imported_by(*arguments):
    """The modules that Python imports for a command line, and what that prints."""
    done = subprocess.run([sys.executable, "-X", "importtime", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}, done.stdout


@pytest.mark.parametrize("package", ["ditorch", "ditorch_cli"])
@pytest.mark.parametrize("names", list(every_command()), ids=" ".join)
def test_help_of_a_module_run_as_a_script_does_not_import_torch(names, package):
    modules, output = imported_by("-m", package, *names, "--help")
    assert output.startswith(f"Usage: {' '.join(('ditorch', *names[:1]))} ")
    assert package in modules, "what is imported is seen"
    assert "torch" not in modules


def test_a_program_in_which_ditorch_is_active_imports_torch():
    modules, _ = imported_by("-c", "import ditorch; ditorch.install()")
    assert "torch" in modules


def completed(*words):
    """What Tab offers for the last word."""
    shell = get_completion_class("bash")(cli._group, {}, "ditorch", "_DITORCH_COMPLETE")
    return [(item.type, item.value) for item in shell.get_completions(list(words[:-1]), words[-1])]


def test_tab_completes_commands_options_tools_and_files():
    assert ("plain", "attach") in completed("")
    assert completed("rep") == [("plain", "replay"), ("plain", "reproduce"), ("plain", "report")]
    assert ("plain", "--version") in completed("--")
    assert completed("run", "--auto") == [("plain", "--autocompare")]
    assert completed("run", "tr") == [("file", "tr")]
    assert completed("run", "train.py", "da") == [("file", "da")]
    assert completed("attach", "4711", "o") == [("plain", "off"), ("plain", "on")]
    assert completed("attach", "4711", "on", "auto") == [("plain", "autocompare")]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_clicks_script(command, shell):
    code, script, errors = command("completion", shell)
    assert (code, errors) == (0, "")
    assert f"_DITORCH_COMPLETE={shell}_complete" in script


def test_the_completion_of_bash_works_in_bash():
    """As bash calls it: the words that were typed, and the number of the one to complete."""
    folder = os.path.dirname(sys.executable)
    script = 'eval "$(ditorch completion bash)"; COMP_WORDS=(ditorch attach 1 on over); COMP_CWORD=4; '
    script += "_ditorch_completion ditorch; echo ${COMPREPLY[@]}"
    search = os.pathsep.join((folder, os.environ["PATH"]))
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env={**os.environ, "PATH": search})
    assert (done.stdout, done.stderr) == ("overflow\n", "")


def test_the_version_is_that_of_the_package_and_of_the_distribution(command):
    assert command("--version") == (0, f"ditorch, version {ditorch.__version__}\n", "")
    assert ditorch.__version__ == importlib.metadata.version("ditorch")


def test_an_unknown_command_is_named(command):
    code, output, errors = command("rum")
    assert (code, output) == (2, "")
    assert "No such command 'rum'." in errors


def test_an_unknown_option_is_named(command):
    code, output, errors = command("demo", "--stepps", "3")
    assert (code, output) == (2, "")
    assert "No such option" in errors
    assert "--stepps" in errors


def test_an_error_that_was_foreseen_is_one_message(command, failing_command):
    failing_command(BackendError("The chip is not there. Plug it in."))
    assert command("fail") == (2, "", "ditorch: The chip is not there. Plug it in.\n")


def test_an_error_that_was_not_foreseen_shows_its_traceback_and_is_no_finding(command, failing_command, monkeypatch):
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    failing_command(ZeroDivisionError("a mistake of ours"))
    code, output, errors = command("fail")
    assert (code, output) == (2, "")
    assert errors.startswith("Traceback (most recent call last):")
    assert errors.endswith("ZeroDivisionError: a mistake of ours\n")


def test_ctrl_c_is_no_finding(command, failing_command):
    failing_command(KeyboardInterrupt())
    assert command("fail")[:2] == (130, "")


def test_a_backend_that_does_not_exist_is_one_message(ditorch_command):
    done = ditorch_command("demo", DITORCH_BACKEND="sym")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("ditorch: DITORCH_BACKEND=sym: there is no such backend. Did you mean sim?")
    assert done.stderr.count("\n") == 1


def test_python_3_9_tells_the_command_line_in_another_way(monkeypatch):
    expected = sys.orig_argv if sys.version_info >= (3, 10) else ditorch._original_arguments()
    monkeypatch.setattr(sys, "version_info", (3, 9))
    assert ditorch._original_arguments() == expected
