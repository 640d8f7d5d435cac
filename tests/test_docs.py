"""What is written agrees with what is built."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from mtpmon.export import METRICS, OWN_METRICS

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = (ROOT / "README.md", ROOT / "CHANGELOG.md", *DOCS.glob("*.md"))


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
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        for name in re.findall(r"\bmtpmon_[a-z0-9_]*[a-z0-9]\b", text):
            assert name in known | samples, f"{path.name} names {name}"


def headings(page: Path) -> set[str]:
    """The fragments that links may name: each heading as GitHub writes it, and ids."""
    text = page.read_text(encoding="utf-8")
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
    return {*plain, *re.findall(r'id="([^"]+)"', text)}


def test_links_between_pages_lead_somewhere() -> None:
    """Relative links in README and docs name files, and headings of pages, that exist."""
    for path in PAGES:
        for target, place in re.findall(
            r"\]\(([^)#:]*)(?:#([^)]*))?\)", path.read_text(encoding="utf-8")
        ):
            page = path.parent / target if target else path
            assert page.exists(), f"{path.name} links {target}"
            if place and page.suffix == ".md":
                assert place in headings(page), f"{path.name} links {target}#{place}"


def test_readme_leads_to_every_page() -> None:
    """And its layout names every file of the package."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [page.name for page in DOCS.glob("*.md") if f"(docs/{page.name})" not in readme] == []
    named = set(re.findall(r"`([a-z_/]+(?:\.py)?)`", readme.partition("## Layout")[2]))
    files = {
        f"{path.name}/" if path.is_dir() else path.name
        for path in (ROOT / "mtpmon").iterdir()
        if not path.name.startswith(("__", "."))
    }
    assert files - named == {"py.typed"}
