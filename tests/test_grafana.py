"""The committed dashboards: as generated, well-formed, and about metrics that exist."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import GraphFieldConfig, TableFieldOptions
from grafana_foundation_sdk.models.dashboard import Dashboard, FieldConfig

from grafana import generate
from grafana.frame import framed
from grafana.layout import GRID_WIDTH, Cell, Line, Section, panel_id, placed
from grafana.overtime import graph
from grafana.parts import Query, Text
from grafana.promql import bounds
from mtpmon.export import METRICS, OWN_METRICS
from tests.dashboards import (
    FOLDER,
    ROOT,
    asked,
    dashboard,
    grouped_labels,
    made_labels,
    matched_labels,
    metrics_in,
    panels,
)

NAMES = sorted(generate.DASHBOARDS)
TARGET_LABELS = {"job", "instance"}

# Metric -> labels, from the table.
LABELS: dict[str, set[str]] = {
    **{row.name: {"server", *row.labels} for row in METRICS},
    **{name: set(labels) for name, (_, labels, _) in OWN_METRICS.items()},
}
LABELS |= {"mtpmon_build_info": {"version", "python"}}
# Of others than mtpmon.
FOREIGN: dict[str, set[str]] = {
    "ALERTS": {"alertname", "alertstate", "server", "severity"},
    "process_cpu_seconds_total": set(),
    "process_resident_memory_bytes": set(),
}
# Detected changes: the table has them once they are exported.
SHIFTS = {"acceptance", "decode_speed", "kld"}
COMING: dict[str, set[str]] = {
    **{f"mtpmon_{name}_shift": {"server", "direction"} for name in SHIFTS},
    **{f"mtpmon_{name}_shift_start_timestamp_seconds": {"server", "direction"} for name in SHIFTS},
    "mtpmon_shifts_total": {"server", "figure", "direction"},
}
# Metrics that no panel shows, and why. Keep it short.
NOT_SHOWN: dict[str, str] = {}


def base(name: str) -> str:
    """The metric of a sample's name."""
    return re.sub(r"(?<=divergence_position)_(bucket|count|sum)$", "", name)


@pytest.mark.parametrize("path", [*generate.files()], ids=lambda path: path.name)
def test_files_are_as_generated(path: Path) -> None:
    """On failure: ``make docs``."""
    assert path.read_text(encoding="utf-8") == generate.files()[path]


def test_nothing_else_is_where_grafana_looks() -> None:
    """It would load any JSON of the folder as a dashboard."""
    assert {path.stem for path in FOLDER.iterdir()} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_all_of_it_is_in_grafanas_schema(name: str) -> None:
    """Read and written by Grafana's own types, nothing is lost or added: no field is unknown.

    But for what its Prometheus data source reads of annotations, which those types leave out.
    """
    plugins.register_default_plugins()
    found = dashboard(name)
    text = json.dumps(Dashboard.from_json(found), cls=JSONEncoder)
    for event in found["annotations"]["list"]:
        for extra in ("step", "titleFormat", "textFormat", "tagKeys", "useValueForTime"):
            del event[extra]
    assert json.loads(text) == found


@pytest.mark.parametrize("name", NAMES)
def test_overrides_set_what_there_is_to_set(name: str) -> None:
    """Their names and values are free text in the schema; a wrong one would do nothing."""
    customs: dict[str, Any] = {"timeseries": GraphFieldConfig, "table": TableFieldOptions}
    for panel in panels(dashboard(name)):
        for override in panel["fieldConfig"]["overrides"]:
            for each in override["properties"]:
                kind, _, field = each["id"].rpartition(".")
                model = customs[panel["type"]] if kind == "custom" else FieldConfig
                read = model.from_json({field: each["value"]})
                assert field in read.to_json(), f"{panel['title']}: {each['id']}"


@pytest.mark.parametrize("name", NAMES)
def test_the_grid_is_full(name: str) -> None:
    """Nothing overlaps, nothing sticks out, and no cell of it is free."""
    found = dashboard(name)
    _check_grid(found["panels"])
    for row in found["panels"]:
        if row["type"] == "row" and row["panels"]:
            assert row["collapsed"]
            _check_grid(row["panels"])


