"""The page of traps names tests that exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "traps.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`(tests/\w+\.py)::(\w+)`", PAGE)))


def rows() -> list[str]:
    """The rows of its tables, without their heads."""
    lines = [line for line in PAGE.splitlines() if line.startswith("|")]
    return [line for line in lines if not re.match(r"\| (trap|---) ", line)]


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_each_proof_is_a_test(file: str, name: str) -> None:
    """With a claim of its own."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    found = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name
    ]
    assert len(found) == 1, f"{file} has {len(found)} tests {name}"
    assert ast.get_docstring(found[0])


def test_each_trap_has_a_proof() -> None:
    """A row that names none is a promise."""
    for row in rows():
        assert "::test_" in row or "as above" in row, row


def test_each_test_of_traps_proves_a_row() -> None:
    """Those that set a real server as a trap are all on the page."""
    text = (ROOT / "tests" / "test_traps_real.py").read_text(encoding="utf-8")
    for name in re.findall(r"^async def (test_\w+)", text, flags=re.MULTILINE):
        assert ("tests/test_traps_real.py", name) in NAMED, name
