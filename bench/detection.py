"""Rates of false alarms and delays of change detection, by simulation.

``python bench/detection.py`` prints all tables of docs/change-detection.md as Markdown;
``python bench/detection.py delay mix`` only those. Every table starts from the same seed, so
each can be repeated alone. ``--runs`` scales the number of simulated servers.
"""

import argparse
import itertools
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

from mtpmon.model import Amount, Usage
from mtpmon.shift.acceptance import SETTLED, Acceptance, lived, probed, replanned, scraped
from mtpmon.shift.batch import Batch
from mtpmon.shift.counts import Step, counted
from mtpmon.shift.learned import Counts, counts
from mtpmon.shift.ranks import Ranks, ranked, ranks
from mtpmon.shift.settings import KLD, PACE, Settings, ValueSettings

Array = NDArray[np.float64]
DAY = 86_400.0
DRAFT = 3
STEPS_A_DAY = 100_000.0
WEEK_STEPS = 7 * STEPS_A_DAY
REQUEST = 100  # steps
TASKS = {"code": 0.823, "factual": 0.694, "analysis": 0.542, "essay": 0.558, "creative": 0.472}
BEFORE, HALVED, LOWER = 0.82, 0.50, 0.75

# --- the model of a server ------------------------------------------------------------------

_CHANCES = np.linspace(0.0005, 0.9995, 2000)
_ACCEPTANCES = np.sum(np.power.outer(_CHANCES, np.arange(1, DRAFT + 1)), axis=-1) / DRAFT


def chance(acceptance: Array | float) -> Array:
    """The chance of each draft token, once its turn comes, that gives this share accepted."""
    return np.asarray(np.interp(acceptance, _ACCEPTANCES, _CHANCES))


def acceptance_of(chances: Array) -> Array:
    """The inverse of ``chance``."""
    return np.asarray(np.interp(chances, _CHANCES, _ACCEPTANCES))


def logit(p: Array | float) -> Array:
    return np.asarray(np.log(p) - np.log1p(-np.asarray(p)))


def moved(p: Array, tilt: Array | float) -> Array:
    return np.asarray(1 / (1 + np.exp(-logit(p) - tilt)))


def kept_shares(acceptance: float) -> Array:
    """How often a step keeps 0, 1, … tokens."""
    c = float(chance(acceptance))
    return np.array([c**j * (1 - c) for j in range(DRAFT)] + [c**DRAFT])


def divergence(after: float, before: float) -> float:
    """Kullback-Leibler divergence of one step, in nats."""
    p, q = kept_shares(after), kept_shares(before)
    return float(np.sum(p * np.log(p / q)))


def drawn(rng: np.random.Generator, steps: int, chances: Array) -> tuple[Array, Array]:
    """Trials and kept tokens at each position, of one batch for each server."""
    left = np.full(chances.shape, steps)
    trials, kept = [], []
    for _ in range(DRAFT):
        trials.append(left)
        left = rng.binomial(left, chances)
        kept.append(left)
    return np.stack(trials, axis=-1).astype(float), np.stack(kept, axis=-1).astype(float)


Requests = Callable[[np.random.Generator, int], Array]
"""Chances of one request on each of so many servers."""


def alike(acceptance: float) -> Requests:
    return lambda _, runs: np.full(runs, float(chance(acceptance)))


def scattered(acceptance: float, spread: float) -> Requests:
    """Requests whose log-odds scatter."""
    return lambda rng, runs: moved(
        np.full(runs, float(chance(acceptance))), spread * rng.standard_normal(runs)
    )


def mixed(shares: dict[float, float], spread: float = 0.0) -> Requests:
    """Requests of tasks with these acceptances, in these shares."""
    levels, weights = chance(np.array(list(shares))), np.array(list(shares.values()))
    return lambda rng, runs: moved(
        rng.choice(levels, runs, p=weights / weights.sum()), spread * rng.standard_normal(runs)
    )


def in_sessions(shares: dict[float, float], spread: float, length: int) -> Requests:
    """As ``mixed``, but a task stays for so many requests on average."""
    choose = mixed(shares)
    task = np.zeros(0)

    def requests(rng: np.random.Generator, runs: int) -> Array:
        nonlocal task
        if task.shape != (runs,):
            task = choose(rng, runs)
        task = np.where(rng.random(runs) < 1 / length, choose(rng, runs), task)
        return moved(task, spread * rng.standard_normal(runs))

    return requests


