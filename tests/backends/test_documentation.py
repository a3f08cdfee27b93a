from __future__ import annotations

from pathlib import Path

from ditorch.backends import table


def test_the_table_in_the_documentation_is_made_from_the_code():
    page = Path(__file__).parents[2] / "docs/backends.md"
    assert table() in page.read_text()
