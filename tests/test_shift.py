"""Change detection: what is found, how soon, and what is not taken for a change."""

import math
from collections.abc import Callable, Sequence
from functools import cache

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtpmon.model import (
    Amount,
    Completion,
    Divergence,
    ProbeOutcome,
    ProbeResult,
    Step,
    StepStream,
    Timings,
    Usage,
    Variant,
)
from mtpmon.record import Event, EventKind
from mtpmon.shift import (
    KLD,
    LEVELS,
    MOST_PAST,
    MOST_POSITIONS,
    MOST_STRATA,
    PACE,
    TILTS,
    TRAIL,
    Acceptance,
    Array,
    Batch,
    Counts,
    Direction,
    Ending,
    Phase,
    Settings,
    Shift,
    Source,
    Values,
    batch_of,
    batch_of_probe,
    causes,
    counted,
    counts,
    kld_of_probe,
    lived,
    measured,
    metered,
    pace_of_probe,
    probed,
    ranked,
    ranks,
    remeasured,
    replanned,
    scraped,
    yardstick,
)

DAY = 86_400.0
SETTINGS = Settings()
CODE, MIDDLE, CREATIVE = 0.85, 0.65, 0.45
Requests = Callable[[np.random.Generator, int], Array]


# --- a server to watch ----------------------------------------------------------------------


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


# --- what comes in --------------------------------------------------------------------------


def usage(
    drafts: float, *positions: int, width: float = 3.0, error: float = 0.0, carried: float = 0.0
) -> Usage:
    return Usage(
        drafts=Amount(drafts, error, carried),
        draft_tokens=Amount(width * drafts, width * error, width * carried),
        accepted_tokens=Amount(float(sum(positions)), error),
        accepted_by_position=positions,
    )


def test_a_position_is_tried_by_the_steps_that_kept_the_one_before() -> None:
    """The counts of a batch follow from per-position counters alone."""
    found = batch_of(usage(100, 90, 70, 50), began=1, ended=2)
    assert found is not None
    assert (found.steps, found.trials, found.kept) == (100, (100, 90, 70), (90, 70, 50))
    assert (found.began_unix_seconds, found.ended_unix_seconds) == (1, 2)


def test_positions_that_were_not_drafted_are_left_out() -> None:
    """A server set to shorter drafts has not failed at the longer ones."""
    found = batch_of(usage(100, 90, 0, 0, width=1.0), began=0, ended=1)
    assert found is not None
    assert (found.trials, found.kept) == ((100,), (90,))


def test_totals_make_one_position_that_varies_more() -> None:
    """Without per-position counters all draft tokens are trials, with the spread of a chain."""
    totals = msgspec.structs.replace(usage(100, error=5), accepted_by_position=None)
    totals = msgspec.structs.replace(totals, accepted_tokens=Amount(200, 5))
    found = batch_of(totals, began=0, ended=1)
    assert found is not None
    assert (found.steps, found.trials, found.kept) == (100, (300,), (200,))
    assert (found.trials_error, found.kept_error, found.spread) == (15, 5, 7 / 3)
    assert not found.by_position


@pytest.mark.parametrize("acceptance", [0.3, 0.5, 0.8, 0.95])
def test_the_spread_of_totals_is_an_upper_bound(acceptance: float) -> None:
    """The kept tokens of a three-token chain vary at most 7/3 as much as single tokens."""
    kept = np.arange(4)
    p = shares(acceptance)
    variance = float(p @ kept**2 - (p @ kept) ** 2)
    assert variance <= 7 / 3 * 3 * acceptance * (1 - acceptance)


@pytest.mark.parametrize(
    "unusable",
    [
        Usage(),
        usage(0, 0, 0, 0),
        usage(-10, 5, 3, 1),
        usage(100, 90, 95, 10),  # more kept at a position than came to it
        usage(100),  # no position seen yet
        msgspec.structs.replace(usage(100), accepted_by_position=None, draft_tokens=None),
    ],
)
def test_what_cannot_be_told_is_no_batch(unusable: Usage) -> None:
    """Nothing drafted, or counts that contradict each other."""
    assert batch_of(unusable, began=0, ended=1) is None


def test_without_the_drafted_total_all_positions_count() -> None:
    """The mean draft length only serves to leave positions out."""
    found = batch_of(msgspec.structs.replace(usage(10, 5, 0), draft_tokens=None), began=0, ended=1)
    assert found is not None
    assert found.trials == (10, 5)


def test_the_first_look_is_where_counting_starts() -> None:
    """What the server had counted before is nobody's change."""
    _, found = metered(None, usage(1000, 900, 800), usage(0), 5)
    assert found is None


def test_our_own_share_is_taken_off() -> None:
    """A batch is what users did."""
    meter, _ = metered(None, usage(1000, 900, 800), usage(0), 5)
    _, found = metered(meter, usage(1100, 980, 860), usage(20, 10, 5), 10)
    assert found is not None
    assert (found.steps, found.kept) == (80, (70, 55))