FIVE = dict.fromkeys(TASKS.values(), 1.0)
SERVERS: dict[str, Requests] = {
    "independent steps": alike(BEFORE),
    "requests scatter, σ = 0.3": scattered(BEFORE, 0.3),
    "requests scatter, σ = 0.8": scattered(0.75, 0.8),
    "half 0.85, half 0.45": mixed({0.85: 1, 0.45: 1}),
    "nine tenths 0.85, a tenth 0.45": mixed({0.85: 9, 0.45: 1}),
    "five tasks, σ = 0.2": mixed(FIVE, 0.2),
    "five tasks in sessions of 10": in_sessions(FIVE, 0.2, 10),
}


def worsened(requests: Requests, factor: float) -> Requests:
    """The same requests with their acceptance multiplied."""
    return lambda rng, runs: chance(factor * acceptance_of(requests(rng, runs)))


def always(requests: Requests) -> Callable[[float], Requests]:
    """The same requests at any time."""
    return lambda _: requests


@dataclass
class Fleet:
    """Many servers watched at once, each through ``counted``."""

    detector: Counts
    settings: Settings
    rng: np.random.Generator
    runs: int
    steps_a_day: float = STEPS_A_DAY
    unix_seconds: float = 0.0

    @classmethod
    def of(
        cls, runs: int, *, alarms_per_day: float = 1 / 7, steps_a_day: float = STEPS_A_DAY
    ) -> "Fleet":
        return cls(
            counts(runs, ranged=True, positions=DRAFT, strata=("",)),
            Settings(alarms_per_day=alarms_per_day),
            np.random.default_rng(1),
            runs,
            steps_a_day,
        )

    def feed(self, requests: Requests, steps: int) -> Step:
        """One batch of so many steps for each server."""
        trials, kept = drawn(self.rng, steps, requests(self.rng, self.runs))
        began = self.unix_seconds
        self.unix_seconds += steps / self.steps_a_day * DAY
        step = counted(
            self.detector,
            trials,
            kept,
            self.settings,
            batch=times(began, self.unix_seconds),
            stratum=0,
        )
        self.detector = step.detector
        return step

    def learn(self, requests: Requests, days: float, steps: int = REQUEST) -> None:
        for _ in range(round(days * self.steps_a_day / steps)):
            self.forget(self.feed(requests, steps).excess >= 0)

    def forget(self, over: NDArray[np.bool_]) -> None:
        """Start those sums of evidence again that have raised an alarm."""
        bank = self.detector.bank
        score = np.where(over, 0.0, bank.score)
        self.detector = msgspec.structs.replace(
            self.detector, bank=msgspec.structs.replace(bank, score=score)
        )


def times(began: float, ended: float) -> Batch:
    return Batch(began_unix_seconds=began, ended_unix_seconds=ended, steps=1.0, trials=(), kept=())


def delays(
    fleet: Fleet, after: Callable[[float], Requests], steps: int, most: float
) -> tuple[Array, Array]:
    """Steps until suspicion and until shift without probes, and the start it names.

    Args:
        fleet: servers that have learned.
        after: what requests are like, so many seconds after the change began.
        steps: of a batch.
        most: steps to wait at most.

    Returns:
        Both [servers, 2]; NaN: not found in time.
    """
    change = fleet.unix_seconds
    found, began = np.full((fleet.runs, 2), np.nan), np.full((fleet.runs, 2), np.nan)
    for count in range(1, math.ceil(most / steps) + 1):
        step = fleet.feed(after(fleet.unix_seconds - change), steps)
        places = step.excess.reshape(fleet.runs, 2, -1)
        best = np.argmax(places, axis=-1)
        starts = fleet.detector.bank.began.reshape(fleet.runs, 2, -1)
        start = np.take_along_axis(starts, best[..., None], axis=-1)[..., 0] - change
        new = (np.max(places, axis=-1) >= 0) & np.isnan(found)
        found[new], began[new] = count * steps, start[new]
        if not np.isnan(found).any():
            break
    return found, began


# --- what it is compared with ---------------------------------------------------------------


def rolling_threshold(rng: np.random.Generator, width: int, steps: int) -> float:
    """The mean of ``width`` steps below which a stream of healthy steps falls once a week.

    Measured on ``steps`` steps. An alarm is a first step below it after ``width`` steps above.
    """
    shares = np.cumsum(kept_shares(BEFORE))
    target = steps / WEEK_STEPS
    lows: list[Array] = []
    for _ in range(math.ceil(steps / 2_000_000)):
        kept = np.searchsorted(shares, rng.random(2_000_000)).astype(np.int64)
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
    old = np.searchsorted(np.cumsum(kept_shares(BEFORE)), rng.random((runs, width)))
    new = np.searchsorted(np.cumsum(kept_shares(after)), rng.random((runs, most)))
    sums = np.cumsum(np.concatenate([old, new], axis=1), axis=1)
    means = (sums[:, width:] - sums[:, :-width]) / width
    under = means < threshold
    return float(np.mean(np.where(under.any(axis=1), under.argmax(axis=1) + 1, np.inf)))


