"""What the target would have said."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpmon.forced import chosen_positions, drawn_length, judged, known_prefix
from mtpmon.model import ForcedToken, Position, TopToken

TOP = (TopToken(7, math.log(0.5)), TopToken(3, math.log(0.3)), TopToken(9, math.log(0.1)))


def test_the_best_token_has_no_regret() -> None:
    """Greedy decoding without fault emits it."""
    assert judged(4, 7, TOP) == ForcedToken(index=4, logprob=math.log(0.5), rank=0, regret_nats=0)


def test_another_token_has_rank_and_regret() -> None:
    """In whatever order the list comes."""
    found = judged(4, 9, TOP[::-1])
    assert found is not None
    assert found.rank == 2
    assert found.regret_nats == pytest.approx(math.log(5))


def test_tied_tokens_are_all_the_best() -> None:
    """A rounding tie is no rank."""
    tied = (TopToken(1, -0.7), TopToken(2, -0.7))
    for token in (1, 2):
        found = judged(0, token, tied)
        assert found is not None
        assert (found.rank, found.regret_nats) == (0, 0)


@pytest.mark.parametrize("token", [42, None])
def test_a_token_outside_the_list_has_a_least_regret(token: int | None) -> None:
    """Its probability and rank are not known, and are not made up."""
    found = judged(0, token, TOP)
    assert found is not None
    assert (found.logprob, found.rank) == (None, None)
    assert found.regret_nats == pytest.approx(math.log(5))


def test_no_list_is_no_judgement() -> None:
    """Missing is not "sure"."""
    assert judged(0, 7, ()) is None


def test_the_prefix_ends_at_the_first_gap() -> None:
    """A token that the stream left out makes all later prefixes unknown."""
    positions = [Position(5, "a"), Position(6, "b"), Position(None, ""), Position(8, "c")]
    assert known_prefix(positions) == (5, 6)


@given(st.integers(0, 80), st.integers(0, 100), st.integers())
def test_chosen_positions_are_in_order_and_hold_the_last(
    known: int, wanted: int, seed: int
) -> None:
    """As many as wanted or known, none twice, the same for the same seed."""
    found = chosen_positions(known, wanted, seed=seed)
    assert len(found) == min(known, wanted)
    assert list(found) == sorted(set(found))
    assert all(0 <= place < known for place in found)
    assert not found or found[-1] == known - 1
    assert found == chosen_positions(known, wanted, seed=seed)


def test_every_length_is_drawn_over_time() -> None:
    """From the shortest that has a drafted past to the longest."""
    drawn = [drawn_length(64, seed=seed) for seed in range(1, 2001, 2)]
    assert set(drawn) == set(range(2, 65))
    assert drawn_length(2, seed=5) == 2


def test_all_positions_are_visited_over_time() -> None:
    """Eight of 64 at a time."""
    visited = set()
    for seed in range(100):
        visited |= set(chosen_positions(64, 8, seed=seed))
    assert visited == set(range(64))
