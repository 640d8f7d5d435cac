"""Evidence of a change of acceptance: how soon, how often falsely, and what is not one."""

import msgspec
import numpy as np
import pytest

from mtpmon.shift.acceptance import Acceptance, lived
from mtpmon.shift.counts import counted
from mtpmon.shift.learned import TILTS, Counts, counts
from mtpmon.shift.settings import DAY
from mtpmon.shift.yardstick import yardstick
from tests.fleet import Fleet, alike, bound, chance, drawn, mixed, scattered
from tests.shifting import CODE, CREATIVE, SETTINGS, batch, two_tasks


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
    requests = scattered(0.8, 0.8)
    fleet = Fleet(40, alarms_per_day=1e5 / 10_000).learn(requests, 200, 100)
    assert np.all(fleet.alarms(requests, 150, 100) <= 40 * 150 * 100 / 10_000)


def test_rare_bad_requests_are_learned_from_as_they_are() -> None:
    """Requests need not scatter symmetrically: one in ten of another kind is normal here."""
    skewed = mixed({CODE: 9, CREATIVE: 1})
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
    halved = two_tasks().delays(mixed({CODE / 2: 1, CREATIVE / 2: 1}), 100, 100)
    assert not np.isnan(halved).any()


def test_a_slow_decay_is_found_while_it_lasts() -> None:
    """0.82 falls to 0.70 over 6 h: found within 5 h at 10 000 steps a day."""
    fleet = Fleet(20, per_day=1e4).learn(alike(0.82), 150, 100)
    found, began = fleet.watch(lambda seconds: alike(0.82 - 0.12 * seconds / 21_600), 25, 100)
    assert np.max(found[:, 1]) / 1e4 * 24 <= 5.2
    assert np.all(began[:, 1] >= 0)


def test_a_small_change_is_no_news() -> None:
    """Less than ``least_change`` of the kept tokens, however sure, raises nothing."""
    fleet = Fleet(10).learn(alike(0.95), 100, 1000)
    fleet.settings = msgspec.structs.replace(fleet.settings, least_change=0.10)
    assert np.isnan(fleet.delays(alike(0.90), 40, 1000)).all()


def test_the_yardstick_needs_a_reference() -> None:
    """Without one no size of change is looked for."""
    assert not yardstick(counts(ranged=True, strata=("",)), 0, SETTINGS).active.any()
