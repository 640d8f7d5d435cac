"""Durations as people write them."""

import re
from decimal import Decimal

_DURATION = re.compile(r"(-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?)(ms|[smhd])?")
UNIT_SECONDS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


def parse_duration(text: str) -> float | None:
    """Seconds of ``1.5h``, ``250ms`` or ``30``; ``None`` for what is no duration."""
    match = _DURATION.fullmatch(text)
    if match is None:
        return None
    return round(float(match[1]) * UNIT_SECONDS[match[2] or "s"], 9)


def format_duration(seconds: float) -> str:
    """Write a duration the way a configuration does, in the largest unit that divides it.

    The text is also the value of the `window` label, so ``300``, ``300s`` and ``5m`` in a file give
    the same series.
    """
    exact = _decimal(seconds)
    for unit, unit_seconds in UNIT_SECONDS.items():
        size = _decimal(unit_seconds)
        if exact >= size and exact % size == 0:
            return f"{exact // size:f}{unit}"
    return f"{exact:f}".removesuffix(".0") + "s"


def _decimal(seconds: float) -> Decimal:
    """Take the digits that are meant, without the noise of a sum of floats."""
    return Decimal(repr(round(seconds, 9)))