def test_an_idle_night_is_not_part_of_the_next_batch() -> None:
    """A change that begins in the morning must not be dated to the evening."""
    meter, _ = metered(None, usage(1000, 900, 800), usage(0), 0)
    for hour in range(1, 9):
        meter, found = metered(meter, usage(1000, 900, 800), usage(0), 3600.0 * hour)
        assert found is None
    _, found = metered(meter, usage(1100, 990, 880), usage(0), 8 * 3600.0 + 5)
    assert found is not None
    assert found.began_unix_seconds == 8 * 3600


def test_kept_tokens_wait_for_the_drafts_that_rounding_hides() -> None:
    """Counting one without the other would look like a rise, and then like a fall."""
    meter, _ = metered(None, usage(1e6, 900, 800, error=5), usage(0), 0)
    meter, hidden = metered(meter, usage(1e6, 904, 803, error=5), usage(0), 5)
    assert hidden is None
    _, found = metered(meter, usage(1e6 + 10, 909, 807, error=5), usage(0), 10)
    assert found is not None
    assert (found.steps, found.kept, found.began_unix_seconds) == (10, (9, 7), 0)
    assert found.trials_error == 10


@given(st.lists(st.integers(0, 400), min_size=1, max_size=30), st.sampled_from([1, 10, 100]))
def test_batches_add_up_to_what_was_counted(steps: list[int], quantum: int) -> None:
    """Rounding of the totals never adds up over batches, and nothing is counted twice."""
    drafts, kept, meter = 10**7, 0, None
    total = total_kept = 0.0
    for count, more in enumerate([0, *steps, 2 * quantum]):
        drafts, kept = drafts + more, kept + more // 2
        shown = usage(round(drafts / quantum) * quantum, kept, error=quantum / 2, width=1)
        meter, found = metered(meter, shown, usage(0), float(count))
        if found is not None:
            total, total_kept = total + found.steps, total_kept + found.kept[0]
    assert total_kept <= kept
    assert abs(total - (drafts - 10**7)) <= 3 * quantum


def test_a_server_without_counters_gives_nothing() -> None:
    """Old builds are watched through probes alone."""
    meter, _ = metered(None, Usage(), Usage(), 0)
    assert metered(meter, Usage(), Usage(), 5)[1] is None


def probe(
    *steps: tuple[int, int], task: str = "code", klds: Sequence[float] = (), seconds: float = 0.02
) -> ProbeResult:
    drafted, kept = sum(s[0] for s in steps), sum(s[1] for s in steps)
    return ProbeResult(
        server="a",
        prompt_id="p",
        task=task,
        unix_seconds=100,
        duration_seconds=9,
        outcome=ProbeOutcome.COMPLETED,
        speculating=Completion(
            positions=(),
            timings=Timings(
                prompt_tokens=1,
                prompt_seconds=0,
                cached_tokens=0,
                generated_tokens=9,
                generation_seconds=1,
                draft_tokens=drafted,
                accepted_tokens=kept,
            ),
            stream=StepStream(steps=tuple(Step(*s, seconds) for s in steps)),
            wall_seconds=1,
        ),
        after_speculation=tuple(
            Divergence(nats=n, coverage=1, shared_tokens=5, top1_agrees=True) for n in klds
        ),
    )


def test_a_probe_tells_how_long_each_draft_was() -> None:
    """A draft that was cut is not taken for a rejection; plain steps are none."""
    found = batch_of_probe(probe((3, 3), (3, 1), (2, 2), (0, 0), (3, 0)))
    assert found is not None
    assert (found.steps, found.trials, found.kept) == (4, (4, 3, 1), (3, 2, 1))
    assert (found.began_unix_seconds, found.ended_unix_seconds) == (100, 109)


def test_probes_asked_differently_are_different_strata() -> None:
    """A task at another temperature has another acceptance."""
    warm = msgspec.structs.replace(probe((3, 1)), variant=Variant(temperature=0.7))
    found = {b.stratum for b in map(batch_of_probe, (probe((3, 1)), warm)) if b is not None}
    assert len(found) == 2


def test_probes_that_failed_or_did_not_draft_tell_nothing() -> None:
    """No batch, no step time, no divergence."""
    failed = msgspec.structs.replace(probe((3, 1)), outcome=ProbeOutcome.FAILED)
    for result in (failed, probe((0, 0))):
        assert batch_of_probe(result) is None
        assert pace_of_probe(result) is None
        assert kld_of_probe(result) is None


def test_step_time_is_the_median_of_full_steps() -> None:
    """Cut drafts cost less, and one stall is no change."""
    result = probe(*[(3, 1)] * 7, (2, 1))
    assert pace_of_probe(result) == (math.log(0.02), "code, 0, None, 0")
    assert pace_of_probe(probe((3, 1))) is None


