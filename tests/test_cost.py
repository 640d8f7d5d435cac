"""What steps cost, on simulated servers whose truth is known."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtpmon.cost import (
    PlainSource,
    PlainStep,
    StepCosts,
    expired,
    plain_step,
    seconds_by_length,
    step_costs,
)
from mtpmon.model import Bounded, Identity, Step
from mtpmon.request import Expiry, Request
from tests.world import World

QUIET = World(scatter=0.0, request_scatter=0.0)
ROLLING = replace(QUIET, rollback=(0.3, 0.4, 0.5))


def pairs(world: World, count: int = 20, seed: int = 1, tokens: int = 64) -> list[Request]:
    return world.pairs(np.random.default_rng(seed), count, tokens=tokens)


def measured(requests: Sequence[Request], **options: object) -> StepCosts:
    found = step_costs(requests, confidence=0.95, **options)  # type: ignore[arg-type]
    assert found is not None
    return found


def ratio(costs: StepCosts) -> Bounded:
    assert costs.plain is not None
    return costs.plain.ratio


def seen_ratio(world: World, costs: StepCosts) -> float:
    """The true r of the mix that the free steps happened to be."""
    shares = np.array(costs.mix.shares(world.longest))
    return world.bases[-1] + float(shares @ np.append(world.rollback, 0.0))


# --- the plain truth ---


def test_without_noise_every_cost_is_exact() -> None:
    """r, both step times, the undrafted step, start-up, rejection and cut steps."""
    costs = measured(pairs(ROLLING))
    step = seen_ratio(ROLLING, costs)
    assert ratio(costs).value == pytest.approx(step, rel=1e-3)
    assert costs.step_seconds.value == pytest.approx(0.02 * step, rel=1e-3)
    assert costs.plain is not None
    assert costs.plain.source is PlainSource.PAIR
    assert costs.plain.seconds.value == pytest.approx(0.02)
    assert costs.plain.undrafted_ratio == pytest.approx(1.1 + 0.1)
    assert costs.plain.excess == 1
    assert costs.plain.pairs == 20
    assert costs.longest == 3
    assert costs.startup is not None
    assert costs.startup.value * step == pytest.approx(0.15, abs=0.01)
    extra = [extra * step for extra in costs.rollback]
    assert extra == pytest.approx([0.3, 0.4, 0.5], abs=0.01)
    (full,) = costs.lengths
    assert full.relative.value * step == pytest.approx(1.85, rel=1e-3)
    assert full.kept_seconds == pytest.approx(0.02 * 1.85)
    assert full.rejected_seconds is not None
    assert 0.02 * (1.85 + 0.3) <= full.rejected_seconds <= 0.02 * (1.85 + 0.5)
    cut = {each.drafted: each.relative.value * step for each in costs.cut}
    assert cut == {
        0: pytest.approx(1.1 + 0.1, abs=0.01),
        1: pytest.approx(1.35 + 0.1 + 2 * 0.1, abs=0.01),
        2: pytest.approx(1.6 + 0.1 + 0.1, abs=0.01),
    }


def test_seconds_by_length_are_mean_steps() -> None:
    """A plain one, and one of three tokens with its share of rejections."""
    costs = measured(pairs(ROLLING))
    found = seconds_by_length(costs)
    assert found == {
        0: pytest.approx(0.02),
        3: pytest.approx(0.02 * seen_ratio(ROLLING, costs), rel=1e-3),
    }


def test_a_plain_step_that_flatters_is_not_passed_off_as_one() -> None:
    """An undrafted step of the speculating server has no place among them."""
    alone = [r for r in pairs(QUIET) if r.arm == "speculating"]
    assert list(seconds_by_length(measured(alone))) == [3]


def test_costs_say_what_they_rest_on() -> None:
    """Requests, when, and at which context lengths."""
    requests = pairs(QUIET, 5)
    requests = [
        msgspec.structs.replace(r, context_tokens=100 + n, identity=Identity(build=str(n)))
        for n, r in enumerate(requests)
    ]
    costs = measured(requests)
    assert costs.requests == 10
    assert (costs.first_unix_seconds, costs.last_unix_seconds) == (0.0, 401.0)
    assert costs.context_tokens == (100, 109)
    assert costs.identity == Identity(build="9")


def test_a_start_up_of_any_size_leaves_r_alone() -> None:
    """The first step of each request is kept apart."""
    slow = replace(QUIET, startup=30.0)
    assert ratio(measured(pairs(slow))).value == pytest.approx(slow.ratio())


def test_cut_drafts_leave_r_alone() -> None:
    """Whatever planning a new size costs."""
    slow = replace(QUIET, planning=7.0)
    assert ratio(measured(pairs(slow, tokens=24))).value == pytest.approx(slow.ratio())


def test_costs_do_not_depend_on_the_unit_of_time() -> None:
    """A machine ten times as fast has the same ratios."""
    noisy = pairs(World(stall=0.01))
    fast = [
        msgspec.structs.replace(
            r, steps=tuple(Step(s.drafted, s.kept, s.seconds / 10) for s in r.steps)
        )
        for r in noisy
    ]
    slow_costs, fast_costs = measured(noisy), measured(fast)
    assert ratio(fast_costs).value == pytest.approx(ratio(slow_costs).value)
    assert fast_costs.step_seconds.value == pytest.approx(slow_costs.step_seconds.value / 10)


def test_order_does_not_matter() -> None:
    """Requests may come in any."""
    requests = pairs(World(stall=0.01, drift=0.02))
    there, back = ratio(measured(requests)), ratio(measured(requests[::-1]))
    assert msgspec.structs.astuple(there) == pytest.approx(msgspec.structs.astuple(back))


# --- robustness ---


def pooled(requests: Sequence[Request], average: Callable[[list[float]], float]) -> float:
    """The naive r: all full steps over all plain ones."""
    full, plain = (
        [
            step.seconds
            for request in requests
            for step in request.steps[1:]
            if request.arm == arm and step.drafted == drafted
        ]
        for arm, drafted in (("speculating", 3), ("target_only", 0))
    )
    return average(full) / average(plain)


def errors(world: World, runs: int = 60) -> dict[str, float]:
    """Root mean square errors of r: ours, the ratio of means, and that of medians."""
    found: dict[str, list[float]] = {"ours": [], "means": [], "medians": []}
    for seed in range(runs):
        requests = pairs(world, 10, seed)
        costs = measured(requests)
        truth = seen_ratio(world, costs)
        found["ours"].append(ratio(costs).value / truth - 1)
        found["means"].append(pooled(requests, lambda x: float(np.mean(x))) / truth - 1)
        found["medians"].append(pooled(requests, lambda x: float(np.median(x))) / truth - 1)
    return {name: math.sqrt(np.mean(np.square(e))) for name, e in found.items()}


def test_stalls_hurt_the_ratio_of_means_and_not_ours() -> None:
    """One step in a hundred takes five more: ours stays within 1 %, means do not."""
    found = errors(World(stall=0.01))
    assert found["ours"] < 0.01
    assert found["means"] > 3 * found["ours"]


def test_dear_rejections_hurt_the_ratio_of_medians_and_not_ours() -> None:
    """A median sees the majority only; the mean cost is what speed-up needs."""
    found = errors(replace(World(), rollback=(0.5, 0.5, 0.5)))
    assert found["ours"] < 0.01
    assert found["medians"] > 3 * found["ours"]


def test_a_machine_that_slows_down_steadily_does_not_move_r() -> None:
    """3 % from each request to the next, 20 pairs: arms take turns in going first."""
    requests = [
        msgspec.structs.replace(
            r,
            steps=tuple(
                Step(s.drafted, s.kept, s.seconds * 1.03 ** (2 * (place // 2) + r.unix_seconds % 2))
                for s in r.steps
            ),
        )
        for place, r in enumerate(pairs(QUIET, 20))
    ]
    assert ratio(measured(requests)).value == pytest.approx(QUIET.ratio(), rel=1e-3)


def test_one_disturbed_request_in_twenty_hardly_moves_r() -> None:
    """Six times as slow as it should be."""
    requests = pairs(World(), 20)
    before = ratio(measured(requests)).value
    steps = tuple(Step(s.drafted, s.kept, s.seconds * 6) for s in requests[0].steps)
    requests[0] = msgspec.structs.replace(requests[0], steps=steps)
    assert ratio(measured(requests)).value == pytest.approx(before, rel=0.01)


# --- sources of the plain step ---


def test_two_pairs_are_too_few() -> None:
    """A spread of two is not worth the name; other sources serve."""
    costs = step_costs(pairs(QUIET, 2), confidence=0.95)
    assert costs is None
    requests = pairs(QUIET)
    alone = [r for r in requests if r.arm == "speculating" or r.pair in ("0", "1")]
    plain = measured(alone).plain
    assert plain is not None
    assert plain.source is PlainSource.UNDRAFTED


def test_undrafted_steps_flatter_and_say_how_much() -> None:
    """On a single server: r is too low, by no more than the stated excess."""
    requests = [r for r in pairs(QUIET) if r.arm == "speculating"]
    costs = measured(requests, most_excess=1.5)
    plain = costs.plain
    assert plain is not None
    assert plain.source is PlainSource.UNDRAFTED
    assert plain.source.flatters
    assert plain.ratio.value == pytest.approx(1.85 / 1.2)
    assert plain.excess == 1.5
    assert plain.ratio.value < QUIET.ratio() < plain.ratio.value * plain.excess


def test_a_server_told_not_to_draft_is_a_flattering_pair() -> None:
    """Its head still reads every token."""
    requests = [
        r if r.arm == "speculating" else msgspec.structs.replace(r, arm="switched_off")
        for r in pairs(QUIET)
    ]
    plain = measured(requests).plain
    assert plain is not None
    assert plain.source is PlainSource.SWITCH
    assert plain.source.flatters
    assert plain.excess > 1
    assert plain.ratio.value == pytest.approx(QUIET.ratio())


def captured(world: World = QUIET, count: int = 10) -> PlainStep:
    plain = [r for r in pairs(world, count, seed=9) if r.arm == "target_only"]
    found = plain_step(plain, confidence=0.95)
    assert found is not None
    return found


def test_a_capture_serves_without_a_pair_and_comes_before_a_switch() -> None:
    """It was measured without a head."""
    plain = captured()
    requests = [
        r if r.arm == "speculating" else msgspec.structs.replace(r, arm="switched_off")
        for r in pairs(QUIET)
    ]
    found = measured(requests, capture=plain, capture_drift=0.02).plain
    assert found is not None
    assert found.source is PlainSource.CAPTURE
    assert found.excess == 1
    assert found.ratio.value == pytest.approx(QUIET.ratio())
    assert found.ratio.upper == pytest.approx(found.ratio.value * 1.02)
    assert found.ratio.lower == pytest.approx(found.ratio.value / 1.02)
    assert found.undrafted_ratio == pytest.approx(1.2)


def test_a_pair_comes_before_a_capture() -> None:
    """It was measured in the same minutes."""
    found = measured(pairs(QUIET), capture=captured(replace(QUIET, drift=0.3))).plain
    assert found is not None
    assert found.source is PlainSource.PAIR


def test_a_capture_carries_its_own_scatter_into_the_bounds() -> None:
    """A scattered capture makes wider bounds than a quiet one."""
    requests = [r for r in pairs(QUIET) if r.arm == "speculating"]
    quiet, loud = (
        ratio(measured(requests, capture=captured(replace(QUIET, request_scatter=s))))
        for s in (0.0, 0.1)
    )
    assert loud.upper / loud.value > quiet.upper / quiet.value
    assert loud.value / loud.lower > quiet.value / quiet.lower


def test_a_capture_tells_where_it_comes_from() -> None:
    """Requests, time, context, build and model; the process is another by now."""
    identity = Identity(build="b", model="m", start_token="s")
    requests = [
        msgspec.structs.replace(r, identity=identity)
        for r in pairs(QUIET, 10)
        if r.arm == "target_only"
    ]
    plain = plain_step(requests, confidence=0.95)
    assert plain is not None
    assert plain.seconds.value == pytest.approx(0.02)
    assert plain.requests == 10
    assert plain.unix_seconds == 901.0
    assert plain.context_tokens == (164, 164)
    assert plain.identity == Identity(build="b", model="m")


def test_a_capture_of_a_drafting_server_is_refused() -> None:
    """It would pass off a drafting step as a plain one."""
    with pytest.raises(ValueError, match="drafts"):
        plain_step(pairs(QUIET), confidence=0.95)


def test_a_capture_needs_three_requests() -> None:
    """Of more than a few steps each."""
    plain = [r for r in pairs(QUIET, 3) if r.arm == "target_only"]
    assert plain_step(plain[:2], confidence=0.95) is None
    short = [msgspec.structs.replace(r, steps=r.steps[:3]) for r in plain]
    assert plain_step(short, confidence=0.95) is None


def test_without_any_plain_step_there_is_no_ratio() -> None:
    """Whole requests that never decode undrafted; step times are known all the same."""
    requests = [
        msgspec.structs.replace(r, steps=tuple(s for s in r.steps if s.drafted), whole=False)
        for r in pairs(QUIET)
        if r.arm == "speculating"
    ]
    costs = measured(requests)
    assert costs.plain is None
    assert costs.step_seconds.value == pytest.approx(0.02 * 1.85)


# --- too little, or odd ---


@pytest.mark.parametrize(
    "requests",
    [
        [],
        [r for r in pairs(QUIET) if r.arm == "target_only"],
        [r for r in pairs(QUIET, 2) if r.arm == "speculating"],
        [msgspec.structs.replace(r, steps=r.steps[:3]) for r in pairs(QUIET)],
        [
            msgspec.structs.replace(r, arm="speculating")
            for r in pairs(QUIET)
            if r.arm == "target_only"
        ],
    ],
    ids=["nothing", "target only", "two requests", "three steps each", "never drafts"],
)
def test_too_little_is_no_cost(requests: list[Request]) -> None:
    """Three requests of three free steps are the least."""
    assert step_costs(requests, confidence=0.95) is None


def test_requests_without_pairs_are_not_paired() -> None:
    """Two lone requests are no pair, however close."""
    requests = [msgspec.structs.replace(r, pair=None) for r in pairs(QUIET)]
    plain = measured(requests).plain
    assert plain is not None
    assert plain.source is PlainSource.UNDRAFTED


def test_steps_of_no_duration_are_left_out() -> None:
    """A clock too coarse to see them."""
    requests = [
        msgspec.structs.replace(
            r,
            steps=(*r.steps, Step(0, 0, 0.0) if r.arm == "target_only" else Step(3, 3, 0.0)),
            whole=r.arm == "target_only",
        )
        for r in pairs(QUIET)
    ]
    assert ratio(measured(requests)).value == pytest.approx(QUIET.ratio())


def test_in_a_request_with_steps_missing_full_drafts_count_and_short_ones_do_not() -> None:
    """Whether a short one was cut is not known."""
    requests = [msgspec.structs.replace(r, whole=False) for r in pairs(QUIET)]
    costs = measured(requests)
    assert ratio(costs).value == pytest.approx(QUIET.ratio())
    assert costs.cut == ()
    assert [length.drafted for length in costs.lengths] == [3]


def giving_up(every: int, count: int = 20) -> list[Request]:
    """Requests whose head gives up early at each so manyth step, at a lower cost."""
    found = []
    for request in pairs(QUIET, count):
        steps = list(request.steps)
        if request.arm == "speculating":
            for place in range(2, len(steps) - 3, every):
                steps[place] = Step(1, 1, 0.02 * 1.4)
                steps[place + 1] = Step(0, 0, 0.02 * 1.2)
        found.append(msgspec.structs.replace(request, steps=tuple(steps)))
    return found


def test_free_short_drafts_have_a_cost_of_their_own() -> None:
    """A head that gives up when unsure: lengths 1 and 3 are measured, and the mix is theirs."""
    costs = measured(giving_up(4))
    step = ratio(costs).value
    assert [length.drafted for length in costs.lengths] == [1, 3]
    assert [length.relative.value * step for length in costs.lengths] == pytest.approx([1.4, 1.85])
    steps = {length.drafted: length.steps for length in costs.lengths}
    assert step == pytest.approx((1.4 * steps[1] + 1.85 * steps[3]) / (steps[1] + steps[3]))
    assert costs.mix.width == pytest.approx((steps[1] + 3 * steps[3]) / (steps[1] + steps[3]))
    assert costs.lengths[0].rejected_seconds is None


def test_a_rare_length_has_no_cost() -> None:
    """Seen in four requests only; the longest needs three."""
    requests = giving_up(4, 4)[:8] + pairs(QUIET, 20, seed=4)[8:]
    assert [length.drafted for length in measured(requests).lengths] == [3]


def test_few_rejections_say_nothing_of_their_cost() -> None:
    """A head that is nearly always right."""
    sure = replace(ROLLING, conditional=(0.9999, 0.9999, 0.9999))
    costs = measured(pairs(sure, 4))
    assert list(costs.rollback) == [0, 0, 0]
    assert list(costs.rollback_errors) == [0, 0, 0]


def test_start_up_and_cut_steps_need_five_requests() -> None:
    """Four are too few to tell them from chance."""
    few, more = measured(pairs(QUIET, 4)), measured(pairs(QUIET, 20))
    assert few.startup is None
    assert few.cut == ()
    assert more.startup is not None
    assert more.cut[0].drafted == 0
    assert more.cut[0].requests >= 5


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["speculating", "target_only", "switched_off"]),
            st.lists(
                st.tuples(st.integers(0, 4), st.integers(0, 4), st.floats(0, 10)), max_size=14
            ),
            st.booleans(),
            st.sampled_from([None, "a", "b", "c", "d"]),
        ),
        max_size=24,
    )
)
def test_whatever_the_steps_costs_are_possible(
    rows: list[tuple[str, list[tuple[int, int, float]], bool, str | None]],
) -> None:
    """Positive and finite, with bounds around their value."""
    requests = [
        Request(
            arm=arm,  # type: ignore[arg-type]
            steps=tuple(
                Step(d if arm == "speculating" else 0, min(k, d), s if s > 1e-9 else 0.0)
                for d, k, s in steps
            ),
            unix_seconds=float(place),
            pair=pair,
            whole=whole,
        )
        for place, (arm, steps, whole, pair) in enumerate(rows)
    ]
    costs = step_costs(requests, confidence=0.95)
    if costs is None:
        return
    assert 0 < costs.step_seconds.lower <= costs.step_seconds.value <= costs.step_seconds.upper
    assert len(costs.rollback) == costs.longest
    assert costs.lengths[-1].drafted == costs.longest
    if costs.plain is not None:
        bounds = costs.plain.ratio
        assert 0 <= bounds.lower <= bounds.value <= bounds.upper
        assert costs.plain.undrafted_ratio > 0


# --- expiry ---


def test_costs_expire_with_their_newest_request_or_with_what_they_were_measured_on() -> None:
    """Age, a restart, another build, another model."""
    costs = measured(
        [
            msgspec.structs.replace(r, identity=Identity(build="b", model="m", start_token="s"))
            for r in pairs(QUIET, 5)
        ]
    )

    def why(now: float, **identity: str) -> Expiry | None:
        return expired(costs, now=now, identity=Identity(**identity), max_age_seconds=100)

    assert why(501.0) is None
    assert why(501.1) is Expiry.OLD
    assert why(501.0, build="b", model="m", start_token="s") is None
    assert why(501.0, start_token="x") is Expiry.RESTARTED
    assert why(501.0, build="x") is Expiry.BUILD_CHANGED
    assert why(501.0, model="x") is Expiry.MODEL_CHANGED
