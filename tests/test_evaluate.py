"""What two arms said: compared and measured."""

import math
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from mtpmon.evaluate import KEPT_TOPS, Pair, evaluate, steps_after_a_cut, usage_of
from mtpmon.forced import Forced
from mtpmon.model import (
    Amount,
    Baseline,
    Completion,
    Position,
    PositionKinds,
    ProbeOutcome,
    ProbeResult,
    Step,
    StepStream,
    Timings,
    TopToken,
    Variant,
)
from mtpmon.rolling import matrix, paired_speedup, rolling, task_figures
from mtpmon.student import student_t_quantile
from mtpmon.suite import Prompt

PROMPT = Prompt(id="p", task="code", text="x")
DRAFTED = (Step(3, 2, 0.5), Step(3, 0, 0.25), Step(0, 0, 0.25))


def tops(*probabilities: float) -> tuple[TopToken, ...]:
    return tuple(TopToken(i, math.log(p)) for i, p in enumerate(probabilities))


def completion(
    positions: tuple[Position, ...] = (),
    steps: tuple[Step, ...] = DRAFTED,
    *,
    finished: bool = True,
    hidden: tuple[int, int] = (0, 0),
    wall_seconds: float = 1,
) -> Completion:
    """One whose totals follow from its steps and the hidden (drafted, kept) tokens."""
    drafted = sum(s.drafted for s in steps) + hidden[0]
    kept = sum(s.kept for s in steps) + hidden[1]
    return Completion(
        positions=positions,
        timings=Timings(
            prompt_tokens=7,
            prompt_seconds=0.1,
            cached_tokens=0,
            generated_tokens=1 + len(steps) + kept,
            generation_seconds=math.fsum(s.seconds for s in steps),
            draft_tokens=drafted or None,
            accepted_tokens=kept if drafted else None,
        ),
        stream=StepStream(
            steps=steps, unresolved_draft_tokens=hidden[0], unresolved_accepted_tokens=hidden[1]
        ),
        wall_seconds=wall_seconds,
        finished=finished,
    )


PLAIN = tuple(Step(0, 0, 0.25) for _ in range(5))


def evaluated(ours: Completion, theirs: Completion | None) -> ProbeResult:
    return evaluate(Pair(ours, theirs), PROMPT, server="a", unix_seconds=5, duration_seconds=2)


# --- usage ---


def test_usage_is_what_the_server_counts() -> None:
    """Drafts, tokens and positions from the steps; exact when the stream was whole."""
    found = usage_of(completion())
    assert found.drafts == Amount(2)
    assert found.draft_tokens == Amount(6)
    assert found.accepted_tokens == Amount(2)
    assert found.accepted_by_position == (1, 1, 0)
    assert found.generated_tokens == Amount(6)
    assert found.generation_seconds == Amount(1.0)
    assert found.prompt_tokens == Amount(7)
    assert found.requests == 1


def test_a_cut_stream_leaves_two_steps_open() -> None:
    """The server counts what it goes on to generate until it notices."""
    found = usage_of(completion(finished=False))
    assert found.drafts == Amount(2, 0, 2)
    assert found.draft_tokens == Amount(6, 0, 6)
    assert found.generated_tokens == Amount(6, 0, 8)
    assert found.positions_error == 6


@pytest.mark.parametrize(
    ("wall_seconds", "steps"),
    [(0.5, 2), (1.1, 2), (1.2, 3), (1.35, 3), (1.36, 4), (2.1, 6), (11.1, 42)],
)
def test_a_stream_read_late_leaves_as_many_steps_open_as_fit(
    wall_seconds: float, steps: int
) -> None:
    """1.1 s are the server's own; in what is beyond, a typical step takes 0.25 s."""
    found = usage_of(completion(finished=False, wall_seconds=wall_seconds))
    assert found.drafts == Amount(2, 0, steps)
    assert found.draft_tokens == Amount(6, 0, 3 * steps)
    assert found.generated_tokens == Amount(6, 0, 4 * steps)
    assert found.positions_error == 3 * steps


