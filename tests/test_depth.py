"""Which draft length is best, from one server."""

import math
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpmon.cost import PlainSource, StepCosts, step_costs
from mtpmon.depth import DepthAdvice, DepthOption, best_depth, expected_speedups, in_words
from mtpmon.model import Bounded
from mtpmon.request import Request, kept_by_prompt
from mtpmon.spread import Location, normal_quantile
from mtpmon.tally import Tally
from tests.costs import against, step_costs_of
from tests.world import World

POOR = World(conditional=(0.6, 0.3, 0.3), bases=(1.1, 1.4, 1.7, 2.0))
QUIET = replace(POOR, scatter=0.0, request_scatter=0.0, startup=0.1, planning=0.1)


def many(world: World, drafts: float = 1e6) -> Tally:
    """Traffic whose shares are the true ones."""
    return Tally(
        drafts=drafts,
        draft_tokens=drafts * world.longest,
        by_position=tuple((drafts * world.positions()).tolist()),
    )


def costs_of(requests: Sequence[Request]) -> StepCosts:
    found = step_costs(requests, confidence=0.95)
    assert found is not None
    return found


def advice(tally: Tally, costs: StepCosts, **options: object) -> DepthAdvice:
    found = best_depth(tally, costs, confidence=0.95, **options)  # type: ignore[arg-type]
    assert found is not None
    return found


def option(of: DepthAdvice, drafted: int) -> DepthOption:
    found = of.option(drafted)
    assert found is not None
    return found


def bounds(of: DepthAdvice, drafted: int) -> Bounded:
    found = option(of, drafted).gain_bounds
    assert found is not None
    return found


# --- the truth ---


def test_where_cost_is_linear_every_gain_is_exact() -> None:
    """All settings of one server that runs with 3, drafting off included."""
    found = advice(many(QUIET), costs_of(QUIET.pairs(np.random.default_rng(1), 60)))
    assert [o.drafted for o in found.options] == [0, 1, 2, 3, 4]
    for drafted in (1, 2, 3):
        gain = QUIET.speedup(drafted) / QUIET.speedup() - 1
        assert option(found, drafted).gain == pytest.approx(gain, abs=2e-3)
        assert option(found, drafted).speedup == pytest.approx(QUIET.speedup(drafted), rel=2e-3)
    assert option(found, 0).gain == pytest.approx(1 / QUIET.speedup() - 1, abs=2e-3)
    assert option(found, 0).speedup == pytest.approx(1)


def test_rejections_are_cheaper_with_a_shorter_draft_where_they_are_rarer() -> None:
    """A step of 2 drafted is rolled back only if it kept less than 2."""
    rolling = replace(QUIET, rollback=(0.4, 0.4, 0.4))
    found = advice(many(rolling), costs_of(rolling.pairs(np.random.default_rng(1), 60)))
    for drafted in (1, 2):
        gain = rolling.speedup(drafted) / rolling.speedup() - 1
        assert option(found, drafted).gain == pytest.approx(gain, abs=5e-3)


def test_the_best_is_advised_when_it_is_certain() -> None:
    """Here a single token is 25 % faster than three."""
    found = advice(many(POOR, 2000), costs_of(POOR.pairs(np.random.default_rng(1), 60)))
    assert POOR.speedup(1) / POOR.speedup() == pytest.approx(1.246, abs=0.01)
    assert found.present == 3
    assert found.best == 1
    assert found.advised == 1
    assert bounds(found, 1).lower > 0


def test_little_traffic_makes_no_advice() -> None:
    """The same server after 50 steps: the best guess is there, the advice is not."""
    found = advice(
        many(POOR, 50), costs_of(POOR.pairs(np.random.default_rng(1), 60)), design_effect=4.0
    )
    assert found.best == 1
    assert found.advised is None


def test_a_server_that_is_set_right_is_left_alone() -> None:
    """Three tokens, mostly kept."""
    good = World()
    found = advice(many(good), costs_of(good.pairs(np.random.default_rng(1), 40)))
    assert (found.best, found.advised) == (3, None)


def test_drafting_that_costs_is_advised_off() -> None:
    """Nothing much is kept at any length."""
    bad = World(conditional=(0.15, 0.1, 0.1))
    found = advice(many(bad, 2000), costs_of(bad.pairs(np.random.default_rng(1), 40)))
    assert (found.best, found.advised) == (0, 0)


def test_a_gain_not_worth_a_restart_is_no_advice() -> None:
    """Certain, but below the least gain."""
    costs = costs_of(POOR.pairs(np.random.default_rng(1), 60))
    assert advice(many(POOR), costs, least_gain=0.15).advised == 1
    assert advice(many(POOR), costs, least_gain=0.35).advised is None


# --- bounds ---


LINE = {"cut": {0: 0.6}, "startup": 0.0}


