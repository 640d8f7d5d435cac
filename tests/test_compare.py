"""Two sequences side by side: matches, the first divergence, where KLD is meaningful."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpmon.compare import DivergenceKind, classify_positions, compare, divergence_kind
from mtpmon.model import Comparison, Position, PositionKinds, TopToken

Sequence = list[Position]
LENGTH = 64
TOP = (TopToken(0, math.log(0.5)), TopToken(1, math.log(0.25)))
HIDDEN = Position(None, "")


def known(*ids: int, top: tuple[TopToken, ...] = ()) -> Sequence:
    return [Position(each, f"<{each}>", top) for each in ids]


def parted(at: int | None, *, coincidences: int = 0) -> tuple[Sequence, Sequence]:
    """Make 64 tokens a side, equal up to ``at`` and again at that many later places."""
    ours = known(*range(LENGTH))
    if at is None:
        return ours, ours
    again = range(at + 1, at + 1 + coincidences)
    theirs = known(*(i if i < at or i in again else -1 - i for i in range(LENGTH)))
    return ours, theirs


def offered(positions: Sequence, *indices: int) -> Sequence:
    """Put a distribution at these indices and nowhere else."""
    return [
        Position(each.id, each.text, TOP if index in indices else ())
        for index, each in enumerate(positions)
    ]


@pytest.mark.parametrize(
    ("parts", "exact", "prefix", "matches"),
    [
        ([(None, 0)] * 6 + [(60, 0), (34, 0)], 6, 478, 478),
        ([(None, 0)] * 5 + [(25, 5), (43, 1), (60, 1)], 5, 448, 455),
    ],
)
def test_published_matches_are_reproduced(
    parts: list[tuple[int | None, int]], exact: int, prefix: int, matches: int
) -> None:
    """478 and 455 of 512 tokens are matches by position, coincidences after parting included."""
    found = [compare(*parted(at, coincidences=again)) for at, again in parts]
    assert sum(each.tokens for each in found) == 512
    assert sum(each.exact for each in found) == exact
    assert sum(each.matched_prefix for each in found) == prefix
    assert sum(each.matches for each in found) == matches
    assert [each.first_divergence for each in found] == [at for at, _ in parts]


@pytest.mark.parametrize(
    ("parts", "lasts", "kinds"),
    [
        ([None] * 6 + [60, 34], 4, PositionKinds(comparable=12, missing=468, diverged=32)),
        ([None] * 5 + [25, 43, 60], 2, PositionKinds(comparable=10, missing=441, diverged=61)),
    ],
)
def test_published_missing_positions_are_the_missing_and_the_diverged(
    parts: list[int | None], lasts: int, kinds: PositionKinds
) -> None:
    """Pairing 512 positions without regard to prefixes counts the diverged as missing.

    The published 12 + 500 and 10 + 502 are met by distributions at every first token and at
    4 (2) of the last ones: 500 = 468 + 32 and 502 = 441 + 61.
    """
    found = []
    for number, at in enumerate(parts):
        ours, theirs = parted(at)
        last = (LENGTH - 1,) if number < lasts else ()
        kind, _ = classify_positions(offered(ours, 0, *last), offered(theirs, *range(LENGTH)))
        found.append(kind)
    assert kinds == PositionKinds(
        comparable=sum(each.comparable for each in found),
        missing=sum(each.missing for each in found),
        diverged=sum(each.diverged for each in found),
    )
    assert kinds.comparable + kinds.missing + kinds.diverged == 512


def test_equal_sequences() -> None:
    """Equal sequences have no divergence and so no margin."""
    assert compare(known(1, 2), known(1, 2)) == Comparison(
        tokens=2, matches=2, matched_prefix=2, first_divergence=None, divergence_margin_nats=None
    )


def test_empty_sequences_are_equal() -> None:
    """Nothing differs from nothing."""
    assert compare([], []).exact
    assert compare([], []).tokens == 0


def test_positions_past_the_end_are_mismatches() -> None:
    """The shorter sequence diverges where it ends, whichever side it is."""
    for ours, theirs in ((known(1, 2), known(1, 2, 3, 4)), (known(1, 2, 3, 4), known(1, 2))):
        found = compare(ours, theirs)
        assert (found.tokens, found.matches, found.first_divergence) == (4, 2, 2)


@pytest.mark.parametrize(
    ("top", "margin"),
    [
        (TOP, math.log(2)),
        (TOP[::-1], math.log(2)),
        ((TOP[0], TOP[0], TOP[1]), 0.0),
        (TOP[:1], None),
        ((), None),
    ],
)
def test_margin_is_the_gap_between_the_two_best_of_the_baseline(
    top: tuple[TopToken, ...], margin: float | None
) -> None:
    """The gap is known if the baseline lists two candidates, in whatever order."""
    wide = (TopToken(0, -0.1), TopToken(1, -9.0))
    found = compare(known(1, 2, 4, top=wide), known(1, 3, 5, top=top))
    assert found.first_divergence == 1
    assert found.divergence_margin_nats == pytest.approx(margin)


def test_margin_is_unknown_past_the_end_of_the_baseline() -> None:
    """A baseline that has ended has no candidates."""
    assert compare(known(1, 2), known(1, top=TOP)).divergence_margin_nats is None


def test_hidden_tokens_are_judged_by_the_token_that_closes_them() -> None:
    """A run of hidden tokens is equal if it is as long and ends in the same id and text."""
    ours = [*known(1), HIDDEN, HIDDEN, Position(7, "é"), *known(2)]
    assert compare(ours, list(ours)).matches == 5
    assert compare(ours, list(ours)).exact


@pytest.mark.parametrize(
    ("theirs", "matches"),
    [
        ([*known(1), HIDDEN, HIDDEN, Position(7, "è"), *known(2)], 2),
        ([*known(1), HIDDEN, HIDDEN, Position(8, "é"), *known(2)], 2),
        ([*known(1), HIDDEN, Position(7, "é"), *known(5), *known(2)], 2),
        ([*known(1, 9), HIDDEN, Position(7, "é"), *known(2)], 2),
        ([*known(1), HIDDEN, HIDDEN, HIDDEN, Position(7, "é")], 1),
        ([*known(1), HIDDEN, HIDDEN, HIDDEN, HIDDEN], 1),
    ],
)
def test_a_differing_run_of_hidden_tokens_differs_as_a_whole(
    theirs: Sequence, matches: int
) -> None:
    """Which hidden token differs is not known: the divergence is where the run starts."""
    ours = [*known(1), HIDDEN, HIDDEN, Position(7, "é"), *known(2)]
    for found in (compare(ours, theirs), compare(theirs, ours)):
        assert (found.tokens, found.matches, found.first_divergence) == (5, matches, 1)


def test_the_text_of_a_single_known_token_is_not_compared() -> None:
    """An id is the token; its text may be rendered differently."""
    assert compare([Position(1, "a")], [Position(1, "")]).exact


def test_tokens_hidden_up_to_the_end_are_not_counted() -> None:
    """With no closing token on either side nothing is known, so neither match nor mismatch."""
    found = compare([*known(1), HIDDEN, HIDDEN], [*known(1), HIDDEN, HIDDEN])
    assert found.exact
    assert (found.tokens, found.matches, found.matched_prefix) == (1, 1, 1)


def test_tokens_hidden_up_to_different_ends_differ() -> None:
    """Runs of unequal length are not equal, closed or not."""
    found = compare([*known(1), HIDDEN], [*known(1), HIDDEN, HIDDEN])
    assert (found.tokens, found.matches, found.first_divergence) == (3, 1, 1)


def test_comparable_positions_need_both_distributions() -> None:
    """A distribution on one side only, or on neither, is missing."""
    ours, theirs = offered(known(1, 2, 3, 4), 0, 1), offered(known(1, 2, 3, 4), 0, 2)
    kinds, comparable = classify_positions(ours, theirs)
    assert comparable == (0,)
    assert kinds == PositionKinds(comparable=1, missing=3, diverged=0)


def test_the_first_divergence_still_has_the_same_prefix() -> None:
    """The distributions at the first mismatch are comparable, those after it are not."""
    kinds, comparable = classify_positions(known(1, 2, 3, top=TOP), known(1, 9, 3, top=TOP))
    assert comparable == (0, 1)
    assert kinds == PositionKinds(comparable=2, missing=0, diverged=1)


def test_the_end_of_the_shorter_sequence_is_missing_then_diverged() -> None:
    """Where one side has ended after the same prefix it has no distribution to compare."""
    kinds, comparable = classify_positions(known(1, top=TOP), known(1, 2, 3, top=TOP))
    assert comparable == (0,)
    assert kinds == PositionKinds(comparable=1, missing=1, diverged=1)


tokens = st.one_of(
    st.builds(Position, st.integers(0, 2), st.sampled_from("ab"), st.sampled_from([(), TOP])),
    st.just(HIDDEN),
)
sequences = st.lists(tokens, max_size=10)


@given(sequences, sequences)
def test_sides_can_be_exchanged(ours: Sequence, theirs: Sequence) -> None:
    """Counts do not depend on which side is which; only the margin is the baseline's."""
    one, other = compare(ours, theirs), compare(theirs, ours)
    assert (one.tokens, one.matches, one.first_divergence) == (
        other.tokens,
        other.matches,
        other.first_divergence,
    )
    assert classify_positions(ours, theirs) == classify_positions(theirs, ours)


