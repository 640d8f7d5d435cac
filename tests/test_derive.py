"""Two scrapes make an interval, across restarts, rounding and garbage."""

from hypothesis import given
from hypothesis import strategies as st

from mtpmon.derive import (
    Ledger,
    added,
    advance,
    difference,
    has_traffic,
    nothing,
    opened,
    risen,
    subtracted,
    total,
    without,
)
from mtpmon.model import Amount, Counters, Reading, Usage
from mtpmon.wire import reading


def counters(
    tokens: int, *positions: int, token: str | None = "a", drafts: int | None = None
) -> Counters:
    """A scrape with everything in proportion to the tokens."""
    return Counters(
        start_token=token,
        drafts=Reading(drafts if drafts is not None else tokens // 2),
        draft_tokens=Reading(tokens),
        accepted_tokens=Reading(sum(positions)),
        accepted_by_position=positions or None,
        generated_tokens=Reading(tokens),
        generation_seconds=Reading(tokens / 100, 1e-6),
        prompt_tokens=Reading(tokens),
        requests_processing=0,
        requests_deferred=0,
    )


def tokens_of(ledger: Ledger) -> float:
    amount = ledger.usage().generated_tokens
    assert amount is not None
    return amount.value


def test_the_first_scrape_is_a_baseline() -> None:
    """What was counted before we came is not ours to report."""
    usage = opened(counters(1000, 400, 200)).usage()
    assert usage.generated_tokens == Amount(0)
    assert usage.accepted_by_position == (0, 0)


def test_totals_grow_by_what_was_counted() -> None:
    """End minus baseline, each position too."""
    ledger = advance(opened(counters(1000, 400, 200)), counters(1500, 600, 250)).ledger
    assert tokens_of(ledger) == 500
    assert ledger.usage().accepted_by_position == (200, 50)


def test_a_new_start_token_is_a_restart() -> None:
    """All that the new process has counted is new, although its counters are higher."""
    ledger = advance(opened(counters(1000, 400, 200)), counters(1200, 450, 220)).ledger
    step = advance(ledger, counters(1300, 500, 230, token="b"))
    assert step.restarted
    assert step.ledger.restarts == 1
    assert tokens_of(step.ledger) == 200 + 1300
    assert step.ledger.usage().accepted_by_position == (50 + 500, 20 + 230)


def test_a_fall_without_a_new_token_must_be_seen_twice() -> None:
    """A body garbled once neither restarts the server nor makes the totals jump."""
    ledger = opened(counters(1000, token=None))
    garbled = advance(ledger, counters(10, token=None))
    assert garbled.held
    assert tokens_of(garbled.ledger) == 0
    back = advance(garbled.ledger, counters(1010, token=None))
    assert not back.restarted
    assert tokens_of(back.ledger) == 10
    again = advance(garbled.ledger, counters(12, token=None))
    assert again.restarted
    assert tokens_of(again.ledger) == 12


def test_positions_that_fall_are_a_sign_too() -> None:
    """Also a position that disappears."""
    ledger = opened(counters(1000, 400, 200))
    assert advance(ledger, counters(1000, 400, 199)).held
    assert advance(ledger, counters(1000, 400)).held


def test_an_absent_series_keeps_its_last_reading() -> None:
    """A bad line costs one scrape of one series, not the total."""
    ledger = opened(counters(1000, 400, 200))
    gap = advance(ledger, Counters(start_token="a", drafts=Reading(510))).ledger
    assert tokens_of(gap) == 0
    assert gap.usage().drafts == Amount(10)
    assert tokens_of(advance(gap, counters(1100, 420, 210)).ledger) == 100


def test_no_positions_yet_is_known_to_be_none() -> None:
    """The per-position series appear with the first draft; before, they are all 0."""
    ledger = opened(counters(0, drafts=0))
    assert ledger.usage().accepted_by_position == ()
    after = advance(ledger, counters(30, 9, 4, drafts=10)).ledger
    assert after.usage().accepted_by_position == (9, 4)


def test_missing_positions_are_unknown_after_drafts() -> None:
    """Then they count from where they are first seen."""
    ledger = opened(counters(1000))
    assert ledger.usage().accepted_by_position is None
    seen = advance(ledger, counters(1010, 400, 200)).ledger
    assert seen.usage().accepted_by_position == (0, 0)


def test_a_series_that_an_upgrade_brings_counts_from_the_restart() -> None:
    """The new process began at 0, whether or not the old one had the series."""
    old = Counters(start_token="a", generated_tokens=Reading(500))
    ledger = advance(opened(old), counters(40, 9, 4, token="b", drafts=15)).ledger
    assert ledger.usage().drafts == Amount(15)
    late = advance(opened(old), counters(540, 9, 4, drafts=15)).ledger
    assert late.usage().drafts == Amount(0)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.integers(0, 10**6), st.booleans()),
            st.just((0, True)),
        ),
        max_size=30,
    ),
    st.integers(0, 10**9),
)
def test_totals_are_within_their_stated_error_across_restarts(
    steps: list[tuple[int, bool]], start: int
) -> None:
    """Six printed digits, any growth, any restarts: the truth lies within the bounds."""
    true, count, process = 0, start, 0

    def printed() -> Counters:
        value = reading(f"{count:g}")
        assert value is not None
        return Counters(start_token=str(process), generated_tokens=value)

    baseline = printed().generated_tokens
    ledger = opened(printed())
    for grown, restarted in steps:
        if restarted:
            process, count = process + 1, 0
        count += grown
        true += grown
        ledger = advance(ledger, printed()).ledger
        amount = ledger.usage().generated_tokens
        assert amount is not None
        assert baseline is not None
        # The baseline's own rounding cancels in every difference of two totals.
        assert abs(amount.value - true) <= amount.half_width + baseline.quantum / 2 + 1e-6