def test_no_more_than_was_asked_for_can_be_open() -> None:
    """The server never exceeds it, however long it had: nor do its steps."""
    late = completion(finished=False, wall_seconds=100)
    found = usage_of(late, wanted=16)
    assert found.generated_tokens == Amount(6, 0, 10)
    assert found.accepted_tokens == Amount(2, 0, 10)
    assert found.positions_error == 10
    assert found.drafts == Amount(2, 0, 10)
    assert usage_of(late, wanted=6).generated_tokens == Amount(6)
    assert usage_of(late, wanted=5).generated_tokens == Amount(6)
    assert usage_of(completion(wall_seconds=100), wanted=16).generated_tokens == Amount(6)


def test_before_a_step_has_shown_its_length_all_may_be_there() -> None:
    """Cut off after the first token: the server may have been stuck, or done."""
    early = completion(steps=(), finished=False)
    assert steps_after_a_cut(early, wanted=64) == 63
    assert usage_of(early, wanted=64).generated_tokens == Amount(1, 0, 63)
    assert steps_after_a_cut(early) == 2


def test_a_stream_that_never_began_may_have_cost_a_token() -> None:
    """The prompt may have been processed before the connection broke."""
    found = usage_of(None)
    assert found.generated_tokens == Amount(0, 0, 1)
    assert found.drafts == Amount(0)
    assert found.requests == 1


@given(st.integers(0, 30), st.data())
def test_hidden_steps_still_add_up(draft_tokens: int, data: st.DataObject) -> None:
    """Positions sum to what was kept and do not rise, however hidden tokens are laid out."""
    kept = data.draw(st.integers(0, draft_tokens))
    found = usage_of(completion(hidden=(draft_tokens, kept)))
    positions = found.accepted_by_position
    assert positions is not None
    assert sum(positions) == 2 + kept
    assert all(later <= earlier for earlier, later in pairwise(positions))
    assert found.drafts is not None
    assert found.drafts.value <= 2 + draft_tokens


# --- evaluate ---


def test_two_equal_arms() -> None:
    """Exact; the first and the last position comparable, what came of drafts missing."""
    full = tops(0.6, 0.3, 0.1)
    ours = (Position(0, "a", full), Position(1, "b"), Position(2, "c", full))
    theirs = (Position(0, "a", full), Position(1, "b", full), Position(2, "c", full))
    found = evaluated(completion(ours), completion(theirs, PLAIN))
    assert found.outcome is ProbeOutcome.COMPLETED
    assert found.comparison is not None
    assert found.comparison.exact
    assert found.positions == PositionKinds(comparable=2, missing=1, diverged=0)
    assert found.next_token is not None
    assert found.next_token.nats == 0
    assert len(found.after_speculation) == 1


def test_the_direction_is_target_to_speculating() -> None:
    """KL(P‖Q) with P the target-only server."""
    p, q = (0.5, 0.5), (0.9, 0.1)
    found = evaluated(
        completion((Position(0, "a", tops(*q)),)), completion((Position(0, "a", tops(*p)),), PLAIN)
    )
    assert found.next_token is not None
    assert found.next_token.nats == pytest.approx(0.5 * math.log(0.5 / 0.9) + 0.5 * math.log(5))


def test_distributions_are_kept_at_the_divergence_only() -> None:
    """And no more of them than a person looks at."""
    many = tops(*[0.1] * 9)
    ours = (Position(0, "a", many), Position(1, "b", many), Position(2, "c", many))
    theirs = (Position(0, "a", many), Position(5, "x", many), Position(2, "c", many))
    found = evaluated(completion(ours), completion(theirs, PLAIN))
    assert found.comparison is not None
    assert found.comparison.first_divergence == 1
    for kept in (found.speculating, found.target_only):
        assert kept is not None
        assert [len(p.top) for p in kept.positions] == [0, KEPT_TOPS, 0]