def test_the_divergence_of_a_probe_is_its_mean() -> None:
    """One value for each probe: its positions are not independent."""
    found = kld_of_probe(probe((3, 1), klds=(0.0, 0.5)))
    assert found is not None
    assert found[0] == 0.25


# --- evidence -------------------------------------------------------------------------------


def learned_alone(steps: float = 1e9) -> Counts:
    """A detector of one server that knows its level all but exactly."""
    detector = counts(ranged=True, positions=3, strata=("",))
    c = chance(CODE)
    batches = 1e6
    information = steps / batches * c * (c + c * c) * (1 - c)
    settled = msgspec.structs.replace(
        detector.settled,
        trials=steps * np.array([[1, c, c * c]]),
        kept=steps * np.array([[c, c * c, c**3]]),
        squares=np.asarray(batches * information),
        information=np.asarray(batches * information),
        information_squares=np.asarray(batches * information**2),
    )
    return msgspec.structs.replace(
        detector, settled=settled, rate_steps=np.asarray(1e5), rate_seconds=np.asarray(DAY)
    )


def test_evidence_is_the_likelihood_ratio() -> None:
    """That of the kept counts at log-odds moved by the size of change, over the reference."""
    trials, kept = np.array([100.0, 80, 50]), np.array([80.0, 50, 30])
    step = counted(
        learned_alone(), trials, kept, SETTINGS, batch=batch(0, 5, trials, kept), stratum=0
    )
    c = chance(CODE)
    for direction, sign in ((0, -1), (1, 1)):
        odds = c / (1 - c) * np.exp(sign * TILTS)
        d = odds / (1 + odds)
        ratio = kept.sum() * np.log(d / c) + (trials - kept).sum() * np.log((1 - d) / (1 - c))
        np.testing.assert_allclose(step.scores[0, direction], ratio, rtol=1e-3, atol=1e-3)


def test_many_servers_are_watched_as_each_would_be_alone() -> None:
    """Simulated figures hold for the daemon: both run the same code, with equal results."""
    rng = np.random.default_rng(3)
    fleet, alone = counts(3, ranged=True, positions=3, strata=("",)), [Acceptance()] * 3
    for count in range(60):
        trials, kept = drawn(rng, 60, rng.choice([chance(CODE), chance(CREATIVE)], 3))
        times = batch(count * 60, count * 60 + 5, (), ())
        fleet = counted(fleet, trials, kept, SETTINGS, batch=times, stratum=0).detector
        alone = [
            lived(state, batch(count * 60, count * 60 + 5, trials[i], kept[i]), SETTINGS)
            for i, state in enumerate(alone)
        ]
    for i, state in enumerate(alone):
        np.testing.assert_allclose(fleet.bank.score[i], state.live.bank.score)
        np.testing.assert_allclose(fleet.settled.levels[i], state.live.settled.levels)


@pytest.mark.parametrize(("after", "batches"), [(0.50, 12), (0.75, 150)])
def test_a_fall_is_found_near_the_information_bound(after: float, batches: int) -> None:
    """At one false alarm a week, levels learned, no delay is above 1.5 times the bound.

    100 000 steps a day; batches of 10 steps.
    """
    fleet = Fleet(60).learn(alike(0.82), 150, 1000)
    delays = fleet.delays(alike(after), batches, 10)
    assert np.mean(delays[:, 1]) <= 1.5 * bound(0.82, after, 7e5)


def test_a_rise_is_found_too() -> None:
    """A better head is news as well."""
    fleet = Fleet(20).learn(alike(0.50), 150, 1000)
    assert np.mean(fleet.delays(alike(0.82), 12, 10)[:, 1]) <= 1.5 * bound(0.50, 0.82, 7e5)


def test_false_alarms_keep_to_their_rate() -> None:
    """With learned levels there are no more of them than were allowed."""
    fleet = Fleet(100, alarms_per_day=1e5 / 2000).learn(alike(0.82), 40, 500)
    assert np.all(fleet.alarms(alike(0.82), 200, 10) <= 100 * 200 * 10 / 2000)


def test_steps_that_are_alike_within_requests_keep_to_it_too() -> None:
    """What is learned is how requests scatter, so a bad one is no alarm."""

    def scattered(rng: np.random.Generator, runs: int) -> Array:
        return np.asarray(1 / (1 + np.exp(-2.2 - 0.8 * rng.standard_normal(runs))))

    fleet = Fleet(40, alarms_per_day=1e5 / 10_000).learn(scattered, 200, 100)
    assert np.all(fleet.alarms(scattered, 150, 100) <= 40 * 150 * 100 / 10_000)


def test_rare_bad_requests_are_learned_from_as_they_are() -> None:
    """Requests need not scatter symmetrically: one in ten of another kind is normal here."""
    skewed = mixed(*[CODE] * 9, CREATIVE)
    fleet = Fleet(30, alarms_per_day=1e5 / 10_000).learn(skewed, 300, 100)
    assert np.all(fleet.alarms(skewed, 150, 100) <= 1.5 * 30 * 150 * 100 / 10_000)


