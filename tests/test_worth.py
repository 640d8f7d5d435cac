"""Is it paying? Cost from probes and traffic from users, brought together."""

import random
from collections.abc import Iterable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtpmon.board import ServerBoard
from mtpmon.depth import DepthAdvice
from mtpmon.grade import Grade, GradeRules
from mtpmon.model import (
    Amount,
    Baseline,
    Bounded,
    Completion,
    Counters,
    Identity,
    Outcome,
    ProbeOutcome,
    ProbeResult,
    Props,
    Reading,
    Scrape,
    Step,
    StepStream,
    Timings,
    Usage,
)
from mtpmon.request import Expiry
from mtpmon.verdict import Verdict, VerdictRules
from mtpmon.worth import (
    Measured,
    Paying,
    WorthRules,
    graded,
    judge,
    live_design_effect,
    measure,
)
from tests.test_board import SETTINGS

HERE = Identity(build="b1", model="m", start_token="t")
RULES = WorthRules(verdict=VerdictRules(min_steps=100, settle_seconds=0))


def completion(steps: tuple[Step, ...]) -> Completion:
    drafted = sum(s.drafted for s in steps)
    return Completion(
        positions=(),
        timings=Timings(
            prompt_tokens=5,
            prompt_seconds=0.1,
            cached_tokens=0,
            generated_tokens=1 + sum(1 + s.kept for s in steps),
            generation_seconds=sum(s.seconds for s in steps),
            draft_tokens=drafted or None,
            accepted_tokens=sum(s.kept for s in steps) if drafted else None,
        ),
        stream=StepStream(steps=steps),
        wall_seconds=1.0,
    )


def probed(number: int, *, ratio: float = 2.0, task: str = "code") -> ProbeResult:
    """One probe in which a verification step costs ``ratio`` plain ones of 10 ms."""
    rng = random.Random(number)
    ours = tuple(
        Step(3, rng.choice((0, 1, 2, 3, 3, 3)), ratio * 0.01 * rng.uniform(0.98, 1.02))
        for _ in range(24)
    )
    plain = tuple(Step(0, 0, 0.01 * rng.uniform(0.98, 1.02)) for _ in range(60))
    return ProbeResult(
        server="a",
        identity=HERE,
        prompt_id=f"{task}-{number % 8}",
        task=task,
        unix_seconds=1000.0 + number,
        duration_seconds=1.0,
        outcome=ProbeOutcome.COMPLETED,
        speculating=completion(ours),
        target_only=completion(plain),
        baseline=Baseline.PAIR,
    )


def measured(
    count: int = 16,
    *,
    ratio: float = 2.0,
    identity: Identity = HERE,
    now: float = 1100.0,
    previous: Measured | None = None,
) -> Measured:
    return measure(
        [probed(number, ratio=ratio) for number in range(count)],
        identity=identity,
        now=now,
        previous=previous or Measured(),
        rules=RULES,
    )


def traffic(kept: float, drafts: int = 2000) -> Usage:
    """Steps of three draft tokens of which that many are kept on average."""
    positions = tuple(round(drafts * min(max(kept - i, 0.0), 1.0)) for i in range(3))
    return Usage(
        drafts=Amount(drafts),
        draft_tokens=Amount(3 * drafts),
        accepted_tokens=Amount(sum(positions)),
        accepted_by_position=positions,
        generated_tokens=Amount(drafts + sum(positions) + 10),
        requests=10,
    )


def judged(usage: Usage | None, found: Measured, previous: Paying | None = None) -> Paying:
    return judge(
        [(60.0, usage)],
        found,
        effect=1.0,
        deciding_seconds=60.0,
        now=2000.0,
        previous=previous or Paying(),
        rules=RULES,
    )


def test_probes_measure_the_cost_of_steps() -> None:
    """Two plain steps' worth, by how the probes were made."""
    found = measured()
    assert found.costs is not None
    assert found.costs.plain is not None
    assert found.costs.plain.ratio.lower <= 2.0 <= found.costs.plain.ratio.upper
    assert found.costs.plain.ratio.value == pytest.approx(2.0, rel=0.02)
    assert 0 <= found.likeness <= 1
    assert found.disagreement is not None
    assert found.disagreement.lower <= 1 <= found.disagreement.upper
    assert found.tasks["code"].breakeven.value == pytest.approx(1 / 3, abs=0.02)
    assert found.task_verdicts["code"].verdict is Verdict.PAYING
    assert found.advice is not None
    assert found.advice_words


