"""The page: one HTML file with its styles, scripts and data in it. It may load nothing and run nothing else.

The content security policy names each script and style by its hash, so that nothing which comes from a run could run.
"""

from __future__ import annotations

import base64
import hashlib
import os
from functools import cache
from pathlib import Path
from typing import Any

from ditorch_report.contents import Contents
from ditorch_report.errors import ReportError
from ditorch_report.packing import packed

_HERE = Path(__file__).parent
_STYLES = ("vendor/uplot.min.css", "assets/report.css")
# each may use what stands above it
_SCRIPTS = (
    "vendor/d3.min.js",
    "vendor/uplot.min.js",
    "assets/chinese.js",
    "assets/words.js",
    "assets/elements.js",
    "assets/store.js",
    "assets/call_list.js",
    "assets/address.js",
    "assets/table.js",
    "assets/heat_map.js",
    "assets/flame_graph.js",
    "assets/time_line.js",
    "assets/line_chart.js",
    "assets/overview_page.js",
    "assets/accuracy_page.js",
    "assets/speed_page.js",
    "assets/nan_page.js",
    "assets/memory_page.js",
    "assets/watch_page.js",
    "assets/calls_page.js",
    "assets/call_page.js",
    "assets/ranks_page.js",
    "assets/comparison_page.js",
    "assets/conformance_page.js",
    "assets/main.js",
)


def page(contents: Contents) -> str:
    """The whole file."""
    pieces = {"index": contents.index(), **contents.pieces}
    return _rendered({name: packed(content) for name, content in pieces.items()}, contents.runs, is_live=False)


def live_page() -> str:
    """The same without data, which it asks for."""
    return _rendered({}, [], is_live=True)


def live_pieces(contents: Contents) -> dict[str, str]:
    """What a live page asks for."""
    pieces = {"index": contents.index(is_live=True), **contents.pieces}
    return {name: packed(content) for name, content in pieces.items()}


def write(contents: Contents, path: Path) -> int:
    """How many bytes it has. A reader sees the old file or the new one."""
    text = page(contents).encode("utf-8", "backslashreplace")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(text)
        temporary.replace(path)
    except OSError as error:
        raise ReportError(f"{path} cannot be written ({error.strerror}): give another file (--out)") from None
    return len(text)


def _rendered(pieces: dict[str, str], runs: list[dict[str, Any]], is_live: bool) -> str:
    try:
        import jinja2
    except ImportError:
        raise ReportError("a report needs jinja2: pip install 'ditorch[report]'") from None
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE / "assets"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    styles, scripts = [_asset(name) for name in _STYLES], [_asset(name) for name in _SCRIPTS]
    return environment.get_template("page.html").render(
        policy=_policy(styles, scripts, is_live),
        styles=styles,
        scripts=scripts,
        pieces=pieces,
        runs=runs,
        is_live=is_live,
        title=", ".join(run["name"] for run in runs) or "ditorch",
    )


@cache
def _asset(name: str) -> str:
    text = (_HERE / name).read_text(encoding="utf-8")
    assert "</script" not in text.lower()
    return f"\n{text.strip()}\n"


def _policy(styles: list[str], scripts: list[str], is_live: bool) -> str:
    parts = {
        "default-src": "'none'",
        "script-src": " ".join(map(_hash, scripts)),
        "style-src": " ".join(map(_hash, styles)),
        "connect-src": "'self'" if is_live else "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in parts.items())


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
