"""Building the library: what is said when it cannot be done, and that it is done once."""

from __future__ import annotations

import os
import platform
import re
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time

import pytest
import torch

from ditorch.errors import SimulatorError
from ditorch.sim import build
from ditorch_shared import native, processes
from ditorch_shared.libraries import HELPER

START = """
    import sys
    from ditorch import errors, sim
    try:
        sim.start()
    except errors.SimulatorError as error:
        sys.exit(str(error))
    import torch
    print(torch.ones(2, device="sim").tolist())
"""
WORKS = "[1.0, 1.0]\n"
WAY_ON = "To go on without it, on the plain CPU: DITORCH_BACKEND=cpu."


@pytest.fixture
def built():
    """The library that this process runs with."""
    return build.library()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, for this process and its children; no choice of compiler, and no other library beside."""
    monkeypatch.setenv("OP_TOOLS_NATIVE", "0")
    monkeypatch.setenv("DITORCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CXX", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def build_error(cache):
    """The message with which the build fails."""

    def fail():
        with pytest.raises(SimulatorError) as caught:
            build.library()
        return str(caught.value)

    return fail


@pytest.fixture
def fake_compiler(tmp_path, cache, monkeypatch):
    """Makes a script the compiler."""

    def make(script):
        path = tmp_path / "compiler"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("CXX", str(path))
        return str(path)

    return make


def libraries(cache):
    return sorted(path.name for path in cache.iterdir() if not path.name.endswith(".lock"))


def test_without_a_compiler_one_line_says_what_to_install(run_python, cache):
    done = run_python(START, check=False, PATH="/nonexistent")
    assert done.returncode == 1
    assert "no C++ compiler was found (g++, clang++ or c++)" in done.stderr
    assert "apt-get install g++" in done.stderr
    assert WAY_ON in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert libraries(cache) == []


def test_a_compiler_that_is_not_there_is_named(build_error, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "no C++ compiler was found (CXX=no-such-compiler)" in build_error()


def test_a_compile_error_is_shown_with_the_command(build_error, cache, fake_compiler):
    compiler = fake_compiler("echo 'simulator.cpp:7: error: torch is too strange' >&2; exit 3")
    message = build_error()
    assert f"compiling it with {compiler} failed (exit code 3)" in message
    assert re.search(rf"command: {re.escape(compiler)} -std=.*simulator\.cpp -o ", message)
    assert "simulator.cpp:7: error: torch is too strange" in message
    assert WAY_ON in message
    assert libraries(cache) == []


def test_a_compiler_that_says_nothing_is_reported(build_error, fake_compiler):
    fake_compiler("exit 1")
    assert "(it printed nothing)" in build_error()


def test_a_library_that_does_not_work_is_not_kept(build_error, cache, fake_compiler):
    fake_compiler("""while [ "$1" != -o ]; do shift; done; echo rubbish > "$2" """)
    message = build_error()
    assert "it was built, but does not work here" in message
    assert WAY_ON in message
    assert libraries(cache) == []


@pytest.mark.parametrize(
    ("load", "announced"),
    [(0.0, "once: about a minute …"), (9.0, "once: about 4 minutes, for the machine is busy …")],
)
def test_how_long_it_takes_is_said_beforehand_and_meanwhile(
    build_error, fake_compiler, monkeypatch, capfd, load, announced
):
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(native, "_SECONDS_BETWEEN_LINES", 0.05)
    fake_compiler("sleep 0.5; exit 1")
    build_error()
    first, second, *_ = capfd.readouterr().err.splitlines()
    assert first == f"ditorch: building the simulated accelerator for torch {torch.__version__}, {announced}"
    assert second == "ditorch: still building the simulated accelerator, since 0 s …"


def test_the_compiler_can_be_given_with_arguments(build_error, fake_compiler, monkeypatch):
    monkeypatch.setenv("CXX", "sh " + fake_compiler("echo error: called with $1 >&2; exit 1"))
    assert "error: called with -std=c++" in build_error()


def test_a_cache_that_cannot_be_written_to_is_named(build_error, tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("DITORCH_CACHE", str(file / "below"))
    message = build_error()
    assert f"cannot be kept in {file / 'below'}: Not a directory" in message
    assert "Set DITORCH_CACHE to a folder that can be written to" in message
    assert WAY_ON in message


def test_a_library_in_the_cache_needs_no_compiler(run_python, built, cache):
    cache.mkdir()
    shutil.copy(built, cache)
    done = run_python(START, PATH="/nonexistent")
    assert done.stdout == WORKS
    assert done.stderr == ""


def test_a_torch_that_is_too_old_is_named(monkeypatch):
    monkeypatch.setattr(build.torch, "__version__", "2.3.1+cpu")
    with pytest.raises(SimulatorError, match=r"needs torch 2.4 or newer, and this is 2.3.1\+cpu"):
        build.library()


def test_the_librarys_name_says_what_it_was_built_for():
    name = build.library().name
    assert name.startswith(f"sim-torch{torch.__version__}-abi")
    assert platform.machine() in name


@pytest.mark.slow
def test_processes_that_start_at_once_build_once(cache):
    command = [sys.executable, "-c", "from ditorch import sim; print(sim.start().device_count())"]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [child.communicate(timeout=240) for child in children]
    assert [child.returncode for child in children] == [0, 0]
    assert [output for output, _ in said] == ["2\n", "2\n"]
    assert sum("building the simulated accelerator" in errors for _, errors in said) == 1
    assert len(libraries(cache)) == 1


def test_what_a_killed_builder_left_is_cleared_away(built, fake_compiler, cache, capfd):
    target = cache / built.name
    left = cache / f"building-{target.stem}-abc"
    other = cache / "building-another-library-abc"
    for folder in (left, other):
        folder.mkdir(parents=True)
        (folder / "half.so").write_text("half")
    target.with_suffix(".lock").touch()
    fake_compiler(f"""while [ "$1" != -o ]; do shift; done; cp {built} "$2" """)
    assert build.library() == target
    assert not left.exists()
    assert other.exists()  # somebody may be building it
    *_, last = capfd.readouterr().err.splitlines()
    assert re.fullmatch(
        rf"ditorch: the simulated accelerator was built in \d+ s, kept in {re.escape(str(cache))}", last
    )


# Copies what is in the other cache, after it has waited for the compiler of the other library. It gives up by itself.
WAITS_FOR_THE_OTHER = """
case "$*" in *simulator.cpp*) own=sim other=op_tools;; *) own=op_tools other=sim;; esac
touch {marks}/$own
for i in $(seq 600); do [ -e {marks}/$other ] && break; sleep 0.05; done
[ -e {marks}/$other ] || exit 1
while [ "$1" != -o ]; do shift; done; cp {built}/$own-* "$2" """


@pytest.fixture
def both_built(built):
    """The folder with both libraries."""
    return HELPER.path().parent


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one core only")
def test_both_libraries_are_built_side_by_side(run_python, both_built, cache, fake_compiler, tmp_path, monkeypatch):
    monkeypatch.delenv("OP_TOOLS_NATIVE")
    marks, built = tmp_path / "marks", tmp_path / "built"
    marks.mkdir()
    built.mkdir()
    for library in (build.library, HELPER.path):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DITORCH_CACHE", str(both_built))
            shutil.copy(library(), built)
    fake_compiler(WAITS_FOR_THE_OTHER.format(marks=marks, built=built))
    done = run_python(START + "    from op_tools import native\n    print(native.library() is not None)\n")
    assert done.stdout == WORKS + "True\n"
    first, *others = done.stderr.splitlines()
    assert first.startswith("ditorch: building the simulated accelerator and, beside it, the fast path of op_tools for")
    assert sum("was built in" in line for line in others) == 2
    assert len(libraries(cache)) == 2


@pytest.fixture
def interrupts():
    """As a program has them: pytest-xdist leaves SIGINT to its first process."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts")