@pytest.mark.parametrize("task", [CODE, CREATIVE])
def test_a_change_of_the_mix_is_no_shift(task: float) -> None:
    """When only one of two tasks is left, the level moves, but not out of the range."""
    fleet = two_tasks()
    suspected, shifted = fleet.delays(alike(task), 100, 100).T
    assert not np.isnan(suspected).any()
    assert np.isnan(shifted).all()


def test_half_the_acceptance_is_a_shift_on_a_mixed_server() -> None:
    """No mix of tasks seen before keeps so few tokens."""
    halved = two_tasks().delays(mixed(CODE / 2, CREATIVE / 2), 100, 100)
    assert not np.isnan(halved).any()


def test_a_slow_decay_is_found_while_it_lasts() -> None:
    """0.82 falls to 0.70 over 6 h: found within 5 h at 10 000 steps a day."""
    fleet = Fleet(20, per_day=1e4).learn(alike(0.82), 150, 100)
    found = np.full(20, np.nan)
    for count in range(1, 25):
        hours = count * 0.24
        over = fleet.feed(alike(round(0.82 - 0.12 * hours / 6, 6)), 100)[:, 1]
        found[over & np.isnan(found)] = hours
    assert np.nanmax(found) <= 5.2
    assert not np.isnan(found).any()


def test_a_small_change_is_no_news() -> None:
    """Less than ``least_change`` of the kept tokens, however sure, raises nothing."""
    fleet = Fleet(10).learn(alike(0.95), 100, 1000)
    fleet.settings = msgspec.structs.replace(fleet.settings, least_change=0.10)
    assert np.isnan(fleet.delays(alike(0.90), 40, 1000)).all()


# --- one server -----------------------------------------------------------------------------


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


def test_a_new_detector_learns_first() -> None:
    """There is no past to compare with."""
    assert Acceptance().phase is Phase.LEARNING
    assert steady().state.phase is Phase.WATCHING


def test_a_shift_says_what_when_and_how_much() -> None:
    """Direction, start, and levels before and after in kept tokens per step."""
    server = steady()
    change = server.at
    server.until(Phase.SHIFTED, lambda: server.live(0.5), 5)
    shift = server.state.shift
    assert shift is not None
    assert (shift.direction, shift.source) == (Direction.FALL, Source.LIVE)
    assert abs(shift.began_unix_seconds - change) <= 300
    assert shift.detected_unix_seconds == server.at
    assert shift.before == pytest.approx(3 * 0.82, abs=0.03)
    assert shift.after == pytest.approx(3 * 0.5, abs=0.2)


def test_an_idle_night_is_no_shift() -> None:
    """Looks at a server that did nothing change nothing at all; the morning is as ever."""
    server = steady()
    state = msgspec.structs.replace(server.state, meter=None)
    for minute in range(10):
        state = scraped(state, usage(500, 400, 300), usage(0), server.at + 60 * minute, SETTINGS)
    assert state.live is server.state.live
    server.at += 10 * 3600
    server.live(0.82, batches=60)
    assert server.state.phase is Phase.WATCHING


def test_a_restart_is_no_shift() -> None:
    """What a restart hides of a rounded counter is not taken for drafts without success."""
    server = steady()
    c = chance(0.82)
    drafts, positions, carried, state = 2e7, np.zeros(3), 0.0, server.state
    for count in range(60):
        if count == 30:
            drafts, carried = drafts + 90, 50.0  # counted, then lost in the last digit
        drafts += 350
        positions += 350 * np.array([c, c * c, c**3])
        state = scraped(
            state,
            usage(drafts, *(int(n) for n in positions), error=50, carried=carried),
            usage(0),
            server.at + 300 * count,
            SETTINGS,
        )
        assert state.phase is Phase.WATCHING


def test_rounded_counters_delay_but_do_not_mislead() -> None:
    """At 5e7 drafts, printed to the nearest 100: no false alarm, and a fall is found."""
    server = steady()
    drafts, positions, state, found = 5e7, np.zeros(3), server.state, None
    for count in range(120):
        trials, kept = drawn(server.rng, 150, chance(0.82 if count < 80 else 0.5))
        drafts, positions = drafts + trials[0], positions + kept
        shown = usage(round(drafts / 100) * 100, *(int(n) for n in positions), error=50)
        state = scraped(state, shown, usage(0), server.at + 130 * count, SETTINGS)
        if state.shift is not None:
            found = count - 79
            break
    assert found is not None
    assert 1 <= found <= 10


def test_shorter_drafts_are_no_lower_acceptance() -> None:
    """Positions that are not drafted any more are not compared."""
    server = steady()
    c = chance(0.82)
    for _ in range(40):
        began, server.at = server.at, server.at + 300
        kept = float(server.rng.binomial(350, c))
        server.state = lived(server.state, batch(began, server.at, (350,), (kept,)), SETTINGS)
    assert server.state.phase is Phase.WATCHING


