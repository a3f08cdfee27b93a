"""Alerts go to a command or a webhook; one that fails, hangs or is not there harms nobody."""

from __future__ import annotations

import json
import os
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from op_tools.output import messages
from op_tools.watch import TrainingWatch, delivery
from op_tools.watch.alerts import MAX_SHOWN, Alert, Alerts
from op_tools.watch.delivery import Delivery
from op_tools.watch.log import LineFile

from .training import train, written


@pytest.fixture
def webhook():
    """What was posted to an address of this machine."""
    posted = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(500 if "broken" in self.path else 204)
            self.end_headers()

        def log_message(self, format, *arguments):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", posted
    server.shutdown()
    thread.join()
    server.server_close()


def spoil(step, net):
    if step == 1:
        net[0].weight.data.fill_(float("nan"))


def test_a_command_gets_each_alert_on_its_stdin(device, tmp_path):
    with TrainingWatch(out=tmp_path, verbose=0, on_alert=f"cat >> {tmp_path}/got; env > {tmp_path}/env"):
        train(device, 3, spoil=spoil)
    (alert,) = map(json.loads, (tmp_path / "got").read_text().splitlines())
    assert [alert] == written(tmp_path, "alerts.jsonl")
    assert alert["rule"] == "nan"


def test_a_webhook_gets_each_alert(webhook):
    address, posted = webhook
    sent = Delivery(f"{address}/hook")
    sent.add('{"step": 3}')
    sent.close()
    assert posted == [{"step": 3}]
    assert (sent.delivered, sent.failed) == (1, 0)


@pytest.mark.parametrize(
    ("receiver", "complaint"),
    [
        ("echo much wrong >&2; exit 3", "'echo much wrong >&2; exit 3': exit code 3: much wrong"),
        ("/no/such/command", "exit code 127"),
        ("exec 0<&-; exit 1", "exit code 1"),
        ("http://127.0.0.1:9/SECRET", "the webhook at 127.0.0.1:9: it cannot be reached"),
    ],
)
def test_what_fails_is_told_once(receiver, complaint, capsys):
    sent = Delivery(receiver)
    for _ in range(2):
        sent.add("{}" * 100_000)
    sent.close()
    said = capsys.readouterr().err
    assert complaint in said
    assert said.count("could not be handed to") == 1
    assert "SECRET" not in said
    assert sent.failed == 2


def test_a_webhook_that_refuses(webhook, capsys):
    sent = Delivery(f"{webhook[0]}/broken")
    sent.add("{}")
    sent.close()
    assert "it answered 500" in capsys.readouterr().err


def test_a_command_that_hangs_is_ended_with_all_that_it_started(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(delivery, "SECONDS_AT_END", 0.3)
    monkeypatch.setattr(delivery, "SECONDS_FOR_ONE", 60.0)
    sent = Delivery(f"sleep 600 & echo $! > {tmp_path}/pid; wait")
    sent.add("{}")
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().strip():
        time.sleep(0.01)
    for _ in range(delivery.MAX_WAITING + 5):
        sent.add("{}")  # does not wait
    sent.close()
    said = capsys.readouterr().err
    assert "alerts come faster than it takes them" in said
    assert "could not be handed to the command 'sleep 600" in said
    child = int((tmp_path / "pid").read_text())
    until = time.monotonic() + 10
    while time.monotonic() < until and is_alive(child):
        time.sleep(0.01)
    assert not is_alive(child)


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().split()[2] != "Z"
    except OSError:
        return False


def test_a_command_does_not_start_the_tools(tmp_path, monkeypatch):
    monkeypatch.setenv("OP_TOOLS", "watch")
    monkeypatch.setenv("DITORCH_RUN", "1")
    sent = Delivery(f"env > {tmp_path}/env")
    sent.add("{}")
    sent.close()
    names = {line.partition("=")[0] for line in (tmp_path / "env").read_text().splitlines()}
    assert "PATH" in names
    assert not names & {"OP_TOOLS", "DITORCH_RUN"}


def test_a_full_disk_ends_neither_training_nor_alerts(device, capsys):
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full")
    plain = train(device, 3)
    with TrainingWatch(out="/proc/nothing", verbose=0, rules="spike=off") as watch:
        assert train(device, 3) == plain
        train(device, 2, spoil=spoil)
    said = capsys.readouterr().err
    assert "TrainingWatch cannot write /proc/nothing/watch_result" in said
    assert said.count("steps.jsonl") == 1
    assert "ALERT at step 4" in said
    assert len(watch.results) == 1
    file = LineFile(type(watch.out)("/dev/full"))
    file.add("x")
    assert file.is_broken
    assert "No space left on device" in capsys.readouterr().err


def test_a_flood_of_alerts_stays_in_the_file(tmp_path, capsys):
    messages.forget()
    alerts = Alerts(LineFile(tmp_path / "alerts.jsonl"), None)
    for step in range(MAX_SHOWN + 30):
        alerts.raised(Alert(step, "spike", "\x1b[31mred <script>"))
    assert capsys.readouterr().err.count("\n") == MAX_SHOWN + 1
    assert len((tmp_path / "alerts.jsonl").read_text().splitlines()) == MAX_SHOWN + 30
