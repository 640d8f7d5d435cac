"""Where panels are: lines of cells that fill the grid, in sections that may be folded."""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import dashboard as models

GRID_WIDTH = 24

PanelBuilder = Builder[models.Panel]


@dataclass(frozen=True, slots=True)
class Cell:
    """A panel and the columns it takes. ``key`` names it for good: links lead to it."""

    key: str
    width: int
    panel: PanelBuilder


class Line:
    """Cells of one height beside each other.

    Raises:
        ValueError: they do not fill the width.
    """

    def __init__(self, height: int, *cells: Cell) -> None:
        width = sum(cell.width for cell in cells)
        if width != GRID_WIDTH:
            raise ValueError(f"{[cell.key for cell in cells]} take {width} columns")
        self.height = height
        self.cells = cells


@dataclass(frozen=True, slots=True)
class Section:
    """Lines under a title; without one there is no bar above them, and no folding."""

    title: str | None
    lines: Sequence[Line]
    folded: bool = False

    @property
    def cells(self) -> Iterator[Cell]:
        """All cells, line by line."""
        return (cell for line in self.lines for cell in line.cells)


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A finished dashboard and the ids of its panels, by key."""

    model: models.Dashboard
    ids: Mapping[str, int]


def panel_id(key: str) -> int:
    """The id of a panel: of its key alone, so that links outlive changes of the layout."""
    return zlib.crc32(key.encode()) % 1_000_000 + 1


def placed(builder: dashboard.Dashboard, sections: Sequence[Section]) -> Dashboard:
    """The dashboard with all panels on its grid.

    Raises:
        ValueError: two panels have the same id.
    """
    keys = [cell.key for section in sections for cell in section.cells]
    keys += [_row_key(section.title) for section in sections if section.title]
    if len({panel_id(key) for key in keys}) != len(keys):
        raise ValueError("two panels have the same key, or one must be renamed for its id")
    top = 0
    for section in sections:
        row = None
        if section.title is not None:
            row = dashboard.Row(section.title).id(panel_id(_row_key(section.title)))
            row = row.grid_pos(models.GridPos(h=1, w=GRID_WIDTH, x=0, y=top))
            top += 1
        below = top
        for line in section.lines:
            _position(line, below)
            below += line.height
        if row is not None and section.folded:
            for cell in section.cells:
                row = row.with_panel(cell.panel)
            builder.with_row(row)
            continue  # what is folded takes no room
        top = below
        if row is not None:
            builder.with_row(row)
        for cell in section.cells:
            builder.with_panel(cell.panel)
    cells = (cell for section in sections for cell in section.cells)
    return Dashboard(builder.build(), {cell.key: panel_id(cell.key) for cell in cells})


def _row_key(title: str) -> str:
    return f"row: {title}"


def _position(line: Line, top: int) -> None:
    left = 0
    for cell in line.cells:
        panel = cell.panel.build()
        panel.id_val = panel_id(cell.key)
        panel.grid_pos = models.GridPos(h=line.height, w=cell.width, x=left, y=top)
        left += cell.width
