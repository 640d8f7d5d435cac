"""What a batch of verification steps is measured with: everything that follows from the past."""

import math

import msgspec
import numpy as np

from mtpmon.shift.evidence import LEAST_THRESHOLD, SIGNS, Array, Truth
from mtpmon.shift.learned import TILTS, Counts, Learned
from mtpmon.shift.settings import DAY, Settings
from mtpmon.shift.tilts import kept_tokens, log_growth, mean_evidence, solved

KNOWN_TRIALS = 20.0  # a position tried less often says nothing


class Yardstick(msgspec.Struct, frozen=True, kw_only=True):
    """What a batch is measured with; arrays are [..., references, directions, sizes].

    The evidence for a size of change is Σ kept · ``gain`` - Σ trials · ``cost`` (which has
    positions as its last dimension), over 1 + information · ``unexplained``, times ``caution``,
    less ``surplus``. ``seen``: the positions that are known; ``exact``: those whose counts are
    not rounded; ``reached``: tokens kept at each per step. ``ends``: where the reference is an
    end of the range. ``weight``: what a step of a usual batch counts for.
    """

    exact: slice
    seen: Truth
    chances: Array
    reached: Array
    known_steps: Array
    known_information: Array
    scatter: Array
    scatter_error: Array
    unexplained: Array
    ends: Truth
    caution: Array
    weight: Array
    surplus: Array
    active: Truth
    gain: Array
    cost: Array
    thresholds: Array


def yardstick(detector: Counts, stratum: int, settings: Settings) -> Yardstick:
    """Everything that follows from what was learned, for batches of one stratum.

    Tilt: all positions' log-odds of being kept move by the same amount. The evidence is the
    likelihood of one tilt over that of another, the null. The null is the reference, moved
    towards the alternative by what the reference itself may be wrong: h·σ²/δ for a threshold
    h, a size δ and a standard error σ, which makes the mean of e^(h·error) what it would be
    without error. The second null is the edge of the range of levels seen before.

    Scatter: requests differ, by a variance τ² of their log-odds. So the residual of a batch
    with information v has the variance v·(1 + v·τ²). Caution: for n batches known, what makes
    the mean of e^(h·error) 1, as above; and that batches resemble the ones before.

    Threshold: a size of change with mean evidence -K per step under the null reaches h once
    in e^h / K steps. That is exact for small steps, and an overstatement for others.
    """
    settled = detector.settled
    per_size = (..., None, None, None)

    trials, kept = settled.trials[..., stratum, :], settled.kept[..., stratum, :]
    seen = trials >= KNOWN_TRIALS
    exact = slice(1 if np.any(seen[..., 1:]) else 0, None)
    chances = np.where(seen, np.clip((kept + 0.5) / (trials + 1.0), 1e-4, 1 - 1e-4), 1e-4)
    reached = np.asarray(np.cumprod(chances, axis=-1), dtype=np.float64)
    known = np.maximum(np.sum(trials * chances * (1 - chances), axis=-1), 1e-9)

    information = np.maximum(settled.information, 1e-9)
    squares = np.maximum(settled.information_squares, 1e-9)
    batches = np.maximum(settled.information**2 / squares, 1.0)
    scatter = np.maximum(settled.squares - settled.information, 0.0) / squares
    unexplained = scatter[..., None] * detector.unexplained
    per_step = reached * (1 - chances)  # information
    in_all = np.sum(per_step, axis=-1) / np.sum(per_step[..., exact], axis=-1)
    steps_a_day = DAY * detector.rate_steps / np.maximum(detector.rate_seconds, 1.0)
    steps_to_alarm = np.maximum(steps_a_day / settings.alarms_per_day, math.e)
    caution = 1 / (1 + np.log(steps_to_alarm) / batches) / _likeness(settled)
    usual = squares / information * in_all  # information of a batch
    typical = (1 + unexplained * usual[..., None]) / caution[..., None]

    base = _null_tilts(detector, chances, settings)
    null, other = SIGNS * base, SIGNS * (base + TILTS)
    distance = mean_evidence(chances, null, other)
    alarms = steps_to_alarm[per_size] * 2 * len(TILTS) * distance / typical[..., None, None]
    thresholds = np.log(np.maximum(alarms, math.exp(LEAST_THRESHOLD)))
    shift = thresholds * (typical / known[..., None])[..., None, None] / TILTS
    null = SIGNS * (base + np.minimum(shift, TILTS / 4))
    learned = (np.sum(settled.trials[..., 0], axis=-1) >= settings.learn_steps) & (
        batches >= settings.learn_batches
    )
    return Yardstick(
        exact=exact,
        seen=seen,
        chances=chances,
        reached=reached,
        known_steps=trials[..., 0],
        known_information=np.sum((trials * chances * (1 - chances))[..., exact], axis=-1),
        scatter=scatter,
        scatter_error=np.sqrt(2 / batches) * information / squares,
        unexplained=unexplained,
        ends=(detector.unexplained < 1)[..., None, None],
        caution=caution,
        weight=1 / typical[..., 0],
        surplus=_surplus(settled),
        active=(shift <= TILTS / 4) & learned[per_size],
        gain=other - null,
        cost=log_growth(chances, other) - log_growth(chances, null),
        thresholds=thresholds,
    )


def _surplus(settled: Learned) -> Array:
    """Logarithm of how far the mean likelihood ratio of past batches was above 1.

    That is where it would be if requests scattered as assumed. They may not: a tenth of them
    may be of a kind that keeps half as much. Twice its standard error is let pass.
    """
    n = np.maximum(settled.batches, 1.0)[..., None, None, None]
    mean = settled.ratios / n
    error = np.sqrt(np.maximum(settled.ratio_squares / n - mean**2, 0.0) / n)
    return np.asarray(np.log(np.maximum(mean - 2 * error, 1.0)))


def _likeness(settled: Learned) -> Array:
    """How much more the sum of batches in a row varies than if they had nothing in common.

    People work on one thing for a while, so that requests resemble the ones before. Twice the
    standard error is let pass, so that it costs nothing where they do not.
    """
    found = settled.run_squares / np.maximum(settled.run_parts, 1e-9)
    return np.asarray(np.maximum(found * (1 - 2 * np.sqrt(2 / np.maximum(settled.runs, 1.0))), 1.0))


def _null_tilts(detector: Counts, chances: Array, settings: Settings) -> Array:
    """How far, [..., references, directions, 1], levels may move without being news."""
    tilts = np.zeros_like(detector.edges)[..., None, :]
    if detector.ranged:
        tilts = np.concatenate([tilts, detector.edges[..., None, :]], axis=-2)
    if detector.replanned:
        level = kept_tokens(chances, np.zeros_like(detector.edges[..., 0]))
        fall = solved(lambda tilt: kept_tokens(chances, tilt), (1 - settings.planned_share) * level)
        tilts = np.maximum(tilts, np.abs(fall)[..., None, None])
    return tilts[..., None]
