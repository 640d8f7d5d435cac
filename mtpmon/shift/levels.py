"""The range of acceptance that a server's mix of tasks has had."""

import math

import numpy as np

from mtpmon.shift.evidence import Array
from mtpmon.shift.learned import LEVELS, Counts
from mtpmon.shift.tilts import kept_share, solved
from mtpmon.shift.yardstick import Yardstick

CELL_TRIALS = 100.0  # draft tokens that make one entry there
RANGE_SHARE = 0.01  # of the entries lie below the range, and as many above


def level_range(detector: Counts, measure: Yardstick) -> tuple[Array, Array]:
    """How far, [..., directions], the ends of the range of levels lie from the level, as tilts.

    Without scatter that is more than its own error, there is no range: what the histogram
    shows are ups and downs of independent steps.

    Returns:
        The tilts, and which share of the scatter of requests the range stands for.
    """
    chances, exact = measure.chances, measure.exact
    levels = _sharpened(detector.settled.levels)
    low = _share_below(levels, RANGE_SHARE) - 1 / LEVELS
    high = _share_below(levels, 1 - RANGE_SHARE) + 1 / LEVELS
    here = kept_share(chances, np.zeros_like(low), exact)
    least = measure.scatter - 2 * measure.scatter_error
    seen = 1 + np.maximum(least, 0.0) * CELL_TRIALS * here * (1 - here)
    real = np.sqrt(1 - 1 / seen)
    targets = here[..., None] + real[..., None] * np.stack(
        [np.minimum(low - here, 0.0), np.maximum(high - here, 0.0)], axis=-1
    )
    tilts = solved(lambda tilt: kept_share(chances[..., None, :], tilt, exact), targets)
    return np.where(real[..., None] > 0, np.abs(tilts), 0.0), real


def _blur() -> Array:
    """Chance that a stretch of a level (row) shows up in a bin (column)."""
    trials = int(CELL_TRIALS)
    kept = np.arange(trials + 1)
    ways = np.array([math.lgamma(k + 1) + math.lgamma(trials - k + 1) for k in kept])
    level = ((np.arange(LEVELS) + 0.5) / LEVELS)[:, None]
    logs = (
        math.lgamma(trials + 1) - ways + kept * np.log(level) + (trials - kept) * np.log1p(-level)
    )
    into = np.minimum(kept * LEVELS // trials, LEVELS - 1)[:, None] == np.arange(LEVELS)
    return np.asarray(np.exp(logs) @ into)


BLUR = _blur()


def _sharpened(levels: Array) -> Array:
    """The distribution of true levels behind that of levels seen in short stretches.

    Maximum likelihood by expectation maximization, stopped early: each round moves the
    weights to where they explain more of what was seen.
    """
    total = np.maximum(np.sum(levels, axis=-1, keepdims=True), 1e-9)
    weights = np.full(levels.shape, 1 / LEVELS)
    for _ in range(40):
        seen = np.maximum(weights @ BLUR, 1e-12)
        weights = weights * ((levels / total / seen) @ BLUR.T)
    return weights


def _share_below(levels: Array, share: float) -> Array:
    """Quantile of a histogram over 0…1, interpolated within bins."""
    summed = np.cumsum(levels, axis=-1)
    wanted = share * summed[..., -1:]
    place = np.minimum(np.sum(summed < wanted, axis=-1), LEVELS - 1)
    inside = np.take_along_axis(levels, place[..., None], axis=-1)[..., 0]
    before = np.take_along_axis(summed, place[..., None], axis=-1)[..., 0] - inside
    part = (wanted[..., 0] - before) / np.where(inside > 0, inside, 1.0)
    return np.asarray((place + np.clip(part, 0.0, 1.0)) / LEVELS)