def test_longer_drafts_are_learned_before_they_are_judged() -> None:
    """A new position has no past."""
    server = steady()
    for _ in range(5):
        began, server.at = server.at, server.at + 300
        trials, kept = drawn(server.rng, 350, chance(0.82))
        more = (*trials, kept[2]), (*kept, kept[2] // 2)
        server.state = lived(server.state, batch(began, server.at, *more), SETTINGS)
    assert server.state.phase is Phase.WATCHING
    assert server.state.live.settled.trials.shape == (1, 4)


def test_other_counters_are_another_past() -> None:
    """Totals cannot be compared with positions: learning starts again."""
    server = steady()
    found = msgspec.structs.replace(
        batch(server.at, server.at + 5, (300,), (200,)), by_position=False, spread=7 / 3
    )
    assert lived(server.state, found, SETTINGS).phase is Phase.LEARNING


def test_totals_alone_are_enough() -> None:
    """Builds without per-position counters are watched with a little less power."""
    server, rng = Watched(Acceptance(), 0.0), np.random.default_rng(2)

    def request(level: float) -> None:
        _, kept = drawn(rng, 350, chance(level))
        server.at += 300
        totals = Usage(
            drafts=Amount(350), draft_tokens=Amount(1050), accepted_tokens=Amount(float(kept.sum()))
        )
        found = batch_of(totals, began=server.at - 300, ended=server.at)
        assert found is not None
        server.state = lived(server.state, found, SETTINGS)

    for _ in range(150):
        request(0.82)
    assert server.state.phase is Phase.WATCHING
    server.until(Phase.SHIFTED, lambda: request(0.6), 10)
    assert server.state.shift is not None
    assert server.state.shift.before == pytest.approx(2.46, abs=0.05)


def test_a_suspicion_without_probes_waits_and_is_let_go() -> None:
    """The new mix becomes the level; the range remembers the old one."""
    server = known(probes=False)
    server.until(Phase.SUSPECTED, lambda: server.live(CREATIVE), 30)
    server.until(Phase.WATCHING, lambda: server.live(CREATIVE), 80)
    server.live(CODE, CREATIVE, batches=30)
    assert server.state.shift is None
    assert server.state.ended is None


def test_a_suspicion_is_dropped_when_the_level_returns() -> None:
    """A run of one task ends by itself."""
    server = known(probes=False)
    server.until(Phase.SUSPECTED, lambda: server.live(CREATIVE), 30)
    assert server.until(Phase.WATCHING, lambda: server.live(CODE), 40) < 40
    assert server.state.live.pending.batches == 0


def test_probes_refute_a_change_of_the_mix() -> None:
    """Their tasks are known: if none of them moved, the server did not."""
    server = known(probes=True)
    server.until(Phase.SUSPECTED, lambda: server.live(CREATIVE), 60)
    server.until(Phase.WATCHING, server.probe, 40)
    assert server.state.shift is None


def test_probes_confirm_what_users_see() -> None:
    """Half as sure as an alarm of their own needs to be is enough when users show it too."""
    server = known(probes=True)
    server.until(Phase.SUSPECTED, lambda: server.live(0.72 * CODE, 0.72 * CREATIVE), 60)
    server.until(Phase.SHIFTED, lambda: server.probe(0.72), 30)
    assert server.state.shift is not None
    assert server.state.shift.source is Source.BOTH


def test_probes_alone_raise_a_shift() -> None:
    """An idle server that got worse is found before its users come."""
    server = known(probes=True)
    server.until(Phase.SHIFTED, lambda: server.probe(0.5), 10)
    assert server.state.shift is not None
    assert server.state.shift.source is Source.PROBES


def test_what_no_mix_explains_waits_for_probes_that_run() -> None:
    """A task never seen before looks like a fault, so probes get the time to say."""
    server = known(probes=True)
    server.settings = Settings(patience_seconds=1e9, probe_fresh_seconds=1e9)
    server.until(Phase.SUSPECTED, lambda: server.live(0.12), 30)
    server.live(0.12, batches=30)
    assert server.state.phase is Phase.SUSPECTED
    server.settings = SETTINGS
    assert server.live(0.12).state.phase is Phase.SHIFTED


def test_a_shift_ends_when_the_level_returns() -> None:
    """The old reference still holds then."""
    server = steady()
    server.until(Phase.SHIFTED, lambda: server.live(0.5), 5)
    server.live(0.5, batches=20)
    assert server.state.phase is Phase.SHIFTED
    server.until(Phase.WATCHING, lambda: server.live(0.82), 10)
    assert server.state.ended is not None
    assert server.state.ended.ending is Ending.RECOVERED
    assert server.live(0.82, batches=20).state.shift is None


def test_a_short_fall_ends_as_well() -> None:
    """A level that was too short to be learned is left when the old one holds again."""
    server = steady()
    server.until(Phase.SHIFTED, lambda: server.live(0.5), 5)
    server.until(Phase.WATCHING, lambda: server.live(0.82), 10)
    assert server.state.ended is not None
    assert server.state.ended.ending is Ending.RECOVERED


def test_a_further_fall_is_not_the_end_of_a_shift() -> None:
    """Only a change back is; whatever else happens, the same shift stands."""
    server = steady()
    server.until(Phase.SHIFTED, lambda: server.live(0.6), 5)
    server.live(0.6, batches=20)
    server.live(0.3, batches=20)
    assert server.state.phase is Phase.SHIFTED
    server.until(Phase.WATCHING, lambda: server.live(0.82), 10)


def test_probes_follow_a_shift_that_users_showed() -> None:
    """They learn the new level too, and raise no second shift."""
    server = known(probes=True)
    server.at += 1000  # probes have not run for a while
    server.until(Phase.SHIFTED, lambda: server.live(CODE / 3, CREATIVE / 3), 60)
    shift = server.state.shift
    for _ in range(10):
        server.probe(1 / 3)
    assert server.state.shift is shift


def test_counters_that_vanish_leave_a_shift_standing() -> None:
    """Totals do not tell whether the level by position has returned."""
    server = steady()
    server.until(Phase.SHIFTED, lambda: server.live(0.5), 5)
    totals = msgspec.structs.replace(
        batch(server.at, server.at + 5, (300,), (200,)), by_position=False, spread=7 / 3
    )
    for _ in range(10):
        server.state = lived(server.state, totals, SETTINGS)
    assert server.state.phase is Phase.SHIFTED


def test_a_shift_that_stays_becomes_the_level() -> None:
    """After ``hold_seconds`` it is cleared, and changes from there are news again."""
    server = steady()
    server.settings = Settings(hold_seconds=7200)
    server.until(Phase.SHIFTED, lambda: server.live(0.5), 5)
    server.until(Phase.WATCHING, lambda: server.live(0.5), 40)
    assert server.state.ended is not None
    assert server.state.ended.ending is Ending.RELEARNED
    server.until(Phase.SHIFTED, lambda: server.live(0.82), 10)
    assert server.state.shift is not None
    assert server.state.shift.direction is Direction.RISE


def test_a_shift_seen_by_probes_ends_by_probes() -> None:
    """Users' traffic cannot tell: its tasks are not known."""
    server = known(probes=True)
    server.until(Phase.SHIFTED, lambda: server.probe(0.5), 10)
    server.live(CODE, CREATIVE, batches=10)
    assert server.state.phase is Phase.SHIFTED
    server.until(Phase.WATCHING, server.probe, 30)


def test_a_build_that_halves_acceptance_is_a_shift() -> None:
    """A planned change is no excuse for that."""
    server = steady()
    server.state = replanned(server.state)
    server.until(Phase.SHIFTED, lambda: server.live(0.41), 5)


def test_a_build_that_is_a_little_worse_is_the_new_level() -> None:
    """After a planned change the level is learned anew, without an alarm."""
    server = steady()
    server.state = replanned(server.state)
    server.live(0.75, batches=60)
    assert server.state.phase is Phase.WATCHING
    assert not server.state.live.replanned
    server.until(Phase.SHIFTED, lambda: server.live(0.6), 5)


def test_a_planned_change_ends_a_shift() -> None:
    """Whether the fault is still there is judged anew, against the old reference."""
    server = steady()
    server.until(Phase.SHIFTED, lambda: server.live(0.41), 5)
    server.state = replanned(server.state)
    assert server.state.phase is not Phase.SHIFTED
    assert server.state.ended is not None
    assert server.state.ended.ending is Ending.REPLANNED
    server.until(Phase.SHIFTED, lambda: server.live(0.41), 5)


# --- whatever comes -------------------------------------------------------------------------

numbers = st.one_of(st.integers(0, 10**7), st.floats(-1e4, 1e7))
batches = st.builds(
    lambda began, length, steps, pairs, error, stratum, split: Batch(
        began_unix_seconds=began,
        ended_unix_seconds=began + length,
        steps=float(steps),
        trials=tuple(float(t) for t, _ in pairs),
        kept=tuple(float(k) for _, k in pairs),
        trials_error=error,
        lasting_error=error / 2,
        spread=7 / 3 if split else 1.0,
        by_position=not split,
        stratum=stratum,
    ),
    st.floats(0, 2e9),
    st.floats(-10, 1e6),
    numbers,
    st.lists(st.tuples(numbers, numbers), max_size=20),
    st.floats(0, 1e4),
    st.sampled_from(["", "a", "b"]),
    st.booleans(),
)


def size(state: Acceptance) -> int:
    """Numbers held."""
    return sum(
        array.size
        for detector in (state.live, state.probes)
        for learned in (detector.settled, detector.pending)
        for array in (learned.trials, learned.kept, learned.levels)
    ) + len(state.trail)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(batches, st.sampled_from([lived, probed])), max_size=12))
