"""Speed-up, breakeven and margin, with bounds that come from both sides."""

import math
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpmon.cost import PlainSource, StepCosts, step_costs
from mtpmon.model import Bounded, Step
from mtpmon.payoff import Payoff, disagreement, payoff, probe_payoff, step_ratios
from mtpmon.request import Request
from mtpmon.tally import Tally
from tests.costs import against, step_costs_of
from tests.world import World

TALLY = Tally(drafts=1000, draft_tokens=3000, by_position=(800.0, 600.0, 400.0))
FLAT = step_costs_of(against(2.0))


def paid(tally: Tally = TALLY, costs: StepCosts = FLAT, *, design_effect: float = 1.0) -> Payoff:
    found = payoff(tally, costs, confidence=0.95, design_effect=design_effect)
    assert found is not None
    return found


def width(bounded: Bounded) -> float:
    return bounded.upper - bounded.lower


# --- values ---


def test_figures_equal_those_computed_by_hand() -> None:
    """E = 1 + 1800/1000 = 2.8 at r = 2: speed-up 1.4, breakeven 1/3, acceptance 0.6."""
    found = paid()
    assert found.drafts == 1000
    assert found.source is PlainSource.PAIR
    assert found.acceptance.value == pytest.approx(0.6)
    assert found.acceptance_length.value == pytest.approx(2.8)
    assert found.step_ratio.value == pytest.approx(2.0)
    assert found.speedup.value == pytest.approx(1.4)
    assert found.breakeven.value == pytest.approx(1 / 3)
    assert found.margin.value == pytest.approx(0.6 - 1 / 3)


def test_undrafted_steps_pull_the_speedup_towards_1_and_tax_the_margin() -> None:
    """500 of them at 1.2 plain steps each, beside 1000 that draft."""
    tally = msgspec.structs.replace(TALLY, undrafted=500)
    found = paid(tally, step_costs_of(against(2.0, undrafted_ratio=1.2)))
    assert found.speedup.value == pytest.approx((2.8 + 0.5) / (2.0 + 0.5 * 1.2))
    assert found.breakeven.value == pytest.approx((2.0 + 0.5 * 0.2 - 1) / 3)
    assert found.margin.value == pytest.approx(found.acceptance.value - found.breakeven.value)


def test_traffic_that_is_rejected_more_often_pays_more_for_a_step() -> None:
    """The ratio was measured where a tenth was rejected outright at 0.5 steps; here a fifth is."""
    mix = Tally(drafts=100, draft_tokens=300, by_position=(90.0, 90.0, 90.0))
    tally = Tally(drafts=100, draft_tokens=300, by_position=(80.0, 80.0, 80.0))
    costs = step_costs_of(against(2.0), rollback=(0.25, 0.0, 0.0), mix=mix)
    assert costs.plain is not None
    assert step_ratios(tally, costs, costs.plain) == pytest.approx(
        [2.0 - 0.05 + 0.5, 1.95, 1.95, 1.95]
    )
    assert paid(tally, costs).step_ratio.value == pytest.approx(2.0 + 0.5 * 0.1)
    assert paid(mix, costs).step_ratio.value == pytest.approx(2.0)


def test_traffic_with_shorter_free_drafts_pays_less_for_a_step() -> None:
    """Lengths 1 and 3 were measured at 0.8 and 1.1 of a step, in equal parts."""
    mix = Tally(drafts=100, draft_tokens=200, by_position=(60.0, 30.0, 30.0))
    costs = step_costs_of(against(2.0), relative={1: 0.8, 3: 1.1}, mix=mix)
    tally = msgspec.structs.replace(mix, draft_tokens=140.0)
    assert paid(mix, costs).step_ratio.value == pytest.approx(2.0)
    assert paid(tally, costs).step_ratio.value == pytest.approx(2.0 * (1 - 0.6 * 0.15))


def test_a_step_is_never_free() -> None:
    """However many rejections r was measured with, and however few there are now."""
    mix = Tally(drafts=100, draft_tokens=300, by_position=(0.0, 0.0, 0.0))
    costs = step_costs_of(against(2.0), rollback=(1.5, 0.0, 0.0), mix=mix)
    assert paid(costs=costs).step_ratio.value > 0


def test_tokens_kept_beyond_the_longest_draft_seen_count() -> None:
    """Counters with more positions than any probe has shown."""
    tally = Tally(drafts=100, draft_tokens=400, by_position=(80.0, 60.0, 50.0, 40.0))
    assert paid(tally).acceptance_length.value == pytest.approx(3.3)