def ratios_of_steps(after: float) -> Array:
    """Log-likelihood ratio of a step by the tokens it kept, both levels known."""
    return np.asarray(np.log(kept_shares(after) / kept_shares(BEFORE)))


def known_run_length(
    rng: np.random.Generator, after: float, threshold: float, runs: int = 20_000
) -> float:
    """Steps to a false alarm of a CUSUM that knows both levels, by importance sampling.

    Its evidence makes excursions from zero. One that reaches the threshold is so rare that it
    is drawn from the changed steps instead, and weighted by e^-evidence.
    """
    worth = ratios_of_steps(after)

    def excursions(acceptance: float) -> tuple[Array, Array]:
        shares = np.cumsum(kept_shares(acceptance))
        evidence, length = np.zeros(runs), np.zeros(runs)
        going = np.ones(runs, dtype=bool)
        while going.any():
            steps = worth[np.searchsorted(shares, rng.random(int(going.sum())))]
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
    worth, shares = ratios_of_steps(after), np.cumsum(kept_shares(BEFORE))
    evidence, length = np.zeros(runs), np.zeros(runs)
    going = np.ones(runs, dtype=bool)
    while going.any():
        kept = np.searchsorted(shares, rng.random(int(going.sum())))
        evidence[going] = np.maximum(evidence[going] + worth[kept], 0.0)
        length[going] += 1
        going &= evidence < threshold
    return float(np.mean(length))


def known_threshold(rng: np.random.Generator, after: float, run_length: float) -> float:
    low, high = 0.0, 2 * math.log(run_length)
    for _ in range(12):
        middle = (low + high) / 2
        enough = known_run_length(rng, after, middle) >= run_length
        low, high = (low, middle) if enough else (middle, high)
    return high


def known_delay(rng: np.random.Generator, after: float, threshold: float, runs: int) -> float:
    worth, shares = ratios_of_steps(after), np.cumsum(kept_shares(after))
    evidence, length = np.zeros(runs), np.zeros(runs)
    going = np.ones(runs, dtype=bool)
    while going.any():
        kept = np.searchsorted(shares, rng.random(int(going.sum())))
        evidence[going] = np.maximum(evidence[going] + worth[kept], 0.0)
        length[going] += 1
        going &= evidence < threshold
    return float(np.mean(length))


# --- tables ---------------------------------------------------------------------------------

Rows = Iterator[Sequence[object]]


def delay_table(scale: float) -> Rows:
    """Steps until a fall is found, one false alarm a week at 100 000 steps a day.

    Bound: ln(steps between false alarms) / Kullback-Leibler divergence of one step. CUSUM
    with both levels known: threshold by importance sampling. Rolling mean: looked at after
    every step, threshold by direct simulation of 28 million steps; "best" is the width that
    finds this fall soonest. mtpmon: levels learned from 150 000 steps, 400 servers; it looks
    once a batch, and the change comes right after one. Since it raises a fifth of the false
    alarms that are allowed (see the table), five a week allowed are one a week in fact.
    """
    rng = np.random.default_rng(1)
    changes = [f"{BEFORE} → {after}" for after in (HALVED, LOWER)]
    yield ("detector", *changes, *(f"{change}, over the bound" for change in changes))
    bounds = [math.log(WEEK_STEPS) / divergence(a, BEFORE) for a in (HALVED, LOWER)]

    def row(name: str, found: Sequence[float]) -> Sequence[object]:
        over = [f / b for f, b in zip(found, bounds, strict=True)]
        cells = [f"{f:.0f}" if math.isfinite(f) else "–" for f in found]
        return (name, *cells, *(f"{x:.2f}" if math.isfinite(x) else "–" for x in over))

    yield row("information bound", bounds)
    known = []
    for after in (HALVED, LOWER):
        threshold = known_threshold(rng, after, WEEK_STEPS)
        known.append(known_delay(rng, after, threshold, 4000))
    yield row("CUSUM, both levels known", known)
    for size, name, allowed in (
        (1, "**mtpmon**, batches of 1", 1 / 7),
        (10, "**mtpmon**, batches of 10", 1 / 7),
        (100, "**mtpmon**, batches of 100", 1 / 7),
        (10, "mtpmon, batches of 10, five a week allowed", 5 / 7),
    ):
        found = []
        for after in (HALVED, LOWER):
            fleet = Fleet.of(round(400 * scale), alarms_per_day=allowed)
            fleet.learn(alike(BEFORE), 1.5)
            waited, _ = delays(fleet, always(alike(after)), size, 4000)
            found.append(float(np.mean(waited[:, 1])))
        yield row(name, found)
    table = {}
    for width in (25, 50, 100, 200, 400, 800, 1600):
        threshold = rolling_threshold(rng, width, round(28_000_000 * scale))
        table[width] = [
            rolling_delay(rng, width, threshold, after, 1000) for after in (HALVED, LOWER)
        ]
    for width, found in table.items():
        yield row(f"rolling mean of {width}", found)
    best = [min(row[i] for row in table.values()) for i in (0, 1)]
    yield row("rolling mean, best width for each", best)


