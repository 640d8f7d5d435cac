"""When a server's metrics are left alone so that it can fall asleep."""

from mtpmon.model import Counters, Outcome, Props, Scrape
from mtpmon.rest import FIRST_GUESS_SECONDS, LAST_GUESS_SECONDS, Rest


def look(at: float, outcome: Outcome = Outcome.OK, build: int | None = None) -> Scrape:
    return Scrape(
        monotonic_seconds=at,
        unix_seconds=at,
        duration_seconds=0.0,
        outcome=outcome,
        props=Props(build_number=build),
        counters=Counters() if outcome is Outcome.OK else None,
    )


def test_a_server_that_never_sleeps_is_never_left_alone() -> None:
    """Most are like that."""
    rest = Rest(None)
    rest.seen(look(0))
    assert not rest.possible
    assert not rest.lasts(1)


def test_a_known_idle_time_is_waited_out() -> None:
    """From the read that restarted the server's timer until it must have slept."""
    rest = Rest(10)
    assert not rest.lasts(0)
    rest.seen(look(0))
    assert rest.possible
    assert rest.lasts(12.9)
    assert not rest.lasts(13.1)


def test_a_build_that_does_not_mind_is_not_left_alone() -> None:
    """Reading its metrics resets no timer."""
    rest = Rest(10)
    rest.seen(look(0, build=11434))
    assert not rest.lasts(1)
    rest.seen(look(2, build=11433))
    assert rest.lasts(3)


def test_a_server_seen_asleep_is_given_more_and_more_time() -> None:
    """Its idle time is not known: each wait in vain doubles the next, up to a limit."""
    rest = Rest(None)
    rest.seen(look(0, Outcome.SLEEPING))
    assert rest.possible
    assert not rest.lasts(1)
    now, wait = 0.0, FIRST_GUESS_SECONDS
    rest.seen(look(now))
    for _ in range(10):
        assert rest.lasts(now + wait - 1)
        assert not rest.lasts(now + wait)
        now += wait
        rest.seen(look(now))
        wait = min(2 * wait, LAST_GUESS_SECONDS)
    rest.busy()
    assert not rest.lasts(now + FIRST_GUESS_SECONDS)


def test_looks_at_a_busy_server_do_not_lengthen_the_wait() -> None:
    """Only a wait in vain does."""
    rest = Rest(None)
    rest.seen(look(0, Outcome.SLEEPING))
    for at in range(5):
        rest.seen(look(at))
    assert not rest.lasts(4 + FIRST_GUESS_SECONDS)


def test_waking_ends_the_rest() -> None:
    """Who woke it is served now, and must be seen."""
    rest = Rest(10)
    rest.seen(look(0))
    assert rest.lasts(1)
    rest.seen(look(5, Outcome.SLEEPING))
    assert not rest.lasts(6)
