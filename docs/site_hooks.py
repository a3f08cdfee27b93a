"""For mkdocs: links that lead out of the pages' folder, as they do on GitHub; the Chinese pages' pictures, and their
lines, which browsers would join with a space."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

DOCS = Path(__file__).parent
_PICTURE = re.compile(r"(!\[[^\]]*\]\()\.\./([^)]+)\)")
_CHINESE = r"[\u3000-\u303f\u4e00-\u9fff\uff00-\uffef“”…]"
_BROKEN_LINE = re.compile(rf"(?<={_CHINESE})\n *(?={_CHINESE})")
_FENCED = re.compile(r"(^ *```.*?^ *```$)", re.DOTALL | re.MULTILINE)
_OUTSIDE = re.compile(r"(?<!!)\[([^\]]+)\]\((?:\.\./)+[^)]+\)")


def on_files(files: Files, config: Any) -> Files:
    """The Chinese pages show the English ones' pictures."""
    if Path(config.docs_dir).name == "zh":
        for path in sorted((*DOCS.glob("*.svg"), *DOCS.glob("*.png"), *DOCS.glob("pictures/*.png"))):
            files.append(File(path.relative_to(DOCS).as_posix(), str(DOCS), config.site_dir, config.use_directory_urls))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Sources and examples are no part of the site: their links become names."""
    if Path(config.docs_dir).name == "zh":
        markdown = "".join(
            part if part.lstrip().startswith("```") else _BROKEN_LINE.sub("", part)
            for part in _FENCED.split(_PICTURE.sub(r"\1\2)", markdown))
        )
    return _OUTSIDE.sub(r"\1", markdown)