def test_without_a_plain_step_nothing_is_said() -> None:
    """Neither of traffic, nor of probes, nor of agreement."""
    costs = step_costs_of(None)
    requests = World().pairs(np.random.default_rng(1), 5)
    assert payoff(TALLY, costs, confidence=0.95) is None
    assert probe_payoff(requests, costs, confidence=0.95) is None
    assert disagreement(requests, costs, confidence=0.95) is None


@given(
    st.integers(40, 10**6),
    st.lists(st.floats(0.05, 0.95), min_size=1, max_size=5),
    st.floats(1.0, 5.0),
    st.floats(0, 2),
    st.floats(1, 2),
)
def test_the_margin_has_the_sign_of_the_gain(
    drafts: int, conditional: list[float], ratio: float, undrafted: float, dearer: float
) -> None:
    """Above 0 exactly where the speed-up is above 1, undrafted steps included."""
    positions = tuple(float(x) for x in np.floor(drafts * np.cumprod(conditional)))
    tally = Tally(
        drafts=drafts,
        draft_tokens=drafts * len(positions),
        by_position=positions,
        undrafted=undrafted * drafts,
    )
    costs = step_costs_of(against(ratio, undrafted_ratio=dearer), longest=len(positions))
    found = paid(tally, costs)
    if abs(found.margin.value) > 1e-9:
        assert (found.margin.value > 0) == (found.speedup.value > 1)
    assert found.margin.value == pytest.approx(found.acceptance.value - found.breakeven.value)


# --- bounds ---


def test_bounds_of_the_acceptance_length_are_those_of_a_sample_mean() -> None:
    """From the histogram 200, 200, 200, 400."""
    kept = [0] * 200 + [1] * 200 + [2] * 200 + [3] * 400
    half = 1.959964 * np.std(kept, ddof=1) / math.sqrt(1000)
    found = paid().acceptance_length
    assert found.upper - found.value == pytest.approx(half)
    assert found.value - found.lower == pytest.approx(half)


def test_the_margin_adds_both_uncertainties_in_quadrature() -> None:
    """From r = 2 within 0.1 below and 0.2 above."""
    sampled = paid().acceptance_length
    found = paid(costs=step_costs_of(against(Bounded(2.0, 1.9, 2.2)))).margin
    below, above = sampled.value - sampled.lower, sampled.upper - sampled.value
    assert found.value - found.lower == pytest.approx(math.hypot(below, 0.2) / 3)
    assert found.upper - found.value == pytest.approx(math.hypot(above, 0.1) / 3)


def test_the_speedup_adds_both_uncertainties_in_quadrature() -> None:
    """On the log scale, where they add."""
    found = paid(costs=step_costs_of(against(Bounded(2.0, 1.9, 2.2)))).speedup
    sampled = paid().speedup
    below = math.hypot(math.log(sampled.value / sampled.lower), math.log(1.1))
    above = math.hypot(math.log(sampled.upper / sampled.value), -math.log(0.95))
    assert found.lower == pytest.approx(1.4 * math.exp(-below))
    assert found.upper == pytest.approx(1.4 * math.exp(above))


def test_dear_rejections_make_the_margin_less_certain() -> None:
    """A step that keeps little is bad luck twice: fewer tokens and a higher price."""
    mix = Tally(drafts=1000, draft_tokens=3000, by_position=(800.0, 600.0, 400.0))
    dear = step_costs_of(against(2.0), rollback=(0.3, 0.3, 0.3), mix=mix)
    assert width(paid(costs=dear).margin) > 1.1 * width(paid().margin)


def test_what_is_not_known_of_rejections_matters_as_far_as_the_mix_has_moved() -> None:
    """Not at all where r was measured on the same mix."""
    bounds = against(Bounded(2.0, 1.9, 2.1))
    other = Tally(drafts=1000, draft_tokens=3000, by_position=(900.0, 850.0, 800.0))

    def upper(mix: Tally, error: float) -> float:
        costs = step_costs_of(bounds, mix=mix, rollback_errors=(error, error, error))
        return paid(costs=costs).step_ratio.upper

    assert upper(TALLY, 0.1) == pytest.approx(upper(TALLY, 0.0))
    assert upper(other, 0.1) > upper(other, 0.0) + 0.01