def test_a_list_that_is_no_distribution_counts_as_missing() -> None:
    """Probabilities that sum to more than 1."""
    broken = (Position(0, "a", tops(0.9, 0.9)),)
    found = evaluated(completion(broken), completion(broken, PLAIN))
    assert found.positions == PositionKinds(comparable=0, missing=1, diverged=0)
    assert found.next_token is None


def test_one_arm_alone_compares_nothing() -> None:
    """It still measures acceptance."""
    found = evaluated(completion(), None)
    assert (found.comparison, found.positions, found.target_only) == (None, None, None)
    assert found.speculating is not None


def test_what_the_target_says_along_the_answer() -> None:
    """The last position is compared with what came with it, all with the other server's."""
    p, q = tops(0.5, 0.5), tops(0.9, 0.1)
    ours = completion((Position(0, "a", p), Position(1, "b"), Position(0, "c", q)))
    forced = (
        Forced(index=0, target=p, speculating=p),
        Forced(index=1, target=p, speculating=q),
        Forced(index=2, target=p, speculating=()),
    )
    pair = Pair(ours, None, forced, Baseline.SINGLE)
    found = evaluate(pair, PROMPT, server="a", unix_seconds=5, duration_seconds=2)
    assert [d.nats > 0.1 for d in found.after_speculation] == [True]
    assert [d.nats > 0.1 for d in found.teacher_forced] == [False, True]
    assert [token.index for token in found.forced] == [0, 1, 2]
    assert [token.rank for token in found.forced] == [0, 0, 0]
    assert found.baseline is Baseline.SINGLE
    figures = rolling([found], confidence=0.95)
    assert figures.emitted_best == 1
    assert figures.regret is not None
    assert figures.regret.max_nats == 0
    assert set(figures.kld) == {"after_speculation", "teacher_forced"}


def test_a_forced_list_that_is_no_distribution_is_left_out() -> None:
    """It enters no figure."""
    broken = Forced(index=0, target=tops(0.9, 0.9), speculating=tops(0.5, 0.5))
    silent = Forced(index=0, target=(), speculating=tops(0.5, 0.5))
    ours = completion((Position(0, "a"),))
    found = evaluate(
        Pair(ours, None, (broken, silent)), PROMPT, server="a", unix_seconds=5, duration_seconds=2
    )
    assert found.teacher_forced == ()
    assert len(found.forced) == 1


# --- variants ---

SAMPLED = Variant(temperature=0.8)


def test_sampled_answers_are_not_compared() -> None:
    """They may differ without fault: only the distributions after the prompt are compared."""
    p, q = tops(0.5, 0.5), tops(0.9, 0.1)
    ours = completion((Position(0, "a", p), Position(1, "b", q)))
    theirs = completion((Position(7, "z", q), Position(8, "y", p)))
    pair = Pair(ours, theirs, (), Baseline.PAIR)
    found = evaluate(pair, PROMPT, variant=SAMPLED, server="a", unix_seconds=5, duration_seconds=2)
    assert found.variant == SAMPLED
    assert found.comparison is None
    assert found.after_speculation == ()
    assert found.next_token is not None
    assert found.next_token.nats > 0.1
    assert found.positions == PositionKinds(comparable=1, missing=0, diverged=0)
    figures = rolling([found], confidence=0.95)
    assert (figures.exact_sequences, figures.token_match) == (None, None)
    assert set(figures.kld) == {"next_token"}


def test_figures_by_task_are_about_the_default_variant() -> None:
    """Other ways to ask do not move them; answers of all greedy ones are compared."""
    deep = replace(pair(9, 1), variant=Variant(depth_tokens=4096))
    hot = replace(pair(9, 1, "essay"), variant=SAMPLED, comparison=None)
    found = rolling([pair(1, 1), deep, hot], confidence=0.95)
    assert set(found.tasks) == {"code"}
    assert found.tasks["code"] == task_figures([pair(1, 1)], confidence=0.95)
    assert found.probes == 3
    assert found.exact_sequences is not None