def sampling_table(scale: float) -> Rows:
    """Importance sampling against waiting, CUSUM with both levels known: steps to an alarm."""
    rng = np.random.default_rng(1)
    yield ("fall to", "threshold", "importance sampling", f"waiting, {round(400 * scale)} alarms")
    for after, threshold in itertools.product((HALVED, LOWER), (4.0, 6.0, 8.0)):
        yield (
            after,
            threshold,
            f"{known_run_length(rng, after, threshold):.0f}",
            f"{known_direct(rng, after, threshold, round(400 * scale)):.0f}",
        )


def false_alarm_table(scale: float) -> Rows:
    """False alarms, levels learned, as a share of those allowed; in brackets how many.

    Every server was watched for 100 of the intervals in which one is allowed, or together
    200 weeks. Direct simulation throughout.
    """
    yield ("server", "steps in a batch", "one allowed in, steps", "suspicions", "shifts, no probes")
    plan: list[tuple[str, int, float, int, float]] = [
        ("independent steps", 1, 1e3, 200, 10),
        ("independent steps", 10, 1e4, 200, 4),
        ("independent steps", 10, 1e5, 200, 1),
        *((name, REQUEST, 1e5, 200, 2) for name in SERVERS),
        *((name, REQUEST, WEEK_STEPS, 200, 1) for name in SERVERS),
    ]
    for name, size, allowed, servers, intervals in plan:
        runs = max(round(servers * scale), 10)
        fleet = Fleet.of(runs, alarms_per_day=STEPS_A_DAY / allowed)
        fleet.learn(SERVERS[name], 0.5)
        alarms = np.zeros(2)
        for _ in range(round(intervals * allowed / size)):
            over = fleet.feed(SERVERS[name], size).excess >= 0
            alarms += np.sum(np.any(over, axis=(-2, -1)), axis=0)
            fleet.forget(over)
        share = alarms / (runs * intervals)
        cells = [f"{s:.3f} ({n:.0f})" for s, n in zip(share, alarms, strict=True)]
        yield (name, size, f"{allowed:.0f}", *cells)


def mix_table(scale: float) -> Rows:
    """A change of the mix of tasks, and a fall on a mixed server, without probes.

    After 1.5 days of learning, requests of 100 steps. Shares of 60 servers, median steps,
    within two days.
    """
    yield ("server", "change", "suspected", "after", "shifted", "after")
    five = list(TASKS.values())
    changes: list[tuple[str, str, Requests]] = [
        ("half 0.85, half 0.45", "all 0.45", alike(0.45)),
        ("half 0.85, half 0.45", "all 0.85", alike(0.85)),
        ("nine tenths 0.85, a tenth 0.45", "all 0.45", alike(0.45)),
        ("five tasks, σ = 0.2", "all the worst", scattered(five[-1], 0.2)),
        ("five tasks, σ = 0.2", "all the best", scattered(five[0], 0.2)),
        ("five tasks, σ = 0.2", "all unseen, 0.30", scattered(0.30, 0.2)),
        *(
            (name, f"acceptance × {factor}", worsened(SERVERS[name], factor))
            for name in list(SERVERS)[:-1]
            for factor in (0.5, 0.75, 0.9)
        ),
    ]
    for name, change, requests in changes:
        runs = max(round(60 * scale), 10)
        fleet = Fleet.of(runs)
        fleet.learn(SERVERS[name], 1.5)
        found, _ = delays(fleet, always(requests), REQUEST, 2 * STEPS_A_DAY)
        cells: list[object] = []
        for column in found.T:
            share = np.mean(~np.isnan(column))
            cells += [f"{share:.0%}", f"{np.nanmedian(column):.0f}" if share else "–"]
        yield (name, change, *cells)


