"""The viability matrix as a table for people."""

from rich.console import RenderableType

from mtpmon.commands.tables import UNKNOWN, bounded, percent, table
from mtpmon.cost import PlainSource
from mtpmon.grade import Grade, Graded
from mtpmon.model import Bounded
from mtpmon.viability import Viability

_GRADES: dict[Grade, str] = {
    Grade.RECOMMENDED: "recommended",
    Grade.MARGINAL: "marginal",
    Grade.NOT_RECOMMENDED: "not recommended",
}
_THINKING: dict[bool | None, str] = {None: "default", False: "off", True: "on"}
_PLAIN_STEPS: dict[PlainSource, str] = {
    PlainSource.PAIR: "the target-only server's",
    PlainSource.CAPTURE: "the captured baseline's",
    PlainSource.SWITCH: "this server's, told not to draft: an upper bound, which flatters drafting",
    PlainSource.UNDRAFTED: "this server's undrafted ones: an upper bound, which flatters drafting",
}


def viability_table(found: Viability) -> RenderableType:
    """The viability matrix: where drafting pays."""
    source = "" if found.plain is None else f"; plain steps are {_PLAIN_STEPS[found.plain]}"
    grid = table(
        f"Where drafting pays{source}",
        "task",
        "temp.",
        "thinking",
        "probes",
        "acceptance",
        "breakeven",
        "speed-up",
        "grade",
        wrapped=[7],
    )
    several = len({(cell.temperature, cell.thinking) for cell in found.cells}) > 1
    last = None
    for cell in found.cells:
        if several and last not in (None, cell.task):
            grid.add_section()
        last = cell.task
        speedup = bounded(cell.speedup, "×")
        grid.add_row(
            cell.task,
            f"{cell.temperature:g}",
            _THINKING[cell.thinking],
            str(cell.probes),
            percent(cell.acceptance),
            _percents(cell.breakeven),
            f"≈ {speedup}" if cell.modelled else speedup,
            _graded(cell.graded),
        )
    return grid


def _percents(value: Bounded | None) -> str:
    if value is None:
        return UNKNOWN
    return f"{value.value:.1%} [{100 * value.lower:.0f}, {100 * value.upper:.0f}]"


def _graded(found: Graded | None) -> str:
    if found is None:
        return UNKNOWN
    return _GRADES[found.grade] if found.certain else f"{_GRADES[found.grade]} ?"
