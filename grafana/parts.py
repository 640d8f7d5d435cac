"""Kinds of panels, each with what all of its kind share; and colours, units and texts."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from grafana_foundation_sdk.builders import (
    barchart,
    bargauge,
    common,
    dashboard,
    prometheus,
    stat,
    statetimeline,
    statushistory,
    table,
    timeseries,
)
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from mtpmon.model import State
from mtpmon.verdict import Verdict

SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")

SHARE, SECONDS, COUNT, BYTES = "percentunit", "s", "short", "bytes"
TOKENS_PER_SECOND, TIMES, NATS, TOKENS = "suffix:tok/s", "suffix:×", "suffix:nats", "short"
AGO = "dateTimeFromNow"  # of milliseconds since 1970

NO_TRAFFIC = "no traffic"
NOT_MEASURED = "not measured"
NOT_SEEN = "not seen yet"

GREEN, RED, YELLOW, BLUE, ORANGE, PURPLE, GREY = (
    *("green", "red", "yellow", "blue", "orange", "purple", "#8e8e8e"),
)
VERDICT_COLOURS: Mapping[str, str] = {
    Verdict.PAYING: GREEN,
    Verdict.COSTING: RED,
    Verdict.UNDECIDED: YELLOW,
    Verdict.NO_DATA: GREY,
}
STATE_COLOURS: Mapping[str, str] = {
    State.READY: GREEN,
    State.LOADING: BLUE,
    State.SLEEPING: PURPLE,
    State.UNAUTHORIZED: ORANGE,
    State.METRICS_DISABLED: ORANGE,
    State.UNREACHABLE: RED,
    State.MALFORMED: RED,
}

# The page of one server; a link adds which one.
SERVER_PAGE = "/d/mtpmon-server?${datasource:queryparam}&${window:queryparam}&${__url_time_range}"

Panel = TypeVar(
    "Panel",
    barchart.Panel,
    bargauge.Panel,
    stat.Panel,
    statetimeline.Panel,
    statushistory.Panel,
    table.Panel,
    timeseries.Panel,
)


@dataclass(frozen=True, slots=True)
class Text:
    """What a reader sees of a panel besides figures.

    ``meaning`` teaches the reading; ``unknown`` stands where there is no sample.
    """

    title: str
    meaning: str
    unknown: str = NO_TRAFFIC


@dataclass(frozen=True, slots=True)
class Query:
    """An expression and what its series are called, with labels in double braces."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    ``label``: the column is this label of the answer, and its value is left out.
    """

    name: str
    expr: str
    unit: str = COUNT
    label: str | None = None
    unknown: str = NO_TRAFFIC
    signed: bool = False
    colours: Mapping[str, str] | None = None


def _described(panel: Panel, text: Text, unit: str) -> Panel:
    return (
        panel.title(text.title)
        .description(text.meaning)
        .no_value(text.unknown)
        .unit(unit)
        .datasource(SOURCE)
    )


def _reference(index: int) -> str:
    return chr(ord("A") + index)


def _asked(
    panel: Panel, queries: Iterable[Query], *, now: bool, format_: PromQueryFormat | None = None
) -> Panel:
    for index, query in enumerate(queries):
        target = prometheus.Dataquery().datasource(SOURCE).ref_id(_reference(index))
        target = target.expr(query.expr).legend_format(query.legend)
        target = target.instant() if now else target.range()
        panel = panel.with_target(target.format(format_ or PromQueryFormat.TIME_SERIES))
    return panel


def setting(name: str, value: object) -> models.DynamicConfigValue:
    """One setting of an override."""
    return models.DynamicConfigValue(id_val=name, value=value)


def fixed(colour: str) -> models.DynamicConfigValue:
    """A colour that does not depend on the value."""
    return setting("color", {"mode": "fixed", "fixedColor": colour})


def sign() -> dashboard.ThresholdsConfig:
    """Red below 0, green from 0 on: of a margin, where drafting begins to pay."""
    steps = [models.Threshold(value=None, color=RED), models.Threshold(value=0, color=GREEN)]
    return dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps)


def neutral() -> dashboard.ThresholdsConfig:
    """One colour: the panel judges nothing."""
    steps = [models.Threshold(value=None, color=BLUE)]
    return dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps)


def words(colours: Mapping[str, str], *, numbered: bool) -> models.ValueMap:
    """Texts and colours of a closed set, by place in it or by the word itself."""
    return models.ValueMap(
        options={
            str(place) if numbered else word: models.ValueMappingResult(
                text=word.replace("_", " "), color=colour, index=place
            )
            for place, (word, colour) in enumerate(colours.items())
        }
    )


def nothing(text: str) -> models.SpecialValueMap:
    """Words in grey where there is no sample: the colour of the lowest value would judge it."""
    return models.SpecialValueMap(
        options=models.DashboardSpecialValueMapOptions(
            match=models.SpecialValueMatch.NULL_AND_NAN,
            result=models.ValueMappingResult(text=text, color=GREY),
        )
    )


def server_link(name: str) -> dashboard.DashboardLink:
    """To the page of the server whose name Grafana finds in ``name``, for the same time."""
    return (
        dashboard.DashboardLink("Open the server")
        .type(models.DashboardLinkType.LINK)
        .url(f"{SERVER_PAGE}&var-server=${{{name}:percentencode}}")
    )


# --- over time ----------------------------------------------------------------------------


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
    panel = _described(timeseries.Panel(), text, unit)
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
    panel = _asked(panel, every, now=False)
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
    panel = _described(statetimeline.Panel(), text, COUNT).mappings([words(colours, numbered=True)])
    panel = panel.thresholds(neutral()).merge_values(True).line_width(0).fill_opacity(80)
    panel = panel.show_value(common_models.VisibilityMode.AUTO).row_height(0.8)
    panel = panel.legend(_no_legend())
    panel = panel.data_links([server_link("__field.labels.server")])
    return _asked(panel, [Query(expr, legend)], now=False)


def heat(text: Text, unit: str, query: Query) -> statushistory.Panel:
    """A cell for each server and time, from red over yellow at 0 to green; of -1 to 1."""
    panel = _described(statushistory.Panel(), text, unit)
    scheme = dashboard.FieldColor().mode(models.FieldColorModeId.CONTINUOUS_RD_YL_GR)
    panel = panel.color_scheme(scheme).min(-1).max(1).fill_opacity(80).line_width(0)
    panel = panel.show_value(common_models.VisibilityMode.NEVER).row_height(0.9)
    panel = panel.legend(_no_legend()).max_data_points(100)
    panel = panel.data_links([server_link("__field.labels.server")])
    return _asked(panel, [query], now=False)


def _no_legend() -> common.VizLegendOptions:
    return (
        common.VizLegendOptions()
        .show_legend(False)
        .display_mode(common_models.LegendDisplayMode.HIDDEN)
        .placement(common_models.LegendPlacement.BOTTOM)
        .calcs([])
    )


# --- now ----------------------------------------------------------------------------------


def figure(
    text: Text,
    unit: str,
    queries: Sequence[Query],
    *,
    signed: bool = False,
    named: bool = False,
    names_only: bool = False,
    colours: Mapping[str, str] | None = None,
    numbered: bool = False,
) -> stat.Panel:
    """Big figures of this moment.

    ``colours`` are by name of the series; with ``numbered`` the value is a place among them.
    """
    shown = common_models.BigValueTextMode.VALUE
    if named:
        shown = common_models.BigValueTextMode.VALUE_AND_NAME
    elif names_only:
        shown = common_models.BigValueTextMode.NAME
    panel = _described(stat.Panel(), text, unit).thresholds(sign() if signed else neutral())
    panel = panel.graph_mode(common_models.BigValueGraphMode.NONE)
    panel = panel.text_mode(shown)
    panel = panel.color_mode(common_models.BigValueColorMode.VALUE)
    panel = panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
    mappings: list[models.ValueMapping] = [nothing(text.unknown)]
    if numbered:
        mappings.append(words(colours or {}, numbered=True))
        panel = panel.color_mode(common_models.BigValueColorMode.BACKGROUND_SOLID)
    else:
        for name, colour in (colours or {}).items():
            word = setting("displayName", name.replace("_", " "))
            panel = panel.override_by_name(name, [fixed(colour), word])
    return _asked(panel.mappings(mappings), queries, now=True)


def bars(
    text: Text, unit: str, label: str, queries: Sequence[Query], *, axis: str
) -> barchart.Panel:
    """Bars of this moment by a numeric label, in its order; a colour for each query."""
    panel = _described(barchart.Panel(), text, unit).min(0).axis_label("").x_field(axis)
    panel = panel.orientation(common_models.VizOrientation.VERTICAL).fill_opacity(80).line_width(0)
    panel = panel.show_value(common_models.VisibilityMode.AUTO).group_width(0.8).bar_width(0.9)
    panel = panel.stacking(common_models.StackingMode.NONE)
    palette = dashboard.FieldColor().mode(models.FieldColorModeId.PALETTE_CLASSIC)
    panel = panel.color_scheme(palette)
    panel = panel.legend(
        common.VizLegendOptions()
        .show_legend(len(queries) > 1)
        .display_mode(common_models.LegendDisplayMode.LIST)
        .placement(common_models.LegendPlacement.BOTTOM)
        .calcs([])
    )
    panel = _asked(panel, queries, now=True, format_=PromQueryFormat.TABLE)
    legends = (query.legend for query in queries)
    names = dict(zip(_value_names(len(queries)), legends, strict=True))
    as_number = {"targetField": label, "destinationType": "number"}
    as_text = {"targetField": label, "destinationType": "string"}
    return panel.transformations(
        [
            *_joined(label),
            _transformation("convertFieldType", {"conversions": [as_number], "fields": {}}),
            _transformation("sortBy", {"sort": [{"field": label}], "fields": {}}),
            _transformation("convertFieldType", {"conversions": [as_text], "fields": {}}),
            _transformation(
                "organize",
                {
                    "excludeByName": {},
                    "indexByName": {},
                    "renameByName": {**names, label: axis},
                },
            ),
        ]
    )


def ranking(text: Text, unit: str, query: Query, *, signed: bool = False) -> bargauge.Panel:
    """Series of this moment, one bar each, as the query orders them."""
    panel = _described(bargauge.Panel(), text, unit).thresholds(sign() if signed else neutral())
    panel = panel.orientation(common_models.VizOrientation.HORIZONTAL)
    panel = panel.display_mode(common_models.BarGaugeDisplayMode.BASIC)
    panel = panel.value_mode(common_models.BarGaugeValueMode.COLOR).show_unfilled(False)
    panel = panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
    panel = panel.data_links([server_link("__field.labels.server")])
    return _asked(panel, [query], now=True)


def histogram(text: Text, unit: str, expr: str) -> bargauge.Panel:
    """Buckets of this moment, one bar each; ``expr`` gives cumulative ones by ``le``."""
    panel = _described(bargauge.Panel(), text, unit).thresholds(neutral())
    panel = panel.orientation(common_models.VizOrientation.VERTICAL)
    panel = panel.display_mode(common_models.BarGaugeDisplayMode.BASIC).show_unfilled(False)
    panel = panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
    return _asked(panel, [Query(expr, "{{le}}")], now=True, format_=PromQueryFormat.HEATMAP)


def matrix(
    text: Text,
    key: str,
    columns: Sequence[Column],
    *,
    also: Sequence[str] = (),
    linked: bool = False,
    sorted_by: str | None = None,
    descending: bool = False,
) -> table.Panel:
    """A row for each value of the label ``key``; a column for each figure.

    ``also``: labels that are shown as they are. ``linked``: ``key`` is a server and leads to it.
    """
    panel = _described(table.Panel(), text, COUNT).thresholds(neutral()).show_header(True)
    panel = panel.cell_height(common_models.TableCellHeight.SM).align(
        common_models.FieldTextAlignment.AUTO
    )
    queries = [Query(column.expr, column.name) for column in columns]
    panel = _asked(panel, queries, now=True, format_=PromQueryFormat.TABLE)
    if linked:
        link = server_link("__value.text").build()
        panel = panel.override_by_name(key, [setting("links", [link])])
    excluded: dict[str, bool] = {}
    renamed: dict[str, str] = {}
    for value, column in zip(_value_names(len(columns)), columns, strict=True):
        if column.label is not None:
            excluded[value] = True
            renamed[column.label] = column.name
        else:
            renamed[value] = column.name
        panel = panel.override_by_name(column.name, _column_settings(column))
    order = [key, *(column.name for column in columns), *also]
    if sorted_by is not None:
        by = common.TableSortByFieldState().display_name(sorted_by).desc(descending)
        panel = panel.sort_by([by])
    return panel.transformations(
        [
            *_joined(key),
            _transformation(
                "organize",
                {"excludeByName": excluded, "indexByName": {}, "renameByName": renamed},
            ),
            _transformation(
                "organize",
                {
                    "excludeByName": {},
                    "indexByName": {name: place for place, name in enumerate(order)},
                    "renameByName": {},
                },
            ),
        ]
    )


def _column_settings(column: Column) -> list[models.DynamicConfigValue]:
    found = [setting("unit", "string" if column.label is not None else column.unit)]
    found.append(setting("noValue", column.unknown))
    if column.colours is not None:
        mappings = [nothing(column.unknown), words(column.colours, numbered=False)]
        found.append(setting("mappings", mappings))
    if column.signed:
        found.append(setting("mappings", [nothing(column.unknown)]))
        found.append(setting("thresholds", sign().build()))
    if column.signed or column.colours is not None:
        found.append(setting("custom.cellOptions", {"type": "color-text"}))
    return found


def _transformation(name: str, options: object) -> models.DataTransformerConfig:
    return models.DataTransformerConfig(id_val=name, options=options)


def _joined(key: str) -> list[models.DataTransformerConfig]:
    """Answers side by side, a row for each value of ``key``, without what they all share."""
    aside = "Time" if key == "server" else "Time|server"
    return [
        _transformation("filterFieldsByName", {"exclude": {"pattern": f"/^({aside})$/"}}),
        _transformation("joinByField", {"byField": key, "mode": "outer"}),
    ]


def _value_names(queries: int) -> Sequence[str]:
    """What Grafana calls the values of so many answers that are tables."""
    if queries == 1:
        return ("Value",)
    return tuple(f"Value #{_reference(index)}" for index in range(queries))
