"""Acceptance over hours in few points, and how the status page draws it."""

import re
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpmon.model import Bounded
from mtpmon.page import render_page
from mtpmon.pagetrend import trend
from mtpmon.trend import (
    FIRST_SPACING_SECONDS,
    LAST_SPACING_SECONDS,
    MOST_POINTS,
    Trend,
    TrendPoint,
    extended,
)
from tests.page_snapshots import NOW, drifting, ready, snapshot, unseen


def point(at: float, acceptance: float | None = 0.7, breakeven: float | None = 0.5) -> TrendPoint:
    def around(value: float | None) -> Bounded | None:
        return Bounded(value, value - 0.05, value + 0.05) if value is not None else None

    return TrendPoint(unix_seconds=at, acceptance=around(acceptance), breakeven=around(breakeven))


def after(seconds: float, every: float = 5.0) -> Trend:
    held = Trend()
    at = 0.0
    while at <= seconds:
        held = extended(held, point(at))
        at += every
    return held


def test_points_are_as_far_apart_as_the_time_needs() -> None:
    """An hour in tens of seconds, a day in minutes; the first moment stays until then."""
    minutes, day = after(1200), after(86_400)
    assert (len(minutes.points), minutes.spacing_seconds) == (121, FIRST_SPACING_SECONDS)
    assert day.points[0].unix_seconds == 0
    assert day.points[-1].unix_seconds > 86_400 - day.spacing_seconds
    assert 86_400 / MOST_POINTS < day.spacing_seconds <= LAST_SPACING_SECONDS


def test_after_that_the_oldest_go() -> None:
    week = after(7 * 86_400, every=LAST_SPACING_SECONDS)
    assert len(week.points) == MOST_POINTS
    assert week.spacing_seconds == LAST_SPACING_SECONDS
    assert week.points[-1].unix_seconds - week.points[0].unix_seconds == (
        (MOST_POINTS - 1) * LAST_SPACING_SECONDS
    )


@given(st.lists(st.floats(-100, 2000), max_size=1500))
def test_points_are_few_and_never_crowded(steps: list[float]) -> None:
    """Whatever the clock does, which may also be set back."""
    held, at = Trend(), 0.0
    for step in steps:
        at += step
        held = extended(held, point(at))
    times = [p.unix_seconds for p in held.points]
    assert len(times) <= MOST_POINTS
    assert all(b - a >= FIRST_SPACING_SECONDS for a, b in pairwise(times))
    if steps:
        assert held.points, "the first is always taken"


def test_a_clock_set_back_does_not_end_the_chart() -> None:
    """When the points of the time to come really were, nobody knows: no line runs backwards."""
    held = Trend()
    for at in (400, 1000, 1010, 500, 505, 510):
        held = extended(held, point(at))
    assert [p.unix_seconds for p in held.points] == [400, 500, 510]
    assert extended(held, point(405)).points == (point(400),), "too near to what is left"


# --- drawn ---


def drawn(*points: TrendPoint, spacing: float = 10.0, now: float | None = None) -> str | None:
    server = unseen(trend=Trend(points=points, spacing_seconds=spacing))
    if now is None:
        now = points[-1].unix_seconds if points else 0.0
    return trend(server, now)


def places(markup: str, name: str) -> list[str]:
    return re.findall(rf'<polyline points="([^"]*)" class="line {name}">', markup)


def test_values_are_where_they_belong() -> None:
    """Time from left to right, 100 % at the top, bounds as an area around the line."""
    found = drawn(point(0, 1.0, None), point(10, 0.5, None), point(20, 0.0, None))
    assert found is not None
    assert places(found, "accepted") == ["0,0 300,100 600,200"]
    area = "0,0 300,90 600,190 600,200 300,110 0,10"
    assert f'<polygon points="{area}" class="range accepted">' in found
    assert places(found, "even") == []
    assert "breakeven" not in found


def test_no_line_is_drawn_through_what_nobody_knows() -> None:
    """Neither while there was no traffic, nor while mtpmon was not looking."""
    quiet = [point(at, None if at == 30 else 0.7) for at in (0, 10, 20, 30, 40, 50)]
    found = drawn(*quiet, point(90), point(100))
    assert found is not None
    assert len(places(found, "accepted")) == 3
    assert len(places(found, "even")) == 2


def test_it_is_told_in_words_as_well() -> None:
    found = drawn(point(0, 0.7), point(10, 0.4), point(20, 0.6))
    assert found is not None
    words = "Acceptance in the last 20\N{NO-BREAK SPACE}s: between 40.0\N{NO-BREAK SPACE}% and"
    assert f'role="img" aria-label="{words} 70.0' in found
    assert "60.0\N{NO-BREAK SPACE}% at the last. Its breakeven at the last: 50.0" in found
    quiet = drawn(point(0), point(10), point(20), point(30, None))
    assert quiet is not None
    assert "no traffic now" in quiet


@pytest.mark.parametrize(
    "points",
    [
        (),
        (point(0), point(10)),
        tuple(point(at, None) for at in range(0, 90, 10)),
    ],
    ids=["nothing", "hardly anything", "no traffic"],
)
def test_without_enough_there_is_no_chart(points: tuple[TrendPoint, ...]) -> None:
    assert drawn(*points) is None


def test_a_clock_set_back_since_the_last_look_leaves_no_chart() -> None:
    points = (point(0), point(10), point(20))
    assert drawn(*points, now=20) is not None
    assert drawn(*points, now=19) is None


def test_what_was_known_last_is_not_said_of_now() -> None:
    """A server that is out of reach has no points: its line ends where it went away."""
    points = (point(0), point(10), point(20))
    lately, gone = drawn(*points, now=50), drawn(*points, now=60)
    assert lately is not None
    assert gone is not None
    assert "70.0" in caption(lately)
    assert places(lately, "accepted") == ["0,60 300,60 600,60"]
    assert "not known now" in caption(gone)
    assert "%" not in caption(gone)
    assert places(gone, "accepted") == ["0,60 100,60 200,60"]
    assert "<span>1\N{NO-BREAK SPACE}m ago</span>" in gone


def caption(markup: str) -> str:
    return markup[markup.index("<figcaption") : markup.index("</figcaption")]


def test_the_page_has_it() -> None:
    server = ready(trend=drifting())
    page = render_page(snapshot(server))
    assert page.count("<svg") == 1
    assert "<svg" not in render_page(snapshot(msgspec.structs.replace(server, trend=Trend())))
    assert server.trend.points[-1].unix_seconds == NOW
