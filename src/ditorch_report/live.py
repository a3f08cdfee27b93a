"""The page while the program runs, for who sits at this machine: http://127.0.0.1:PORT/TOKEN/.

The token keeps other users of the machine out, and the check of the Host header other sites' pages, whose names may be
made to point here. Nothing but GET is answered, and nothing outside of the page and its data.
"""

from __future__ import annotations

import hmac
import json
import secrets
import threading
import time
import zlib
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Callable
from urllib.parse import parse_qs, urlsplit

from ditorch_report import page
from ditorch_report.contents import Contents
from ditorch_report.run_folder import Row, RunFolder

_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",  # beside the one in the page, which cannot say this
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_SECONDS_FOR_A_REQUEST = 10
_REST_FACTOR = 10  # reading the run again takes at most this part of the time
_SECONDS_FOR_THE_LAST = 3.0  # a page that was seen so lately shall learn how the run ended


class LivePage:
    """`summary`: what is known of the run by now, None where nothing is."""

    def __init__(self, folder: Path, summary: Callable[[], Row | None]) -> None:
        self._folder = folder
        self._summary = summary
        self._token = secrets.token_urlsafe(24)
        self._lock = threading.Lock()  # one reads the run at a time
        self._version, self._body = "", b""
        self._next_reading = 0.0
        self._is_ended = False
        self._last_seen = float("-inf")
        self._told_the_end = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        serve = partial(self._server.serve_forever, poll_interval=0.1)  # how soon it notices its end
        self._thread = threading.Thread(target=serve, name="ditorch live page", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/{self._token}/"

    def end(self, patience: float = _SECONDS_FOR_THE_LAST) -> None:
        """The run is over: a page that is open gets the last data, then the server stops."""
        self._is_ended = True
        if time.monotonic() - self._last_seen < patience:
            self._told_the_end.wait(patience)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._server.wait_for_requests(_SECONDS_FOR_THE_LAST)

    def answer(self, path: str, host: str) -> tuple[int, str, bytes]:
        """Status, type and body."""
        if host not in (f"127.0.0.1:{self.port}", f"localhost:{self.port}"):
            return 403, "text/plain", b"this page is served under its own address only\n"
        address = urlsplit(path)
        _, token, name = [*address.path.split("/", 2), "", ""][:3]
        if not hmac.compare_digest(token.encode(), self._token.encode()) or name not in ("", "data"):
            return 404, "text/plain", b"there is nothing here: the address has a token, which `ditorch run` prints\n"
        if not name:
            return 200, "text/html; charset=utf-8", page.live_page().encode()
        return self._data(parse_qs(address.query).get("version", [""])[0])

    def _data(self, known: str) -> tuple[int, str, bytes]:
        self._last_seen = time.monotonic()
        with self._lock:
            is_ended = self._is_ended
            version = self._current_version(is_ended)
            if version != self._version and (is_ended or time.monotonic() >= self._next_reading):
                began = time.monotonic()
                self._body = self._read(version, is_ended)
                self._version = version
                self._next_reading = time.monotonic() + _REST_FACTOR * (time.monotonic() - began)
            if is_ended:
                self._told_the_end.set()
            if known == self._version:
                return 204, "", b""
            return 200, "application/json", self._body

    def _current_version(self, is_ended: bool) -> str:
        signature = repr((RunFolder(self._folder).signature(), is_ended))
        return f"{zlib.crc32(signature.encode()):08x}"

    def _read(self, version: str, is_ended: bool) -> bytes:
        contents = Contents()
        contents.add_run(RunFolder(self._folder), None if is_ended else self._summary())
        return json.dumps({"version": version, "ended": is_ended, "pieces": page.live_pieces(contents)}).encode()


class _Server(ThreadingHTTPServer):
    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._requests: list[threading.Thread] = []
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """In a thread that a process which ends does not wait for, but `wait_for_requests` does, for so long."""
        thread = threading.Thread(target=self.process_request_thread, args=(request, client_address), daemon=True)
        self._requests = [*filter(threading.Thread.is_alive, self._requests), thread]
        thread.start()

    def wait_for_requests(self, seconds: float) -> None:
        """Answers under way are sent: the last data must not be cut off by the end of the process."""
        deadline = time.monotonic() + seconds
        for thread in self._requests:
            thread.join(max(0.0, deadline - time.monotonic()))

    def handle_error(self, request: object, client_address: object) -> None:
        """A reader who went away; the terminal is the program's."""


def _handler(live: LivePage) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _SECONDS_FOR_A_REQUEST
        server_version, sys_version = "ditorch", ""

        def do_GET(self) -> None:
            try:
                answer = live.answer(self.path, self.headers.get("Host", ""))
            except Exception as error:  # noqa: BLE001  files of a run that goes on may be in any state
                answer = (500, "text/plain", f"the run cannot be read now: {error!r}\n".encode())
            self._send(*answer)

        def _refuse(self) -> None:
            self._send(405, "text/plain", b"this page can only be read\n")

        do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = do_CONNECT = _refuse  # noqa: N815

        def _send(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            for name, value in _HEADERS.items():
                self.send_header(name, value)
            if status == 405:
                self.send_header("Allow", "GET")
            if kind:
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body if self.command != "HEAD" else b"")

        def log_message(self, format: str, *arguments: object) -> None:
            """The terminal is the program's."""

    return Handler