def test_the_matrix_has_a_cell_for_each_way_to_ask() -> None:
    """By task, temperature and thinking; deep contexts and failures are in none."""
    hot = replace(pair(2, 1), variant=SAMPLED)
    thinking = replace(pair(1, 1, "essay"), variant=Variant(thinking=True))
    deep = replace(pair(9, 1), variant=Variant(depth_tokens=4096))
    failed = replace(hot, outcome=ProbeOutcome.FAILED)
    found = matrix([pair(1, 1), hot, hot, thinking, deep, failed], confidence=0.95)
    assert {cell: figures.probes for cell, figures in found.items()} == {
        ("code", 0.0, None): 1,
        ("code", 0.8, None): 2,
        ("essay", 0.0, True): 1,
    }
    assert found["code", 0.8, None].tokens_per_second == 1.25
    assert matrix([], confidence=0.95) == {}


# --- rolling ---


def pair(seconds: float, baseline_seconds: float, task: str = "code") -> ProbeResult:
    ours = completion(steps=(Step(3, 2, seconds), Step(3, 1, seconds)))
    theirs = completion(steps=tuple(Step(0, 0, baseline_seconds) for _ in range(5)))
    return evaluate(
        Pair(ours, theirs),
        Prompt(id="p", task=task, text=""),
        server="a",
        unix_seconds=1,
        duration_seconds=1,
    )


def test_no_probe_gives_no_figure() -> None:
    """All unknown."""
    found = rolling([], confidence=0.95)
    assert (found.probes, found.exact_sequences, found.token_match) == (0, None, None)
    assert (found.kld, found.tasks, found.divergence_margin_nats) == ({}, {}, None)


def test_figures_by_task() -> None:
    """Acceptance and length over all steps, speed over decode steps."""
    found = rolling([pair(1, 1), pair(1, 1), pair(1, 1, "essay")], confidence=0.95)
    code = found.tasks["code"]
    assert (code.probes, found.tasks["essay"].probes) == (2, 1)
    assert code.acceptance == 0.5
    assert code.acceptance_length == 2.5
    assert code.tokens_per_second == 2.5
    assert code.target_only_tokens_per_second == 1
    assert code.speedup is None


def test_failed_probes_count_for_nothing() -> None:
    """Only completed ones are in the figures."""
    failed = ProbeResult(
        server="a",
        prompt_id="p",
        task="code",
        unix_seconds=1,
        duration_seconds=1,
        outcome=ProbeOutcome.FAILED,
    )
    assert rolling([failed], confidence=0.95).probes == 0


def test_speed_up_is_paired() -> None:
    """A machine that slows both arms tenfold changes nothing, and the bounds stay tight."""
    found = paired_speedup([pair(1, 1), pair(10, 10), pair(3, 3)], confidence=0.95)
    assert found is not None
    assert found.value == pytest.approx(2.5)
    assert found.lower == pytest.approx(found.upper)


def test_speed_up_needs_both_arms() -> None:
    """Pairs with one arm, or with an arm that took no time, do not count."""
    alone = evaluated(completion(), None)
    instant = pair(0, 1)
    assert paired_speedup([alone, instant, pair(1, 1), pair(1, 1)], confidence=0.95) is None


