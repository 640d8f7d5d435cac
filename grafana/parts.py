"""What all kinds of panels share: texts, queries, and how answers become rows."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from grafana_foundation_sdk.builders import (
    barchart,
    bargauge,
    common,
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

from grafana.looks import NO_TRAFFIC

SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")

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


def described(panel: Panel, text: Text, unit: str) -> Panel:
    return (
        panel.title(text.title)
        .description(text.meaning)
        .no_value(text.unknown)
        .unit(unit)
        .datasource(SOURCE)
    )


def reference(index: int) -> str:
    return chr(ord("A") + index)


def asked(
    panel: Panel, queries: Iterable[Query], *, now: bool, format_: PromQueryFormat | None = None
) -> Panel:
    for index, query in enumerate(queries):
        target = prometheus.Dataquery().datasource(SOURCE).ref_id(reference(index))
        target = target.expr(query.expr).legend_format(query.legend)
        target = target.instant() if now else target.range()
        panel = panel.with_target(target.format(format_ or PromQueryFormat.TIME_SERIES))
    return panel


def no_legend() -> common.VizLegendOptions:
    return (
        common.VizLegendOptions()
        .show_legend(False)
        .display_mode(common_models.LegendDisplayMode.HIDDEN)
        .placement(common_models.LegendPlacement.BOTTOM)
        .calcs([])
    )


def transformation(name: str, options: object) -> models.DataTransformerConfig:
    return models.DataTransformerConfig(id_val=name, options=options)


def joined(key: str) -> list[models.DataTransformerConfig]:
    """Answers side by side, a row for each value of ``key``, without what they all share."""
    aside = "Time" if key == "server" else "Time|server"
    return [
        transformation("filterFieldsByName", {"exclude": {"pattern": f"/^({aside})$/"}}),
        transformation("joinByField", {"byField": key, "mode": "outer"}),
    ]


def value_names(queries: int) -> Sequence[str]:
    """What Grafana calls the values of so many answers that are tables."""
    if queries == 1:
        return ("Value",)
    return tuple(f"Value #{reference(index)}" for index in range(queries))