def test_alike_steps_widen_everything_but_r() -> None:
    """By the square root of the design effect."""
    once, four = paid(), paid(design_effect=4.0)
    for name in ("acceptance", "acceptance_length", "margin"):
        ratio = width(getattr(four, name)) / width(getattr(once, name))
        assert ratio == pytest.approx(2, rel=0.01), name
    assert four.step_ratio == once.step_ratio


def test_rounding_of_the_counters_widens_the_bounds() -> None:
    """Steps that may be missing are ones that kept nothing: 1 % of them moves E by 0.018."""
    rounded = paid(msgspec.structs.replace(TALLY, rounding=0.01))
    exact = paid()
    added = exact.acceptance_length.lower - rounded.acceptance_length.lower
    assert added == pytest.approx(0.01 * 1.8)
    assert rounded.margin.lower == pytest.approx(exact.margin.lower - 0.01 * 1.8 / 3)
    assert rounded.speedup.upper > exact.speedup.upper


@pytest.mark.parametrize(
    "tally",
    [
        Tally(drafts=20, draft_tokens=60, by_position=(16.0, 12.0, 8.0)),
        Tally(drafts=200, draft_tokens=600, by_position=(200.0, 200.0, 200.0)),
        Tally(drafts=200, draft_tokens=600, by_position=(0.0, 0.0, 0.0)),
    ],
    ids=["few", "all kept", "none kept"],
)
def test_few_or_equal_steps_do_not_pass_for_certain(tally: Tally) -> None:
    """The normal approximation has nothing to hold on to there; Wilson bounds have."""
    found = paid(tally)
    assert width(found.margin) > 0.005
    assert width(found.speedup) > 0.005


def test_a_design_effect_beyond_the_steps_does_not_pass_for_certain() -> None:
    """Ten steps' worth of evidence in a thousand steps, and less than one."""
    assert width(paid(design_effect=2000.0).margin) > width(paid(design_effect=100.0).margin)


def test_a_flattering_source_opens_the_bounds_on_one_side() -> None:
    """The plain step may be cheaper by half: r up to twice as high, nothing lower."""
    honest = paid(costs=step_costs_of(against(Bounded(2.0, 1.9, 2.2))))
    plain = against(Bounded(2.0, 1.9, 2.2), source=PlainSource.UNDRAFTED, excess=2.0)
    found = paid(costs=step_costs_of(plain))
    assert found.source.flatters
    assert found.margin.value == honest.margin.value
    assert found.margin.upper == honest.margin.upper
    assert found.speedup.upper == honest.speedup.upper
    assert found.breakeven.lower == honest.breakeven.lower
    severe = paid(costs=step_costs_of(against(Bounded(4.0, 3.8, 4.4))))
    assert found.margin.lower == pytest.approx(severe.margin.lower)
    assert found.speedup.lower == pytest.approx(severe.speedup.lower)
    assert found.step_ratio.upper == pytest.approx(severe.step_ratio.upper)
    assert found.breakeven.upper == pytest.approx(severe.breakeven.upper)


@given(
    st.integers(1, 10**5),
    st.lists(st.floats(0, 1), min_size=1, max_size=5),
    st.tuples(st.floats(1.0, 6.0), st.floats(0, 0.99), st.floats(0, 3), st.floats(1, 3)),
    st.floats(1, 50),
    st.floats(0, 0.02),
    st.floats(-0.1, 3),
)
def test_whatever_the_counts_bounds_hold_their_value(
    drafts: int,
    conditional: list[float],
    measured: tuple[float, float, float, float],
    effect: float,
    rounding: float,
    rollback: float,
) -> None:
    """Finite ones, and shares of tokens within 0 and 1."""
    ratio, below, above, excess = measured
    positions = tuple(float(x) for x in np.floor(drafts * np.cumprod(conditional)))
    tally = Tally(
        drafts=drafts,
        draft_tokens=drafts * len(positions),
        by_position=positions,
        rounding=rounding,
    )
    plain = against(Bounded(ratio, ratio * (1 - below), ratio * (1 + above)), excess=excess)
    costs = step_costs_of(
        plain,
        longest=len(positions),
        rollback=(rollback,) * len(positions),
        rollback_errors=(0.05,) * len(positions),
    )
    found = paid(tally, costs, design_effect=effect)
    for name in ("acceptance", "acceptance_length", "step_ratio", "speedup", "breakeven", "margin"):
        bounds: Bounded = getattr(found, name)
        assert math.isfinite(bounds.lower), name
        assert math.isfinite(bounds.upper), name
        assert bounds.lower <= bounds.value + 1e-9, name
        assert bounds.value <= bounds.upper + 1e-9, name
    assert found.acceptance.lower >= 0
    assert found.acceptance.upper <= 1 + 1e-9
    assert found.speedup.lower > 0