@pytest.mark.parametrize(
    ("kept", "ratio", "verdict"),
    [
        (2.2, 2.0, Verdict.PAYING),
        (0.4, 2.0, Verdict.COSTING),
        (1.0, 2.0, Verdict.UNDECIDED),
        (2.2, 4.0, Verdict.COSTING),
    ],
)
def test_the_verdict_is_of_live_traffic_at_the_cost_measured(
    kept: float, ratio: float, verdict: Verdict
) -> None:
    """E against r, with bounds."""
    paying = judged(traffic(kept), measured(ratio=ratio))
    assert paying.verdict is not None
    assert paying.verdict.verdict is verdict
    paid = paying.windows[60.0]
    assert paid.speedup.value == pytest.approx((1 + kept) / ratio, rel=0.05)


def test_without_traffic_or_cost_there_is_no_verdict() -> None:
    """Not a guess."""
    for paying in (judged(None, measured()), judged(traffic(2.2), Measured())):
        assert paying.windows == {}
        assert paying.verdict is not None
        assert paying.verdict.verdict is Verdict.NO_DATA
    bare = msgspec.structs.replace(traffic(2.2), accepted_by_position=None)
    assert judged(bare, measured()).windows == {}


def test_likeness_widens_the_bounds_of_live_traffic() -> None:
    """Requests that differ from each other say less than steps that do."""
    alike, apart = traffic(2.2), traffic(2.2)
    assert live_design_effect((), alike, 0.0) == 1
    assert live_design_effect((), None, 0.5) == 1
    effect = live_design_effect((), apart, 0.01)
    assert effect == pytest.approx(1 + (1.5 * 200 - 1) * 0.01)
    found = measured()
    narrow = judged(traffic(2.2), found).windows[60.0].margin
    wide = judge(
        [(60.0, traffic(2.2))],
        found,
        effect=effect,
        deciding_seconds=60.0,
        now=2000.0,
        previous=Paying(),
        rules=RULES,
    )
    assert wide.design_effect == effect
    assert wide.windows[60.0].margin.lower < narrow.lower
    assert wide.windows[60.0].margin.value == narrow.value


def test_a_verdict_goes_on_from_the_one_before() -> None:
    """It keeps its date while it holds."""
    first = judged(traffic(2.2), measured())
    again = judge(
        [(60.0, traffic(2.1))],
        measured(),
        effect=1.0,
        deciding_seconds=60.0,
        now=3000.0,
        previous=first,
        rules=RULES,
    )
    assert again.verdict is not None
    assert first.verdict is not None
    assert again.verdict.since_unix_seconds == first.verdict.since_unix_seconds == 2000.0


@pytest.mark.parametrize(
    ("change", "now", "reason"),
    [
        ({"build": "b2"}, 1100.0, Expiry.BUILD_CHANGED),
        ({"model": "n"}, 1100.0, Expiry.MODEL_CHANGED),
        ({"start_token": "u"}, 1100.0, Expiry.RESTARTED),
        ({}, 1e6, Expiry.OLD),
    ],
)
def test_costs_expire(change: dict[str, str], now: float, reason: Expiry) -> None:
    """With the reason, which stays until there are new ones; tasks have no data then."""
    other = msgspec.structs.replace(HERE, **change)
    found = measured(identity=other, now=now, previous=measured())
    assert found.costs is None
    assert found.expiry is reason
    assert found.task_verdicts["code"].verdict is Verdict.NO_DATA
    assert measured(identity=other, now=now, previous=found).expiry is reason


def test_without_anything_to_compare_with_there_is_no_payoff() -> None:
    """One server, and no step of it undrafted: costs, and no ratio."""
    alone = [
        msgspec.structs.replace(probed(n), target_only=None, baseline=Baseline.SINGLE)
        for n in range(16)
    ]
    found = measure(alone, identity=HERE, now=1100.0, previous=Measured(), rules=RULES)
    assert found.costs is not None
    assert found.costs.plain is None
    assert found.tasks == {}
    assert judged(traffic(2.2), found).windows == {}


def test_one_prompt_asked_again_is_enough_for_costs_and_breaks_nothing() -> None:
    """Its answers are no sample of traffic: there is no payoff of a task, and no fault."""
    same = [msgspec.structs.replace(probed(n), prompt_id="p") for n in range(8)]
    found = measure(same, identity=HERE, now=1100.0, previous=Measured(), rules=RULES)
    assert found.costs is not None
    assert found.tasks == {}
    assert judged(traffic(2.2), found).windows


