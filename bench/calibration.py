"""How often the bounds hold the truth, on simulated servers whose truth is known.

``python -m bench.calibration [RUNS]`` prints the tables of docs/method.md. 1000 runs, the
default, take about a quarter of an hour; a coverage of 95 % is then known to ± 1.4 points.
"""

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from mtpmon.cost import step_costs
from mtpmon.depth import best_depth
from mtpmon.model import Bounded
from mtpmon.payoff import payoff, probe_payoff
from mtpmon.request import Request, kept_by_prompt
from mtpmon.spread import design_effect, expected_design_effect, kept_correlation
from mtpmon.verdict import Standing, Verdict, VerdictRules, decide
from tests.world import World

T = TypeVar("T")
CONFIDENCE = 0.95
LENGTHS = (25, 60, 100)  # of requests, in steps
BASE = World()
HARD = replace(BASE, likeness=0.4, rollback=(0.3, 0.4, 0.5), stall=0.01, disturbed=0.05, drift=0.03)
WORLDS = {
    "independent steps": BASE,
    "steps alike within requests": replace(BASE, likeness=0.4),
    "rejected steps cost 0.5 more": replace(BASE, rollback=(0.5, 0.5, 0.5)),
    "1 % of steps stall, by 5 steps": replace(BASE, stall=0.01),
    "8 % of requests disturbed": replace(BASE, disturbed=0.08),
    "speed drifts, 5 % a request": replace(BASE, drift=0.05),
    "all of it": HARD,
}
DEPTHS = {
    "cost is linear": replace(BASE, conditional=(0.75, 0.5, 0.4)),
    "cost is linear, rejecting costs": replace(
        BASE, conditional=(0.75, 0.5, 0.4), rollback=(0.3, 0.4, 0.5)
    ),
    "cost is concave": replace(
        BASE, conditional=(0.75, 0.5, 0.4), bases=(1.1, 1.45, 1.68, 1.85), planning=0.05
    ),
    "cost is convex": replace(
        BASE, conditional=(0.75, 0.5, 0.4), bases=(1.1, 1.25, 1.5, 1.85), planning=0.05
    ),
    "five tokens, little kept": replace(
        BASE,
        conditional=(0.6, 0.4, 0.35, 0.3, 0.3),
        rollback=(0.0,) * 5,
        bases=(1.1, 1.3, 1.5, 1.7, 1.9, 2.1),
    ),
}


def there(found: T | None) -> T:
    """What an estimator must not have left out here."""
    if found is None:
        raise RuntimeError("an estimator found too little to go by")
    return found


def effect_seen(world: World, rng: np.random.Generator, probes: Sequence[Request]) -> float:
    """The design effect as a daemon would know it: from probes, and from the last 5000 steps."""
    _, history = world.traffic(rng, 5000, LENGTHS)
    steps = sum(n * n for n in LENGTHS) / sum(LENGTHS)
    prior = expected_design_effect(kept_correlation(kept_by_prompt(probes)), steps)
    return design_effect([tally.histogram for tally in history], prior=prior)


def coverage(world: World, runs: int, *, pairs: int, steps: int = 500) -> dict[str, float]:
    """Shares of runs in which 95 % bounds held the truth, in per cent."""
    rng = np.random.default_rng(1)
    held: Counter[str] = Counter()
    for _ in range(runs):
        requests = world.pairs(rng, pairs)
        costs = there(step_costs(requests, confidence=CONFIDENCE))
        effect = effect_seen(world, rng, requests)
        window, _ = world.traffic(rng, steps, LENGTHS)
        found = there(payoff(window, costs, confidence=CONFIDENCE, design_effect=effect))
        probes = there(probe_payoff(requests, costs, confidence=CONFIDENCE))
        seen = np.array(costs.mix.shares(world.longest))
        extra = np.append(world.rollback, 0.0)
        for name, bounds, truth in (
            ("r", there(costs.plain).ratio, world.bases[-1] + float(seen @ extra)),
            ("length", found.acceptance_length, world.length()),
            ("margin", found.margin, world.margin()),
            ("speed-up", found.speedup, world.speedup()),
            ("probes' speed-up", probes.speedup, world.speedup()),
        ):
            held[name] += bounds.lower <= truth <= bounds.upper
    return {name: 100 * count / runs for name, count in held.items()}