def test_short_answers_do_not_count_for_speed() -> None:
    """Their start and end weigh too much."""
    short = evaluate(
        Pair(completion(steps=(Step(3, 0, 9),)), completion(steps=(Step(0, 0, 1),))),
        PROMPT,
        server="a",
        unix_seconds=1,
        duration_seconds=1,
    )
    found = paired_speedup([pair(1, 1), pair(1, 1), pair(1, 1), short], confidence=0.95)
    long_pairs = [pair(1, 1)] * 3
    assert found == paired_speedup(long_pairs, confidence=0.95)
    shorter = evaluate(
        Pair(completion(steps=()), completion(steps=())),
        PROMPT,
        server="a",
        unix_seconds=1,
        duration_seconds=1,
    )
    assert paired_speedup([*long_pairs, shorter], confidence=0.95) == found


def test_speed_up_bounds_cover_the_truth() -> None:
    """Log-normal noise, 12 pairs: 95 % bounds hold it 93 to 97 % of the time."""
    rng = random.Random(11)
    held = 0
    for _ in range(1000):
        results = [
            pair(math.exp(rng.gauss(0, 0.2)), math.exp(rng.gauss(0, 0.2))) for _ in range(12)
        ]
        found = paired_speedup(results, confidence=0.95)
        assert found is not None
        held += found.lower <= 2.5 <= found.upper
    assert 0.93 <= held / 1000 <= 0.97


def test_acceptance_length_is_unknown_where_steps_hide() -> None:
    """Acceptance itself is not."""
    hidden = evaluated(completion(hidden=(6, 2)), None)
    code = rolling([hidden], confidence=0.95).tasks["code"]
    assert code.acceptance == pytest.approx(4 / 12)
    assert code.acceptance_length is None
    assert code.target_only_tokens_per_second is None


def test_no_drafts_give_no_acceptance() -> None:
    """A server that does not speculate."""
    found = rolling([evaluated(completion(steps=PLAIN), None)], confidence=0.95).tasks["code"]
    assert (found.acceptance, found.acceptance_length) == (None, None)


def test_kld_is_summed_up_apart() -> None:
    """After the prompt, and after speculation."""
    p, q = tops(0.5, 0.5), tops(0.9, 0.1)
    ours = (Position(0, "a", p), Position(1, "b", q))
    theirs = (Position(0, "a", p), Position(1, "b", p))
    found = rolling([evaluated(completion(ours), completion(theirs, PLAIN))], confidence=0.95)
    assert found.kld["next_token"].mean_nats == 0
    assert found.kld["after_speculation"].mean_nats > 0.1
    assert found.kld_coverage == pytest.approx(1)
    assert found.top1_agreement == 1
    assert found.exact_sequences == 1
    assert found.token_match == 1


def test_the_margin_is_a_median() -> None:
    """One tie among clear divergences does not hide them."""
    results = []
    for gap in (0.0, 2.0, 3.0):
        first = (TopToken(0, -0.1), TopToken(1, -0.1 - gap))
        results.append(
            evaluated(
                completion((Position(1, "b"),)), completion((Position(0, "a", first),), PLAIN)
            )
        )
    assert rolling(results, confidence=0.95).divergence_margin_nats == pytest.approx(2)


# --- Student's t ---


@pytest.mark.parametrize(
    ("probability", "degrees", "value"),
    [
        (0.975, 1, 12.706204736),
        (0.975, 2, 4.302652730),
        (0.975, 10, 2.228138852),
        (0.995, 5, 4.032142984),
        (0.6, 3, 0.276670662),
        (0.025, 10, -2.228138852),
        (0.975, 200, 1.971896224),
        (0.5, 4, 0.0),
    ],
)
def test_t_quantiles_are_the_tabled_ones(probability: float, degrees: int, value: float) -> None:
    """Against published tables."""
    assert student_t_quantile(probability, degrees) == pytest.approx(value, abs=1e-8)


@pytest.mark.parametrize(("probability", "degrees"), [(0, 3), (1, 3), (0.5, 0)])
def test_there_is_no_quantile_outside(probability: float, degrees: int) -> None:
    """Certainty has none, and neither has no freedom."""
    with pytest.raises(ValueError, match="no t quantile"):
        student_t_quantile(probability, degrees)
