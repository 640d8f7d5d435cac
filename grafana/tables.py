"""Tables of this moment."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grafana_foundation_sdk.builders import common, table
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from grafana.looks import COUNT, NO_TRAFFIC, neutral, nothing, server_link, setting, sign, words
from grafana.parts import Query, Text, asked, described, joined, transformation, value_names


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
    panel = described(table.Panel(), text, COUNT).thresholds(neutral()).show_header(True)
    panel = panel.cell_height(common_models.TableCellHeight.SM).align(
        common_models.FieldTextAlignment.AUTO
    )
    queries = [Query(column.expr, column.name) for column in columns]
    panel = asked(panel, queries, now=True, format_=PromQueryFormat.TABLE)
    if linked:
        link = server_link("__value.text").build()
        panel = panel.override_by_name(key, [setting("links", [link])])
    excluded: dict[str, bool] = {}
    renamed: dict[str, str] = {}
    for value, column in zip(value_names(len(columns)), columns, strict=True):
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
            *joined(key),
            transformation(
                "organize",
                {"excludeByName": excluded, "indexByName": {}, "renameByName": renamed},
            ),
            transformation(
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