def line(plain: float | None = 2.0, **changes: object) -> StepCosts:
    """Full length at 1, undrafted at 0.6: by the line 0.733 and 0.867 between."""
    return step_costs_of(against(plain) if plain else None, **(LINE | changes))  # type: ignore[arg-type]


TALLY = Tally(drafts=10_000, draft_tokens=30_000, by_position=(6000.0, 2000.0, 1000.0))


def test_the_line_bends_as_far_as_is_allowed() -> None:
    """A third of the way up: 0.2 · 4 · 1/3 · 2/3 of the rise of 0.4 to either side."""
    far, near = advice(TALLY, line(), curvature=0.2), advice(TALLY, line(), curvature=0.0)
    gain = math.log(1.6 / 1.9 / (0.6 + 0.4 / 3))
    assert option(far, 1).gain == pytest.approx(math.expm1(gain))
    assert option(near, 1).gain == pytest.approx(math.expm1(gain))
    bend = 0.2 * 4 * 1 / 3 * 2 / 3 * 0.4
    sampled = gain - math.log1p(bounds(near, 1).lower)
    low = gain - math.hypot(sampled, math.log1p(bend / (0.6 + 0.4 / 3)))
    assert bounds(far, 1).lower == pytest.approx(math.expm1(low))


def test_a_gain_is_known_better_than_its_two_lengths_are() -> None:
    """Both come from the same steps: taken apart, they make bounds nearly twice as wide."""
    kept = np.array([0.0] * 4000 + [1.0] * 4000 + [2.0] * 1000 + [3.0] * 1000)
    three, one = 1 + kept, 1 + np.minimum(kept, 1)
    apart = math.hypot(three.std() / three.mean(), one.std() / one.mean()) / 100 * 2.39398
    found = bounds(advice(TALLY, line(), curvature=0.0), 1)
    half = math.log(found.upper + 1) - math.log(found.value + 1)
    together = (three / three.mean() - one / one.mean()).std() / 100 * 2.39398
    assert half == pytest.approx(together, rel=1e-3)
    assert half < 0.6 * apart


def test_prompts_that_differ_make_wider_bounds_than_steps() -> None:
    """Where they are known, they are what was sampled."""
    requests = replace(POOR, likeness=1.0).pairs(np.random.default_rng(1), 30)
    counts = kept_by_prompt(requests)
    tally = many(POOR, sum(map(sum, counts)))
    alone = advice(tally, line(), curvature=0.0)
    by_prompt = advice(tally, line(), curvature=0.0, counts=counts)
    assert bounds(by_prompt, 1).upper - bounds(by_prompt, 1).lower > 1.3 * (
        bounds(alone, 1).upper - bounds(alone, 1).lower
    )


def test_a_cut_draft_bounds_the_cost_from_above() -> None:
    """It was drafted in full: a setting of that length pays no more."""
    dear, cheap = (line(cut={0: 0.6, 2: cut}) for cut in (2.0, 0.7))
    found = bounds(advice(TALLY, dear), 2)
    assert msgspec.structs.astuple(found) == pytest.approx(
        msgspec.structs.astuple(bounds(advice(TALLY, line()), 2))
    )
    capped = advice(TALLY, cheap, curvature=0.0)
    assert option(capped, 2).gain == pytest.approx(1.8 / 1.9 / 0.7 - 1)


def test_part_of_the_start_up_is_taken_for_planning() -> None:
    """An undrafted step of 0.6 whose size is new: 0.1 comes off, give or take half of it."""
    found = advice(TALLY, line(startup=0.1), curvature=0.0)
    cost = 0.5 + 0.5 / 3
    assert option(found, 1).gain == pytest.approx(1.6 / 1.9 / cost - 1)
    exact = advice(TALLY, line(cut={0: 0.5}), curvature=0.0)
    assert bounds(found, 1).lower < bounds(exact, 1).lower


def test_a_step_that_seems_to_cost_nothing_was_not_measured() -> None:
    """Start-up dearer than a whole undrafted step, or rejections that seem to pay."""
    free = advice(TALLY, line(plain=None, startup=1.2, cut={0: 0.1}), curvature=0.0)
    assert free.option(1) is None
    assert free.option(2) is not None
    paid = step_costs_of(against(2.0), rollback=(-9.0, 0.0, 0.0), **LINE)  # type: ignore[arg-type]
    found = best_depth(TALLY, paid, confidence=0.95)
    assert found is None or [o.drafted for o in found.options][:1] == [0]


def test_the_line_does_not_start_below_a_plain_step() -> None:
    """With a pair the plain step is known: half of a full one here."""
    found = advice(TALLY, line(startup=0.5), curvature=0.0)
    assert option(found, 1).gain == pytest.approx(1.6 / 1.9 / (0.5 + 0.5 / 3) - 1)