def ratio_errors(world: World, runs: int, *, pairs: int) -> list[float]:
    """Root mean square error of r in per cent: ours, ratio of means, ratio of medians."""
    rng = np.random.default_rng(2)
    errors: dict[str, list[float]] = defaultdict(list)
    truth = world.ratio()
    for _ in range(runs):
        requests = world.pairs(rng, pairs)
        costs = there(step_costs(requests, confidence=CONFIDENCE))
        arms = [
            [
                step.seconds
                for request in requests
                if (request.arm == "speculating") == speculating
                for step in request.steps[1:]
                if step.drafted == (world.longest if speculating else 0)
            ]
            for speculating in (True, False)
        ]
        errors["ours"].append(there(costs.plain).ratio.value / truth - 1)
        errors["means"].append(float(np.mean(arms[0]) / np.mean(arms[1])) / truth - 1)
        errors["medians"].append(float(np.median(arms[0]) / np.median(arms[1])) / truth - 1)
    return [100 * float(np.sqrt(np.mean(np.square(e)))) for e in errors.values()]


def depth_coverage(world: World, runs: int) -> tuple[str, ...]:
    """True gain, bias and half width for each shorter draft, all-at-once coverage, advice."""
    rng = np.random.default_rng(3)
    held, right, given = 0, 0, 0
    gains: dict[int, list[Bounded]] = defaultdict(list)
    truths = {n: world.speedup(n) / world.speedup() - 1 for n in range(1, world.longest)}
    truths[0] = 1 / world.speedup() - 1
    for _ in range(runs):
        costs = there(step_costs(world.pairs(rng, 40), confidence=CONFIDENCE))
        window, _ = world.traffic(rng, 1000, (50,))
        advice = there(best_depth(window, costs, confidence=CONFIDENCE))
        inside = []
        for drafted, truth in truths.items():
            bounds = there(there(advice.option(drafted)).gain_bounds)
            gains[drafted].append(bounds)
            inside.append(bounds.lower <= truth <= bounds.upper)
        held += all(inside)
        if advice.advised is not None:
            given += 1
            right += truths[advice.advised] > 0
    figures = [
        f"{n}: {100 * truths[n]:+.0f} ({100 * np.mean([g.value - truths[n] for g in found]):+.1f},"
        f" ± {50 * np.mean([g.upper - g.lower for g in found]):.0f})"
        for n, found in sorted(gains.items())
    ]
    return (
        ", ".join(figures),
        f"{100 * held / runs:.1f}",
        f"{100 * given / runs:.0f}",
        f"{100 * right / given:.1f}" if given else "",
    )


def window_verdicts(world: World, runs: int, steps: int) -> list[str]:
    """Shares of windows that are paying, costing, undecided, each judged by itself."""
    rng = np.random.default_rng(4)
    found: Counter[Verdict] = Counter()
    for run in range(runs):
        if run % 20 == 0:
            requests = world.pairs(rng, 40)
            costs = there(step_costs(requests, confidence=CONFIDENCE))
            effect = effect_seen(world, rng, requests)
        window, _ = world.traffic(rng, steps, LENGTHS)
        paid = there(payoff(window, costs, confidence=CONFIDENCE, design_effect=effect))
        standing = decide(
            None, margin=paid.margin, steps=window.drafts, now=0.0, rules=VerdictRules()
        )
        found[standing.verdict] += 1
    order = (Verdict.PAYING, Verdict.COSTING, Verdict.UNDECIDED)
    return [f"{100 * found[verdict] / runs:.2f}" for verdict in order]


def at_margin(world: World, margin: float) -> World:
    """The same server with a full step so dear that the margin is as wanted."""
    dearer = world.margin() - margin
    return replace(world, bases=(*world.bases[:-1], world.bases[-1] + dearer * world.longest))


def changes_per_day(distance: float, rules: VerdictRules | None, *, days: int = 3) -> float:
    """How often the verdict changes with a margin so many standard errors above 0.

    A window of five minutes, looked at every 5 s, with 8 steps each time. Without rules the
    bounds alone decide.
    """
    rng = np.random.default_rng(5)
    half = 1.96 / np.sqrt(60.0)
    looks = rng.standard_normal(17_280 * days) + distance * half / 1.96
    sums = np.concatenate([[0.0], np.cumsum(looks)])
    changes = 0
    standing: Standing | None = None
    for place, middle in enumerate((sums[60:] - sums[:-60]) / 60):
        before = standing
        margin = Bounded(middle, middle - half, middle + half)
        if rules is None:
            alone = decide(None, margin=margin, steps=480.0, now=0.0, rules=VerdictRules())
            standing = Standing(alone.verdict, 0.0)
        else:
            standing = decide(before, margin=margin, steps=480.0, now=5.0 * place, rules=rules)
        changes += before is not None and before.verdict is not standing.verdict
    return changes / days


