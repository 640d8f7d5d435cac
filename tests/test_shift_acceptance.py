"""Changes of acceptance on one server: raised, explained, ended."""

from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtpmon.model import Amount, Usage
from mtpmon.shift.acceptance import (
    TRAIL,
    Acceptance,
    lived,
    probed,
    replanned,
    scraped,
    touched,
)
from mtpmon.shift.batch import MOST_POSITIONS, Batch, batch_of
from mtpmon.shift.evidence import Direction
from mtpmon.shift.found import Ending, Phase, Source
from mtpmon.shift.learned import LEVELS
from mtpmon.shift.settings import DAY, MOST_STRATA, Settings
from tests.fleet import chance, drawn
from tests.shifting import CODE, CREATIVE, SETTINGS, Watched, batch, known, steady, usage


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


@pytest.mark.parametrize("days", [30, 20_000])
def test_weeks_of_rest_raise_no_suspicion(days: float) -> None:
    """Nor does a clock that is set for the first time: evidence as large is as rare as before."""
    raised = 0
    for seed in range(4):
        server = steady(seed)
        before = server.state.raised
        server.at += days * DAY
        rng = np.random.default_rng(seed)
        for _ in range(120):
            server.live(float(rng.uniform(0.80, 0.84)))
        raised += len(server.state.raised) - len(before)
    assert raised == 0


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
    server.settings = msgspec.structs.replace(
        SETTINGS, patience_seconds=1e9, probe_fresh_seconds=1e9
    )
    server.until(Phase.SUSPECTED, lambda: server.live(0.12), 30)
    server.live(0.12, batches=30)
    assert server.state.phase is Phase.SUSPECTED
    server.settings = SETTINGS
    assert server.live(0.12).state.phase is Phase.SHIFTED


def test_tasks_must_be_known_for_users_alone_to_show_a_shift() -> None:
    """On the first day it also takes that something happened to the server just then."""
    server = steady()
    server.settings = Settings(acquaint_seconds=DAY)
    server.live(0.5, batches=5)
    assert server.state.phase is Phase.SUSPECTED
    other = steady()
    other.settings = server.settings
    other.state = touched(other.state, other.at)
    other.until(Phase.SHIFTED, lambda: other.live(0.5), 5)
    server.until(Phase.SHIFTED, lambda: server.live(0.5), 80)
    assert server.at >= DAY


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
    server.settings = msgspec.structs.replace(SETTINGS, hold_seconds=7200)
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
