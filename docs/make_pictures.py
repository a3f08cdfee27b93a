"""Makes the pictures of the report, in docs/pictures and for the README: every page in both themes, in Chromium.

python docs/make_pictures.py                  runs that show something on every page are made first, which takes minutes
python docs/make_pictures.py REPORT NAN WATCH of these three files; a font with Chinese letters is needed

They are half as large as they were, and have a palette: about 30 kB each.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

DOCS = Path(__file__).parent
ROOT = DOCS.parent
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
COLOURS = 128
DESK, PHONE = (1280, 800), (390, 760)
# of the first report; NaN has one of its own, for a run has no other fault when it is NaN
PAGES = ("overview", "accuracy", "speed", "calls", "memory", "ranks", "comparison", "conformance")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        reports = [Path(one).absolute() for one in sys.argv[1:]] or _reports(Path(folder))
        with sync_playwright() as playwright:
            chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
            browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
            _take_all(browser, *(report.as_uri() for report in reports))
            browser.close()


def _reports(folder: Path) -> list[Path]:
    """Two ranks with a wrong kernel beside a good run, with a few results of conformance; a run that turns NaN, and a
    longer one that is watched over."""
    shutil.copy(ROOT / "examples/train_gpt.py", folder / "train.py")
    broken, nan = "aten.native_layer_norm_backward: tail=0.5", "aten._softmax: nan@one, after=20"
    every = "--autocompare --time --overflow --monitor --capture=statistics"
    ranks = "torchrun --standalone --nproc_per_node=2 train.py --steps 4"
    _run(f"run --capture=statistics --out good {ranks}", folder)
    _run(f"run {every} --out bad {ranks}", folder, DITORCH_FAULTS=broken, OP_TOOLS_MONITOR_INTERVAL="0.05")
    ops = "add,mm,softmax,sort,cumsum,nn.functional.layer_norm,nn.functional.linear,matmul"
    _run(
        f"conformance ops --ops {ops} --dtypes float32,bfloat16,int64 --samples 2 --out ops",
        folder,
        DITORCH_FAULTS=broken,
    )
    _run("run --overflow --time --out nan train.py --steps 14", folder, DITORCH_FAULTS=nan)
    late = "aten._softmax: nan@one, after=120"
    _run("run --watch --out watch train.py --steps 80", folder, DITORCH_FAULTS=late)
    _run("report bad good ops --out report.html", folder)
    _run("report nan --out nan.html", folder)
    _run("report watch --out watch.html", folder)
    return [folder / f"{name}.html" for name in ("report", "nan", "watch")]


def _run(arguments: str, folder: Path, **variables: str) -> None:
    environment = {**os.environ, "DITORCH_BACKEND": "sim", "OMP_NUM_THREADS": "1", **variables}
    command = [sys.executable, "-m", "ditorch", *arguments.split()]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode > 1:  # 1: something was found
        sys.exit(f"ditorch {arguments}\n{done.stderr}")


def _take_all(browser: Browser, report: str, nan: str, watch: str) -> None:
    folder = DOCS / "pictures"
    folder.mkdir(exist_ok=True)
    for theme in ("light", "dark"):
        page = _opened(browser, report, theme, "en-US", DESK)
        for name in PAGES:
            _take(page, f"{report}#{name}", folder / f"{name}-{theme}.png")
        guilty = (
            page.evaluate("document.querySelector('.verdict a.button')?.hash")
            if _go(page, f"{report}#overview")
            else ""
        )
        _take(page, f"{report}{guilty}", folder / f"call-{theme}.png")
        _take(page, f"{nan}#nan", folder / f"nan-{theme}.png")
        _take(page, f"{watch}#watch", folder / f"watch-{theme}.png")
        page.context.close()
    page = _opened(browser, report, "dark", "zh-CN", PHONE)
    _take(page, f"{report}#overview", folder / "phone.png", 1.0)
    page.context.close()


def _opened(browser: Browser, report: str, theme: str, language: str, size: tuple[int, int]) -> Page:
    width, height = size
    viewport = {"width": width, "height": height}
    return browser.new_context(viewport=viewport, color_scheme=theme, locale=language).new_page()  # type: ignore[arg-type]


def _go(page: Page, address: str) -> bool:
    page.goto("about:blank")
    page.goto(address)
    page.wait_for_selector("body[data-ready]", state="attached")
    page.wait_for_timeout(700)  # plots are drawn when they know their size
    return True


def _take(page: Page, address: str, path: Path, scale: float = 0.625) -> None:
    _go(page, address)
    image = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    smaller = image.resize((int(image.width * scale), int(image.height * scale)), Image.Resampling.LANCZOS)
    smaller.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path.name}: {path.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
