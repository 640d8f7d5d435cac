"""Servers for change detection to watch, whose truth is known."""

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import msgspec
import numpy as np

from mtpmon.model import Amount, Usage
from mtpmon.shift.acceptance import Acceptance, lived, probed
from mtpmon.shift.batch import Batch
from mtpmon.shift.counts import counted
from mtpmon.shift.evidence import Array, Direction
from mtpmon.shift.found import Phase
from mtpmon.shift.learned import Counts, counts
from mtpmon.shift.server import Change, Figure, Shifts
from mtpmon.shift.settings import Settings

DAY = 86_400.0


SETTINGS = Settings()


CODE, MIDDLE, CREATIVE = 0.85, 0.65, 0.45


Requests = Callable[[np.random.Generator, int], Array]


@cache
def chance(acceptance: float) -> float:
    """The chance of each of three draft tokens that gives this share of them."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        less = (middle + middle**2 + middle**3) / 3 < acceptance
        low, high = (middle, high) if less else (low, middle)
    return low


def shares(acceptance: float) -> Array:
    """How often a step keeps 0, 1, 2 and 3 tokens."""
    c = chance(acceptance)
    return np.array([1 - c, c * (1 - c), c * c * (1 - c), c**3])


def bound(before: float, after: float, steps_to_alarm: float) -> float:
    """Steps that any detector needs: ln(steps to a false alarm) / KL(after‖before)."""
    p, q = shares(after), shares(before)
    return math.log(steps_to_alarm) / float(np.sum(p * np.log(p / q)))


def drawn(rng: np.random.Generator, steps: int, chances: Array | float) -> tuple[Array, Array]:
    left = np.full(np.shape(chances), steps)
    trials, kept = [], []
    for _ in range(3):
        trials.append(left)
        left = rng.binomial(left, chances)
        kept.append(left)
    return np.stack(trials, axis=-1).astype(float), np.stack(kept, axis=-1).astype(float)


def batch(
    began: float, ended: float, trials: Sequence[float] | Array, kept: Sequence[float] | Array
) -> Batch:
    return Batch(
        began_unix_seconds=began,
        ended_unix_seconds=ended,
        steps=float(trials[0]) if len(trials) else 0.0,
        trials=tuple(float(n) for n in trials),
        kept=tuple(float(n) for n in kept),
    )


def alike(acceptance: float) -> Requests:
    return lambda _, runs: np.full(runs, chance(acceptance))


def mixed(*levels: float) -> Requests:
    choice = np.array([chance(level) for level in levels])
    return lambda rng, runs: rng.choice(choice, runs)


class Fleet:
    """Many servers at once, by the code that watches one."""

    def __init__(self, runs: int, per_day: float = 1e5, alarms_per_day: float = 1 / 7) -> None:
        self.rng = np.random.default_rng(7)
        self.runs, self.per_day, self.at = runs, per_day, 0.0
        self.settings = Settings(alarms_per_day=alarms_per_day)
        self.detector = counts(runs, ranged=True, positions=3, strata=("",))

    def feed(self, requests: Requests, steps: int) -> Array:
        """Whether a suspicion, or a shift, is raised by one more batch on each server."""
        trials, kept = drawn(self.rng, steps, requests(self.rng, self.runs))
        began, self.at = self.at, self.at + steps / self.per_day * DAY
        step = counted(
            self.detector,
            trials,
            kept,
            self.settings,
            batch=batch(began, self.at, (), ()),
            stratum=0,
        )
        self.detector = step.detector
        return np.asarray(np.any(step.excess >= 0, axis=(-2, -1)))

    def learn(self, requests: Requests, batches: int, steps: int) -> "Fleet":
        for _ in range(batches):
            self.feed(requests, steps)
        return self

    def delays(self, requests: Requests, batches: int, steps: int) -> Array:
        """Steps until suspicion and shift; NaN where there is none."""
        found = np.full((self.runs, 2), np.nan)
        for count in range(1, batches + 1):
            found[self.feed(requests, steps) & np.isnan(found)] = count * steps
        return found

    def alarms(self, requests: Requests, batches: int, steps: int) -> Array:
        """How many suspicions and shifts there are, each starting from no evidence."""
        total = np.zeros(2)
        for _ in range(batches):
            over = self.feed(requests, steps)
            total += over.sum(axis=0)
            bank = self.detector.bank
            score = np.where(over[:, :, None, None], 0.0, bank.score)
            self.detector = msgspec.structs.replace(
                self.detector, bank=msgspec.structs.replace(bank, score=score)
            )
        return total


@cache
def _two_tasks() -> tuple[Counts, float]:
    fleet = Fleet(20).learn(mixed(CODE, CREATIVE), 300, 100)
    return fleet.detector, fleet.at


def two_tasks() -> Fleet:
    """Servers whose requests are of two tasks, and who have learned that."""
    fleet = Fleet(20)
    fleet.detector, fleet.at = _two_tasks()
    return fleet


def usage(
    drafts: float, *positions: int, width: float = 3.0, error: float = 0.0, carried: float = 0.0
) -> Usage:
    return Usage(
        drafts=Amount(drafts, error, carried),
        draft_tokens=Amount(width * drafts, width * error, width * carried),
        accepted_tokens=Amount(float(sum(positions)), error),
        accepted_by_position=positions,
    )


class Watched:
    """One server as the daemon keeps it."""

    def __init__(self, state: Acceptance, at: float, seed: int = 1) -> None:
        self.state, self.at, self.rng = state, at, np.random.default_rng(seed)
        self.settings = SETTINGS

    def live(self, *levels: float, batches: int = 1, steps: int = 350) -> "Watched":
        """Requests, one every five minutes, of tasks chosen at random."""
        for _ in range(batches):
            began, self.at = self.at, self.at + 300
            trials, kept = drawn(self.rng, steps, chance(float(self.rng.choice(levels))))
            self.state = lived(self.state, batch(began, self.at, trials, kept), self.settings)
        return self

    def probe(self, factor: float = 1.0) -> "Watched":
        """A probe of each of two tasks."""
        for task, level in (("code", CODE), ("creative", CREATIVE)):
            began, self.at = self.at, self.at + 30
            trials, kept = drawn(self.rng, 20, chance(level * factor))
            found = msgspec.structs.replace(batch(began, self.at, trials, kept), stratum=task)
            self.state = probed(self.state, found, self.settings)
        return self

    def until(self, phase: Phase, act: Callable[[], object], most: int) -> int:
        for count in range(1, most + 1):
            act()
            if self.state.phase is phase:
                return count
        raise AssertionError(f"not {phase} within {most}")


@cache
def _mixed(*, probes: bool) -> Watched:
    server = Watched(Acceptance(), 0.0)
    for _ in range(220):
        server.live(CODE, CREATIVE)
        if probes:
            server.probe()
    return server


def known(*, probes: bool, seed: int = 1) -> Watched:
    """A server with two tasks whose detector has learned."""
    learned = _mixed(probes=probes)
    return Watched(learned.state, learned.at, seed)


@cache
def _steady() -> Watched:
    return Watched(Acceptance(), 0.0).live(0.82, batches=220)


def steady(seed: int = 1) -> Watched:
    """A server with one task, without probes."""
    learned = _steady()
    return Watched(learned.state, learned.at, seed)


def change(figure: Figure, **other: Any) -> Change:
    """Acceptance that fell from 0.82 to 0.61 at 14:03, found seven minutes later."""
    usual: dict[str, Any] = {
        "direction": Direction.FALL,
        "began_unix_seconds": 50_580.0,
        "detected_unix_seconds": 51_000.0,
        "before": 0.82,
        "after": 0.61,
    }
    return Change(figure=figure, **usual | other)


def shifted() -> Shifts:
    """A fall of every figure."""
    return Shifts(
        standing={figure: change(figure) for figure in Figure},
        totals={(figure, Direction.FALL): 1 for figure in Figure},
    )
