"""What the board makes of scrapes and probes."""

import pytest
from msgspec.structs import replace

from mtpmon.board import Board, BoardSettings, ServerBoard
from mtpmon.model import (
    Amount,
    Comparison,
    Counters,
    Divergence,
    Outcome,
    PositionKinds,
    ProbeOutcome,
    ProbeResult,
    Props,
    Reading,
    Scrape,
    State,
    Usage,
)
from mtpmon.snapshot import ServerSnapshot
from mtpmon.window import Evidence

SETTINGS = BoardSettings(
    windows_seconds=(60.0, 300.0),
    stale_after_seconds=20.0,
    evidence=Evidence(),
    rolling_probes=8,
    probe_timeout_seconds=30.0,
)


def board() -> ServerBoard:
    return ServerBoard("a", SETTINGS)


def scrape(
    at: float,
    requests: int = 0,
    *,
    kept: tuple[int, ...] | None = None,
    processing: int = 0,
    token: str = "t",
    overlapped: bool = False,
    quantum: float = 0.0,
) -> Scrape:
    """A server after that many equal requests: 21 tokens, 10 drafts of 3, 7 + 3 kept.

    ``kept``: other totals of what was kept, by position.
    """
    kept = (7 * requests, 3 * requests, 0) if kept is None else kept
    return Scrape(
        monotonic_seconds=at,
        unix_seconds=1000 + at,
        duration_seconds=0.01,
        outcome=Outcome.OK,
        props=Props(model="m"),
        overlapped=overlapped,
        counters=Counters(
            start_token=token,
            drafts=Reading(10 * requests),
            draft_tokens=Reading(30 * requests),
            accepted_tokens=Reading(sum(kept)),
            accepted_by_position=kept,
            generated_tokens=Reading(21 * requests, quantum),
            generation_seconds=Reading(requests, 1e-6),
            prompt_tokens=Reading(5 * requests),
            requests_processing=processing,
            requests_deferred=0,
            bad_lines=1,
        ),
    )


OWN = Usage(
    drafts=Amount(10),
    draft_tokens=Amount(30),
    accepted_tokens=Amount(10),
    accepted_by_position=(7, 3, 0),
    generated_tokens=Amount(21),
    generation_seconds=Amount(1),
    prompt_tokens=Amount(5),
    requests=1,
)


def failed(at: float, outcome: Outcome) -> Scrape:
    return Scrape(
        monotonic_seconds=at,
        unix_seconds=1000 + at,
        duration_seconds=0.01,
        outcome=outcome,
        detail="because",
    )


def seen(server: ServerBoard, at: float) -> ServerSnapshot:
    return server.snapshot(monotonic_seconds=at)


def acceptance(server: ServerBoard, at: float, traffic: str = "live") -> float | None:
    found = seen(server, at).windows[traffic][60.0].acceptance
    return found.value if found is not None else None


def test_before_the_first_look_nothing_is_known() -> None:
    """No state, no figures, and it says why."""
    found = seen(board(), 0)
    assert (found.state, found.live, found.windows) == (None, None, {})
    assert board().last_scrape is None
    assert found.detail == "not looked at yet"


def test_two_looks_give_figures() -> None:
    """Counts since the first, ratios of the window."""
    server = board()
    server.scraped(scrape(0, 3))
    server.scraped(scrape(5, 5))
    found = seen(server, 5)
    assert found.live is not None
    assert found.live.drafts == Amount(20)
    assert acceptance(server, 5) == 1 / 3
    assert found.bad_lines == 2
    assert found.scrapes == {Outcome.OK: 2}


def test_figures_go_stale_and_counters_stay() -> None:
    """After the configured age the last good figures vanish; totals are still true."""
    server = board()
    server.scraped(scrape(0, 3))
    server.scraped(scrape(5, 5))
    server.scraped(failed(10, Outcome.TIMEOUT))
    assert acceptance(server, 25) is not None
    found = seen(server, 25.1)
    assert found.windows == {}
    assert found.counters is None
    assert found.waiting_seconds is None
    assert found.live is not None
    assert found.state is State.UNREACHABLE
    assert found.detail == "because"
    assert found.props == Props(model="m")


