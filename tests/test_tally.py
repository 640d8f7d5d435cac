"""Counts of kept tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpmon.derive import nothing, total
from mtpmon.model import Amount, Step, Usage
from mtpmon.tally import Tally, batches, tally_of_steps, tally_of_usage
from mtpmon.window import Sample


def usage(drafts: float, *positions: int, error: float = 0.0, more_steps: int = 0) -> Usage:
    kept = sum(positions)
    return Usage(
        drafts=Amount(drafts, error),
        draft_tokens=Amount(drafts * 3),
        accepted_tokens=Amount(kept),
        accepted_by_position=positions,
        generated_tokens=Amount(drafts + kept + 1 + more_steps),
        generation_seconds=Amount(1.0),
        prompt_tokens=Amount(10),
        requests=1,
    )


def test_a_tally_of_steps_counts_them() -> None:
    """Three drafting, one plain; by position and as a histogram."""
    found = tally_of_steps([Step(3, 3, 0.1), Step(3, 1, 0.1), Step(2, 0, 0.1), Step(0, 0, 0.1)])
    assert found == Tally(drafts=3, draft_tokens=8, by_position=(2, 1, 1), undrafted=1)
    assert list(found.histogram) == [1, 1, 0, 1]
    assert found.kept == pytest.approx(4 / 3)
    assert found.width == pytest.approx(8 / 3)


def test_plain_steps_alone_make_no_tally() -> None:
    """Nothing was drafted."""
    assert tally_of_steps([Step(0, 0, 0.1)]) is None


def test_a_tally_of_counters_equals_that_of_the_steps_behind_them() -> None:
    """Undrafted steps are what neither kept tokens, drafts nor requests account for."""
    steps = [Step(3, 3, 0.1), Step(3, 1, 0.1), Step(3, 0, 0.1), Step(0, 0, 0.1)]
    assert tally_of_usage(usage(3, 2, 1, 1, more_steps=1)) == tally_of_steps(steps)


def test_rounding_of_drafts_is_kept_as_a_share() -> None:
    """Five of a thousand."""
    found = tally_of_usage(usage(1000, 900, 800, 700, error=5))
    assert found is not None
    assert found.rounding == 0.005


@pytest.mark.parametrize(
    "counters",
    [
        Usage(),
        Usage(drafts=Amount(10)),
        Usage(drafts=Amount(10), draft_tokens=Amount(30)),
        usage(0),
        Usage(drafts=Amount(10), draft_tokens=Amount(0), accepted_by_position=(0,)),
        usage(10, 11),
        usage(10, 5, 6),
    ],
    ids=["nothing", "no draft tokens", "no positions", "idle", "no width", "too many", "rising"],
)
def test_what_counters_cannot_tell_is_no_tally(counters: Usage) -> None:
    """Missing series, no traffic, and impossible counts."""
    assert tally_of_usage(counters) is None


def test_without_a_token_counter_no_step_is_taken_for_undrafted() -> None:
    """It is not known that there were any."""
    found = tally_of_usage(
        Usage(drafts=Amount(10), draft_tokens=Amount(30), accepted_by_position=(5, 2))
    )
    assert found is not None
    assert found.undrafted == 0


@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6)), min_size=1, max_size=50),
    st.integers(1, 8),
)
def test_shares_are_a_distribution(pairs: list[tuple[int, int]], longest: int) -> None:
    """They sum to 1, and beyond the longest length they pile up at it."""
    steps = [Step(drafted, min(kept, drafted), 0.1) for drafted, kept in pairs]
    tally = tally_of_steps(steps)
    assert tally is not None
    shares = tally.shares(longest)
    assert sum(shares) == pytest.approx(1)
    kept = [min(step.kept, longest) for step in steps]
    assert shares == pytest.approx([kept.count(k) / len(kept) for k in range(longest + 1)])


# --- batches ---


def sample(at: float, server: Usage, *, own: Usage | None = None, moved: bool = True) -> Sample:
    return Sample(
        monotonic_seconds=at, server=server, own=own or nothing(), at_rest=True, moved=moved
    )


def test_batches_are_what_ended_between_two_looks() -> None:
    """Users' requests only, and none where nothing ended."""
    probe = usage(5, 5, 5, 5)
    first = usage(10, 8, 6, 4)
    second = total(total(first, probe), usage(20, 10, 0, 0))
    samples = [
        sample(0, nothing(), moved=False),
        sample(5, first),
        sample(10, total(first, probe), own=probe, moved=False),
        sample(15, second, own=probe),
    ]
    assert batches(samples) == [(2, 2, 2, 4), (10, 10, 0, 0)]


def test_a_batch_grows_until_rounding_is_small() -> None:
    """Counters of which a look may have lost 5: 100 drafts are too few, 300 are enough."""
    samples = [sample(5.0 * n, usage(100 * n, 90 * n, 80 * n, 70 * n, error=2.5)) for n in range(7)]
    assert batches(samples) == [(30, 30, 30, 210), (30, 30, 30, 210)]


def test_no_samples_hold_no_batches() -> None:
    """And one sample holds none either."""
    assert batches([]) == []
    assert batches([sample(0, usage(10, 5))]) == []