def slow_table(scale: float) -> Rows:
    """Acceptance falls evenly by 0.12 over 6 hours, without probes.

    Hours from the beginning of the fall until it is found, and the start that is then named;
    medians.
    """
    yield ("server", "steps a day", "suspected after h", "shifted after h", "start named, h")
    for name, per_day, size in (
        ("independent steps", 1e4, 100),
        ("independent steps", 1e5, 100),
        ("independent steps", 1e6, 500),
        ("requests scatter, σ = 0.3", 1e5, 100),
        ("five tasks, σ = 0.2", 1e5, 100),
    ):
        fleet = Fleet.of(max(round(100 * scale), 10), steps_a_day=per_day)
        fleet.learn(SERVERS[name], 1.5, size)

        def after(seconds: float, name: str = name) -> Requests:
            share = min(seconds / (6 * 3600), 1.0)
            return worsened(SERVERS[name], 1 - 0.12 / BEFORE * share)

        found, began = delays(fleet, after, size, per_day)
        hours = found / per_day * 24
        missing = np.isnan(hours).mean(axis=0)
        cells = [
            f"{np.nanmedian(hours[:, i]):.1f}" if missing[i] < 0.5 else f"not in {missing[i]:.0%}"
            for i in (0, 1)
        ]
        yield (name, f"{per_day:.0f}", *cells, f"{np.nanmedian(began[:, 0]) / 3600:.1f}")


# --- both sources ---------------------------------------------------------------------------


@dataclass
class Server:
    """One server with its detector as the daemon keeps it: requests and probes in turn."""

    seed: int
    probes: bool
    state: Acceptance = field(default_factory=Acceptance)
    unix_seconds: float = 0.0
    interval: float = 300.0

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        # Each task has eight prompts. They are asked greedily, so that each gives the same
        # steps whenever it is asked, and a fault moves all of them.
        self.prompts = 0.4 * self.rng.standard_normal((len(TASKS), 8))
        self.uniform = self.rng.random((len(TASKS), 8, 20, DRAFT))
        self.count = 0

    def run(
        self,
        hours: float,
        tasks: Sequence[float],
        factor: Callable[[float], float] = lambda _: 1.0,
        *,
        live: bool = True,
        until_shift: bool = False,
    ) -> float | None:
        """Go on for so long; hours until a shift, if there is one."""
        settings, start = Settings(), self.unix_seconds
        while self.unix_seconds < start + 3600 * hours:
            began = self.unix_seconds
            self.unix_seconds += self.interval
            now = factor(self.unix_seconds - start)
            if live:
                level = float(self.rng.choice(np.asarray(tasks)))
                c = moved(chance(now * level), 0.2 * self.rng.standard_normal())
                trials, kept = drawn(self.rng, 350, c)
                self.state = lived(
                    self.state,
                    msgspec.structs.replace(
                        times(began, self.unix_seconds),
                        steps=350.0,
                        trials=tuple(trials),
                        kept=tuple(kept),
                    ),
                    settings,
                )
            if self.probes:
                self.state = probed(self.state, self.probe(now), settings)
            if until_shift and self.state.shift is not None:
                return (self.unix_seconds - start) / 3600
        return None

    def probe(self, factor: float) -> Batch:
        task = self.count % len(TASKS)
        prompt = self.count // len(TASKS) % 8
        self.count += 1
        level = acceptance_of(moved(chance(list(TASKS.values())[task]), self.prompts[task, prompt]))
        kept = np.cumprod(self.uniform[task, prompt] < chance(factor * level), axis=-1)
        totals = kept.sum(axis=0).astype(float)
        return msgspec.structs.replace(
            times(self.unix_seconds - 20, self.unix_seconds - 10),
            steps=20.0,
            trials=(20.0, *totals[:-1]),
            kept=tuple(totals),
            stratum=list(TASKS)[task],
        )


