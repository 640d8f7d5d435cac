"""What the rules of ``deploy/`` say, taken apart."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
RULES = DEPLOY / "prometheus" / "rules"

_SELECTOR = re.compile(r"\b(mtpmon[_:][a-zA-Z0-9_:]+|up)\b\s*(\{[^}]*\})?")
_MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"((?:[^"\\]|\\.)*)"')


def rule_groups(path: Path) -> list[dict[str, Any]]:
    """The groups of a rule file."""
    groups: list[dict[str, Any]] = yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
    return groups


@cache
def all_rules() -> list[dict[str, Any]]:
    """Every rule, recorded ones first."""
    files = sorted(RULES.glob("*.yml"), reverse=True)
    return [rule for file in files for group in rule_groups(file) for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    """Every alerting rule; two severities of one name are two rules."""
    return [rule for rule in all_rules() if "alert" in rule]


def selectors(expr: str) -> list[str]:
    """The instant vector selectors of an expression, white space taken out."""
    found = _SELECTOR.finditer(_without_comments(expr))
    return [name + re.sub(r"\s", "", matchers or "") for name, matchers in map(_groups, found)]


def _groups(found: re.Match[str]) -> tuple[str, str]:
    return found[1], found[2]


def _without_comments(expr: str) -> str:
    return re.sub(r"#.*", "", expr)


def taken_apart(selector: str) -> tuple[str, list[tuple[str, str, str]]]:
    """Name of a selector, and its matchers: label, operator, value."""
    name, _, rest = selector.partition("{")
    return name, _MATCHER.findall(rest)


def matches(labels: dict[str, str], matchers: list[tuple[str, str, str]]) -> bool:
    """Whether a series is one of those that are selected."""
    return all(_holds(labels.get(label, ""), *test) for label, *test in matchers)


def _holds(value: str, operator: str, wanted: str) -> bool:
    same = re.fullmatch(wanted, value) is not None if operator.endswith("~") else value == wanted
    return same != operator.startswith("!")


def pages() -> Iterator[Path]:
    """All files of ``deploy/`` that name metrics."""
    yield from (DEPLOY / "prometheus").rglob("*.yml")
    yield from (DEPLOY / "alertmanager").rglob("*.yml")