scrapes = st.builds(
    Counters,
    start_token=st.sampled_from(["a", "b", None]),
    drafts=st.none() | st.builds(Reading, st.floats(0, 1e9), st.floats(0, 1e3)),
    generated_tokens=st.none() | st.builds(Reading, st.floats(0, 1e9), st.floats(0, 1e3)),
    accepted_by_position=st.none()
    | st.lists(st.integers(0, 10**9), min_size=1, max_size=4).map(tuple),
)


@given(scrapes, st.lists(scrapes, max_size=20))
def test_totals_never_fall_whatever_is_scraped(first: Counters, rest: list[Counters]) -> None:
    """Restarts, absent series and garbage included."""
    ledger = opened(first)
    before = ledger.usage()
    for scrape in rest:
        ledger = advance(ledger, scrape).ledger
        now = ledger.usage()
        for name in ("drafts", "generated_tokens"):
            old, new = getattr(before, name), getattr(now, name)
            assert old is None or new.value >= old.value
        if before.accepted_by_position is not None:
            assert now.accepted_by_position is not None
            assert (
                min(subtracted(now.accepted_by_position, before.accepted_by_position), default=0)
                >= 0
            )
        before = now


@given(st.lists(st.integers(0, 1000), min_size=3, max_size=20))
def test_the_parts_of_a_split_interval_sum_to_the_whole(grown: list[int]) -> None:
    """Wherever it is split."""
    ledgers = [opened(counters(0, 0, drafts=0))]
    count = 0
    for n in grown:
        count += n
        ledgers.append(advance(ledgers[-1], counters(count, count // 2)).ledger)
    usages = [ledger.usage() for ledger in ledgers]
    whole = difference(usages[-1], usages[0])
    for middle in usages[1:-1]:
        parts = total(difference(usages[-1], middle), difference(middle, usages[0]))
        assert parts.accepted_by_position == whole.accepted_by_position
        assert parts.generated_tokens is not None
        assert whole.generated_tokens is not None
        assert parts.generated_tokens.value == whole.generated_tokens.value


def test_users_traffic_is_the_rest() -> None:
    """The server's total less our own, never below 0, with both errors."""
    server = Usage(generated_tokens=Amount(100, 5), accepted_by_position=(30, 10))
    own = Usage(generated_tokens=Amount(103, 0, 2), accepted_by_position=(12, 11, 0))
    found = without(server, own)
    assert found.generated_tokens == Amount(0, 7)
    assert found.accepted_by_position == (18, 0, 0)
    assert without(server, Usage()).accepted_by_position is None


def test_users_totals_do_not_step_back() -> None:
    """Rounding may make the rest smaller for a while; a counter stays."""
    before = Usage(generated_tokens=Amount(100), accepted_by_position=(5, 3), requests=2)
    now = Usage(
        generated_tokens=Amount(93), drafts=Amount(1), accepted_by_position=(6, 2, 1), requests=1
    )
    assert risen(before, now) == Usage(
        generated_tokens=Amount(100),
        drafts=Amount(1),
        accepted_by_position=(6, 3, 1),
        requests=2,
    )
    assert risen(before, Usage()).accepted_by_position == (5, 3)
    assert risen(Usage(), now).accepted_by_position == (6, 2, 1)


def test_traffic_is_what_rounding_cannot_feign() -> None:
    """A token count that moved by less than its error says nothing; a position does."""
    assert not has_traffic(Usage())
    assert not has_traffic(Usage(generated_tokens=Amount(10, 10)))
    assert has_traffic(Usage(generated_tokens=Amount(11, 10)))
    assert has_traffic(Usage(generated_tokens=Amount(0, 10), accepted_by_position=(1, 0)))
    assert not has_traffic(nothing())
    cut = Usage(accepted_by_position=(2, 1), positions_error=3.0)
    assert not has_traffic(cut)


def test_positions_are_added_at_their_places() -> None:
    """The shorter one counts 0 beyond its end."""
    assert added((1, 2), (3,)) == (4, 2)
    assert subtracted((1,), (3, 4)) == (-2, -4)
