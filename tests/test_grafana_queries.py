"""Every query of the dashboards, asked of a real Prometheus that has two hours of figures."""

import re
from collections.abc import Iterator, Sequence

import pytest

from grafana import generate
from grafana.frame import SERVERS, WINDOWS
from grafana.looks import VERDICT_COLOURS
from grafana.promql import ACCEPTANCE, MANY, acceptance_by_worth, kept_lengths, live, number
from tests.dashboards import (
    RANGE_SECONDS,
    STEP_SECONDS,
    Asked,
    asked,
    dashboard,
    filled_in,
    panels,
)
from tests.hours import BEGIN, BUSY, END, IDLE, PAYS, RESTARTED, history
from tests.prometheus_rig import SCRAPES_NOTHING, Series, fetch, prometheus, query, query_range

NOW = END - 60
NAMES = sorted(generate.DASHBOARDS)

# Panels whose expression has no data here, and why.
EMPTY = {
    ("server", "Reasons to distrust the counters"): "nothing is wrong with these counters",
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prometheus with the figures of `tests.hours`."""
    folder = tmp_path_factory.mktemp("prometheus")
    # What is loaded at once lacks the marks that end a series at a scrape without it; so that
    # none outlives its last sample by five minutes, Prometheus looks back for less.
    lookback = "--query.lookback-delta=45s"
    with prometheus(SCRAPES_NOTHING, folder, history=history(), flags=[lookback]) as found:
        yield found


def over_time(url: str, expr: str) -> list[Series]:
    return query_range(
        url, filled_in(expr), start=END - RANGE_SECONDS, end=NOW, step_seconds=STEP_SECONDS
    )


def answer(url: str, each: Asked) -> Sequence[Series]:
    """As its panel gets it."""
    if each.instant:
        return query(url, filled_in(each.expr), NOW)
    return over_time(url, each.expr)


@pytest.mark.parametrize("name", NAMES)
def test_every_query_has_data(url: str, name: str) -> None:
    """Of panels and of events."""
    empty = {(name, each.place) for each in asked(name) if not answer(url, each)}
    assert empty == {place for place in EMPTY if place[0] == name}


@pytest.mark.parametrize("name", NAMES)
def test_names_of_series_have_no_holes(url: str, name: str) -> None:
    """The labels that series are named by are there; alerts may lack a server."""
    for each in asked(name):
        wanted = set(re.findall(r"\{\{(\w+)\}\}", each.legend))
        for series in answer(url, each):
            missing = {label for label in wanted if not series.labels.get(label)}
            assert missing <= ({"server"} if "ALERTS" in each.expr else set()), str(each)


@pytest.mark.parametrize("name", NAMES)
def test_series_of_a_panel_differ_in_name(url: str, name: str) -> None:
    """Two lines of one name would look like one."""
    for panel in panels(dashboard(name)):
        if panel["targets"][0]["format"] == "table":
            continue
        names = [
            _named(each, series)
            for each in asked(name)
            if each.place == panel["title"]
            and each.expr in [target["expr"] for target in panel["targets"]]
            for series in answer(url, each)
        ]
        assert len(set(names)) == len(names), panel["title"]


def _named(each: Asked, series: Series) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda found: series.labels.get(found[1], ""), each.legend)


@pytest.mark.parametrize("name", NAMES)
def test_overrides_are_for_series_that_are_there(url: str, name: str) -> None:
    """A colour or a shade for a name that no series has would silently do nothing.

    Words of a closed set are there whenever they hold.
    """
    for panel in panels(dashboard(name)):
        if panel["targets"][0]["format"] == "table":
            continue
        legends = {target["legendFormat"] for target in panel["targets"]}
        open_ended = any(re.fullmatch(r"\{\{\w+\}\}", legend) for legend in legends)
        for override in panel["fieldConfig"]["overrides"]:
            if override["matcher"]["id"] == "byName":
                assert open_ended or override["matcher"]["options"] in legends, panel["title"]
            for setting in override["properties"]:
                if setting["id"] == "custom.fillBelowTo":
                    assert setting["value"] in legends, panel["title"]


@pytest.mark.parametrize("name", NAMES)
def test_columns_are_of_the_answers(url: str, name: str) -> None:
    """What tables rename or leave out is a value or a label that the answers have."""
    for panel in panels(dashboard(name)):
        if panel["targets"][0]["format"] != "table":
            continue
        labels = {"Value"} if len(panel["targets"]) == 1 else set()
        for target in panel["targets"]:
            labels.add(f"Value #{target['refId']}")
            for series in query(url, filled_in(target["expr"]), NOW):
                labels |= set(series.labels)
        steps = [each["options"] for each in panel["transformations"]]
        renamed = [step.get("renameByName", {}) for step in steps]
        assert {old for each in renamed for old in each} <= labels, panel["title"]
        for step in steps:
            values = {old for old in labels if old.startswith("Value #")}
            if set(step.get("renameByName", {})) & values:
                told = {**step["renameByName"], **step["excludeByName"]}
                assert values <= set(told), panel["title"]


@pytest.mark.parametrize("variable", [SERVERS, WINDOWS])
def test_menus_have_entries(url: str, variable: str) -> None:
    """All servers, the one never looked at as well; all windows."""
    found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable)
    assert found is not None
    values = fetch(
        f"{url}/api/v1/label/{found[2]}/values",
        **{"match[]": found[1], "start": repr(BEGIN), "end": repr(END)},
    )
    assert values == {"server": [BUSY, "gone", "unseen"], "window": ["1m", "5m"]}[found[2]]


# --- what the less obvious expressions are worth -------------------------------------------


def test_kept_lengths_are_a_distribution(url: str) -> None:
    """Exactly the shares that went in; they add up to 1, a position never reached included."""
    expr = filled_in(kept_lengths(MANY, "live"))
    found = {s.labels["position"]: s.value for s in query(url, expr, BEGIN + RESTARTED - 60)}
    kept = [10, *PAYS, 0]  # of 10 steps those that kept at least 0, 1, 2, 3 and 4 tokens
    exactly = {
        str(length): (kept[length] - kept[length + 1]) / 10
        for length in range(4)
        if kept[length] > 0
    }
    assert found == pytest.approx(exactly)
    for moment in range(int(BEGIN) + 120, int(NOW), 300):
        shares = [series.value for series in query(url, expr, moment)]
        if shares:
            assert sum(shares) == pytest.approx(1)


def test_where_nothing_is_kept_all_steps_kept_none(url: str) -> None:
    """The expression holds for any values, here for those of made-up metrics."""
    kept = kept_lengths(MANY, "live")
    kept = re.sub(r"mtpmon_position_\w*acceptance_ratio\{[^}]*\}", "(mtpmon_up * 0)", kept)
    kept = kept.replace("(server, position)", "(server)")
    found = query(url, filled_in(kept), NOW)
    assert {(s.labels["position"], s.value) for s in found} == {("0", 1.0)}


def test_acceptance_is_drawn_once(url: str) -> None:
    """At each moment in one colour, all four in turn, and not at all without traffic."""
    whole = {when for s in over_time(url, live(ACCEPTANCE, MANY)) for when, _ in s.points}
    drawn: list[float] = []
    for part, expr in acceptance_by_worth(MANY):
        moments = [when for series in over_time(url, expr) for when, _ in series.points]
        assert moments, part
        drawn += moments
    assert sorted(drawn) == sorted(whole)
    idle = [when for when in whole if IDLE[0] + 301 <= when - BEGIN < IDLE[1]]
    assert idle == []


def test_a_place_is_that_of_the_verdict_that_holds(url: str) -> None:
    """Whatever holds at a moment, the number leads to its word."""
    words = list(VERDICT_COLOURS)
    (places,) = over_time(url, number("mtpmon_verdict", MANY, "verdict", words))
    holds = {
        (when, word)
        for word in words
        for series in over_time(url, f'mtpmon_verdict{{verdict="{word}"}} == 1')
        for when, _ in series.points
    }
    assert {(when, words[int(place)]) for when, place in places.points} == holds
    assert len({word for _, word in holds}) == 4


def test_margins_are_coloured_within_the_scale(url: str) -> None:
    """From -1 to 1, an end is reached, and the sign stays."""
    (panel,) = (each for each in asked("fleet") if each.place == "Margin")
    (margins,) = over_time(url, 'mtpmon_acceptance_margin_ratio{window="5m"}')
    (colours,) = over_time(url, panel.expr)
    assert max(abs(value) for _, value in colours.points) == pytest.approx(1)
    assert [value > 0 for _, value in colours.points] == [v > 0 for _, v in margins.points]


def test_events_are_where_they_happened(url: str) -> None:
    """A restart, another build, a change and an alert, each within two minutes of the truth."""
    for each in asked("server"):
        if each.place not in ("Restarts", "New build or model", "Detected changes"):
            continue
        points = [point for series in over_time(url, each.expr) for point in series.points]
        moments = [when for when, _ in points]
        if each.place == "Detected changes":
            moments = [value / 1000 for _, value in points]
        assert moments, each.place
        late = {when - BEGIN - RESTARTED for when in moments}
        assert min(late) >= 0, each.place
        assert max(late) <= 120, each.place
