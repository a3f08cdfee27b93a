"""`ditorch report`, and `ditorch run --live`."""

from __future__ import annotations

import http.client
import os
import re
import subprocess
import sys

import pytest

from ..ditorch_report import runs


def test_a_run_with_a_live_page(tmp_path):
    """`ditorch run --live`: served while the program runs; report.html is there when it has ended."""
    (tmp_path / "train.py").write_text(
        "import pathlib, time, torch\n"
        "x = torch.randn(8, 8, device='cuda')\n"
        "(x @ x).sum().item()\n"
        "while not pathlib.Path('go').exists(): time.sleep(0.05)\n"
    )
    command = [sys.executable, "-m", "ditorch", "run", "--live", "--time", "--out", "run", "train.py"]
    environment = {**os.environ, "DITORCH_DISABLE_MOCK": "0", "DITORCH_BACKEND": "sim"}
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, env=environment) as run:
        try:
            said = ""
            while "live page at" not in said:
                said = run.stderr.readline()
                assert said, "it ended"
            port, token = re.search(r"http://127\.0\.0\.1:(\d+)(/[\w-]{30,}/)$", said.strip()).groups()
            connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=60)
            connection.request("GET", token)
            assert connection.getresponse().status == 200
            connection.close()
            assert not (tmp_path / "run" / "report.html").exists()
        finally:
            (tmp_path / "go").touch()  # it ends, whatever happens here
        rest = run.stderr.read()
    assert run.returncode == 0
    assert "ditorch: report in run/report.html" in rest
    assert "matmul" in rest
    assert (tmp_path / "run" / "report.html").stat().st_size > 100_000
    with pytest.raises(ConnectionError):
        http.client.HTTPConnection("127.0.0.1", int(port), timeout=5).request("GET", token)


def test_a_live_page_needs_a_tool(ditorch_command):
    done = ditorch_command("run", "--live", "train.py")
    assert done.returncode == 2
    assert "--live shows what tools find" in done.stderr


def test_a_report_of_what_is_no_run(ditorch_command):
    done = ditorch_command("report", "nowhere")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "ditorch report: nowhere cannot be reported: there is no such folder\n"


def test_a_report_needs_no_torch(ditorch_command, tmp_path):
    runs.large(tmp_path / "run", 20)
    (tmp_path / "torch.py").write_text("raise ImportError('torch was imported')")
    done = ditorch_command(
        "report",
        "run",
        "--out",
        "page.html",
        PYTHONPATH=str(tmp_path),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("page.html written (")
