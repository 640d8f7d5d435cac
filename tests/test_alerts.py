"""Rules and routes: well-formed, proven to fire and to be silent, documented, of real metrics."""

import json
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from mtpmon.export import METRICS, OWN_METRICS
from tests.alerts import (
    DEPLOY,
    ROOT,
    RULES,
    alerts,
    all_rules,
    matches,
    pages,
    rule_groups,
    selectors,
    taken_apart,
)
from tests.programs import amtool, promtool
from tests.rig import Labels, parsed

TESTS = sorted((DEPLOY / "prometheus" / "tests").glob("*.yml"))
ALERTMANAGER = DEPLOY / "alertmanager" / "alertmanager.yml"
GOLDEN = ROOT / "tests" / "data" / "metrics.txt"
NAMES = sorted({rule["alert"] for rule in alerts()})
RECORDED = {rule["record"] for rule in all_rules() if "record" in rule}
KNOWN = {row.name for row in METRICS} | set(OWN_METRICS)
BY_PROMETHEUS = {"up"}
SEVERITIES = {"page", "warning", "info"}
SAMPLE_LABELS = {"job": "mtpmon", "instance": "host:9765"}


def run(*command: str, cwd: Path = DEPLOY) -> str:
    """What a checker prints; it must be content."""
    done = subprocess.run(command, capture_output=True, check=False, cwd=cwd, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# --- well-formed --------------------------------------------------------------------------


def test_rules_and_configuration_are_well_formed() -> None:
    """By Prometheus' own checker; no two rules are alike."""
    run(promtool(), "check", "rules", *map(str, sorted(RULES.glob("*.yml"))))
    run(promtool(), "check", "config", str(DEPLOY / "prometheus" / "prometheus.yml"))


def test_routes_are_well_formed() -> None:
    """By Alertmanager's own checker."""
    assert "SUCCESS" in run(amtool(), "check-config", str(ALERTMANAGER))


@pytest.mark.parametrize("severity", sorted(SEVERITIES))
def test_each_severity_has_its_receiver(severity: str) -> None:
    """Which is named after it."""
    options = ("config", "routes", "test", f"--config.file={ALERTMANAGER}")
    labels = ("alertname=MtpmonServerDown", f"severity={severity}")
    assert run(amtool(), *options, *labels).strip() == f"mtpmon-{severity}"


# --- proven -------------------------------------------------------------------------------


@pytest.mark.parametrize("file", TESTS, ids=lambda file: file.stem)
def test_cases(file: Path) -> None:
    """Fires where it must, with these labels and words, and is silent where it must be."""
    run(promtool(), "test", "rules", str(file))


@cache
def cases() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Each check of the cases, with the case that it is in."""
    groups = [group for file in TESTS for group in yaml.safe_load(file.read_text("utf-8"))["tests"]]
    return [(group, check) for group in groups for check in group["alert_rule_test"]]


@pytest.mark.parametrize("rule", alerts(), ids=lambda r: f"{r['alert']}-{r['labels']['severity']}")
def test_each_alert_has_a_case_in_which_it_fires(rule: dict[str, Any]) -> None:
    """Each severity of it."""
    fired = [
        alert["exp_labels"]["severity"]
        for _, check in cases()
        if check["alertname"] == rule["alert"]
        for alert in check["exp_alerts"]
    ]
    assert rule["labels"]["severity"] in fired


@pytest.mark.parametrize("name", NAMES)
def test_each_alert_has_a_case_in_which_it_must_not(name: str) -> None:
    """One with data: what the alert begins with, or what would make it fire, is there."""
    silent = [
        {taken_apart(each["series"])[0] for each in group["input_series"]}
        for group, check in cases()
        if check["alertname"] == name and not check["exp_alerts"]
    ]
    needed = {
        taken_apart(selector)[0]
        for rule in alerts()
        if rule["alert"] == name
        for selector in _raw_selectors(rule["expr"])
    }
    assert any(series & needed for series in silent)


def _raw_selectors(expr: str) -> list[str]:
    """Selectors of an expression; of those that are recorded, what they are recorded from."""
    recorded = {rule["record"]: rule["expr"] for rule in all_rules() if "record" in rule}
    found: list[str] = []
    for selector in selectors(expr):
        name, _ = taken_apart(selector)
        found += _raw_selectors(recorded[name]) if name in recorded else [selector]
    return found


# --- of metrics that exist ----------------------------------------------------------------


@pytest.mark.parametrize("file", list(pages()), ids=lambda file: file.name)
def test_every_metric_named_exists(file: Path) -> None:
    """In rules, cases and comments: of mtpmon's table, recorded here, or Prometheus' own."""
    text = file.read_text(encoding="utf-8")
    for name in re.findall(r"\bmtpmon_[a-z0-9_]*[a-z0-9]\b", text):
        assert name in KNOWN, name
    for name in re.findall(r"\bmtpmon:[a-z0-9_:]*[a-z0-9]\b", text):
        assert name in RECORDED, name


@pytest.mark.parametrize("name", sorted(RECORDED))
def test_nothing_is_recorded_for_nothing(name: str) -> None:
    """Each recorded series is in another rule."""
    assert any(
        taken_apart(selector)[0] == name
        for rule in all_rules()
        for selector in selectors(rule["expr"])
    )


def series() -> dict[str, list[dict[str, str]]]:
    """Name → label sets, of a full board's exposition."""
    found: dict[str, list[dict[str, str]]] = {}
    reading = parsed(GOLDEN.read_text(encoding="utf-8").partition("# EOF")[0])
    for name, by_labels in reading.metrics.items():
        found[name] = [_labels(labels) for labels in by_labels]
    return found


def _labels(labels: Labels) -> dict[str, str]:
    return dict(labels) | SAMPLE_LABELS


def test_every_selector_selects_something() -> None:
    """Labels and their values are such as mtpmon exports: a misspelt one never fires."""
    known = series()
    for rule in all_rules():
        for selector in selectors(rule["expr"]):
            name, matchers = taken_apart(selector)
            if name in RECORDED | BY_PROMETHEUS:
                continue
            assert any(matches(labels, matchers) for labels in known[name]), selector
            for label, operator, value in matchers:
                for each in value.split("|") if "~" in operator else [value]:
                    one = [(label, "=", each)]
                    assert any(matches(labels, one) for labels in known[name]), (selector, each)


def test_no_window_is_named() -> None:
    """Their widths are the user's."""
    for rule in all_rules():
        assert not re.search(r"window\s*[=!]", rule["expr"]), rule


# --- readable -----------------------------------------------------------------------------


@pytest.mark.parametrize("rule", alerts(), ids=lambda r: f"{r['alert']}-{r['labels']['severity']}")
def test_each_alert_says_what_it_is_and_where_to_look(rule: dict[str, Any]) -> None:
    """Summary, description, runbook page and dashboard; a severity and what it is about."""
    assert re.fullmatch(r"Mtpmon[A-Za-z0-9]+", rule["alert"])
    assert rule["labels"]["severity"] in SEVERITIES
    assert rule["labels"]["about"] in {"monitor", "server", "paying", "answers", "probes"}
    notes = rule["annotations"]
    assert set(notes) == {"summary", "description", "runbook_url", "dashboard"}
    anchor = rule["alert"].lower()
    assert notes["runbook_url"] == f"{{{{ $externalLabels.docs_url }}}}docs/runbook.md#{anchor}"
    assert notes["dashboard"].startswith("{{ $externalLabels.grafana_url }}/d/mtpmon-")


@pytest.mark.parametrize("rule", alerts(), ids=lambda r: f"{r['alert']}-{r['labels']['severity']}")
def test_each_link_leads_to_a_panel_that_there_is(rule: dict[str, Any]) -> None:
    """Of the dashboards in ``grafana/``; what is about no server leads to the overview."""
    panels = json.loads((ROOT / "grafana" / "panels.json").read_text(encoding="utf-8"))
    link = r".*/d/([\w-]+)(?:\?var-server=.*&viewPanel=(\d+))?"
    found = re.fullmatch(link, rule["annotations"]["dashboard"])
    assert found is not None
    uid, panel = found.groups()
    assert (panel is None) == (uid == "mtpmon-overview")
    assert panel is None or int(panel) in panels[uid].values()


def test_links_can_be_made_whole(tmp_path: Path) -> None:
    """With the external labels of the example configuration, names escaped."""
    case = {
        "interval": "1m",
        "external_labels": {"grafana_url": "https://g", "docs_url": "https://d/"},
        "input_series": [
            {
                "series": 'mtpmon_server_state{server="a b&c",state="loading"}',
                "values": "1x30",
            }
        ],
        "alert_rule_test": [
            {"eval_time": "25m", "alertname": "MtpmonServerLoading", "exp_alerts": []}
        ],
    }
    rules = [str(file) for file in RULES.glob("*.yml")]
    whole = {"rule_files": rules, "evaluation_interval": "1m", "tests": [case]}
    (tmp_path / "case.yml").write_text(json.dumps(whole), encoding="utf-8")
    command = [promtool(), "test", "rules", str(tmp_path / "case.yml")]
    said = subprocess.run(command, capture_output=True, check=False, text=True)
    assert (
        'dashboard="https://g/d/mtpmon-server?var-server=a+b%26c&viewPanel='
        in said.stdout + said.stderr
    )
    assert '"https://d/docs/runbook.md#mtpmonserverloading"' in said.stdout + said.stderr


RUNBOOK = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", RUNBOOK, flags=re.MULTILINE | re.DOTALL))


def test_each_alert_has_its_section_and_each_section_its_alert() -> None:
    """In the runbook, where its link leads."""
    assert sorted(SECTIONS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_each_section_says_what_to_do(name: str) -> None:
    """What it means, what to do first, how to confirm, when to ignore it."""
    for part in ("What it means", "First", "Confirm", "Ignore"):
        assert f"**{part}.**" in SECTIONS[name]


def test_the_table_of_alerts_is_that_of_the_rules() -> None:
    """Names, severities and how long, in the order of the rules."""
    page = (ROOT / "docs" / "alerting.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| \[(\w+)\]\(runbook\.md#(\w+)\) \| (\w+) \| (\w+) \|", page, flags=re.MULTILINE
    )
    rules = [rule for group in rule_groups(RULES / "mtpmon-alerts.yml") for rule in group["rules"]]
    assert rows == [
        (
            rule["alert"],
            rule["alert"].lower(),
            rule["labels"]["severity"],
            rule.get("for", "0m"),
        )
        for rule in rules
    ]
