"""Decode steps rebuilt from a stream's running totals, against a simulated generation."""

import json
import math
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpmon.model import Step, StepStream, Timings
from mtpmon.steps import accepted_by_position, steps

STREAMS: dict[str, list[dict[str, float]]] = json.loads(
    (Path(__file__).parent / "data" / "stream_timings.json").read_text()
)


def point(
    generated: int, seconds: float, drafted: int | None = None, kept: int | None = None
) -> Timings:
    return Timings(
        prompt_tokens=18,
        prompt_seconds=0.003,
        cached_tokens=0,
        generated_tokens=generated,
        generation_seconds=seconds,
        draft_tokens=drafted,
        accepted_tokens=kept,
    )


class Played(NamedTuple):
    """A step that was played and how many tokens it emitted beyond those kept and its own."""

    drafted: int
    kept: int
    extra: int


def play(moves: list[Played], *, hidden: list[bool], cut: int) -> tuple[list[Step], list[Timings]]:
    """Emit the chunks of a generation: one for each token not hidden, and the final one.

    Step i takes 2^i microseconds, so that no two steps together last as long as a third.
    """
    emissions = [(1, 1e-6, None, None)]
    truth: list[Step] = []
    for number, (drafted, kept, extra) in enumerate(moves):
        truth.append(Step(drafted, kept, 2**number * 1e-6))
        all_drafted = sum(step.drafted for step in truth)
        all_kept = sum(step.kept for step in truth)
        seconds = (2 ** (number + 1) - 1) * 1e-6
        emitted = 1 + kept + extra - (cut if number == len(moves) - 1 else 0)
        for _ in range(max(emitted, 1)):
            counts = (all_drafted, all_kept) if all_drafted else (None, None)
            emissions.append((len(emissions) + 1, seconds, *counts))
    chunks = [point(*each) for each, hide in zip(emissions, hidden, strict=False) if not hide]
    return truth, [*chunks, point(*emissions[-1])]


@st.composite
def moves(draw: st.DrawFn, *, extra: int = 0, lost: bool = False) -> list[Played]:
    """Plain steps and drafts wholly, partly or not kept, some with miscounted tokens.

    After a rejection a step may emit ``extra`` more than it counts as kept; if ``lost``, any
    step may emit fewer.
    """
    played = []
    for _ in range(draw(st.integers(0, 12))):
        drafted = draw(st.integers(0, 4))
        kept = draw(st.integers(0, drafted))
        least, most = -kept if lost else 0, extra if kept < drafted else 0
        played.append(Played(drafted, kept, draw(st.integers(least, most))))
    return played


def close(found: tuple[Step, ...], truth: list[Step]) -> bool:
    return len(found) == len(truth) and all(map(same, found, truth))


def same(one: Step, other: Step) -> bool:
    counts = (one.drafted, one.kept) == (other.drafted, other.kept)
    return counts and math.isclose(one.seconds, other.seconds, abs_tol=1e-9)


def totals(stream: StepStream) -> tuple[int, int, float]:
    return (
        sum(step.drafted for step in stream.steps) + stream.unresolved_draft_tokens,
        sum(step.kept for step in stream.steps) + stream.unresolved_accepted_tokens,
        math.fsum(step.seconds for step in stream.steps) + stream.unresolved_seconds,
    )


@given(moves(extra=1, lost=True), st.integers(0, 4))
def test_a_stream_with_every_token_gives_back_every_step(played: list[Played], cut: int) -> None:
    """Nothing hidden: the steps are those played, however many tokens each one emitted."""
    truth, points = play(played, hidden=[False] * 99, cut=cut)
    found = steps(points)
    assert close(found.steps, truth)
    assert found.resolved


@given(moves())
def test_every_token_but_the_first_comes_from_a_step(played: list[Played]) -> None:
    """Uncut, n tokens are one from the prompt and, for each step, its own and those kept."""
    _, points = play(played, hidden=[False] * 99, cut=0)
    found = steps(points).steps
    assert points[-1].generated_tokens == 1 + sum(1 + step.kept for step in found)
    assert all(0 <= step.kept <= step.drafted for step in found)


@given(moves(extra=1), st.lists(st.booleans(), min_size=99, max_size=99), st.integers(0, 4))
def test_no_step_is_made_up_when_tokens_are_hidden(
    played: list[Played], hidden: list[bool], cut: int
) -> None:
    """Every step reported is one that was played, in order; the rest is left unresolved."""
    truth, points = play(played, hidden=hidden, cut=cut)
    remaining = iter(truth)
    for step in steps(points).steps:
        assert any(same(step, candidate) for candidate in remaining)


@given(moves(extra=1), st.lists(st.booleans(), min_size=99, max_size=99), st.integers(0, 4))
def test_totals_survive_hidden_tokens(played: list[Played], hidden: list[bool], cut: int) -> None:
    """Resolved and unresolved together are all that was drafted, kept and spent."""
    truth, points = play(played, hidden=hidden, cut=cut)
    drafted, kept, seconds = totals(steps(points))
    assert drafted == sum(step.drafted for step in truth)
    assert kept == sum(step.kept for step in truth)
    assert seconds == pytest.approx(math.fsum(step.seconds for step in truth), abs=1e-9)


@pytest.mark.parametrize("build", sorted(STREAMS))
def test_recorded_streams_of_three_builds(build: str) -> None:
    """Streams recorded from real servers at n_max 3 show the same eight steps on each build."""
    points = [
        point(
            int(each["predicted_n"]),
            each["predicted_ms"] / 1e3,
            int(each["draft_n"]) if "draft_n" in each else None,
            int(each["draft_n_accepted"]) if "draft_n_accepted" in each else None,
        )
        for each in STREAMS[build]
    ]
    found = steps(points)
    assert found.resolved
    assert [(step.drafted, step.kept) for step in found.steps] == [
        *((3, kept) for kept in (1, 2, 0, 3, 1, 3, 3)),
        (2, 2),
    ]
    assert accepted_by_position(found.steps) == (7, 5, 3)
    assert totals(found) == pytest.approx((23, 15, points[-1].generation_seconds))