def delay_seconds(margin: float, rules: VerdictRules, *, runs: int = 200) -> tuple[float, float]:
    """Median and 90th percentile from a margin's change of sign to the opposite verdict.

    The same window; ``margin`` is in standard errors of it.
    """
    rng = np.random.default_rng(6)
    half = 1.96 / np.sqrt(60.0)
    signs = np.concatenate([np.ones(120), -np.ones(600)])
    delays = []
    for _ in range(runs):
        looks = rng.standard_normal(720) + signs * margin * half / 1.96
        sums = np.concatenate([[0.0], np.cumsum(looks)])
        standing = None
        for place, middle in enumerate((sums[60:] - sums[:-60]) / 60):
            bounds = Bounded(middle, middle - half, middle + half)
            now = 5.0 * (place + 60 - 120)
            standing = decide(standing, margin=bounds, steps=480.0, now=now, rules=rules)
            if now > 0 and standing.verdict is Verdict.COSTING:
                delays.append(now)
                break
        else:
            delays.append(np.inf)
    return float(np.median(delays)), float(np.percentile(delays, 90))


def table(title: str, head: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    """Print a Markdown table."""
    columns = list(head)
    print(f"\n{title}\n\n| " + " | ".join(columns) + " |")
    print("|" + "---|" * len(columns), flush=True)
    for row in rows:
        print("| " + " | ".join(row) + " |", flush=True)


def main(runs: int) -> None:
    """Print all tables."""
    figures = ("r", "length", "margin", "speed-up", "probes' speed-up")

    def covered(pairs: int) -> Callable[[tuple[str, World]], list[str]]:
        def row(named: tuple[str, World]) -> list[str]:
            found = coverage(named[1], runs, pairs=pairs)
            return [named[0], *(f"{found[name]:.1f}" for name in figures)]

        return row

    for pairs in (10, 40):
        table(
            f"Coverage of 95 % bounds, per cent; {pairs} pairs, windows of 500 steps",
            ("server", *figures),
            map(covered(pairs), WORLDS.items()),
        )
    table(
        "Root mean square error of r, per cent; 20 pairs",
        ("server", "ours", "ratio of means", "ratio of medians"),
        (
            (name, *(f"{error:.2f}" for error in ratio_errors(world, runs // 4, pairs=20)))
            for name, world in WORLDS.items()
        ),
    )
    table(
        "Draft length; 40 pairs, 1000 steps of traffic",
        ("server", "gain: true (bias, ± bounds), %", "all held, %", "advice, %", "of it right, %"),
        ((name, *depth_coverage(world, runs // 4)) for name, world in DEPTHS.items()),
    )
    table(
        "Verdicts of single windows, per cent; 40 pairs",
        ("server", "true margin, points", "steps", "paying", "costing", "undecided"),
        (
            (name, f"{100 * margin:+.0f}", str(steps), *window_verdicts(world, runs, steps))
            for name in ("independent steps", "steps alike within requests", "all of it")
            for margin in (0.05, -0.05)
            for steps in (500, 2000)
            for world in [at_margin(WORLDS[name], margin)]
        ),
    )
    table(
        "Changes of the verdict a day; windows of 5 min, looked at every 5 s",
        ("margin, standard errors", "bounds alone", "settle 60 s", "settle 150 s"),
        (
            (
                f"{distance:g}",
                *(
                    f"{changes_per_day(distance, rules):.0f}"
                    for rules in (
                        None,
                        VerdictRules(settle_seconds=60),
                        VerdictRules(settle_seconds=150),
                    )
                ),
            )
            for distance in (0.0, 1.0, 1.96, 3.0)
        ),
    )
    table(
        "From a change of sign to the opposite verdict, seconds: median, 90th percentile",
        ("margin, standard errors", "settle 0 s", "settle 150 s"),
        (
            (
                f"{margin:g}",
                *(
                    "{:.0f}, {:.0f}".format(*delay_seconds(margin, VerdictRules(settle_seconds=s)))
                    for s in (0.0, 150.0)
                ),
            )
            for margin in (3.0, 6.0, 15.0)
        ),
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