# --- probes ---


def costs_of(requests: list[Request]) -> StepCosts:
    found = step_costs(requests, confidence=0.95)
    assert found is not None
    return found


def test_probes_of_one_prompt_are_no_sample() -> None:
    """Three different prompts are."""
    world = World()
    requests = world.pairs(np.random.default_rng(1), 12)
    costs = costs_of(requests)
    same = [msgspec.structs.replace(r, prompt="same") for r in requests]
    assert probe_payoff(same, costs, confidence=0.95) is None
    assert probe_payoff([], costs, confidence=0.95) is None
    assert probe_payoff(requests, costs, confidence=0.95) is not None


def test_bounds_of_probes_rest_on_how_prompts_differ() -> None:
    """Prompts that differ a lot give wider bounds than steps alone would."""
    requests = World(likeness=1.0).pairs(np.random.default_rng(1), 30)
    found = probe_payoff(requests, costs_of(requests), confidence=0.95)
    assert found is not None
    alone = paid(
        Tally(
            drafts=found.drafts,
            draft_tokens=3 * found.drafts,
            by_position=tuple(found.drafts * p for p in World(likeness=1.0).positions()),
        )
    )
    assert width(found.acceptance_length) > 2 * width(alone.acceptance_length)


def test_repeated_answers_do_not_narrow_the_bounds_of_probes() -> None:
    """A greedy answer seen again is the same answer."""
    requests = World().pairs(np.random.default_rng(1), 10)
    again = [msgspec.structs.replace(r, pair=f"{r.pair} again") for r in requests]
    costs = costs_of(requests)
    once = probe_payoff(requests, costs, confidence=0.95)
    assert once == probe_payoff(requests + again, costs, confidence=0.95)


# --- the model against the measurement ---


def test_model_and_measurement_agree_where_the_model_holds() -> None:
    """Long answers without start-up: within half a per cent."""
    world = World(startup=0.0, planning=0.0, pass_cost=0.0, bases=(1.0, 1.85, 1.85, 1.85))
    requests = world.pairs(np.random.default_rng(1), 20, tokens=200)
    found = disagreement(requests, costs_of(requests), confidence=0.95)
    assert found is not None
    assert found.lower <= 1 <= found.upper
    assert found.value == pytest.approx(1, abs=0.005)


def test_time_lost_on_one_arm_only_is_a_disagreement() -> None:
    """A start-up of ten steps on the speculating server; the plain one has none."""
    requests = [
        msgspec.structs.replace(
            r,
            steps=(
                Step(r.steps[0].drafted, r.steps[0].kept, r.steps[0].seconds + 0.2),
                *r.steps[1:],
            ),
        )
        if r.arm == "speculating"
        else r
        for r in World().pairs(np.random.default_rng(1), 20)
    ]
    found = disagreement(requests, costs_of(requests), confidence=0.95)
    assert found is not None
    assert found.lower > 1.1


def test_disagreement_needs_three_usable_pairs() -> None:
    """Arms without a partner, without drafts or without time do not count."""
    requests = World().pairs(np.random.default_rng(1), 5)
    costs = costs_of(requests)
    assert disagreement(requests[:4], costs, confidence=0.95) is None
    lone = [msgspec.structs.replace(r, pair=None) for r in requests]
    assert disagreement(lone, costs, confidence=0.95) is None
    ours = [r for r in requests if r.arm == "speculating"]
    assert disagreement(ours, costs, confidence=0.95) is None
    timeless = [
        msgspec.structs.replace(r, steps=tuple(Step(s.drafted, s.kept, 0.0) for s in r.steps))
        for r in requests
    ]
    assert disagreement(timeless, costs, confidence=0.95) is None


def test_the_world_of_these_tests_is_what_it_says() -> None:
    """Its stated truth is what its traffic shows: acceptance by position, and r."""
    world = replace(World(), likeness=0.6, rollback=(0.3, 0.4, 0.5))
    kept = world.kept(np.random.default_rng(1), 20_000, 10)
    seen = [(kept > place).mean() for place in range(3)]
    assert seen == pytest.approx(world.positions(), abs=0.005)
    extra = np.append(world.rollback, 0.0)[kept].mean()
    assert world.ratio() == pytest.approx(1.85 + extra, abs=0.005)