def test_any_batches_leave_a_finite_and_bounded_state(
    found: list[tuple[Batch, Callable[[Acceptance, Batch, Settings], Acceptance]]],
) -> None:
    """No exception, no NaN, no growth beyond fixed limits."""
    state = Acceptance()
    for one, act in found:
        state = act(state, one, Settings(learn_steps=0, learn_batches=0))
        assert np.isfinite(state.live.bank.score).all()
        assert np.isfinite(state.probes.bank.score).all()
    assert size(state) <= 4 * (2 * MOST_STRATA * MOST_POSITIONS + LEVELS) + TRAIL


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(batches, st.sampled_from([lived, probed])), max_size=12))
def test_no_steps_are_no_alarm(
    found: list[tuple[Batch, Callable[[Acceptance, Batch, Settings], Acceptance]]],
) -> None:
    """Whatever else a batch without steps claims, it changes nothing."""
    state = steady().state
    for one, act in found:
        assert act(state, msgspec.structs.replace(one, steps=0.0), SETTINGS) == state


def test_more_strata_than_there_is_room_for_are_ignored() -> None:
    """Memory is bounded whatever the suite of prompts is."""
    state = Acceptance()
    for i in range(MOST_STRATA + 5):
        found = msgspec.structs.replace(batch(i, i + 1, (20,), (10,)), stratum=str(i))
        state = probed(state, found, SETTINGS)
    assert len(state.probes.strata) == MOST_STRATA