def test_a_build_that_is_interrupted_ends_what_the_compiler_has_started(cache, fake_compiler, tmp_path):
    started = tmp_path / "started"
    fake_compiler(f"sleep 300 & echo $! > {started}.new; mv {started}.new {started}; wait")

    def interrupt():
        while not started.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        build.library()
    process = int(started.read_text())
    while processes.usage(process) is not None:  # it ends in a moment, or the time limit is over
        time.sleep(0.01)


@pytest.mark.slow
def test_a_program_that_ends_gives_the_second_build_up(run_python, built, cache, fake_compiler, monkeypatch):
    """The simulated accelerator is there, the other library would take another minute: nobody wants it any more."""
    monkeypatch.delenv("OP_TOOLS_NATIVE")
    copy = f"""case "$*" in *simulator.cpp*) ;; *) exec sleep 60;; esac
while [ "$1" != -o ]; do shift; done; cp {built} "$2" """
    fake_compiler(copy)
    began = time.monotonic()
    assert run_python(START).stdout == WORKS
    assert time.monotonic() - began < 50
    assert len(libraries(cache)) == 1  # and no folder


@pytest.mark.slow
def test_a_builder_that_is_killed_does_not_hinder_the_next(
    run_python, built, cache, fake_compiler, tmp_path, monkeypatch
):
    monkeypatch.delenv("OP_TOOLS_NATIVE")
    fake_compiler(f"echo $$ >> {tmp_path}/pids; touch $TMPDIR/of-the-compiler; exec sleep 300")
    builder = subprocess.Popen(
        [sys.executable, "-c", "from ditorch import sim; sim.start()"], stderr=subprocess.DEVNULL
    )
    try:
        while not list(cache.glob("building-sim-*/of-the-compiler")):
            assert builder.poll() is None
            time.sleep(0.05)
        builder.send_signal(signal.SIGKILL)
        builder.wait()
        fake_compiler(f"""case "$*" in *simulator.cpp*) ;; *) exit 1;; esac
while [ "$1" != -o ]; do shift; done; cp {built} "$2" """)
        done = run_python(START)
        assert done.stdout == WORKS
        assert "waiting for" not in done.stderr
        assert libraries(cache) == [built.name]
    finally:
        builder.kill()
        for pid in (tmp_path / "pids").read_text().split():  # the compilers that were left alone
            os.kill(int(pid), signal.SIGKILL)


@pytest.mark.slow
def test_who_waits_for_another_builder_says_so(built, cache, fake_compiler):
    fake_compiler(f"""sleep 6; while [ "$1" != -o ]; do shift; done; cp {built} "$2" """)
    command = [sys.executable, "-c", "from ditorch import sim; sim.start()"]
    children = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = "".join(child.communicate(timeout=240)[1] for child in children)
    assert said.count("ditorch: building the simulated accelerator for torch") == 1
    assert said.count("ditorch: waiting for the simulated accelerator, which is being built already") == 1
