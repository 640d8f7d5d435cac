"""The committed dashboards as their readers see them: panels, queries, and what queries name."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "grafana" / "dashboards"

# What Grafana fills in, for the time range and resolution that tests ask with.
RANGE_SECONDS, STEP_SECONDS = 7200, 30
VARIABLES: Mapping[str, str] = {
    "${server:regex}": "all",
    "$server": "all",
    "$window": "5m",
    "$__rate_interval": "2m",
    "$__range": f"{RANGE_SECONDS}s",
    "$__interval": f"{STEP_SECONDS}s",
}


def dashboard(name: str) -> dict[str, Any]:
    """One of the committed files."""
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return found


def panels(found: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """All panels, rows left out, those folded into rows included."""
    for panel in found["panels"]:
        if panel["type"] == "row":
            yield from panel["panels"]
        else:
            yield panel


def filled_in(expr: str, server: str | None = None) -> str:
    """An expression as Grafana sends it."""
    for name, text in VARIABLES.items():
        expr = expr.replace(name, server if server and "server" in name else text)
    assert "$" not in expr, f"unknown variable in {expr}"
    return expr


@dataclass(frozen=True)
class Asked:
    """One expression of a dashboard, and where it stands."""

    dashboard: str
    place: str
    expr: str
    instant: bool = False
    legend: str = ""

    def __str__(self) -> str:
        return f"{self.dashboard}: {self.place}: {self.expr}"


def asked(name: str) -> Iterator[Asked]:
    """Every expression: of panels, and of events on the time axis."""
    found = dashboard(name)
    for panel in panels(found):
        for target in panel["targets"]:
            instant = target.get("instant", False)
            legend = target.get("legendFormat", "")
            if target["format"] == "table":
                legend = ""  # its series are columns
            yield Asked(name, panel["title"], target["expr"], instant, legend)
    for event in found["annotations"]["list"]:
        yield Asked(name, event["name"], event["expr"], legend=event["titleFormat"])


def metrics_in(expr: str) -> set[str]:
    """Names of metrics in an expression."""
    return set(re.findall(r"\b(?:mtpmon|process)_\w+|\bALERTS\b", without_strings(expr)))


def without_strings(expr: str) -> str:
    """An expression with the text of its strings left out."""
    return re.sub(r'"(?:[^"\\]|\\.)*"', '""', expr)


def matched_labels(expr: str) -> Iterator[tuple[str, set[str]]]:
    """Metric and the labels its selector asks for, selector by selector."""
    for metric, inside in re.findall(r"\b(\w+)\{([^}]*)\}", re.sub(r"\$\{[^}]*\}", "", expr)):
        yield metric, set(re.findall(r"(\w+)=~?\"", inside))


def grouped_labels(expr: str) -> set[str]:
    """Labels that ``by``, ``on`` and ``group_left`` name."""
    lists = re.findall(r"\b(?:by|on|group_left) \(([^)]*)\)", without_strings(expr))
    return {label for each in lists for label in re.findall(r"\w+", each)}


def made_labels(expr: str) -> set[str]:
    """Labels that an expression makes up."""
    return set(re.findall(r'(?:label_replace\(.*?, |count_values by \(\w+\) \()"(\w+)"', expr))