def test_a_flattering_plain_step_does_not_hold_the_line_up() -> None:
    """It is itself an undrafted step."""
    plain = against(1.25, source=PlainSource.UNDRAFTED, excess=2.0)
    costs = step_costs_of(plain, cut={0: 0.8}, startup=0.3)
    found = advice(TALLY, costs, curvature=0.0)
    assert option(found, 1).gain == pytest.approx(1.6 / 1.9 / (0.5 + 0.5 / 3) - 1)


def test_a_line_that_starts_below_nothing_says_nothing_where_it_is() -> None:
    """Steps so short that start-up scatters by more than they take."""
    flattering = against(1.2, source=PlainSource.UNDRAFTED)
    costs = step_costs_of(flattering, cut={0: 0.2}, startup=1.2)
    found = advice(TALLY, costs)
    assert found.option(1) is None  # 1 − 2/3 · 2
    assert option(found, 2).gain_bounds is not None  # 1 − 1/3 · 2


def test_a_measured_length_needs_no_line() -> None:
    """Free short drafts: a head that gives up when unsure."""
    costs = step_costs_of(against(2.0), relative={1: Location(0.7, 0.01, 20), 3: 1.0})
    found = advice(TALLY, costs)
    assert [o.drafted for o in found.options] == [0, 1, 3]
    assert option(found, 1).gain == pytest.approx(1.6 / 1.9 / 0.7 - 1)


def test_r_measured_at_another_setting_is_used() -> None:
    """Its own bounds and those of the present r both count; that of the present one is not."""
    known = {1: Bounded(1.3, 1.2, 1.4), 3: Bounded(9.0, 9.0, 9.0)}
    found = advice(TALLY, step_costs_of(against(Bounded(2.0, 1.9, 2.1))), known=known)
    assert option(found, 1).gain == pytest.approx(1.6 / 1.9 / (1.3 / 2.0) - 1)
    assert option(found, 3).gain == 0
    sampled = bounds(advice(TALLY, line(), curvature=0.0), 1)
    sampling = math.log(sampled.upper + 1) - math.log(sampled.value + 1)
    wider = normal_quantile(1 - 0.05 / 3) / normal_quantile(0.95)
    ours = wider * math.log(2.1 / 2.0)
    above = math.hypot(sampling, math.hypot(wider * math.log(1.3 / 1.2), ours))
    assert math.log(bounds(found, 1).upper + 1) == pytest.approx(
        math.log(bounds(found, 1).value + 1) + above
    )


def test_r_of_another_setting_says_nothing_without_one_of_this_setting() -> None:
    """There is nothing to compare it with."""
    known = {1: Bounded(1.3, 1.2, 1.4)}
    assert best_depth(TALLY, step_costs_of(None), confidence=0.95, known=known) is None


# --- what is not known ---


def test_without_undrafted_steps_only_drafting_off_is_known() -> None:
    """No line, no extrapolation."""
    for costs in (step_costs_of(against(2.0)), line(startup=None), line(cut={1: 0.8})):
        found = advice(TALLY, costs)
        assert [o.drafted for o in found.options] == [0, 3]


def test_without_a_plain_step_lengths_are_compared_all_the_same() -> None:
    """Their speed-ups are not known, and neither is drafting off."""
    found = advice(TALLY, line(None))
    assert [o.drafted for o in found.options] == [1, 2, 3, 4]
    assert all(o.speedup is None for o in found.options)
    with_one = advice(TALLY, line())
    assert bounds(found, 1).value == pytest.approx(bounds(with_one, 1).value)


def test_nothing_known_is_no_advice() -> None:
    """Neither a plain step nor an undrafted one."""
    assert best_depth(TALLY, step_costs_of(None), confidence=0.95) is None


def test_a_server_set_to_one_token_can_be_advised_off_or_on() -> None:
    """There is no length between."""
    tally = Tally(drafts=10_000, draft_tokens=10_000, by_position=(2000.0,))
    found = advice(tally, step_costs_of(against(1.5), longest=1, cut={0: 0.7}, startup=0.0))
    assert [o.drafted for o in found.options] == [0, 1, 2]
    assert found.advised == 0


# --- one beyond ---


def test_one_token_more_is_an_extrapolation_and_never_advice() -> None:
    """Kept as often as the last given the one before, at the slope of the line."""
    tally = Tally(drafts=1000, draft_tokens=3000, by_position=(950.0, 900.0, 850.0))
    found = advice(tally, line())
    beyond = option(found, 4)
    assert beyond.extrapolated
    length = 1 + 2.7 + 0.85 * 0.85 / 0.9
    assert beyond.gain == pytest.approx(length / 3.7 / (1 + 0.4 / 3) - 1)
    assert beyond.speedup == pytest.approx(3.7 / 2 * (1 + beyond.gain))
    assert beyond.gain > 0.02
    assert (found.best, found.advised) == (3, None)
    assert not option(found, 3).extrapolated


