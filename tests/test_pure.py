"""The pure core stays pure."""

import ast
from pathlib import Path

import pytest

from tests.pure import pure_files

# What a pure file must not import: networks, clocks, processes, files of its own choice, and
# the parts of mtpmon that have them.
IMPURE = {
    "aiohttp",
    "asyncio",
    "os",
    "pathlib",
    "requests",
    "signal",
    "socket",
    "sqlite3",
    "ssl",
    "structlog",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "urllib.request",
    "mtpmon.apikeys",
    "mtpmon.captured",
    "mtpmon.client",
    "mtpmon.compose",
    "mtpmon.config",
    "mtpmon.configchecks",
    "mtpmon.configschema",
    "mtpmon.daemon",
    "mtpmon.log",
    "mtpmon.probe",
    "mtpmon.scrape",
    "mtpmon.watch",
    "mtpmon.web",
}
IMPURE_CALLS = {"open", "print", "input", "now", "today", "utcnow"}


def imports(tree: ast.AST) -> set[str]:
    """All modules named in import statements."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("path", pure_files(), ids=lambda path: path.stem)
def test_a_pure_file_touches_nothing_outside(path: Path) -> None:
    """No import of, and no call to, what reads a clock, a socket, a file or the configuration."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    roots = {name.split(".")[0] for name in imports(tree)}
    assert not (imports(tree) | roots) & IMPURE
    calls = {
        node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
    }
    assert not calls & IMPURE_CALLS


def test_the_check_can_fail() -> None:
    """It sees an import inside a function."""
    assert imports(ast.parse("def f():\n    import time\n")) & IMPURE