@given(sequences, sequences)
def test_the_counts_are_consistent(ours: Sequence, theirs: Sequence) -> None:
    """Prefix ≤ matches ≤ tokens; equality is all tokens matching; every position has a kind."""
    found = compare(ours, theirs)
    kinds, comparable = classify_positions(ours, theirs)
    length = max(len(ours), len(theirs))
    assert found.matched_prefix <= found.matches <= found.tokens <= length
    assert found.exact == (found.matches == found.tokens)
    assert found.first_divergence in (None, found.matched_prefix)
    assert kinds.comparable + kinds.missing + kinds.diverged == length
    assert len(comparable) == kinds.comparable
    assert all(index <= found.matched_prefix for index in comparable)


@given(st.lists(st.integers(0, 2), max_size=12), st.lists(st.integers(0, 2), max_size=12))
def test_known_tokens_are_compared_one_by_one(ours: list[int], theirs: list[int]) -> None:
    """Without hidden tokens a match is an equal id at the same place."""
    same = [a == b for a, b in zip(ours, theirs, strict=False)]
    found = compare(known(*ours), known(*theirs))
    assert found.matches == sum(same)
    assert found.tokens == max(len(ours), len(theirs))


@given(sequences, st.integers(0, 10))
def test_a_longer_common_prefix_moves_the_divergence(ours: Sequence, more: int) -> None:
    """Known tokens put before both sequences shift the first divergence by their number."""
    theirs = [Position(9, "z"), *ours]
    prefix = known(*range(more))
    before, after = compare(ours, theirs), compare([*prefix, *ours], [*prefix, *theirs])
    assert before.first_divergence is not None
    assert after.first_divergence == before.first_divergence + more
    assert after.matches == before.matches + more


@pytest.mark.parametrize(
    ("first", "margin", "kind"),
    [
        (None, None, None),
        (3, None, DivergenceKind.UNKNOWN),
        (3, 0.02, DivergenceKind.TIE),
        (3, 0.1, DivergenceKind.TIE),
        (3, 1.5, DivergenceKind.REAL),
    ],
)
def test_divergences_are_ties_or_real(
    first: int | None, margin: float | None, kind: DivergenceKind | None
) -> None:
    """By how close the target's two best tokens were."""
    comparison = Comparison(
        tokens=8,
        matches=8 if first is None else first,
        matched_prefix=8 if first is None else first,
        first_divergence=first,
        divergence_margin_nats=margin,
    )
    assert divergence_kind(comparison) is kind