def _check_grid(cells: list[dict[str, Any]]) -> None:
    taken = set()
    for cell in cells:
        place = cell["gridPos"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert (x, y) not in taken, f"{cell['title']} overlaps"
                assert 0 <= x < GRID_WIDTH, f"{cell['title']} sticks out"
                taken.add((x, y))
    rows = {y for _, y in taken}
    assert rows == set(range(min(rows), max(rows) + 1))
    assert len(taken) == GRID_WIDTH * len(rows)


@pytest.mark.parametrize("name", NAMES)
def test_every_panel_explains_itself(name: str) -> None:
    """It has a title, says how to read it, and has a unit and words for when nothing is known."""
    for panel in panels(dashboard(name)):
        defaults = panel["fieldConfig"]["defaults"]
        assert panel["title"]
        assert len(panel["description"]) > 30, panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        assert defaults["unit"], panel["title"]
        assert defaults["noValue"] not in ("", "0", "N/A"), panel["title"]


@pytest.mark.parametrize("name", NAMES)
def test_ids_are_those_that_links_use(name: str) -> None:
    """One id for each panel, of its key alone; ``panels.json`` has them all."""
    found = dashboard(name)
    ids = [each["id"] for each in [*panels(found), *found["panels"]] if each["type"] != "row"]
    listed = json.loads((ROOT / "grafana" / "panels.json").read_text())[found["uid"]]
    assert found["uid"] == f"mtpmon-{name}"
    assert set(ids) == set(listed.values())
    assert listed == {key: panel_id(key) for key in listed}
    rows = [each["id"] for each in found["panels"] if each["type"] == "row"]
    assert len({*ids, *rows}) == len(listed) + len(rows)


def _walk(value: object) -> Iterator[dict[str, Any]]:
    """Every object of a document."""
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from _walk(each)


@pytest.mark.parametrize("name", NAMES)
def test_the_data_source_is_the_chosen_one(name: str) -> None:
    """Everywhere, and through the variable alone."""
    sources = [each["datasource"] for each in _walk(dashboard(name)) if "datasource" in each]
    assert sources
    assert all(each == {"type": "prometheus", "uid": "${datasource}"} for each in sources)


@pytest.mark.parametrize("name", NAMES)
def test_variables(name: str) -> None:
    """Data source, server and window; one server on its own page, any number elsewhere."""
    found = {each["name"]: each for each in dashboard(name)["templating"]["list"]}
    assert list(found) == ["datasource", "server", "window"]
    assert found["server"].get("multi", False) == (name != "server")
    assert found["server"].get("includeAll", False) == (name != "server")
    used = set(re.findall(r"\$\{?(\w+)", json.dumps([str(each) for each in asked(name)])))
    assert used - {"__rate_interval", "__range", "__interval"} == {"server", "window"}


@pytest.mark.parametrize("name", NAMES)
def test_thresholds_are_not_made_up(name: str) -> None:
    """The only one is 0, of a margin: everything else is compared with data."""
    steps = [
        step["value"]
        for each in _walk(dashboard(name))
        if "steps" in each
        for step in each["steps"]
    ]
    assert set(steps) <= {None, 0}


@pytest.mark.parametrize("name", NAMES)
def test_unknown_stays_unknown(name: str) -> None:
    """No query fills gaps with a number."""
    for each in asked(name):
        assert "vector(" not in each.expr
        assert "absent" not in each.expr


@pytest.mark.parametrize("name", NAMES)
def test_queries_name_metrics_and_labels_that_exist(name: str) -> None:
    """Selectors, groupings and names of series, all of the table."""
    known = {**COMING, **LABELS, **FOREIGN}
    for each in asked(name):
        metrics = {base(metric) for metric in metrics_in(each.expr)}
        assert metrics, str(each)
        assert metrics <= set(known), str(each)
        for metric, labels in matched_labels(each.expr):
            assert labels <= known[base(metric)] | {"le"}, str(each)
        possible = {label for metric in metrics for label in known[metric]} | TARGET_LABELS
        possible |= made_labels(each.expr) | ({"le"} if "_bucket" in each.expr else set())
        assert grouped_labels(each.expr) <= possible, str(each)
        assert set(re.findall(r"\{\{(\w+)\}\}", each.legend)) <= possible, str(each)


def test_every_metric_is_shown_somewhere() -> None:
    """Or listed with the reason why not."""
    shown = {
        base(metric) for name in NAMES for each in asked(name) for metric in metrics_in(each.expr)
    }
    missing = set(LABELS) - shown
    assert missing == set(NOT_SHOWN)


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_to_dashboards_of_ours(name: str) -> None:
    """With a variable that is there, keeping time, data source and window."""
    links = [
        each["url"] for each in _walk(dashboard(name)) if str(each.get("url", "")).startswith("/d/")
    ]
    assert links
    for url in links:
        assert url.startswith("/d/mtpmon-server?")
        assert "var-server=${__" in url
        assert "${__url_time_range}" in url
        assert "${window:queryparam}" in url
        assert "${datasource:queryparam}" in url


def test_provisioning_names_folders_that_exist() -> None:
    """Both files are what Grafana reads: version 1, one list; the data source is Prometheus."""
    folder = ROOT / "grafana" / "provisioning"
    sources = yaml.safe_load((folder / "datasources" / "mtpmon.yaml").read_text())
    (source,) = sources["datasources"]
    assert (sources["apiVersion"], source["type"]) == (1, "prometheus")
    providers = yaml.safe_load((folder / "dashboards" / "mtpmon.yaml").read_text())
    (provider,) = providers["providers"]
    assert (providers["apiVersion"], provider["type"]) == (1, "file")
    assert Path(provider["options"]["path"]).name == "dashboards"


# --- the generator's own refusals -----------------------------------------------------------


def cell(key: str, width: int) -> Cell:
    return Cell(key, width, graph(Text("a", "b"), "s", [Query("up", "up")]))


def test_a_line_that_does_not_fill_the_grid_is_refused() -> None:
    """So that no dashboard has gaps."""
    with pytest.raises(ValueError, match="take 23 columns"):
        Line(5, cell("a", 12), cell("b", 11))


def test_two_panels_with_one_key_are_refused() -> None:
    """Links could lead to either."""
    builder = framed("u", "t", "d", many_servers=True, hours=1)
    with pytest.raises(ValueError, match="the same key"):
        placed(builder, [Section(None, [Line(5, cell("a", 12), cell("a", 12))])])


def test_bounds_stand_before_the_unit() -> None:
    """As in the table; a metric without bounds is refused."""
    assert bounds("mtpmon_decode_tokens_per_second") == (
        "mtpmon_decode_lower_tokens_per_second",
        "mtpmon_decode_upper_tokens_per_second",
    )
    with pytest.raises(ValueError, match="no unit"):
        bounds("mtpmon_up")
