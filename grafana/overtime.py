"""Panels over time: lines and shades, what held when, colours by server and time."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from grafana_foundation_sdk.builders import (
    common,
    dashboard,
    statetimeline,
    statushistory,
    timeseries,
)
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models

from grafana.looks import COUNT, fixed, neutral, server_link, setting, words
from grafana.parts import Query, Text, asked, described, no_legend


@dataclass(frozen=True, slots=True)
class Band:
    """A figure between its bounds, drawn as a line in a shade.

    Without ``middle`` only the shade is drawn.
    """

    name: str
    lower: str
    upper: str
    colour: str
    middle: str | None = None

    @property
    def lower_name(self) -> str:
        """What the lower edge is called."""
        return f"{self.name}, lower bound"

    @property
    def upper_name(self) -> str:
        """What the upper edge is called."""
        return f"{self.name}, upper bound"

    @property
    def queries(self) -> Iterable[Query]:
        """The edges, then the line."""
        yield Query(self.lower, self.lower_name)
        yield Query(self.upper, self.upper_name)
        if self.middle is not None:
            yield Query(self.middle, self.name)


def graph(
    text: Text,
    unit: str,
    queries: Sequence[Query] = (),
    *,
    bands: Sequence[Band] = (),
    colours: Mapping[str, str] | None = None,
    dashed: Sequence[str] = (),
    stacked: bool = False,
    linked: bool = False,
) -> timeseries.Panel:
    """Lines over time. Where there is no sample there is no line.

    ``colours`` and ``dashed`` are by name of the line; ``linked``: a line leads to its server.
    """
    panel = described(timeseries.Panel(), text, unit)
    # A server has the same colour on all panels.
    by_name = models.FieldColorModeId.PALETTE_CLASSIC_BY_NAME
    palette = by_name if linked else models.FieldColorModeId.PALETTE_CLASSIC
    panel = panel.color_scheme(dashboard.FieldColor().mode(palette))
    panel = panel.line_width(2).fill_opacity(0).span_nulls(False)
    panel = panel.show_points(common_models.VisibilityMode.AUTO).axis_soft_min(0)
    panel = panel.legend(
        common.VizLegendOptions()
        .show_legend(True)
        .display_mode(common_models.LegendDisplayMode.LIST)
        .placement(common_models.LegendPlacement.BOTTOM)
        .calcs([])
    )
    panel = panel.tooltip(
        common.VizTooltipOptions()
        .mode(common_models.TooltipDisplayMode.MULTI)
        .sort(common_models.SortOrder.DESCENDING)
    )
    if stacked:
        stacking = common.StackingConfig().mode(common_models.StackingMode.NORMAL).group("A")
        panel = panel.stacking(stacking).fill_opacity(60).line_width(0)
    every = [*queries, *(query for band in bands for query in band.queries)]
    panel = asked(panel, every, now=False)
    for band in bands:
        panel = _shade(panel, band)
    for name, colour in (colours or {}).items():
        panel = panel.override_by_name(name, [fixed(colour)])
    for name in dashed:
        style = setting("custom.lineStyle", {"fill": "dash", "dash": [10, 10]})
        panel = panel.override_by_name(name, [style])
    return panel.data_links([server_link("__field.labels.server")]) if linked else panel


def _shade(panel: timeseries.Panel, band: Band) -> timeseries.Panel:
    aside = setting("custom.hideFrom", {"legend": True, "tooltip": False, "viz": False})
    thin = [fixed(band.colour), setting("custom.lineWidth", 0), aside]
    thin.append(setting("custom.showPoints", "never"))
    shade = [setting("custom.fillBelowTo", band.lower_name), setting("custom.fillOpacity", 15)]
    if band.middle is not None:
        panel = panel.override_by_name(band.name, [fixed(band.colour)])
    panel = panel.override_by_name(band.lower_name, thin)
    return panel.override_by_name(band.upper_name, [*thin, *shade])


def timeline(text: Text, expr: str, colours: Mapping[str, str], legend: str) -> statetimeline.Panel:
    """Which of a closed set held when; ``expr`` gives its place among ``colours``."""
    panel = described(statetimeline.Panel(), text, COUNT).mappings([words(colours, numbered=True)])
    panel = panel.thresholds(neutral()).merge_values(True).line_width(0).fill_opacity(80)
    panel = panel.show_value(common_models.VisibilityMode.AUTO).row_height(0.8)
    panel = panel.legend(no_legend())
    panel = panel.data_links([server_link("__field.labels.server")])
    return asked(panel, [Query(expr, legend)], now=False)


def heat(text: Text, unit: str, query: Query) -> statushistory.Panel:
    """A cell for each server and time, from red over yellow at 0 to green; of -1 to 1."""
    panel = described(statushistory.Panel(), text, unit)
    scheme = dashboard.FieldColor().mode(models.FieldColorModeId.CONTINUOUS_RD_YL_GR)
    panel = panel.color_scheme(scheme).min(-1).max(1).fill_opacity(80).line_width(0)
    panel = panel.show_value(common_models.VisibilityMode.NEVER).row_height(0.9)
    panel = panel.legend(no_legend()).max_data_points(100)
    panel = panel.data_links([server_link("__field.labels.server")])
    return asked(panel, [query], now=False)
