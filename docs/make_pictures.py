"""Makes the pictures of docs/report.md and README.md: the report of `ditorch demo` in Chromium.

python docs/make_pictures.py ditorch_runs/demo-…/report.html

They have a palette, which is a third of the size.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

DOCS = Path(__file__).parent
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
COLOURS = 48
# name: address, dark, language, (width, height)
PICTURES = {
    "report-overview": ("overview", False, "en-US", (1280, 760)),
    "report-accuracy": ("accuracy", False, "en-US", (1280, 620)),
    "report-speed": ("speed", True, "en-US", (1280, 640)),
    "report-phone": ("overview", True, "zh-CN", (390, 760)),
}


def main() -> None:
    report = Path(sys.argv[1]).absolute().as_uri()
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        for name, (address, is_dark, language, (width, height)) in PICTURES.items():
            scheme = "dark" if is_dark else "light"
            context = browser.new_context(
                viewport={"width": width, "height": height}, color_scheme=scheme, locale=language
            )
            page = context.new_page()
            page.goto(f"{report}#{address}")
            _save(page, DOCS / f"{name}.png")
        browser.close()


def _save(page: Page, path: Path) -> None:
    page.wait_for_selector("body[data-ready]", state="attached")
    page.wait_for_timeout(500)  # plots are drawn when they know their size
    image = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path.name}: {path.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
