"""Whether what the page shows can be read: contrast, numbers that are whole, on paper, on a phone."""

from __future__ import annotations

import pytest
import torch

import op_tools
from ditorch.sim import faults
from ditorch_report import contents, page

from . import browser, runs

PAGES = ("overview", "accuracy", "speed", "nan", "memory", "calls", "ranks", "comparison", "conformance")

# every text's colour against what lies behind it: ratios as WCAG defines them, those below 4.5
CONTRAST = """() => {
  const parts = (colour) => (colour.match(/[\\d.]+/g) || []).map(Number);
  const paint = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = (colour) => {  // whatever notation the style has
    paint.clearRect(0, 0, 1, 1);
    paint.fillStyle = colour;
    paint.fillRect(0, 0, 1, 1);
    return [...paint.getImageData(0, 0, 1, 1).data];
  };
  const light = (colour) => {
    const linear = (one) => (one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = colour.slice(0, 3).map((one) => linear(one / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (node) => {
    for (let one = node; one; one = one.parentElement) {
      const colour = rgb(getComputedStyle(one).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return [255, 255, 255, 255];
  };
  const faded = (node) => {
    for (let one = node; one; one = one.parentElement) {
      const style = getComputedStyle(one);
      if (Number(style.opacity) < 1 || style.filter !== "none") return true;
    }
    return false;
  };
  const found = [];
  for (const node of document.body.querySelectorAll("*")) {
    const own = [...node.childNodes].some((one) => one.nodeType === 3 && one.data.trim());
    if (!own || !node.checkVisibility() || node.closest("script, noscript, option, svg")) continue;
    const [a, b] = [light(rgb(getComputedStyle(node).color)), light(behind(node))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const name = `${node.textContent.trim().slice(0, 30)} (${node.className || node.tagName})`;
    if (ratio < 4.5 || faded(node)) found.push(`${name}: ${ratio.toFixed(2)}`);
  }
  return [...new Set(found)];
}"""

# cells with a number of which the end cannot be seen
CUT = """() => [...document.querySelectorAll("td.number, td .tag")]
  .filter((cell) => cell.clientWidth && cell.scrollWidth > cell.clientWidth + 1).map((cell) => cell.textContent)"""
OPS = """() => [...document.querySelectorAll(".rows tbody th")].map((cell) => cell.clientWidth)"""
IS_WHOLE = """() => {
  const [window, table] = [".rows", ".rows table"].map((one) => document.querySelector(one).clientHeight);
  return window > 0.9 * table;
}"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The address of a report about two runs, one of them with a broken kernel."""
    folder = runs.broken(tmp_path_factory.mktemp("broken"))
    nan = runs.with_nan(tmp_path_factory.mktemp("nan"))
    page.write(contents.of([folder, nan]), folder / "report.html")
    return (folder / "report.html").as_uri()


@pytest.mark.parametrize("dark", [False, True])
def test_all_text_stands_out_from_what_is_behind_it(made, device, dark):
    with browser.chromium() as chromium:
        reader = browser.Reader(chromium, made, dark=dark)
        reader.open()
        for address in PAGES:
            assert reader.go(address).evaluate(CONTRAST) == [], address
        assert reader.go("nan?run=1").evaluate(CONTRAST) == []
        reader.go("overview").click(".verdict a.button")
        reader.page.wait_for_selector("main[data-page=call]")
        assert reader.page.evaluate(CONTRAST) == []
        reader.close()


def test_numbers_are_whole_and_ops_have_room_on_a_phone(made, device):
    with browser.chromium() as chromium:
        reader = browser.Reader(chromium, made, size=browser.PHONE)
        reader.open()
        for address in PAGES:
            page = reader.go(address)
            assert page.evaluate(CUT) == [], address
            assert min(page.evaluate(OPS), default=60) >= 60, address
        rows = reader.go("accuracy").locator("table[aria-label='Wrong, the worst first'] tbody tr").all_inner_texts()
        assert any(".norm" in row for row in rows), rows
        reader.close()


def test_who_goes_on_by_keyboard_is_in_the_new_page(made, device):
    """The link that was followed is drawn anew: without a new place, the focus would begin again at the top."""
    with browser.chromium() as chromium:
        reader = browser.Reader(chromium, made)
        shown = reader.open()
        shown.focus("#pages a:has-text('Calls')")
        shown.keyboard.press("Enter")
        shown.wait_for_selector("main[data-page=calls]")
        assert shown.evaluate("document.activeElement.id") == "content"
        shown.keyboard.press("Tab")
        assert shown.evaluate("document.activeElement.id") == "search"
        shown.keyboard.press("Escape")
        shown.focus(".rows")
        shown.keyboard.press("ArrowDown")
        shown.keyboard.press("Enter")
        shown.wait_for_selector("main[data-page=call]")
        shown.keyboard.press("Tab")
        assert shown.evaluate("document.activeElement.textContent").endswith("→")  # the call after; it was the first
        shown.go_back()
        shown.wait_for_selector("main[data-page=calls]")
        reader.close()


