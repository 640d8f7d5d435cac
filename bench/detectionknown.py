"""What change detection is compared with: a rolling mean, and a CUSUM that knows both levels."""

import math

import numpy as np

from mtpmon.shift.evidence import Array
from tests.fleet import DRAFT, shares

BEFORE = 0.82
WEEK_STEPS = 700_000


def rolling_threshold(rng: np.random.Generator, width: int, steps: int) -> float:
    """The mean of ``width`` steps below which a stream of healthy steps falls once a week.

    Measured on ``steps`` steps. An alarm is a first step below it after ``width`` steps above.
    """
    summed = np.cumsum(shares(BEFORE))
    target = steps / WEEK_STEPS
    lows: list[Array] = []
    for _ in range(math.ceil(steps / 2_000_000)):
        kept = np.searchsorted(summed, rng.random(2_000_000)).astype(np.int64)
        sums = np.concatenate([[0], np.cumsum(kept)])
        means = (sums[width:] - sums[:-width]) / width
        blocks = len(means) // width
        lows.append(means[: blocks * width].reshape(blocks, width).min(axis=1))
    lowest = np.concatenate(lows)
    low, high = 0.0, float(DRAFT)
    for _ in range(40):
        middle = (low + high) / 2
        under = lowest < middle
        alarms = np.sum(under[1:] & ~under[:-1]) if under.any() else 0
        low, high = (middle, high) if alarms < target and under.mean() < 0.5 else (low, middle)
    return low


def rolling_delay(
    rng: np.random.Generator, width: int, threshold: float, after: float, runs: int
) -> float:
    """Steps until the mean of the last ``width`` falls below, on average."""
    most = max(20 * width, 4000)
    old = np.searchsorted(np.cumsum(shares(BEFORE)), rng.random((runs, width)))
    new = np.searchsorted(np.cumsum(shares(after)), rng.random((runs, most)))
    sums = np.cumsum(np.concatenate([old, new], axis=1), axis=1)
    means = (sums[:, width:] - sums[:, :-width]) / width
    under = means < threshold
    return float(np.mean(np.where(under.any(axis=1), under.argmax(axis=1) + 1, np.inf)))


def ratios_of_steps(after: float) -> Array:
    """Log-likelihood ratio of a step by the tokens it kept, both levels known."""
    return np.asarray(np.log(shares(after) / shares(BEFORE)))


def known_run_length(
    rng: np.random.Generator, after: float, threshold: float, runs: int = 20_000
) -> float:
    """Steps to a false alarm of a CUSUM that knows both levels, by importance sampling.

    Its evidence makes excursions from zero. One that reaches the threshold is so rare that it
    is drawn from the changed steps instead, and weighted by e^-evidence.
    """
    worth = ratios_of_steps(after)

    def excursions(acceptance: float) -> tuple[Array, Array]:
        summed = np.cumsum(shares(acceptance))
        evidence, length = np.zeros(runs), np.zeros(runs)
        going = np.ones(runs, dtype=bool)
        while going.any():
            steps = worth[np.searchsorted(summed, rng.random(int(going.sum())))]
            evidence[going] += steps
            length[going] += 1
            going &= (evidence > 0) & (evidence < threshold)
        return evidence, length

    reached, _ = excursions(after)
    chance_to_reach = float(np.mean(np.exp(-reached) * (reached >= threshold)))
    _, lengths = excursions(BEFORE)
    return float(np.mean(lengths)) / chance_to_reach


def known_direct(rng: np.random.Generator, after: float, threshold: float, runs: int) -> float:
    """The same by waiting for false alarms."""
    return _waited(rng, BEFORE, after, threshold, runs)


def known_threshold(rng: np.random.Generator, after: float, run_length: float) -> float:
    low, high = 0.0, 2 * math.log(run_length)
    for _ in range(12):
        middle = (low + high) / 2
        enough = known_run_length(rng, after, middle) >= run_length
        low, high = (low, middle) if enough else (middle, high)
    return high


def known_delay(rng: np.random.Generator, after: float, threshold: float, runs: int) -> float:
    return _waited(rng, after, after, threshold, runs)


def _waited(
    rng: np.random.Generator, truth: float, after: float, threshold: float, runs: int
) -> float:
    """Mean steps until evidence for ``after`` is enough, where ``truth`` is what holds."""
    worth, summed = ratios_of_steps(after), np.cumsum(shares(truth))
    evidence, length = np.zeros(runs), np.zeros(runs)
    going = np.ones(runs, dtype=bool)
    while going.any():
        kept = np.searchsorted(summed, rng.random(int(going.sum())))
        evidence[going] = np.maximum(evidence[going] + worth[kept], 0.0)
        length[going] += 1
        going &= evidence < threshold
    return float(np.mean(length))
