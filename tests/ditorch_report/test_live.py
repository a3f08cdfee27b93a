"""The page while a run goes on: for who has its address, and nobody else."""

from __future__ import annotations

import http.client
import json
import threading

import pytest

from ditorch_report.live import LivePage

from . import browser, runs


@pytest.fixture
def live(tmp_path):
    served = LivePage(runs.large(tmp_path, 30), lambda: None)
    yield served
    served.end(patience=0)


def ask(live, path, method="GET", host=None):
    connection = http.client.HTTPConnection("127.0.0.1", live.port, timeout=20)
    connection.request(method, path, headers={"Host": host or f"127.0.0.1:{live.port}"})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body


def path_of(live):
    return live.url.partition(str(live.port))[2]


def test_it_is_served_to_who_has_the_token(live):
    status, body = ask(live, path_of(live))
    assert status == 200
    assert b"Content-Security-Policy" in body
    status, body = ask(live, f"{path_of(live)}data")
    data = json.loads(body)
    assert status == 200
    assert not data["ended"]
    assert {"index", "run0.calls"} <= set(data["pieces"])
    assert ask(live, f"{path_of(live)}data?version={data['version']}") == (204, b"")
    assert ask(live, path_of(live), host=f"localhost:{live.port}")[0] == 200


@pytest.mark.parametrize(
    "path",
    ["/", "/data", "/wrong/", "/wrong/data", "{token}..", "{token}../etc/passwd", "{token}data/more", "//", "/%C3%A9/"],
)
def test_a_wrong_token_or_path_is_refused(live, path):
    status, body = ask(live, path.format(token=path_of(live)))
    assert status == 404
    assert b"pieces" not in body


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1.evil.example:{port}", "0.0.0.0:{port}"]
)
def test_other_names_of_this_host_are_refused(live, host):
    status, body = ask(live, f"{path_of(live)}data", host=host.format(port=live.port))
    assert status == 403
    assert b"pieces" not in body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"])
def test_other_methods_are_refused(live, method):
    status, body = ask(live, path_of(live), method)
    assert status == 405
    assert b"Content-Security-Policy" not in body


def test_an_answer_under_way_is_sent_before_the_end(tmp_path):
    asked, may_answer, answers = threading.Event(), threading.Event(), []

    def summary():
        asked.set()
        may_answer.wait(20)

    live = LivePage(runs.large(tmp_path, 30), summary)
    reader = threading.Thread(target=lambda: answers.append(ask(live, f"{path_of(live)}data")))
    reader.start()
    assert asked.wait(20)
    end = threading.Thread(target=live.end, kwargs={"patience": 0})
    end.start()
    end.join(0.5)
    may_answer.set()
    end.join(20)
    under_way = [thread.name for thread in threading.enumerate() if "process_request" in thread.name]
    reader.join(20)
    assert not under_way
    assert answers[0][0] == 200


def test_it_follows_the_run(tmp_path):
    live = LivePage(runs.large(tmp_path, 30), lambda: None)
    try:
        with browser.chromium() as chromium:
            reader = browser.Reader(chromium, live.url)
            shown = reader.open("#calls")
            assert "30 of 30 calls" in reader.text(".note")
            shown.fill("#search", "add")
            runs.large(tmp_path, 60)
            shown.wait_for_selector(".note:has-text('of 60 calls')")
            assert shown.input_value("#search") == "add"
            assert "20 of 60 calls" in reader.text(".note")
            live._is_ended = True
            shown.wait_for_selector("#live-state:has-text('ended')")
            shown.click("#pages a:has-text('Overview')")
            shown.wait_for_selector("h1 .guilty")
            reader.close()
    finally:
        live.end()
