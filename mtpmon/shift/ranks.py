"""The detector of changes in a value with any distribution: it looks at ranks only."""

import math

import msgspec
import numpy as np

from mtpmon.shift.evidence import LEAST_THRESHOLD, SIGNS, Array, Bank, bank, collected, emptied
from mtpmon.shift.settings import DAY, LONGEST_PAUSE_SECONDS, RATE_MEMORY_SECONDS, ValueSettings

POWERS: Array = np.array([2.0, 8.0, 16.0, 32.0])
STAKES: Array = np.array([1.0, 1.0, 0.5, 0.2])
"""Bets on ranks: a value at rank u (0…1) multiplies the evidence by 1 - s + s·a·u^(a-1). Those
with a small stake s are for changes that only some values show."""
MOST_PAST = 400  # values of one stratum that a new one is ranked among
LEAST_PAST = 20
RANK_FADE = 0.998  # how much less a value counts, for likeness, with each that follows


class Ranks(msgspec.Struct, frozen=True, kw_only=True):
    """A detector of changes in a value with any distribution.

    ``past``: [..., strata, places], the latest value last, NaN where there is none yet.
    ``fresh``: likewise, what came since a change. ``products``, ``squares``: of successive
    ranks' distances from the middle, for how much values resemble the ones before.
    """

    strata: tuple[str, ...]
    past: Array
    fresh: Array
    bank: Bank
    last_rank: Array
    products: Array
    squares: Array
    rate_values: Array
    rate_seconds: Array
    last_unix_seconds: float | None = None
    replanned: bool = False


def ranks(*shape: int, strata: tuple[str, ...] = ()) -> Ranks:
    """A detector that knows nothing yet; ``shape``: of the leading dimensions."""
    zero, none = np.zeros(shape), np.full((*shape, len(strata), MOST_PAST), np.nan)
    return Ranks(
        strata=strata,
        past=none,
        fresh=none,
        bank=bank(*shape, 1, 2, len(POWERS)),
        last_rank=zero,
        products=zero,
        squares=zero,
        rate_values=zero,
        rate_seconds=zero,
    )


class RankStep(msgspec.Struct, frozen=True, kw_only=True):
    """A detector after one more value. ``excess``: evidence above its threshold."""

    detector: Ranks
    excess: Array


def ranked(
    detector: Ranks,
    value: Array,
    settings: ValueSettings,
    *,
    stratum: int,
    began: float,
    ended: float,
) -> RankStep:
    """Add a value to a detector.

    If nothing changed, a value is as likely to have one rank among its predecessors as any
    other, whatever the distribution. A bet 1 - s + s·a·u^(a-1) on the rank u, or on 1 - u, then
    has the mean 1, and less if equal values share their middle rank: the bet is convex. Where
    successive values resemble each other, a bet counts for less.

    Args:
        detector: of all servers.
        value: by server.
        settings: how to detect.
        stratum: its place in ``detector.strata``.
        began: when the measurement began, in Unix seconds.
        ended: when it ended.
    """
    past = detector.past[..., stratum, :]
    slack = settings.planned_change if detector.replanned else 0.0
    known = np.sum(~np.isnan(past), axis=-1)
    low = _rank(past, value + slack, known)
    high = low if not slack else _rank(past, value - slack, known)
    likeness = np.maximum(detector.products / (detector.squares + 1.0), 0.0)
    weight = np.where(known >= LEAST_PAST, (1 - likeness) / (1 + likeness), 0.0)
    places = np.stack([1 - low, high], axis=-1)[..., None]
    bets = np.log(1 - STAKES + STAKES * POWERS * places ** (POWERS - 1))
    scores = (bets * weight[..., None, None])[..., None, :, :]
    values_to_alarm = (
        detector.rate_values
        / np.maximum(detector.rate_seconds, 1.0)
        * (DAY / settings.alarms_per_day)
    )
    thresholds = np.maximum(
        np.log(np.maximum(values_to_alarm, 1.0) * 2 * len(POWERS)), LEAST_THRESHOLD
    )[..., None, None, None]
    evidence = collected(
        detector.bank,
        scores,
        began=began,
        amount=np.ones_like(value),
        seen=value,
        expected=np.nansum(past, axis=-1) / np.maximum(known, 1),
    )
    moved = SIGNS * (evidence.seen - evidence.expected)
    dropped = (evidence.score >= thresholds) & (moved < settings.least_change * evidence.amount)
    score = np.where(dropped, 0.0, np.minimum(evidence.score, 2 * thresholds))
    evidence = msgspec.structs.replace(evidence, score=score)
    last = detector.last_unix_seconds if detector.last_unix_seconds is not None else began
    took = min(max(began - last, 0.0), LONGEST_PAUSE_SECONDS) + max(ended - began, 0.0)
    rate_fade = 0.5 ** (took / RATE_MEMORY_SECONDS)
    middle = np.where(known >= LEAST_PAST, (low + high) / 2 - 0.5, 0.0)
    collect = detector.replanned
    return RankStep(
        detector=msgspec.structs.replace(
            detector,
            past=detector.past if collect else _appended(detector.past, value, stratum),
            fresh=_appended(detector.fresh, value, stratum) if collect else detector.fresh,
            bank=evidence,
            last_rank=middle,
            products=detector.products * RANK_FADE + middle * detector.last_rank,
            squares=detector.squares * RANK_FADE + middle**2,
            rate_values=detector.rate_values * rate_fade + 1.0,
            rate_seconds=detector.rate_seconds * rate_fade + took,
            last_unix_seconds=ended,
        ),
        excess=evidence.score - thresholds,
    )


def _rank(past: Array, value: Array, known: Array) -> Array:
    """The value's place, 0…1, among its predecessors and itself; the middle one of equals."""
    less = np.sum(past < value[..., None], axis=-1)
    equal = np.sum(past == value[..., None], axis=-1)
    return np.asarray((less + 0.5 * (equal + 1)) / (known + 1))


def _appended(rows: Array, value: Array, stratum: int) -> Array:
    changed = rows.copy()
    changed[..., stratum, :-1] = rows[..., stratum, 1:]
    changed[..., stratum, -1] = value
    return changed


def usual(old: Ranks, stratum: str) -> float:
    """The mean of a stratum's past, NaN if there was none."""
    if stratum not in old.strata:
        return math.nan
    past = old.past[old.strata.index(stratum)]
    return float(np.nansum(past)) / known_values(past) if known_values(past) else math.nan


def relearning(detector: Ranks, past: Array) -> Ranks:
    """Another past, and no evidence."""
    return msgspec.structs.replace(
        detector,
        past=past,
        fresh=np.full_like(detector.fresh, np.nan),
        bank=emptied(detector.bank),
        replanned=False,
    )


def known_values(values: Array) -> int:
    return int(np.sum(~np.isnan(values)))