def test_the_state_remembers_since_when() -> None:
    """Not moved by looks that find the same."""
    server = board()
    server.scraped(scrape(0))
    server.scraped(scrape(5))
    assert seen(server, 5).since_unix_seconds == 1000
    server.scraped(failed(10, Outcome.LOADING))
    server.scraped(failed(15, Outcome.LOADING))
    assert seen(server, 15).since_unix_seconds == 1010


def test_restarts_are_counted_and_totals_go_on() -> None:
    """What happened since the restart counts."""
    server = board()
    server.scraped(scrape(0, 3))
    server.scraped(scrape(5, 5))
    server.scraped(scrape(10, 1, token="u"))
    found = seen(server, 10)
    assert found.restarts == 1
    assert found.live is not None
    assert found.live.drafts == Amount(30)
    assert acceptance(server, 10) == 1 / 3


def test_a_contradiction_is_held_back() -> None:
    """Counters that fell once change nothing but the count of contradictions."""
    server = board()
    server.scraped(scrape(0, 3))
    server.scraped(scrape(5, 5))
    server.scraped(scrape(10, 1))
    found = seen(server, 10)
    assert (found.restarts, found.contradictions) == (0, 1)
    assert found.live is not None
    assert found.live.drafts == Amount(20)


def test_our_own_requests_are_subtracted() -> None:
    """Live acceptance with a probe in between is that of the users alone."""
    server = board()
    server.scraped(scrape(0, 0))
    server.probe_request_began()
    server.scraped(scrape(5, 1, overlapped=True))
    server.probe_request_ended(OWN)
    server.scraped(scrape(10, 2))
    found = seen(server, 10)
    assert found.live is not None
    assert found.live.drafts == Amount(10)
    assert found.own.drafts == Amount(10)
    assert acceptance(server, 10) == 1 / 3
    assert acceptance(server, 10, "probe") == 1 / 3


def test_our_own_requests_alone_are_no_live_traffic() -> None:
    """A server that only we use is idle."""
    server = board()
    server.scraped(scrape(0, 0))
    server.probe_request_began()
    server.probe_request_ended(OWN)
    server.scraped(scrape(5, 1))
    assert acceptance(server, 5) is None
    assert seen(server, 5).windows["live"][60.0].throughput_tokens_per_second == 0
    assert not server.moved


def test_looks_that_overlap_a_request_of_ours_are_recognised() -> None:
    """In flight at the start, or begun and ended in between."""
    server = board()
    idle = server.overlap_mark()
    assert idle is not None
    server.probe_request_began()
    assert server.overlap_mark() is None
    server.probe_request_ended(OWN)
    assert server.overlap_mark() not in (None, idle)


def test_live_counters_do_not_step_back_when_rounding_hides_users() -> None:
    """The server's total did not move yet, our exact share did."""
    server = board()
    server.scraped(scrape(0, 0, quantum=1000))
    server.scraped(scrape(5, 2, quantum=1000))
    server.probe_request_began()
    server.probe_request_ended(OWN)
    server.scraped(scrape(10, 2, quantum=1000))
    found = seen(server, 10).live
    assert found is not None
    assert found.generated_tokens is not None
    assert found.generated_tokens.value == 42


def test_waiting_tells_how_long_nothing_has_ended() -> None:
    """From the first look that finds the server busy, again from each end, 0 at rest."""
    server = board()
    server.scraped(scrape(0, 0))
    assert seen(server, 0).waiting_seconds == 0
    server.scraped(scrape(5, 0, processing=1))
    server.scraped(scrape(10, 0, processing=1))
    assert seen(server, 12).waiting_seconds == 7
    server.scraped(scrape(15, 1, processing=1))
    assert server.moved
    assert seen(server, 16).waiting_seconds == 1
    server.scraped(scrape(20, 2))
    assert seen(server, 21).waiting_seconds == 0


