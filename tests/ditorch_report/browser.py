"""Chromium without a window, for tests of the report: `apt-get install chromium`, or CHROMIUM=/path/to/it."""

from __future__ import annotations

import os
import shutil
import threading
from contextlib import contextmanager

import pytest

_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PHONE = {"width": 390, "height": 844}
DESK = {"width": 1280, "height": 860}


def executable():
    names = (os.environ.get("CHROMIUM"), "chromium", "chromium-browser", "google-chrome")
    found = next((path for name in names if name and (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no Chromium here for the tests of the report: apt-get install chromium, or set CHROMIUM")
    return found


@contextmanager
def chromium():
    from playwright.sync_api import sync_playwright

    path = executable()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_FLAGS)
        try:
            yield browser
        finally:
            browser.close()
    for thread in threading.enumerate():  # it sees the end of Playwright's own process a little later
        if thread.name.startswith("asyncio-waitpid"):
            thread.join(30)


class Reader:
    """Who reads a report: one page of the browser, which must ask for nothing and complain about nothing."""

    def __init__(self, browser, url, dark=False, language="en-US", size=DESK):
        scheme = "dark" if dark else "light"
        self.context = browser.new_context(viewport=size, color_scheme=scheme, locale=language)
        self.page = self.context.new_page()
        self.url = url
        self.complaints, self.requests = [], []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(f"dialog: {dialog.message}"))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def open(self, address=""):
        """A deep link, opened afresh."""
        self.page.goto("about:blank")
        self.page.goto(f"{self.url}{address}")
        self.page.wait_for_selector("body[data-ready]", state="attached")
        return self.page

    def unnamed(self):
        """Controls and pictures for which a screen reader has no words."""
        heard = self.page.locator("body").aria_snapshot().splitlines()
        return [
            line for line in heard if line.strip(" -:") in ("button", "link", "img", "combobox", "searchbox", "table")
        ]

    def go(self, address):
        """Another part of the same page."""
        self.page.evaluate("address => { delete document.body.dataset.ready; location.hash = address; }", address)
        self.page.wait_for_selector("body[data-ready]", state="attached")
        return self.page

    def text(self, selector="main"):
        return self.page.inner_text(selector)

    def fits(self):
        """Nothing is wider than the window."""
        return self.page.evaluate("document.documentElement.scrollWidth <= innerWidth")

    def close(self):
        self.context.close()
        outside = [
            url for url in self.requests if not url.startswith(("file:", "blob:", "about:", "http://127.0.0.1:"))
        ]
        assert outside == []
        assert self.complaints == []
