"""Whether a server's speculative counters can be believed."""

from itertools import pairwise

import pytest

from mtpmon.model import Amount, Counters, Reading, Usage
from mtpmon.trust import (
    KNOWN_BUILDS,
    Reason,
    Reconciliation,
    distrust,
    known_build,
    mismatch,
    reconcile,
)


def counters(drafts: int, *positions: int, accepted: int | None = None) -> Counters:
    return Counters(
        drafts=Reading(drafts),
        draft_tokens=Reading(3 * drafts),
        accepted_tokens=Reading(sum(positions) if accepted is None else accepted),
        accepted_by_position=positions or None,
    )


def reasons(found: Counters | None, **more: object) -> set[Reason]:
    options: dict[str, object] = {"build_number": None, "mismatch_share": None, **more}
    return set(distrust(found, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (counters(300, 250, 200, 100), set()),
        (counters(0), set()),
        (counters(300, 300, 300, 300), {Reason.ALWAYS_ACCEPTED}),
        (counters(100, 100, 100, 100), set()),
        (counters(300, 100, 200, 50), {Reason.RISING_POSITIONS}),
        (counters(300, 301, 200, 50), {Reason.RISING_POSITIONS}),
        (counters(300, 250, 200, 100, accepted=551), {Reason.SUM_MISMATCH}),
        (counters(10, accepted=31), {Reason.ABOVE_ONE}),
        (Counters(), set()),
        (None, set()),
        (Counters(drafts=Reading(5)), set()),
    ],
)
def test_impossible_counts_are_named(found: Counters | None, expected: set[Reason]) -> None:
    """Each kind by its own reason; ordinary counts by none."""
    assert reasons(found) == expected


def test_rounding_is_no_fault() -> None:
    """A total printed with six digits need not equal the sum of exact positions."""
    rounded = Counters(
        drafts=Reading(1e6, 10),
        draft_tokens=Reading(3e6, 10),
        accepted_tokens=Reading(1_500_000, 10),
        accepted_by_position=(800_000, 500_000, 199_996),
    )
    assert reasons(rounded) == set()


def test_known_builds_are_flagged_where_they_count() -> None:
    """With the report; a build without speculative counters has nothing to mistrust."""
    assert reasons(counters(300, 250, 200, 100), build_number=9500) == {Reason.KNOWN_BUILD}
    assert reasons(Counters(), build_number=9500) == set()
    found = known_build(9500)
    assert found is not None
    assert "26320" in found.reference
    assert known_build(11434) is None
    assert known_build(None) is None


def test_the_table_of_builds_has_no_gaps_in_itself() -> None:
    """Ranges in order, none overlapping, each with a reference."""
    for one, two in pairwise(KNOWN_BUILDS):
        assert one.first <= one.last < two.first <= two.last
    assert all("#" in build.reference for build in KNOWN_BUILDS)


def usage(
    drafts: float, kept: float, tokens: float, *, requests: int = 1, error: float = 0
) -> Usage:
    return Usage(
        drafts=Amount(drafts),
        draft_tokens=Amount(3 * drafts),
        accepted_tokens=Amount(kept, 0, error),
        generated_tokens=Amount(tokens),
        requests=requests,
    )


def test_a_probe_alone_is_reconciled() -> None:
    """Equal token counts show that nobody else was served."""
    assert reconcile(usage(10, 20, 31), usage(10, 20, 31)) == Reconciliation(0, 30)
    assert reconcile(usage(10, 30, 31), usage(10, 20, 31)) == Reconciliation(10, 30)


def test_what_cannot_be_compared_is_not() -> None:
    """Other traffic, no probe, no draft, no counters."""
    assert reconcile(usage(10, 20, 40), usage(10, 20, 31)) is None
    assert reconcile(usage(10, 20, 31), usage(10, 20, 31, requests=0)) is None
    assert reconcile(usage(10, 20, 31), usage(0, 0, 31)) is None
    assert reconcile(Usage(), usage(10, 20, 31)) is None
    tokens_only = Usage(generated_tokens=Amount(31))
    assert reconcile(tokens_only, usage(10, 20, 31)) is None


def test_what_is_left_open_is_no_mismatch() -> None:
    """A cut-off stream's last step, or rounding."""
    assert reconcile(usage(10, 22, 31), usage(10, 20, 31, error=3)) == Reconciliation(0, 30)


def test_mismatches_add_up() -> None:
    """Over drafted tokens; none known, none said."""
    assert mismatch([]) is None
    share = mismatch([Reconciliation(0, 30), Reconciliation(3, 30)])
    assert share == 0.05
    assert reasons(None, mismatch_share=share) == {Reason.PROBE_MISMATCH}
    assert reasons(None, mismatch_share=0.001) == set()
