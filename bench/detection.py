"""Rates of false alarms and delays of change detection, by simulation.

    python -m bench.detection

prints how soon a fall is found, against the information bound and a rolling mean; it takes two
minutes. ``python -m bench.detection mix slow`` prints other tables of docs/change-detection.md
instead, ``all`` every one of them (an hour). Each table starts from the same seed, so it can be
repeated alone. ``--runs`` scales the number of simulated servers.
"""

import argparse
import itertools
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from bench.detectionknown import (
    BEFORE,
    WEEK_STEPS,
    known_delay,
    known_direct,
    known_run_length,
    known_threshold,
    rolling_delay,
    rolling_threshold,
)
from bench.detectionservers import (
    HALVED,
    LOWER,
    TASKS,
    arbiter_table,
    probe_table,
    rounding_table,
    rule_table,
    value_table,
)
from mtpmon.shift.settings import DAY
from tests.fleet import (
    Fleet,
    Requests,
    alike,
    bound,
    in_sessions,
    mixed,
    scattered,
    worsened,
)

Rows = Iterator[Sequence[object]]
STEPS_A_DAY = WEEK_STEPS / 7
REQUEST = 100  # steps
FIVE = dict.fromkeys(TASKS.values(), 1.0)
SERVERS: Mapping[str, Callable[[], Requests]] = {
    "independent steps": lambda: alike(BEFORE),
    "requests scatter, σ = 0.3": lambda: scattered(BEFORE, 0.3),
    "requests scatter, σ = 0.8": lambda: scattered(0.75, 0.8),
    "half 0.85, half 0.45": lambda: mixed({0.85: 1, 0.45: 1}),
    "nine tenths 0.85, a tenth 0.45": lambda: mixed({0.85: 9, 0.45: 1}),
    "five tasks, σ = 0.2": lambda: mixed(FIVE, 0.2),
    "five tasks in sessions of 10": lambda: in_sessions(FIVE, 0.2, 10),
}


def delay_table(scale: float) -> Rows:
    """Steps until a fall is found, one false alarm a week at 100 000 steps a day.

    Bound: ln(steps between false alarms) / Kullback-Leibler divergence of one step. CUSUM
    with both levels known: threshold by importance sampling. Rolling mean: the level before is
    known, it is looked at after every step, threshold by direct simulation; "best" is the width
    that finds this fall soonest. mtpmon: the level is learned from 150 looks of 1000 steps; it
    looks once a batch, and the change comes right after one. In batches of 10 it raises at most
    a fifth of the false alarms allowed (see that table), so five a week allowed are no more
    than one in fact.
    """
    rng = np.random.default_rng(1)
    falls = (HALVED, LOWER)
    changes = [f"{BEFORE} → {after}" for after in falls]
    yield ("detector", *changes, *(f"{change}, over the bound" for change in changes))
    bounds = [bound(BEFORE, after, WEEK_STEPS) for after in falls]

    def row(name: str, found: Sequence[float]) -> Sequence[object]:
        over = [f / b for f, b in zip(found, bounds, strict=True)]
        cells = [f"{f:.0f}" if math.isfinite(f) else "–" for f in found]
        return (name, *cells, *(f"{x:.2f}" if math.isfinite(x) else "–" for x in over))

    yield row("information bound", bounds)
    for size in (1, 10, 100):
        yield row(f"**mtpmon**, batches of {size}", [mean_delay(a, size, scale) for a in falls])
    five = [mean_delay(a, 10, scale, alarms_per_week=5) for a in falls]
    yield row("mtpmon, batches of 10, five a week allowed", five)
    known = []
    for after in falls:
        threshold = known_threshold(rng, after, WEEK_STEPS)
        known.append(known_delay(rng, after, threshold, 4000))
    yield row("CUSUM, both levels known", known)
    table = []
    for width in (50, 200, 400, 800, 1600):
        threshold = rolling_threshold(rng, width, round(28_000_000 * scale))
        table.append([rolling_delay(rng, width, threshold, after, 1000) for after in falls])
        yield row(f"rolling mean of {width}", table[-1])
    yield row("rolling mean, best of these for each", np.min(table, axis=0).tolist())


