"""The report in a browser: what readers see, and what they can do."""

from __future__ import annotations

import json
import time

import pytest

from ditorch_report import contents, page

from . import browser, runs


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The address of the report about a run with a broken kernel."""
    folder = runs.broken(tmp_path_factory.mktemp("broken"))
    page.write(contents.of([folder]), folder / "report.html")
    return (folder / "report.html").as_uri()


def reported(folder):
    page.write(contents.of([folder]), folder / "report.html")
    return (folder / "report.html").as_uri()


def test_a_faulty_run(made, device):
    """The guilty op is on the first screen; every page is there, in both themes and languages, also on a phone."""
    with browser.chromium() as chromium:
        reader = browser.Reader(chromium, made)
        shown = reader.open()
        guilty = shown.locator("h1 .guilty")
        assert guilty.inner_text() == "torch.nn.functional.layer_norm"
        assert guilty.bounding_box()["y"] < 300
        assert "further off than its dtype allows" in reader.text()
        assert "runs.py" in reader.text(".verdict")
        for address in (
            "overview",
            "accuracy",
            "speed",
            "nan",
            "memory",
            "calls",
            "ranks",
            "comparison",
            "conformance",
        ):
            reader.go(address)
            assert reader.text("h1")
            assert reader.fits(), address
            assert reader.unnamed() == [], address
        _is_read_aloud(reader)
        _looks_at_a_call(reader)
        _zooms(reader)
        _uses_the_keyboard(reader)
        reader.close()
        reader = browser.Reader(chromium, made, dark=True, language="zh-CN", size=browser.PHONE)
        reader.open()
        assert "计算结果错误" in reader.text()
        assert shown_background(reader) == "rgb(18, 20, 23)"
        for address in ("overview", "accuracy", "speed", "calls?verdict=2"):
            reader.go(address)
            assert reader.fits(), address
        reader.page.click("#theme")
        reader.page.click("#language")
        reader.page.wait_for_selector("html[lang=en]")
        assert shown_background(reader) == "rgb(247, 247, 245)"
        assert "Calls" in reader.text("h1")
        reader.close()


def _is_read_aloud(reader):
    """What a screen reader makes of the first screen: landmarks, the op as a heading, tables with names."""
    heard = reader.go("overview").locator("body").aria_snapshot()
    for part in (
        'navigation "Pages"',
        'region "Verdict"',
        'heading "torch.nn.functional.layer_norm" [level=1]',
        'table "Where the time goes"',
        'columnheader "share"',
        'heading "Where the time goes" [level=2]',
    ):
        assert part in heard, heard


def shown_background(reader):
    return reader.page.evaluate("getComputedStyle(document.body).backgroundColor")


def _looks_at_a_call(reader):
    """Sort, filter, a deep link to what was found, and the call's own page."""
    page = reader.go("calls")
    page.fill("#search", "layer_norm norm")
    page.select_option("#filter-verdict", "2")
    assert "6 of " in reader.text(".note")
    page.click("th button:has-text('error')")
    tags = page.locator("tbody .tag").all_inner_texts()
    sizes = [float(tag.rstrip("×").replace(",", "")) for tag in tags]
    assert sizes == sorted(sizes, reverse=True)
    assert len(sizes) == 6
    link = page.url
    page.click("tbody tr a")
    page.wait_for_selector("main[data-page=call]")
    call = reader.text()
    assert "wrong" in reader.text("dl")
    assert "return x + torch.relu(self.up(self.norm(x)))" in reader.text(".code .here")
    assert "Device against reference" in call
    assert page.locator(".chart canvas").count() >= 1
    assert "ditorch reproduce " in call
    assert "float32" in call
    other = reader.open(link.partition(".html")[2])  # sent to somebody else
    assert other.input_value("#search") == "layer_norm norm"
    assert "6 of " in reader.text(".note")
    assert other.locator("th[aria-sort=descending]").inner_text().startswith("error")


def _zooms(reader):
    page = reader.go("speed")
    canvas = page.locator(".track-plot canvas")
    page.wait_for_selector(".track-plot canvas[data-zoom='1.00']")
    page.click("button[aria-label='Zoom in']")
    page.wait_for_selector(".track-plot canvas[data-zoom='2.00']")
    canvas.focus()
    page.keyboard.press("0")
    page.wait_for_selector(".track-plot canvas[data-zoom='1.00']")
    boxes = page.locator(".flame button").count()
    page.locator(".flame button.leaf").first.click()
    assert page.locator(".flame button.focus").count() == 1
    page.keyboard.press("Escape")
    page.click("text=Show all >> visible=true")
    assert page.locator(".flame button").count() == boxes