def test_too_few_probes_measure_nothing() -> None:
    """And nothing has expired."""
    found = measured(count=1)
    assert (found.costs, found.expiry, found.advice) == (None, None, None)


def test_cells_are_graded_where_they_were_measured() -> None:
    """By speed-up; no figure is no grade."""
    cells = {
        ("code", 0.0, None): Bounded(1.5, 1.4, 1.6),
        ("essay", 0.7, True): Bounded(1.1, 1.0, 1.3),
        ("creative", 0.7, False): Bounded(0.9, 0.8, 0.95),
        ("factual", 0.0, None): None,
    }
    found = graded(cells, GradeRules())
    assert {cell[0]: each.grade for cell, each in found.items()} == {
        "code": Grade.RECOMMENDED,
        "essay": Grade.MARGINAL,
        "creative": Grade.NOT_RECOMMENDED,
    }


steps = st.lists(
    st.builds(
        lambda drafted, kept, seconds: Step(drafted, min(kept, drafted), seconds),
        st.sampled_from((0, 0, 1, 2, 3, 3, 3, 3)),
        st.integers(0, 3),
        st.sampled_from((0.0, 1e-6, 1e-3, 0.01, 0.02, 5.0)),
    ),
    max_size=30,
).map(tuple)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(steps, st.none() | steps, st.sampled_from(("p", "q", "r", "s")), st.booleans()),
        max_size=8,
    ),
    st.integers(0, 3000),
)
def test_whatever_probes_brought_there_is_an_answer_or_none(
    brought: list[tuple[tuple[Step, ...], tuple[Step, ...] | None, str, bool]], drafts: int
) -> None:
    """Steps without time, without drafts, all alike, absurdly slow: no fault, no NaN."""
    results = [
        msgspec.structs.replace(
            probed(number),
            prompt_id=prompt,
            speculating=completion(ours),
            target_only=completion(plain) if plain is not None else None,
            baseline=Baseline.SWITCH if switched else Baseline.PAIR,
        )
        for number, (ours, plain, prompt, switched) in enumerate(brought)
    ]
    found = measure(results, identity=HERE, now=1100.0, previous=Measured(), rules=RULES)
    paying = judged(traffic(1.5, drafts), found)
    for paid in (*found.tasks.values(), *paying.windows.values()):
        for bounded in (paid.margin, paid.speedup, paid.breakeven, paid.step_ratio):
            assert bounded.lower <= bounded.value <= bounded.upper
    assert paying.verdict is not None


def test_what_another_setting_cost_is_remembered() -> None:
    """After a restart with another length: measured then, so no guess; but of no other build."""

    def set_to(drafted: int, ratio: float, token: str, **who: str) -> list[ProbeResult]:
        found = []
        for number in range(16):
            result = probed(number, ratio=ratio)
            assert result.speculating is not None
            steps = tuple(
                Step(drafted, min(step.kept, drafted), step.seconds)
                for step in result.speculating.stream.steps
            )
            identity = msgspec.structs.replace(HERE, start_token=token, **who)
            changes = {"speculating": completion(steps), "identity": identity}
            found.append(msgspec.structs.replace(result, **changes))
        return found

    def advised(*groups: list[ProbeResult]) -> DepthAdvice:
        every = [result for group in groups for result in group]
        found = measure(every, identity=HERE, now=1100.0, previous=Measured(), rules=RULES)
        assert found.advice is not None
        return found.advice

    now = set_to(3, 3.0, "t")
    assert advised(now).option(1) is None, "no step here shows what one token would cost"
    once = advised(set_to(1, 1.1, "before"), now).option(1)
    assert once is not None
    assert once.gain_bounds is not None
    assert once.gain_bounds.lower > 0.3
    assert advised(set_to(1, 1.1, "before", build="b0"), now).option(1) is None
    alone = [
        msgspec.structs.replace(r, target_only=None, baseline=Baseline.SINGLE)
        for r in set_to(1, 1.1, "before")
    ]
    assert advised(alone, now).option(1) is None
    assert advised(set_to(1, 1.1, "before")[:2], now).option(1) is None


# --- on the board ---