def result(
    outcome: ProbeOutcome = ProbeOutcome.COMPLETED, *, first: int | None = None
) -> ProbeResult:
    divergence = Divergence(
        nats=0.25, coverage=0.9, shared_tokens=4, top1_agrees=True, clamped=True
    )
    return ProbeResult(
        server="a",
        prompt_id="p",
        task="code",
        unix_seconds=2000.0,
        duration_seconds=1.5,
        outcome=outcome,
        comparison=Comparison(
            tokens=8,
            matches=8 if first is None else first,
            matched_prefix=8 if first is None else first,
            first_divergence=first,
            divergence_margin_nats=None if first is None else 0.5,
        ),
        next_token=divergence,
        after_speculation=(divergence,),
        positions=PositionKinds(comparable=2, missing=5, diverged=1),
    )


def test_answers_found_wanting_are_counted() -> None:
    """By validator, of flagged probes as of failed ones; a flagged one still feeds figures."""
    server = board()
    server.probed(replace(result(), invalid=("repetition_loop", "invalid_utf8")))
    server.probed(replace(result(ProbeOutcome.FAILED), invalid=("wrong_length",)))
    server.probed(replace(result(), invalid=("repetition_loop",)))
    server.probed(result())
    found = seen(server, 0)
    assert found.probe_totals.invalid == {
        "repetition_loop": 2,
        "invalid_utf8": 1,
        "wrong_length": 1,
    }
    assert found.probe_figures.probes == 3


def test_completed_probes_feed_the_figures() -> None:
    """Counts over all of them, rolling figures over the latest."""
    server = board()
    server.probed(result(first=3))
    for _ in range(8):
        server.probed(result())
    found = seen(server, 0)
    totals = found.probe_totals
    assert totals.outcomes == {ProbeOutcome.COMPLETED: 9}
    assert (totals.comparable, totals.missing, totals.diverged) == (18, 45, 9)
    assert totals.clamped == 18
    assert sum(totals.divergence_positions) == 1
    assert totals.divergence_positions[2] == 1
    assert totals.divergence_position_sum == 3
    assert found.probe_figures.probes == 8
    assert found.probe_figures.exact_sequences == 1
    assert found.last_success_unix_seconds == 2000
    assert found.probe_succeeded is True
    assert len(server.results) == 8


@pytest.mark.parametrize(
    ("outcome", "kept", "success"),
    [
        (ProbeOutcome.FAILED, 1, False),
        (ProbeOutcome.TIMEOUT, 1, False),
        (ProbeOutcome.SKIPPED_BUSY, 0, None),
        (ProbeOutcome.SKIPPED_SLEEPING, 0, None),
        (ProbeOutcome.PREEMPTED, 0, None),
    ],
)
def test_probes_that_did_not_complete_feed_no_figure(
    outcome: ProbeOutcome, kept: int, success: bool | None
) -> None:
    """Failures are kept to be looked at; what did not run is only counted."""
    server = board()
    server.probed(result(outcome))
    found = seen(server, 0)
    assert found.probe_totals.outcomes == {outcome: 1}
    assert found.probe_totals.comparable == 0
    assert found.probe_figures.probes == 0
    assert found.probe_succeeded is success
    assert len(server.failures) == kept


def test_a_probe_without_a_baseline_compares_nothing() -> None:
    """It completes, and no position is counted."""
    server = board()
    alone = ProbeResult(
        server="a",
        prompt_id="p",
        task="code",
        unix_seconds=2000.0,
        duration_seconds=1.5,
        outcome=ProbeOutcome.COMPLETED,
    )
    server.probed(alone)
    totals = seen(server, 0).probe_totals
    assert (totals.comparable, totals.missing, totals.diverged) == (0, 0, 0)
    assert seen(server, 0).probe_figures.exact_sequences is None


def test_the_board_shows_its_servers_in_order() -> None:
    """As configured; one look fits all."""
    boards = [ServerBoard(name, SETTINGS) for name in ("b", "a")]
    whole = Board(boards, (60.0, 300.0))
    assert [server.name for server in whole] == ["b", "a"]
    assert whole["a"] is boards[1]
    found = whole.snapshot(monotonic_seconds=1, unix_seconds=5, config_reload_successful=False)
    assert [server.name for server in found.servers] == ["b", "a"]
    assert (found.unix_seconds, found.config_reload_successful) == (5, False)
