"""Change detection on servers with probes, rounded counters, and values: tables."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from mtpmon.model import Amount, Usage
from mtpmon.shift.acceptance import SETTLED, Acceptance, lived, probed, replanned, scraped
from mtpmon.shift.batch import Batch
from mtpmon.shift.counts import counted
from mtpmon.shift.evidence import Array
from mtpmon.shift.learned import counts
from mtpmon.shift.ranks import Ranks, ranked, ranks
from mtpmon.shift.settings import KLD, PACE, Settings, ValueSettings
from tests.fleet import DRAFT, acceptance_of, chances, cleared, drawn, moved, times

Rows = Iterator[Sequence[object]]
TASKS = {"code": 0.823, "factual": 0.694, "analysis": 0.542, "essay": 0.558, "creative": 0.472}
BEFORE, HALVED, LOWER = 0.82, 0.50, 0.75
Noise = Callable[[np.random.Generator, int], Array]


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
                c = moved(chances(now * level), 0.2 * self.rng.standard_normal())
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
        level = acceptance_of(
            moved(chances(list(TASKS.values())[task]), self.prompts[task, prompt])
        )
        kept = np.cumprod(self.uniform[task, prompt] < chances(factor * level), axis=-1)
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
    prompts = moved(chances(np.array(list(TASKS.values())))[None, :, None], offsets)
    healthy = drawn(rng, 20, prompts)
    changed = drawn(rng, 20, chances(factor * acceptance_of(prompts))) if factor < 1 else healthy
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
        detector = cleared(step.detector, over)
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
            chances(np.array(list(TASKS.values())))[None, :, None],
            0.4 * rng.standard_normal((runs, len(TASKS), 8)),
        )
        detector = counts(runs, ranged=False, positions=DRAFT, strata=tuple(TASKS))
        evidence, took = np.zeros(runs), np.full(runs, np.nan)
        for count in range(2000):
            task, prompt = count % len(TASKS), count // len(TASKS) % 8
            each = prompts[:, task, prompt]
            if count >= 1000:
                each = chances(factor * acceptance_of(each))
            trials, kept = drawn(rng, 20, each)
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
    settings = Settings(acquaint_seconds=0.0)  # it is one task
    state, none = Acceptance(), Usage(accepted_by_position=())
    for count in range(1200):
        level = BEFORE if count < 600 else after
        trials, kept = drawn(rng, 150, chances(level))
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
        detector = cleared(step.detector, over)
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
