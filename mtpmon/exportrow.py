"""A metric as a row, and what several tables of rows share.

A row's function yields ``(label values, value)`` from one server's snapshot. Unknown is no
sample, never 0.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from mtpmon.model import Bounded
from mtpmon.snapshot import ServerSnapshot

Kind = Literal["gauge", "counter", "info", "histogram"]
Sample = tuple[tuple[str, ...], float]
Labels = tuple[str, ...]
Samples = Callable[[ServerSnapshot], Iterable[Sample]]
Part = Callable[[Bounded | None], float | None]
"""Which part of a bounded figure: the middle, the lower or the upper bound."""

UNLABELLED: Labels = ()


@dataclass(frozen=True, slots=True)
class Row:
    """One metric. ``labels`` come after ``server``; ``samples`` gives their values in order.

    For an ``info`` the label values are those of its labels and the value is ignored.
    """

    name: str
    kind: Kind
    labels: Labels
    help: str
    samples: Samples


def known(value: float | None, *labels: str) -> Iterator[Sample]:
    """One sample, or none where the value is not known or not finite."""
    if value is not None and math.isfinite(value):
        yield labels, float(value)


def unlabelled(read: Callable[[ServerSnapshot], float | None]) -> Samples:
    """A metric with no labels but ``server``."""
    return lambda server: known(read(server))


def _middle(bounded: Bounded | None) -> float | None:
    return bounded.value if bounded is not None else None


def _lower(bounded: Bounded | None) -> float | None:
    return bounded.lower if bounded is not None else None


def _upper(bounded: Bounded | None) -> float | None:
    return bounded.upper if bounded is not None else None


def bounded_rows(
    stem: str,
    unit: str,
    labels: Labels,
    text: str,
    samples: Callable[[Part], Samples],
) -> list[Row]:
    """A figure and its bounds; the unit stays last in their names.

    Args:
        stem: of the names, without the unit.
        unit: the end of the names.
        labels: those after ``server``.
        text: the figure's help.
        samples: reads a part of the figure.
    """
    return [
        Row(f"{stem}_{unit}", "gauge", labels, text, samples(_middle)),
        Row(f"{stem}_lower_{unit}", "gauge", labels, f"Lower bound: {text}", samples(_lower)),
        Row(f"{stem}_upper_{unit}", "gauge", labels, f"Upper bound: {text}", samples(_upper)),
    ]