def _uses_the_keyboard(reader):
    page = reader.go("overview")
    page.keyboard.press("/")
    page.wait_for_selector("#search:focus")
    page.keyboard.type("functional.linear")
    page.locator(".rows").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_selector("main[data-page=call]")
    assert "linear" in reader.text("h1")
    page.keyboard.press("?")
    assert page.locator("dialog[open]").count() == 1


def test_how_nan_spread(tmp_path, device):
    with browser.chromium() as chromium:
        reader = browser.Reader(chromium, reported(runs.with_nan(tmp_path)))
        reader.open("#nan")
        assert reader.text(".verdict h2") == "torch.log"
        rows = reader.page.locator(".rows").first.locator("tbody tr").all_inner_texts()
        assert "made it" in rows[0]
        assert "layer_norm" in "".join(rows[1:])
        assert all("carried it on" in row for row in rows[1:])
        reader.close()


@pytest.mark.parametrize("calls", [5_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_many_calls(tmp_path, calls):
    """100,000 calls need less than 5 MB, and the page holds only what can be seen of them."""
    url = reported(runs.large(tmp_path, calls))
    assert (tmp_path / "report.html").stat().st_size < 350_000 + 46 * calls
    with browser.chromium() as chromium:
        reader = browser.Reader(chromium, url)
        shown = reader.open()
        assert "torch.nn.functional.linear" in reader.text("h1")
        began = time.perf_counter()
        reader.go("calls")
        opened = time.perf_counter() - began
        assert f"{calls:,} of {calls:,} calls" in reader.text(".note")
        assert shown.locator("tbody tr").count() < 100
        began = time.perf_counter()
        shown.fill("#search", "add blocks.6.")
        assert not reader.text(".note").startswith(f"{calls:,} of ")
        filtered = time.perf_counter() - began
        assert f" of {calls:,} calls" in reader.text(".note")
        shown.fill("#search", "")
        shown.evaluate("document.querySelector('.rows').scrollTop = 34 * 3000")
        shown.wait_for_selector("tr[data-number='3000']")
        assert shown.locator("tr[data-number='3000'] td").first.inner_text() == "3001"
        reader.go(f"call/0-{calls}")
        assert "off by a factor of 1.1" in reader.text()
        print(f"{calls:,} calls opened within {opened:.2f} s, filtered within {filtered:.2f} s")
        reader.close()


EVIL = """<img src=x onerror=alert(1)></script><script>alert(2)</script>"'{{7*7}}javascript:alert(3)"""


def test_names_and_texts_of_a_run_stay_texts(tmp_path):
    folder = tmp_path / "<b onclick=alert(4)>&amp;"
    runs.large(
        folder,
        20,
        op=f"torch.{EVIL}",
        module=f"blocks.{EVIL.replace('{', '').replace('}', '')}",
        where=f"/x/{EVIL}.py:1 f: {EVIL}",
    )
    own = {"layer": EVIL, "what": "output", "relative_error": 0.01, "input_error": "nan", "allclose": False}
    lockstep = tmp_path / "lockstep"
    runs.large(lockstep, 2)
    summary = {"modules": [own, {**own, "layer": "up", "allclose": True}]}
    (lockstep / "summary.json").write_text(json.dumps(summary))
    url = reported(folder)
    with browser.chromium() as chromium:
        reader = browser.Reader(chromium, reported(lockstep))
        shown = reader.open("#accuracy")
        modules = shown.locator("section:has(h2:has-text('its own error')) tbody tr")
        assert [row.split("\t")[-1].strip() for row in modules.all_inner_texts()] == ["not close", "close"]
        assert shown.locator("main img, main script").count() == 0
        reader.close()
        reader = browser.Reader(chromium, url)
        for address in (
            "",
            "#accuracy",
            "#speed",
            "#calls",
            "#call/0-20",
            f"#call/{EVIL}",
            f"#calls?q={EVIL}",
            f"#{EVIL}",
        ):
            shown = reader.open(address)
            assert shown.locator("main img, main script, [onclick], [onerror]").count() == 0
            assert shown.locator("body > script[data-piece]").count() > 3
        assert EVIL in reader.open().inner_text("h1")
        assert "&amp;" in reader.text("#run-title")
        reader.close()