def rule_table(scale: float) -> Rows:
    """The whole rule, on servers with five tasks.

    A request of 350 steps and a probe of 20 every five minutes, three days of learning; then
    a change, watched for a day. Shifts raised, the median hours to the shift, and who showed it.
    """
    yield ("change", "probes", "shifted", "hours", "by")
    five = list(TASKS.values())
    runs = max(round(10 * scale), 3)

    def slowly(seconds: float) -> float:
        return 1 - 0.12 / BEFORE * min(seconds / (6 * 3600), 1.0)

    for probes in (True, False):
        learned = [Server(seed, probes) for seed in range(runs)]
        for server in learned:
            server.run(72, five)
        scenarios: list[tuple[str, Callable[[Server], float | None]]] = [
            ("none", lambda s: s.run(24, five, until_shift=True)),
            ("only the worst task", lambda s: s.run(24, five[-1:], until_shift=True)),
            ("only the best task", lambda s: s.run(24, five[:1], until_shift=True)),
            ("an unseen task, 0.25", lambda s: s.run(24, [0.25], until_shift=True)),
            ("an idle night of 10 h", lambda s: _idle_night(s, five)),
            ("acceptance × 0.5", lambda s: s.run(24, five, lambda _: 0.5, until_shift=True)),
            ("acceptance × 0.75", lambda s: s.run(24, five, lambda _: 0.75, until_shift=True)),
            ("acceptance × 0.9", lambda s: s.run(24, five, lambda _: 0.9, until_shift=True)),
            ("by 0.12 / 0.82 over 6 h", lambda s: s.run(24, five, slowly, until_shift=True)),
            ("another build, same", lambda s: _planned(s, five, 1.0)),
            ("another build, × 0.9", lambda s: _planned(s, five, 0.9)),
            ("another build, × 0.5", lambda s: _planned(s, five, 0.5)),
        ]
        for name, scenario in scenarios:
            found, sources = [], []
            for server in learned:
                copy = Server(server.seed, probes, server.state, server.unix_seconds)
                copy.count = server.count
                hours = scenario(copy)
                if hours is not None and copy.state.shift is not None:
                    found.append(hours)
                    sources.append(str(copy.state.shift.source))
            yield (
                name,
                "every 5 min" if probes else "none",
                f"{len(found)} of {runs}",
                f"{np.median(found):.1f}" if found else "–",
                ", ".join(sorted(set(sources))) or "–",
            )


def _idle_night(server: Server, tasks: Sequence[float]) -> float | None:
    server.run(10, tasks, live=False)
    return server.run(14, tasks, until_shift=True)


def _planned(server: Server, tasks: Sequence[float], factor: float) -> float | None:
    server.state = replanned(server.state)
    return server.run(24, tasks, lambda _: factor, until_shift=True)


def probe_table(scale: float) -> Rows:
    """Probes alone, one a minute, 20 steps, five tasks of eight prompts asked greedily.

    A prompt gives the same steps whenever it is asked. After a day of learning: false alarms
    in a week in which one is allowed, and probes until a fall of all prompts is found.
    """
    factors = (0.5, 0.75, 0.9)
    yield ("prompts of a task", "false alarms", *(f"× {f}" for f in factors))
    runs = max(round(60 * scale), 10)
    for name, spread, worst in (
        ("scatter, σ = 0.4", 0.4, 0.0),
        ("scatter, σ = 0.8", 0.8, 0.0),
        ("scatter, σ = 0.3, one of eight much worse", 0.3, -2.0),
    ):
        alarms, _ = _probed(runs, spread, worst, 1.0, 7 * 1440)
        cells = []
        for factor in factors:
            _, found = _probed(runs, spread, worst, factor, 1440)
            missing = np.mean(np.isnan(found))
            cells.append(f"{np.nanmedian(found):.0f}" if missing < 0.5 else "–")
            if 0 < missing < 0.5:
                cells[-1] += f" (not in {missing:.0%})"
        yield (name, f"{alarms / runs:.2f} ({alarms:.0f})", *cells)