def looked(at: float, *, build: str = "b1", token: str = "t") -> Scrape:
    """A look at an idle server."""
    return Scrape(
        monotonic_seconds=at,
        unix_seconds=1000 + at,
        duration_seconds=0.01,
        outcome=Outcome.OK,
        props=Props(model="m", build=build),
        counters=Counters(
            start_token=token,
            drafts=Reading(0),
            generated_tokens=Reading(0),
            generation_seconds=Reading(0),
            requests_processing=0,
            requests_deferred=0,
        ),
    )


def board_of(results: Iterable[ProbeResult], *, restored: bool) -> ServerBoard:
    board = ServerBoard("a", SETTINGS)
    if restored:
        board.restore(results)
        board.scraped(looked(0))
    else:
        board.scraped(looked(0))
        for result in results:
            board.probed(result)
    return board


def test_costs_go_on_after_mtpmon_restarts_as_long_as_the_server_does_not() -> None:
    """The process is the same if its start token is; without one that cannot be known."""
    results = [probed(number) for number in range(16)]
    never_left = board_of(results, restored=False).snapshot(monotonic_seconds=0.0)
    resumed = board_of(results, restored=True).snapshot(monotonic_seconds=0.0)
    assert never_left.measured.costs is not None
    assert resumed.measured.costs == never_left.measured.costs
    assert resumed.grades == never_left.grades
    nameless = msgspec.structs.replace(HERE, start_token=None)
    other = [msgspec.structs.replace(result, identity=nameless) for result in results]
    board = board_of(other, restored=True)
    assert board.snapshot(monotonic_seconds=0.0).measured.costs is None


@pytest.mark.parametrize(("build", "token"), [("b1", "t2"), ("b2", "t2"), ("b2", "t")])
def test_another_process_says_nothing_with_the_words_of_the_one_before(
    build: str, token: str
) -> None:
    """Rolling figures, costs and grades: its flags may be others, its build too."""
    board = board_of([probed(number) for number in range(16)], restored=False)
    before = board.snapshot(monotonic_seconds=0.0)
    assert (before.probe_figures.probes, len(before.grades)) == (8, 1)
    board.scraped(looked(5, build=build, token=token))
    after = board.snapshot(monotonic_seconds=5.0)
    assert after.probe_figures.probes == 0
    assert after.measured.costs is None
    assert after.grades == {}
    assert len(board.results) == 8, "they can still be looked at"


def test_another_build_is_noticed_on_a_server_without_counters() -> None:
    board = board_of([probed(number) for number in range(16)], restored=False)
    board.scraped(msgspec.structs.replace(looked(10, build="b2"), counters=None))
    assert board.snapshot(monotonic_seconds=10.0).probe_figures.probes == 0


def served(at: float, drafts: int, kept: int, token: str) -> Scrape:
    """A look at a server whose process has made so many drafts of three tokens."""
    return msgspec.structs.replace(
        looked(at, token=token),
        counters=Counters(
            start_token=token,
            drafts=Reading(drafts),
            draft_tokens=Reading(3 * drafts),
            accepted_tokens=Reading(kept),
            accepted_by_position=(kept, 0, 0),
            generated_tokens=Reading(drafts + kept),
            generation_seconds=Reading(drafts / 10),
            prompt_tokens=Reading(drafts),
            requests_processing=0,
            requests_deferred=0,
        ),
    )


def test_what_an_earlier_process_kept_is_not_held_against_new_costs() -> None:
    """A bad head is repaired by a restart: its traffic is in the window, and in no margin."""
    board = ServerBoard("a", SETTINGS)
    board.scraped(served(0, 0, 0, "t"))
    board.scraped(served(5, 2000, 100, "t"))
    for number in range(8):
        board.probed(probed(number, ratio=2.0))
    board.scraped(served(10, 4000, 200, "t"))
    before = board.snapshot(monotonic_seconds=10.0)
    assert before.paying.windows[300.0].margin.upper < 0
    board.scraped(served(15, 0, 0, "t2"))
    for number in range(8):
        board.probed(probed(number + 100, ratio=1.5))
    board.scraped(served(20, 3000, 2700, "t2"))
    after = board.snapshot(monotonic_seconds=20.0)
    assert after.paying.windows[300.0].margin.lower > 0
    acceptance = after.windows["live"][300.0].acceptance
    assert acceptance is not None
    assert acceptance.value == pytest.approx(2900 / 21_000), "users' traffic, whoever answered it"