def test_marks_that_turn_text_round_are_shown(tmp_path):
    """After U+202E a file gnp.exe looks like exe.png, and what stands behind it goes in front."""
    folder = runs.large(tmp_path, 3, module="a\u202egnp", where="/x/b\u202egnp.py:7 f: y = 1")
    page.write(contents.of([folder]), folder / "report.html")
    with browser.chromium() as chromium:
        reader = browser.Reader(chromium, (folder / "report.html").as_uri())
        reader.open()
        text = reader.text(".verdict")
        assert "\u202e" not in text
        assert "a\\u202egnp" in text
        assert "b\\u202egnp.py:7" in text
        reader.close()


def test_landmarks_have_names_of_their_own(made, device):
    """A screen reader lists them: two of the same name lead nobody anywhere."""
    with browser.chromium() as chromium:
        reader = browser.Reader(chromium, made)
        reader.open()
        for address in PAGES:
            heard = reader.go(address).locator("body").aria_snapshot().splitlines()
            landmarks = [line.strip() for line in heard if line.strip().startswith("- region")]
            assert len(landmarks) == len(set(landmarks)), address
        reader.close()


def test_on_paper_it_is_black_on_white_and_tables_are_whole(tmp_path, device):
    folder = runs.large(tmp_path, 300)
    page.write(contents.of([folder]), folder / "report.html")
    with browser.chromium() as chromium:
        reader = browser.Reader(chromium, (folder / "report.html").as_uri(), dark=True)
        shown = reader.open("#calls")
        assert shown.locator("tbody tr[data-number]").count() < 100
        shown.evaluate(
            """addEventListener("beforeprint", () => {
              window.printed = document.querySelectorAll("tbody tr[data-number]").length;
            })"""
        )
        assert shown.pdf()[:4] == b"%PDF"
        assert shown.evaluate("window.printed") == 300
        assert shown.locator("tbody tr[data-number]").count() < 100
        shown.emulate_media(media="print")
        assert shown.evaluate("getComputedStyle(document.body).color") == "rgb(29, 31, 35)"
        assert shown.evaluate(IS_WHOLE)
        assert not shown.locator("nav").is_visible()
        reader.close()


def test_two_runs_lead_from_the_first_difference_to_its_call(tmp_path, device):
    """The comparison names the next command; of a run without --autocompare it does not tell that nothing was wrong."""
    folders = [tmp_path / "good", tmp_path / "bad"]
    for folder, factor in zip(folders, (1.0, 1.5)):
        torch.manual_seed(0)
        x, w = torch.randn(8, 8).to(device), torch.randn(8, 8).to(device)
        with (
            faults.inject(f"aten.mm: scale={factor}", "sim"),
            op_tools.OpCapture(mode="statistics", verbose=0, out=folder),
        ):
            torch.relu(x @ w)
    page.write(contents.of(folders), tmp_path / "report.html")
    with browser.chromium() as chromium:
        reader = browser.Reader(chromium, (tmp_path / "report.html").as_uri())
        shown = reader.open("#comparison")
        assert "torch.Tensor.matmul" in reader.text(".verdict")
        command = shown.inner_text(".verdict .command code")
        assert command.startswith("ditorch run --capture=data --ops torch.Tensor.matmul")
        assert "0" not in shown.locator("th:has-text('matmul') ~ td").all_inner_texts()[-2:]
        shown.click("text=The call in bad")
        shown.wait_for_selector("main[data-page=call]")
        assert reader.text("h1") == "torch.Tensor.matmul"
        assert shown.input_value(".brand select") == "1"
        shown.go_back()
        shown.wait_for_selector("main[data-page=comparison]")
        reader.close()


def test_gradients_have_one_name_on_the_page_of_a_call(made, device):
    """What is called grad weight in the table is not grad_inputs[1] over its histogram."""
    with browser.chromium() as chromium:
        reader = browser.Reader(chromium, made)
        reader.open().click(".verdict a.button")
        reader.page.wait_for_selector("main[data-page=call]")
        titles = reader.page.locator(".histograms h3").all_inner_texts()
        assert {"grad[0]", "grad weight", "grad bias"} <= set(titles), titles
        reader.close()
