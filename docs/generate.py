"""Rewrite the generated tables of the documentation: ``make docs``.

Each stands between two markers; the rest of a page is written by hand.
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from mtpmon import config, export

DOCS = Path(__file__).parent
TABLES: Mapping[str, Callable[[], str]] = {
    "metrics.md": export.render_reference,
    "configuration.md": config.render_reference,
}
BEGIN, END = "<!-- generated: make docs -->", "<!-- end of generated -->"


def rendered(page: str, table: str) -> str:
    """``page`` with ``table`` between its markers."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page lacks {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{table.strip()}\n\n{END}{after}"


def main() -> int:
    """Rewrite what differs."""
    for name, table in TABLES.items():
        path = DOCS / name
        page = path.read_text(encoding="utf-8")
        path.write_text(rendered(page, table()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
