"""Many simulated servers at once, watched by the code that watches one.

A server drafts three tokens a step; each is kept with the same chance once its turn comes.
Shared by tests of change detection and by ``bench/detection.py``.
"""

import math
from collections.abc import Callable
from typing import TypeVar

import msgspec
import numpy as np

from mtpmon.shift.batch import Batch
from mtpmon.shift.counts import Step, counted
from mtpmon.shift.evidence import Array, Truth
from mtpmon.shift.learned import Counts, counts
from mtpmon.shift.ranks import Ranks
from mtpmon.shift.settings import DAY, Settings

DRAFT = 3
Requests = Callable[[np.random.Generator, int], Array]
"""The chance of one request on each of so many servers."""

_CHANCES = np.linspace(0.0005, 0.9995, 2000)
_ACCEPTANCES = np.sum(np.power.outer(_CHANCES, np.arange(1, DRAFT + 1)), axis=-1) / DRAFT


def chances(acceptance: Array | float) -> Array:
    """The chance of each draft token, once its turn comes, that gives this share accepted."""
    return np.asarray(np.interp(acceptance, _ACCEPTANCES, _CHANCES))


def chance(acceptance: float) -> float:
    """As ``chances``."""
    return float(chances(acceptance))


def acceptance_of(chance_of_each: Array) -> Array:
    """The inverse of ``chances``."""
    return np.asarray(np.interp(chance_of_each, _CHANCES, _ACCEPTANCES))


def shares(acceptance: float) -> Array:
    """How often a step keeps 0, 1, 2 and 3 tokens."""
    c = chance(acceptance)
    return np.array([c**j * (1 - c) for j in range(DRAFT)] + [c**DRAFT])


def bound(before: float, after: float, steps_to_alarm: float) -> float:
    """Steps that any detector needs: ln(steps to a false alarm) / KL(after‖before)."""
    p, q = shares(after), shares(before)
    return math.log(steps_to_alarm) / float(np.sum(p * np.log(p / q)))


def drawn(
    rng: np.random.Generator, steps: int, chance_of_each: Array | float
) -> tuple[Array, Array]:
    """Trials and kept tokens at each position, of one batch for each server."""
    left = np.full(np.shape(chance_of_each), steps)
    trials, kept = [], []
    for _ in range(DRAFT):
        trials.append(left)
        left = rng.binomial(left, chance_of_each)
        kept.append(left)
    return np.stack(trials, axis=-1).astype(float), np.stack(kept, axis=-1).astype(float)


def times(began: float, ended: float) -> Batch:
    """When a batch of many servers was."""
    return Batch(began_unix_seconds=began, ended_unix_seconds=ended, steps=1.0, trials=(), kept=())


def moved(p: Array, tilt: Array | float) -> Array:
    """Chances with their log odds moved."""
    return np.asarray(1 / (1 + (1 - p) / p * np.exp(-np.asarray(tilt))))


def alike(acceptance: float) -> Requests:
    """Requests that do not differ."""
    return lambda _, runs: np.full(runs, chance(acceptance))


def scattered(acceptance: float, spread: float) -> Requests:
    """Requests whose log odds scatter."""
    return mixed({acceptance: 1}, spread)


def mixed(parts: dict[float, float], spread: float = 0.0) -> Requests:
    """Requests of tasks with these acceptances, in these shares."""
    levels, weights = chances(np.array(list(parts))), np.array(list(parts.values()))
    return lambda rng, runs: moved(
        rng.choice(levels, runs, p=weights / weights.sum()), spread * rng.standard_normal(runs)
    )


def in_sessions(parts: dict[float, float], spread: float, length: int) -> Requests:
    """As ``mixed``, but a task stays for so many requests on average."""
    choose = mixed(parts)
    task = np.zeros(0)

    def requests(rng: np.random.Generator, runs: int) -> Array:
        nonlocal task
        if task.shape != (runs,):
            task = choose(rng, runs)
        task = np.where(rng.random(runs) < 1 / length, choose(rng, runs), task)
        return moved(task, spread * rng.standard_normal(runs))

    return requests


def worsened(requests: Requests, factor: float) -> Requests:
    """The same requests with their acceptance multiplied."""
    return lambda rng, runs: chances(factor * acceptance_of(requests(rng, runs)))


def over(step: Step) -> Truth:
    """Whether each server has a suspicion, and a shift without probes: [servers, 2]."""
    return np.asarray(np.any(step.excess >= 0, axis=(-2, -1)))


Detector = TypeVar("Detector", Counts, Ranks)


def cleared(detector: Detector, alarms: Truth) -> Detector:
    """Without those sums of evidence that raised an alarm."""
    score = np.where(alarms, 0.0, detector.bank.score)
    return msgspec.structs.replace(
        detector, bank=msgspec.structs.replace(detector.bank, score=score)
    )


class Fleet:
    """Servers with nothing but users' traffic; all of them get equally many steps.

    Args:
        runs: how many servers.
        per_day: steps.
        alarms_per_day: allowed.
    """

    def __init__(self, runs: int, per_day: float = 1e5, alarms_per_day: float = 1 / 7) -> None:
        self.rng = np.random.default_rng(7)
        self.runs, self.per_day, self.at = runs, per_day, 0.0
        self.settings = Settings(alarms_per_day=alarms_per_day)
        self.detector = counts(runs, ranged=True, positions=DRAFT, strata=("",))

    def feed(self, requests: Requests, steps: int) -> Step:
        """One batch of so many steps for each server."""
        trials, kept = drawn(self.rng, steps, requests(self.rng, self.runs))
        began, self.at = self.at, self.at + steps / self.per_day * DAY
        step = counted(
            self.detector, trials, kept, self.settings, batch=times(began, self.at), stratum=0
        )
        self.detector = step.detector
        return step

    def learn(self, requests: Requests, batches: int, steps: int) -> "Fleet":
        """Take in traffic; an alarm starts its evidence again."""
        self.alarms(requests, batches, steps)
        return self

    def alarms(self, requests: Requests, batches: int, steps: int) -> Array:
        """How many suspicions and shifts there are, each starting from no evidence."""
        total = np.zeros(2)
        for _ in range(batches):
            step = self.feed(requests, steps)
            total += over(step).sum(axis=0)
            self.detector = cleared(self.detector, step.excess >= 0)
        return total

    def delays(self, requests: Requests, batches: int, steps: int) -> Array:
        """Steps until suspicion and shift; NaN where there is none."""
        return self.watch(lambda _: requests, batches, steps)[0]

    def watch(
        self, requests: Callable[[float], Requests], batches: int, steps: int
    ) -> tuple[Array, Array]:
        """Steps until suspicion and shift, and the start in seconds that is named then.

        Args:
            requests: what they are like, so many seconds after the change began, which is now.
            batches: to wait at most.
            steps: of a batch.

        Returns:
            Both [servers, 2]; NaN: not found in time.
        """
        change = self.at
        found, began = np.full((self.runs, 2), np.nan), np.full((self.runs, 2), np.nan)
        for count in range(1, batches + 1):
            step = self.feed(requests(self.at - change), steps)
            places = step.excess.reshape(self.runs, 2, -1)
            best = np.argmax(places, axis=-1)[..., None]
            starts = self.detector.bank.began.reshape(self.runs, 2, -1)
            start = np.take_along_axis(starts, best, axis=-1)[..., 0] - change
            new = over(step) & np.isnan(found)
            found[new], began[new] = count * steps, start[new]
            if not np.isnan(found).any():
                break
        return found, began
