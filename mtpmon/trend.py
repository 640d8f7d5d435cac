"""Acceptance and its breakeven over the last hours, in few enough points to draw."""

import msgspec

from mtpmon.model import Bounded

MOST_POINTS = 144
FIRST_SPACING_SECONDS = 10.0
LAST_SPACING_SECONDS = 640.0  # so many are a day and an hour


class TrendPoint(msgspec.Struct, frozen=True, kw_only=True):
    """What held at one moment; ``None``: not known then, such as without traffic."""

    unix_seconds: float
    acceptance: Bounded | None
    breakeven: Bounded | None


class Trend(msgspec.Struct, frozen=True, kw_only=True):
    """Points, oldest first, at least ``spacing_seconds`` apart."""

    points: tuple[TrendPoint, ...] = ()
    spacing_seconds: float = FIRST_SPACING_SECONDS


def extended(trend: Trend, point: TrendPoint) -> Trend:
    """With one more point, unless the last one is too near.

    Points of after this one go: the clock was set back, and when they were is not known.
    When there are too many, every second one goes and from then on they lie twice as far
    apart; at the widest spacing the oldest go instead.
    """
    points = trend.points
    if points and points[-1].unix_seconds > point.unix_seconds:
        points = tuple(each for each in points if each.unix_seconds < point.unix_seconds)
    if points and point.unix_seconds - points[-1].unix_seconds < trend.spacing_seconds:
        return msgspec.structs.replace(trend, points=points)
    points = (*points, point)
    if len(points) <= MOST_POINTS:
        return msgspec.structs.replace(trend, points=points)
    if trend.spacing_seconds >= LAST_SPACING_SECONDS:
        return msgspec.structs.replace(trend, points=points[-MOST_POINTS:])
    return Trend(points=points[::-2][::-1], spacing_seconds=2 * trend.spacing_seconds)
