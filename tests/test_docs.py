"""What is written agrees with what is built."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from mtpmon.export import METRICS, OWN_METRICS

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def generator() -> ModuleType:
    """``docs/generate.py``, which is no part of the package."""
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", sorted(generator().TABLES))
def test_generated_tables_are_up_to_date(name: str) -> None:
    """On failure: ``make docs``."""
    page = (DOCS / name).read_text(encoding="utf-8")
    generate = generator()
    assert page == generate.rendered(page, generate.TABLES[name]())


def test_every_metric_named_anywhere_exists() -> None:
    """README, CHANGELOG and docs name only metrics of the table (or their samples)."""
    known = {row.name for row in METRICS} | set(OWN_METRICS)
    samples = {f"{n}{s}" for n in known for s in ("_bucket", "_count", "_sum")}
    for path in [ROOT / "README.md", ROOT / "CHANGELOG.md", *DOCS.glob("*.md")]:
        text = path.read_text(encoding="utf-8")
        for name in re.findall(r"\bmtpmon_[a-z0-9_]*[a-z0-9]\b", text):
            assert name in known | samples, f"{path.name} names {name}"


def test_links_between_pages_lead_somewhere() -> None:
    """Relative links in README and docs name files that exist."""
    for path in [ROOT / "README.md", ROOT / "CHANGELOG.md", *DOCS.glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
            assert (path.parent / target).exists(), f"{path.name} links {target}"
