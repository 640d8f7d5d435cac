"""Changes of step time and KL divergence."""

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtpmon.shift.evidence import Array, Direction
from mtpmon.shift.found import Ending, Phase
from mtpmon.shift.ranks import MOST_PAST, ranked, ranks
from mtpmon.shift.settings import DAY, KLD, MOST_STRATA, PACE
from mtpmon.shift.values import Values, measured, remeasured
from tests.fleet import cleared


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


def alarms_of(found: Array, rate: float, *, jump: float = 0.0) -> float:
    """Alarms of many detectors as a share of those allowed, one in ``rate`` values.

    After half of the values the clock jumps by so many seconds.
    """
    strict = msgspec.structs.replace(PACE, least_change=0.0, alarms_per_day=1440 / rate)
    detector, total = ranks(found.shape[1], strata=("",)), 0.0
    for count, value in enumerate(found):
        at = 60.0 * count + (jump if count > len(found) / 2 else 0.0)
        step = ranked(detector, value, strict, stratum=0, began=at, ended=at + 60)
        over = step.excess >= 0
        total += float(np.any(over, axis=(-3, -2, -1)).sum())
        detector = cleared(step.detector, over)
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


@pytest.mark.parametrize("days", [-30, 30, 20_000])
def test_no_jump_of_the_clock_makes_alarms(days: float) -> None:
    """A machine that starts in 1970, until it is told the time; or a server at rest for weeks."""
    found = np.random.default_rng(6).standard_t(3, (600, 40))
    assert alarms_of(found, 1000, jump=days * DAY) <= 1.0


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