def test_no_chunks_no_steps() -> None:
    """A stream that broke before its first token has no steps."""
    assert steps([]) == StepStream()


def test_the_first_token_is_no_step() -> None:
    """One token comes from the prompt alone, whatever the clock says at it."""
    assert steps([point(0, 0.0), point(1, 1e-6), point(1, 1e-6)]) == StepStream()


def test_a_target_only_stream_is_all_plain_steps() -> None:
    """Without a draft each token after the first is a plain step of its own time."""
    found = steps([point(1, 1e-6), point(2, 0.25), point(3, 0.75), point(3, 0.75)])
    assert found == StepStream(steps=(Step(0, 0, 0.25), Step(0, 0, 0.5)))


def test_plain_steps_between_drafts() -> None:
    """Steps that draft nothing stand alone, two in a row and at the end."""
    found = steps(
        [
            point(1, 0.0),
            point(2, 1.0, 2, 1),
            point(3, 1.0, 2, 1),
            point(4, 1.5, 2, 1),
            point(5, 2.0, 2, 1),
            point(6, 3.0, 4, 1),
            point(7, 3.5, 4, 1),
            point(7, 3.5, 4, 1),
        ]
    )
    assert found == StepStream(
        steps=(Step(2, 1, 1.0), Step(0, 0, 0.5), Step(0, 0, 0.5), Step(2, 0, 1.0), Step(0, 0, 0.5))
    )


def test_a_token_hidden_within_a_step_costs_nothing() -> None:
    """Only the first token of a step needs to be seen, or its place to be due."""
    found = steps([point(1, 0.0), point(2, 1.0, 3, 2), point(5, 2.0, 6, 2), point(6, 3.0, 9, 2)])
    assert found == StepStream(steps=(Step(3, 2, 1.0), Step(3, 0, 1.0), Step(3, 0, 1.0)))


def test_a_hidden_first_token_is_resolved_by_the_next_step() -> None:
    """As many tokens up to the next step as one step emits are one step."""
    found = steps([point(1, 0.0), point(3, 1.0, 3, 2), point(5, 2.0, 6, 2)])
    assert found == StepStream(steps=(Step(3, 2, 1.0), Step(3, 0, 1.0)))


def test_two_steps_behind_one_change_are_not_split() -> None:
    """More tokens than one step emits leave the change unresolved and the totals right."""
    found = steps([point(1, 0.0), point(3, 1.0, 3, 0), point(4, 2.0, 6, 2), point(6, 2.0, 6, 2)])
    assert found == StepStream(
        steps=(Step(3, 2, 1.0),),
        unresolved_draft_tokens=3,
        unresolved_seconds=1.0,
    )


def test_a_last_change_behind_hidden_tokens_is_not_guessed() -> None:
    """Two steps, the second cut by a stop word, could have emitted as many tokens."""
    found = steps([point(1, 0.0), point(4, 1.0, 6, 2)])
    assert found == StepStream(
        unresolved_draft_tokens=6, unresolved_accepted_tokens=2, unresolved_seconds=1.0
    )


def test_fewer_tokens_than_counted_behind_hidden_ones_are_not_guessed() -> None:
    """Where a server's counts do not fit its tokens, only a token in plain sight is proof."""
    found = steps([point(1, 0.0), point(3, 1.0, 3, 3), point(4, 2.0, 6, 3)])
    assert found == StepStream(
        steps=(Step(3, 0, 1.0),),
        unresolved_draft_tokens=3,
        unresolved_accepted_tokens=3,
        unresolved_seconds=1.0,
    )


def test_more_kept_than_drafted_is_no_step() -> None:
    """A server's impossible counts stay out of the steps and in the totals."""
    found = steps([point(1, 0.0), point(2, 1.0, 1, 2), point(3, 2.0, 4, 2)])
    assert found == StepStream(
        steps=(Step(3, 0, 1.0),),
        unresolved_draft_tokens=1,
        unresolved_accepted_tokens=2,
        unresolved_seconds=1.0,
    )


def test_a_clock_that_runs_backwards_makes_no_negative_step() -> None:
    """A step whose end lies before its start took no time; the next counts from the latest."""
    found = steps([point(1, 0.0), point(2, 2.0), point(3, 1.5), point(4, 2.5)])
    assert found == StepStream(steps=(Step(0, 0, 2.0), Step(0, 0, 0.0), Step(0, 0, 0.5)))


@pytest.mark.parametrize(
    "fallen", [point(2, 2.0, 6, 3), point(4, 2.0, 2, 2), point(4, 2.0, 6, 1), point(4, 2.0)]
)
def test_counts_that_fall_are_refused(fallen: Timings) -> None:
    """Running totals of one generation never fall: such a stream is not one."""
    with pytest.raises(ValueError, match="a count falls along the stream"):
        steps([point(1, 0.0), point(3, 1.0, 3, 2), fallen])


@given(moves())
def test_positions_count_the_steps_that_kept_them(played: list[Played]) -> None:
    """Entry i counts steps with more than i kept; together they are all kept tokens."""
    found = [Step(each.drafted, each.kept, 1.0) for each in played]
    counts = accepted_by_position(found)
    assert len(counts) == max((step.drafted for step in found), default=0)
    assert sum(counts) == sum(step.kept for step in found)
    assert sorted(counts, reverse=True) == list(counts)
    for position, count in enumerate(counts):
        assert count == len([step for step in found if step.kept > position])