def test_a_probe_before_any_traffic_is_harmless() -> None:
    """Each source has its own past."""
    server = Watched(Acceptance(), 0.0).probe()
    assert server.state.phase is Phase.LEARNING
    assert server.state.live.strata == ()


# --- values ---------------------------------------------------------------------------------


def values(
    state: Values, found: Sequence[float], kind: str = "a", start: float = 0.0
) -> tuple[Values, float]:
    at = start
    for value in found:
        state = measured(state, value, PACE, stratum=kind, began=at, ended=at + 60)
        at += 60
    return state, at


def noise(seed: int, count: int, shift: float = 0.0) -> list[float]:
    """Logarithms of step times with rare stalls."""
    rng = np.random.default_rng(seed)
    return [float(x) for x in math.log(0.03) + shift + 0.03 * rng.standard_t(3, count)]


def alarms_of(found: Array, rate: float) -> float:
    """Alarms of many detectors as a share of those allowed, one in ``rate`` values."""
    strict = msgspec.structs.replace(PACE, least_change=0.0, alarms_per_day=1440 / rate)
    detector, total = ranks(found.shape[1], strata=("",)), 0.0
    for count, value in enumerate(found):
        step = ranked(
            detector, value, strict, stratum=0, began=60.0 * count, ended=60.0 * count + 60
        )
        over = step.excess >= 0
        total += float(np.any(over, axis=(-3, -2, -1)).sum())
        bank = msgspec.structs.replace(
            step.detector.bank, score=np.where(over, 0.0, step.detector.bank.score)
        )
        detector = msgspec.structs.replace(step.detector, bank=bank)
    return total * rate / found.size


@pytest.mark.parametrize("kind", ["heavy", "zeros", "alike"])
def test_values_of_any_distribution_keep_to_the_rate(kind: str) -> None:
    """Heavy tails, many equal values, and values that resemble those before them."""
    rng = np.random.default_rng(4)
    found = rng.standard_t(2, (600, 40))
    if kind == "zeros":
        found = np.where(found < 0.5, 0.0, found)
    if kind == "alike":
        for row in range(1, 600):
            found[row] = 0.7 * found[row - 1] + rng.standard_normal(40)
    assert alarms_of(found, 200) <= 1.0


def test_slower_steps_are_found() -> None:
    """Ten per cent, in noise of five: within 30 values, named by their means."""
    state, at = values(Values(), noise(1, 300))
    assert state.phase is Phase.WATCHING
    state, _ = values(state, noise(2, 30, math.log(1.1)), start=at)
    assert state.phase is Phase.SHIFTED
    assert state.shift is not None
    assert state.shift.direction is Direction.RISE
    assert state.shift.after - state.shift.before == pytest.approx(math.log(1.1), abs=0.06)
    assert abs(state.shift.began_unix_seconds - at) <= 300


def test_a_rare_divergence_where_there_was_none_is_found() -> None:
    """Many exact zeros, then one value in three above them."""
    state, at = Values(), 0.0
    for count in range(400):
        value = 0.01 if count >= 300 and count % 3 == 0 else 0.0
        state = measured(state, value, KLD, stratum="a", began=at, ended=at + 60)
        at += 60
    assert state.shift is not None
    assert state.shift.before == pytest.approx(0.0, abs=1e-3)