def _probed(
    runs: int, spread: float, worst: float, factor: float, most: int
) -> tuple[float, Array]:
    """Alarms after a day, and probes until the first."""
    rng = np.random.default_rng(1)
    offsets = spread * rng.standard_normal((runs, len(TASKS), 8))
    offsets[..., 0] += worst
    prompts = moved(chance(np.array(list(TASKS.values())))[None, :, None], offsets)
    healthy = drawn(rng, 20, prompts)
    changed = drawn(rng, 20, chance(factor * acceptance_of(prompts))) if factor < 1 else healthy
    detector = counts(runs, ranged=False, positions=DRAFT, strata=tuple(TASKS))
    alarms, found, deck = 0.0, np.full(runs, np.nan), np.zeros((len(TASKS), 8), dtype=int)
    for count in range(1440 + most):
        task = count % len(TASKS)
        if count % (8 * len(TASKS)) == 0:
            deck = np.stack([rng.permutation(8) for _ in TASKS])
        prompt = deck[task, count // len(TASKS) % 8]
        trials, kept = changed if count >= 1440 else healthy
        step = counted(
            detector,
            trials[:, task, prompt],
            kept[:, task, prompt],
            Settings(),
            batch=times(60.0 * count, 60.0 * count + 20),
            stratum=task,
        )
        over = step.excess >= 0
        hit = np.any(over, axis=(-3, -2, -1))
        bank = step.detector.bank
        detector = msgspec.structs.replace(
            step.detector,
            bank=msgspec.structs.replace(bank, score=np.where(over, 0.0, bank.score)),
        )
        if count >= 1440:
            alarms += float(np.sum(hit))
            found[hit & np.isnan(found)] = count - 1439
            if factor < 1 and not np.isnan(found).any():
                break
    return alarms, found


def arbiter_table(scale: float) -> Rows:
    """Probes' verdict on a suspicion, from a moment that has nothing to do with them.

    A sequential test between no change and one of a given size. Probes of 20 steps, five
    tasks of eight prompts, 1000 of them learned.
    """
    yield ("true acceptance", "size tested, log-odds", "agreed", "refuted", "probes, median")
    runs = max(round(400 * scale), 20)
    for factor, size in ((1.0, 1), (1.0, 3), (1.0, 5), (0.9, 1), (0.75, 3), (0.5, 5)):
        rng = np.random.default_rng(1)
        prompts = moved(
            chance(np.array(list(TASKS.values())))[None, :, None],
            0.4 * rng.standard_normal((runs, len(TASKS), 8)),
        )
        detector = counts(runs, ranged=False, positions=DRAFT, strata=tuple(TASKS))
        evidence, took = np.zeros(runs), np.full(runs, np.nan)
        for count in range(2000):
            task, prompt = count % len(TASKS), count // len(TASKS) % 8
            chances = prompts[:, task, prompt]
            if count >= 1000:
                chances = chance(factor * acceptance_of(chances))
            trials, kept = drawn(rng, 20, chances)
            step = counted(
                detector,
                trials,
                kept,
                Settings(),
                batch=times(60.0 * count, 60.0 * count + 20),
                stratum=task,
            )
            if count < 1000:
                detector = step.detector
                continue
            going = np.isnan(took)
            evidence[going] += step.scores[going, 0, 0, size]
            took[going & (np.abs(evidence) >= SETTLED)] = count - 999
        decided = ~np.isnan(took)
        yield (
            f"× {factor}",
            f"{0.2 * 1.5**size:.2f}",
            f"{np.mean(decided & (evidence > 0)):.1%}",
            f"{np.mean(decided & (evidence < 0)):.1%}",
            f"{np.nanmedian(took):.0f}" if decided.any() else "–",
        )


# --- rounding -------------------------------------------------------------------------------


def rounding_table(scale: float) -> Rows:
    """Counters that are printed with six digits, scraped after every 150 steps.

    False alarms in 90 000 healthy steps, and steps to find a fall.
    """
    yield (
        "drafts so far",
        "printed to the nearest",
        "alarms",
        *(f"→ {a}" for a in (HALVED, LOWER)),
    )
    for start in (0.0, 5e6, 5e7, 5e8):
        quantum = 10.0 ** max(math.floor(math.log10(max(start, 1.0))) - 5, 0) if start else 0.0
        alarms, found = 0, []
        runs = max(round(3 * scale), 1)
        for after, seed in itertools.product((HALVED, LOWER), range(runs)):
            steps, raised = _rounded(start, quantum, after, seed)
            alarms += raised
            found.append(steps)
        cells = [f"{np.mean(found[i * runs : (i + 1) * runs]):.0f}" for i in (0, 1)]
        yield (f"{start:.0e}", f"{quantum:.0f}", alarms, *cells)


def _rounded(start: float, quantum: float, after: float, seed: int) -> tuple[float, int]:
    rng = np.random.default_rng(seed)
    drafts, positions = start, np.zeros(DRAFT)
    state, settings, none = Acceptance(), Settings(), Usage(accepted_by_position=())
    for count in range(1200):
        level = BEFORE if count < 600 else after
        trials, kept = drawn(rng, 150, chance(level))
        drafts += trials[0]
        positions += kept
        shown = round(drafts / quantum) * quantum if quantum else drafts
        usage = Usage(
            drafts=Amount(shown, quantum / 2),
            draft_tokens=Amount(shown * DRAFT, 1.5 * quantum),
            accepted_by_position=tuple(int(n) for n in positions),
        )
        state = scraped(state, usage, none, 130.0 * count, settings)
        if state.shift is not None:
            return (count - 599) * 150.0, int(count < 600)
    return math.nan, 0


# --- values ---------------------------------------------------------------------------------

Noise = Callable[[np.random.Generator, int], Array]


def heavy(rng: np.random.Generator, runs: int) -> Array:
    return np.asarray(math.log(0.03) + 0.03 * rng.standard_t(3, runs))


def zeros(rng: np.random.Generator, runs: int) -> Array:
    return np.where(rng.random(runs) < 0.6, 0.0, 0.002 * np.exp(1.5 * rng.standard_normal(runs)))


def all_zero(_: np.random.Generator, runs: int) -> Array:
    return np.zeros(runs)


def correlated(likeness: float) -> Noise:
    last = np.zeros(0)

    def noise(rng: np.random.Generator, runs: int) -> Array:
        nonlocal last
        if last.shape != (runs,):
            last = rng.standard_normal(runs)
        last = likeness * last + math.sqrt(1 - likeness**2) * rng.standard_normal(runs)
        return math.log(0.03) + 0.03 * last

    return noise


def watched(
    noise: Noise,
    settings: ValueSettings,
    runs: int,
    *,
    healthy: int,
    change: Callable[[Array, int], Array] = lambda x, _: x,
    after: int = 0,
) -> tuple[Array, Array]:
    """Alarms of each server while healthy, and values until the change is found."""
    rng = np.random.default_rng(1)
    detector: Ranks = ranks(runs, strata=("",))
    alarms, found = np.zeros(runs), np.full(runs, np.nan)
    for count in range(healthy + after):
        value = noise(rng, runs)
        if count >= healthy:
            value = change(value, count - healthy)
        step = ranked(
            detector, value, settings, stratum=0, began=60.0 * count, ended=60.0 * count + 60
        )
        over = step.excess >= 0
        hit = np.any(over, axis=(-3, -2, -1))
        if count < healthy:
            alarms += hit
        else:
            found[hit & np.isnan(found)] = count - healthy + 1
        bank = step.detector.bank
        detector = msgspec.structs.replace(
            step.detector,
            bank=msgspec.structs.replace(bank, score=np.where(over, 0.0, bank.score)),
        )
        if not np.isnan(found).any():
            break
    return alarms, found


def value_table(scale: float) -> Rows:
    """Values, one a minute.

    False alarms as a share of those allowed, one in 2000 values, however small the change;
    delays at one a week.
    """
    yield ("values", "false alarms", "change", "found", "values, median")
    runs = max(round(200 * scale), 20)
    often = 1440 / 2000
    rows: list[tuple[str, Noise, ValueSettings, dict[str, Callable[[Array, int], Array]]]] = [
        (
            "step time, t noise of 3 degrees, σ = 3 %",
            heavy,
            PACE,
            {
                "5 % slower": lambda x, _: x + math.log(1.05),
                "10 % slower": lambda x, _: x + math.log(1.1),
                "30 % slower": lambda x, _: x + math.log(1.3),
                "20 % slower over 6 h": lambda x, n: x + math.log(1.2) * min(n / 360, 1.0),
            },
        ),
        ("step time, likeness 0.3", correlated(0.3), PACE, {}),
        (
            "step time, likeness 0.8",
            correlated(0.8),
            PACE,
            {"10 % slower": lambda x, _: x + math.log(1.1)},
        ),
        (
            "KLD, 60 % zero, the rest log-normal",
            zeros,
            KLD,
            {"× 4": lambda x, _: 4 * x, "× 10": lambda x, _: 10 * x},
        ),
        ("KLD, all zero", all_zero, KLD, {"0.01 in a fifth": _some}),
    ]
    for name, noise, settings, changes in rows:
        strict = msgspec.structs.replace(settings, least_change=0.0, alarms_per_day=often)
        alarms, _ = watched(noise, strict, runs, healthy=2400)
        share = f"{alarms.sum() / (runs * 2400 / 2000):.2f}"
        if not changes:
            yield (name, share, "–", "–", "–")
        for change, function in changes.items():
            _, found = watched(noise, settings, runs, healthy=600, change=function, after=720)
            cell = f"{np.nanmedian(found):.0f}" if np.mean(np.isnan(found)) < 0.5 else "–"
            yield (name, share, change, f"{np.mean(~np.isnan(found)):.0%}", cell)


def _some(values: Array, count: int) -> Array:
    return values + (0.01 if count % 5 == 0 else 0.0)


TABLES: dict[str, Callable[[float], Rows]] = {
    "delay": delay_table,
    "sampling": sampling_table,
    "false_alarms": false_alarm_table,
    "mix": mix_table,
    "slow": slow_table,
    "rule": rule_table,
    "probes": probe_table,
    "arbiter": arbiter_table,
    "rounding": rounding_table,
    "values": value_table,
}


def printed(name: str, rows: Iterable[Sequence[object]]) -> None:
    print(f"\n### {name}\n")
    for place, row in enumerate(rows):
        print("| " + " | ".join(str(cell) for cell in row) + " |", flush=True)
        if not place:
            print("|" + " --- |" * len(row))


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("tables", nargs="*", choices=[[], *TABLES], default=[])
    parser.add_argument("--runs", type=float, default=1.0, help="scale the number of servers")
    chosen = parser.parse_args(arguments)
    for name in chosen.tables or TABLES:
        began = time.process_time()
        printed(name, TABLES[name](chosen.runs))
        print(f"\n({time.process_time() - began:.0f} s of processor time)", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
