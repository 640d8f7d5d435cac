"""Panels and shades of mtpmon's own figures that more than one file draws."""

from grafana_foundation_sdk.builders import timeseries

from grafana.looks import BLUE, GREEN, GREY, ORANGE, RED, SHARE, YELLOW
from grafana.overtime import Band, graph
from grafana.parts import Query, Text
from grafana.promql import (
    ACCEPTANCE,
    BREAKEVEN,
    WINDOW,
    acceptance_by_worth,
    bounds,
    live,
    value,
)

_MEANING = (
    "Share of the drafted tokens of users' traffic that were kept, and the share at which"
    " drafting neither gains nor loses (dashed). The line is green where the whole interval of"
    " the margin is above 0, red where it is below, yellow where chance may still explain it,"
    " blue where no probe has measured a cost. Shades are bounds. A breakeven above 100 % cannot"
    " be reached. A gap: nothing was drafted, or too little to say."
)
_COLOURS = {
    "acceptance, pays": GREEN,
    "acceptance, costs": RED,
    "acceptance, undecided": YELLOW,
    "acceptance, no breakeven": BLUE,
}


def banded(metric: str, servers: str, name: str, colour: str, **labels: str) -> Band:
    """A figure with its bounds."""
    low, high = bounds(metric)
    return Band(
        name,
        value(low, servers, **labels),
        value(high, servers, **labels),
        colour,
        middle=value(metric, servers, **labels),
    )


def against_breakeven(title: str, servers: str) -> timeseries.Panel:
    """Of one server, or repeated for each."""
    low, high = bounds(ACCEPTANCE)
    bands = (
        Band("acceptance", live(low, servers), live(high, servers), GREY),
        banded(BREAKEVEN, servers, "breakeven", ORANGE, window=WINDOW),
    )
    return graph(
        Text(title, _MEANING),
        SHARE,
        [Query(expr, name) for name, expr in acceptance_by_worth(servers)],
        bands=bands,
        colours=_COLOURS,
        dashed=["breakeven"],
    )
