"""Panels of this moment: big figures and bars."""

from collections.abc import Mapping, Sequence

from grafana_foundation_sdk.builders import barchart, bargauge, common, dashboard, stat
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from grafana.looks import fixed, neutral, nothing, server_link, setting, sign, words
from grafana.parts import (
    Query,
    Text,
    asked,
    described,
    joined,
    transformation,
    value_names,
)


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
    panel = described(stat.Panel(), text, unit).thresholds(sign() if signed else neutral())
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
    return asked(panel.mappings(mappings), queries, now=True)


def bars(
    text: Text, unit: str, label: str, queries: Sequence[Query], *, axis: str
) -> barchart.Panel:
    """Bars of this moment by a numeric label, in its order; a colour for each query."""
    panel = described(barchart.Panel(), text, unit).min(0).axis_label("").x_field(axis)
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
    panel = asked(panel, queries, now=True, format_=PromQueryFormat.TABLE)
    legends = (query.legend for query in queries)
    names = dict(zip(value_names(len(queries)), legends, strict=True))
    as_number = {"targetField": label, "destinationType": "number"}
    as_text = {"targetField": label, "destinationType": "string"}
    return panel.transformations(
        [
            *joined(label),
            transformation("convertFieldType", {"conversions": [as_number], "fields": {}}),
            transformation("sortBy", {"sort": [{"field": label}], "fields": {}}),
            transformation("convertFieldType", {"conversions": [as_text], "fields": {}}),
            transformation(
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
    panel = described(bargauge.Panel(), text, unit).thresholds(sign() if signed else neutral())
    panel = panel.orientation(common_models.VizOrientation.HORIZONTAL)
    panel = panel.display_mode(common_models.BarGaugeDisplayMode.BASIC)
    panel = panel.value_mode(common_models.BarGaugeValueMode.COLOR).show_unfilled(False)
    panel = panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
    panel = panel.data_links([server_link("__field.labels.server")])
    return asked(panel, [query], now=True)


def histogram(text: Text, unit: str, expr: str) -> bargauge.Panel:
    """Buckets of this moment, one bar each; ``expr`` gives cumulative ones by ``le``."""
    panel = described(bargauge.Panel(), text, unit).thresholds(neutral())
    panel = panel.orientation(common_models.VizOrientation.VERTICAL)
    panel = panel.display_mode(common_models.BarGaugeDisplayMode.BASIC).show_unfilled(False)
    panel = panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
    return asked(panel, [Query(expr, "{{le}}")], now=True, format_=PromQueryFormat.HEATMAP)