def mean_delay(after: float, size: int, scale: float, alarms_per_week: float = 1) -> float:
    """Steps until mtpmon finds a fall from 0.82, in batches of ``size`` steps."""
    fleet = Fleet(max(round(200 * scale), 20), STEPS_A_DAY, alarms_per_week / 7)
    fleet.learn(alike(BEFORE), 150, 1000)
    return float(np.mean(fleet.delays(alike(after), math.ceil(5000 / size), size)[:, 1]))


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
    """False alarms as a share of those allowed; in brackets how many. Levels are learned.

    A suspicion is no alarm: without probes it must also be out of the range of levels seen
    before. Direct simulation, 100 servers, each watched for as many intervals in which one is
    allowed as the last column says.
    """
    yield (
        "server",
        "steps in a batch",
        "one allowed in, steps",
        "suspicions",
        "alarms",
        "intervals",
    )
    runs = max(round(100 * scale), 10)
    for name, size, allowed, intervals in (
        ("independent steps", 1, 1e3, 10.0),
        ("independent steps", 10, 1e4, 4.0),
        *((name, REQUEST, 1e5, 2.0) for name in SERVERS),
    ):
        requests = SERVERS[name]()
        fleet = Fleet(runs, STEPS_A_DAY, STEPS_A_DAY / allowed)
        fleet.learn(requests, 500, REQUEST)
        alarms = fleet.alarms(requests, round(intervals * allowed / size), size)
        share = alarms / (runs * intervals)
        cells = [f"{s:.3f} ({n:.0f})" for s, n in zip(share, alarms, strict=True)]
        yield (name, size, f"{allowed:.0f}", *cells, f"{intervals:.0f}")


def mix_table(scale: float) -> Rows:
    """A change of the mix of tasks, and a fall on a mixed server, without probes.

    After 1.5 days of learning, requests of 100 steps. Shares of servers, median steps, within
    a day.
    """
    yield ("server", "change", "suspected", "after", "alarm", "after")
    five = list(TASKS.values())
    changes: list[tuple[str, str, Requests]] = [
        ("half 0.85, half 0.45", "all 0.45", alike(0.45)),
        ("half 0.85, half 0.45", "all 0.85", alike(0.85)),
        ("nine tenths 0.85, a tenth 0.45", "all 0.45", alike(0.45)),
        ("five tasks, σ = 0.2", "all the worst", scattered(five[-1], 0.2)),
        ("five tasks, σ = 0.2", "all the best", scattered(five[0], 0.2)),
        ("five tasks, σ = 0.2", "all unseen, 0.30", scattered(0.30, 0.2)),
        *(
            (name, f"acceptance × {factor}", worsened(SERVERS[name](), factor))
            for name in list(SERVERS)
            for factor in (0.5, 0.75)
        ),
    ]
    for name, change, requests in changes:
        fleet = Fleet(max(round(40 * scale), 10), STEPS_A_DAY)
        fleet.learn(SERVERS[name](), 1500, REQUEST)
        cells: list[object] = []
        for column in fleet.delays(requests, round(STEPS_A_DAY / REQUEST), REQUEST).T:
            share = np.mean(~np.isnan(column))
            cells += [f"{share:.0%}", f"{np.nanmedian(column):.0f}" if share else "–"]
        yield (name, change, *cells)


def slow_table(scale: float) -> Rows:
    """Acceptance falls evenly by 0.12 over 6 hours, without probes.

    Hours from the beginning of the fall until it is found, and the start that is then named;
    medians.
    """
    yield ("server", "steps a day", "suspected after h", "alarm after h", "start named, h")
    for name, per_day, size in (
        ("independent steps", 1e4, 100),
        ("independent steps", 1e5, 100),
        ("independent steps", 1e6, 500),
        ("requests scatter, σ = 0.3", 1e5, 100),
        ("five tasks, σ = 0.2", 1e5, 100),
    ):
        fleet = Fleet(max(round(40 * scale), 10), per_day)
        fleet.learn(SERVERS[name](), round(1.5 * per_day / size), size)

        def after(seconds: float, name: str = name) -> Requests:
            share = min(seconds / (6 * 3600), 1.0)
            return worsened(SERVERS[name](), 1 - 0.12 / BEFORE * share)

        found, began = fleet.watch(after, math.ceil(per_day / size), size)
        hours = found / per_day * DAY / 3600
        missing = np.isnan(hours).mean(axis=0)
        cells = [
            f"{np.nanmedian(hours[:, i]):.1f}" if missing[i] < 0.5 else f"not in {missing[i]:.0%}"
            for i in (0, 1)
        ]
        yield (name, f"{per_day:.0f}", *cells, f"{np.nanmedian(began[:, 0]) / 3600:.1f}")


TABLES: Mapping[str, Callable[[float], Rows]] = {
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
    """As Markdown, each row as soon as it is known."""
    print(f"\n### {name}\n")
    for place, row in enumerate(rows):
        print("| " + " | ".join(str(cell) for cell in row) + " |", flush=True)
        if not place:
            print("|" + " --- |" * len(row))


def main(arguments: Sequence[str]) -> None:
    """Print the tables that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("tables", nargs="*", choices=[*TABLES, "all"], default="delay")
    parser.add_argument("--runs", type=float, default=1.0, help="scale the number of servers")
    chosen = parser.parse_args(arguments)
    names = [chosen.tables] if isinstance(chosen.tables, str) else chosen.tables
    for name in TABLES if "all" in names else names:
        began = time.process_time()
        printed(name, TABLES[name](chosen.runs))
        print(f"\n({time.process_time() - began:.0f} s of processor time)", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