def test_what_was_never_kept_is_not_extrapolated() -> None:
    """No later position can be told from none."""
    for positions in ((500.0, 0.0, 0.0), (500.0, 100.0)):
        tally = Tally(drafts=1000, draft_tokens=3000, by_position=positions)
        assert advice(tally, line()).option(4) is None


# --- words ---


def said(advised: int | None, best: int, *options: DepthOption) -> str:
    return in_words(DepthAdvice(present=3, options=options, best=best, advised=advised))


def gains(drafted: int, gain: float, half: float | None) -> DepthOption:
    known = Bounded(gain, gain - half, gain + half) if half is not None else None
    return DepthOption(drafted=drafted, gain=gain, gain_bounds=known, speedup=None)


PRESENT = gains(3, 0.0, 0.0)


def test_advice_reads_as_an_instruction() -> None:
    """With what to expect."""
    assert said(1, 1, gains(1, 0.07, 0.02), PRESENT) == (
        "lower --spec-draft-n-max from 3 to 1: expected +7 % ± 2 %"
    )
    assert said(0, 0, gains(0, 0.09, 0.03), PRESENT) == ("turn drafting off: expected +9 % ± 3 %")


def test_lopsided_bounds_are_written_out() -> None:
    """Half their width on either side would hold less than nothing of a sure gain."""
    lopsided = DepthOption(drafted=0, gain=0.49, gain_bounds=Bounded(0.49, 0.01, 1.2), speedup=None)
    assert said(0, 0, lopsided, PRESENT) == "turn drafting off: expected +49 % (+1 % to +120 %)"


def test_no_advice_reads_as_keep() -> None:
    """And says what might be better, and how little that means."""
    assert said(None, 3, gains(1, -0.1, 0.02), PRESENT) == "keep --spec-draft-n-max 3"
    assert said(None, 1, gains(1, 0.01, 0.03), PRESENT) == (
        "keep --spec-draft-n-max 3; 1 might be faster, which is not certain: +1 % ± 3 %"
    )
    assert said(None, 0, gains(0, 0.02, 0.03), PRESENT) == (
        "keep --spec-draft-n-max 3; no drafting might be faster, which is not certain: +2 % ± 3 %"
    )


def test_an_extrapolation_reads_as_one() -> None:
    """Only where it promises something."""
    assert said(None, 3, PRESENT, gains(4, 0.05, None)) == (
        "keep --spec-draft-n-max 3; 4 is worth a try: +5 % by extrapolation,"
        " which nothing here has measured"
    )
    assert said(None, 3, PRESENT, gains(4, 0.01, None)) == "keep --spec-draft-n-max 3"


def test_a_loss_is_written_with_a_minus_sign() -> None:
    """Not with a hyphen; the half width of an open interval is left out."""
    assert said(1, 1, gains(1, -0.05, None)).endswith("expected −5 % ± 0 %")


# --- the rest ---


def test_expected_speedups_are_e_over_r_where_both_are_known() -> None:
    """In order of length."""
    assert expected_speedups({2: 2.4, 1: 1.8, 4: 3.0}, {1: 1.5, 2: 1.6, 3: 2.0}) == {
        1: pytest.approx(1.2),
        2: pytest.approx(1.5),
    }


@given(
    st.integers(1, 10**5),
    st.lists(st.floats(0, 1), min_size=1, max_size=5),
    st.dictionaries(st.integers(0, 4), st.floats(0.01, 3), max_size=5),
    st.floats(1, 6),
    st.floats(-0.2, 2),
    st.floats(0, 0.5),
    st.floats(1, 1e4),
)
def test_whatever_is_known_options_are_possible(
    drafts: int,
    conditional: list[float],
    cut: dict[int, float],
    ratio: float,
    startup: float,
    curvature: float,
    effect: float,
) -> None:
    """No gain below -100 %, bounds around it, and advice only for a certain gain."""
    longest = len(conditional)
    tally = Tally(
        drafts=drafts,
        draft_tokens=drafts * longest,
        by_position=tuple(float(x) for x in np.floor(drafts * np.cumprod(conditional))),
    )
    costs = step_costs_of(
        against(ratio),
        longest=longest,
        cut={n: Location(c, 0.1, 9) for n, c in cut.items() if n < longest},
        startup=startup,
        rollback=(0.1,) * longest,
    )
    found = advice(tally, costs, curvature=curvature, design_effect=effect)
    for each in found.options:
        assert each.gain > -1
        if each.gain_bounds is not None:
            assert -1 <= each.gain_bounds.lower <= each.gain <= each.gain_bounds.upper
    if found.advised is not None:
        assert bounds(found, found.advised).lower > 0
    assert found.option(longest) is not None
    assert in_words(found)