def test_a_sure_but_small_change_of_a_value_is_no_news() -> None:
    """Three per cent slower is below the least change."""
    state, at = values(Values(), [math.log(0.03) + 1e-5 * i for i in range(100)])
    state, _ = values(state, [math.log(0.0309)] * 60, start=at)
    assert state.shift is None


def test_a_value_that_returns_ends_its_shift() -> None:
    """As for acceptance."""
    state, at = values(Values(), noise(1, 300))
    state, at = values(state, noise(2, 30, 0.3), start=at)
    assert state.phase is Phase.SHIFTED
    state, at = values(state, noise(3, 30), start=at)
    assert state.phase is Phase.WATCHING
    assert state.ended is not None
    assert state.ended.ending is Ending.RECOVERED


def test_a_value_that_moves_on_keeps_its_shift() -> None:
    """Still slower is no return; a kind without a past does not tell."""
    state, at = values(Values(), noise(1, 300))
    state, at = values(state, noise(2, 60, 0.3), start=at)
    state, at = values(state, noise(3, 30, 0.6), start=at)
    state, at = values(state, noise(4, 30), "b", at)
    assert state.phase is Phase.SHIFTED


def test_a_value_that_was_off_for_a_moment_ends_its_shift() -> None:
    """Too few values to learn the new level from."""
    state, at = values(Values(), noise(1, 300))
    while state.shift is None:
        state, at = values(state, noise(2, 1, 0.3), start=at)
    state, at = values(state, noise(3, 60), start=at)
    assert state.phase is Phase.WATCHING


def test_a_value_that_stays_becomes_the_past() -> None:
    """After ``hold_seconds``."""
    state, at = values(Values(), noise(1, 300))
    state, at = values(state, noise(2, 60, 0.3), start=at)
    state, at = values(state, noise(3, 5, 0.3), start=at + DAY)
    assert state.ended is not None
    assert state.ended.ending is Ending.RELEARNED
    assert state.phase is Phase.WATCHING


def test_a_planned_change_may_move_a_value_a_little() -> None:
    """A fifth slower after another build is the new past; twice as slow is a shift."""
    before, at = values(Values(), noise(1, 300))
    state, _ = values(remeasured(before), noise(2, 60, math.log(1.2)), start=at)
    assert state.shift is None
    assert not state.ranks.replanned
    state, _ = values(remeasured(before), noise(2, 30, math.log(2)), start=at)
    assert state.phase is Phase.SHIFTED
    assert remeasured(state).phase is Phase.WATCHING
    assert remeasured(state).ended is not None


def test_values_of_other_kinds_have_their_own_past() -> None:
    """A task whose steps are slower is not a change when its turn comes."""
    state, at = Values(), 0.0
    for one, other in zip(noise(1, 120), noise(2, 120, 1.0), strict=True):
        state, at = values(state, [one], "a", at)
        state, at = values(state, [other], "b", at)
    assert state.shift is None
    assert state.ranks.past.shape == (2, MOST_PAST)


def test_a_value_that_is_no_number_is_not_taken_in() -> None:
    """Nor is one of a stratum that there is no room for."""
    state = Values()
    for value in (math.nan, math.inf):
        assert values(state, [value])[0] == state
    for i in range(MOST_STRATA):
        state, _ = values(state, [0.0], str(i))
    assert values(state, [0.0], "one more")[0] is state


def test_no_value_is_no_past() -> None:
    """A detector of values learns first, too."""
    assert Values().phase is Phase.LEARNING


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-1e9, 1e9), max_size=60))
def test_any_values_leave_a_finite_state(found: list[float]) -> None:
    """Equal values, huge ones, any order."""
    state, _ = values(Values(), found)
    assert np.isfinite(state.ranks.bank.score).all()


# --- why ------------------------------------------------------------------------------------


def event(at: float, kind: EventKind = EventKind.RESTART, before: str | None = "x") -> Event:
    return Event(server="a", unix_seconds=at, kind=kind, before=before, after="y")


def test_causes_are_what_happened_near_the_start_and_before_the_alarm() -> None:
    """Nearest first; looks that failed and first sights are none."""
    shift = Shift(
        direction=Direction.FALL,
        began_unix_seconds=1000,
        detected_unix_seconds=1400,
        before=2.4,
        after=1.2,
    )
    near, nearer = event(800, EventKind.BUILD), event(1100)
    others = (
        event(500),
        event(1000, EventKind.STATE),
        event(1000, EventKind.MODEL, before=None),
        event(1401),
    )
    assert causes([near, *others, nearer], shift) == (nearer, near)


def test_the_yardstick_needs_a_reference() -> None:
    """Without one no size of change is looked for."""
    assert not yardstick(counts(ranged=True, strata=("",)), 0, SETTINGS).active.any()
