"""What is watched for change on one server, and what is said of it."""

import math

import msgspec
import numpy as np
import pytest

from mtpmon.board import ServerBoard
from mtpmon.export import METRICS
from mtpmon.model import ProbeOutcome, ProbeResult, Props, Reading, Usage
from mtpmon.record import Event, EventKind
from mtpmon.shift.evidence import Direction
from mtpmon.shift.found import Ending
from mtpmon.shift.server import Change, Figure, ShiftRules, Shifts, asked, happened, looked
from mtpmon.shift.words import in_words
from tests.fleet import chance, drawn
from tests.page_snapshots import ready, snapshot
from tests.shifting import change, probe, usage
from tests.test_board import SETTINGS, scrape
from tests.test_page import said

RULES = ShiftRules()
NOTHING = Usage(accepted_by_position=())


class Watch:
    """One server whose counters are looked at every five seconds, and probes."""

    def __init__(self) -> None:
        self.shifts, self.at, self.rng = Shifts(), 40_000.0, np.random.default_rng(2)
        self.drafts, self.positions = 0.0, np.zeros(3)
        self.news: list[Change] = []

    def look(self, level: float, *, looks: int = 1, steps: int = 100) -> None:
        for _ in range(looks):
            trials, kept = drawn(self.rng, steps, chance(level))
            self.drafts, self.positions = self.drafts + trials[0], self.positions + kept
            self.at += 5
            seen = usage(self.drafts, *(int(n) for n in self.positions))
            self.took(looked(self.shifts, seen, NOTHING, self.at, RULES))

    def ask(self, result: ProbeResult) -> None:
        self.at += 60
        result = msgspec.structs.replace(result, unix_seconds=self.at, duration_seconds=1.0)
        self.took(asked(self.shifts, result, RULES))

    def hear(self, kind: EventKind, before: str | None = None, after: str | None = None) -> None:
        event = Event(server="a", unix_seconds=self.at, kind=kind, before=before, after=after)
        self.took(happened(self.shifts, event))

    def took(self, shifts: Shifts) -> None:
        self.shifts = shifts
        self.news += shifts.news

    def until_news(self, level: float, most: int = 12) -> Change:
        for _ in range(most):
            self.look(level)
            if self.news:
                return self.news.pop()
        raise AssertionError("no news")


def learned() -> Watch:
    server = Watch()
    server.hear(EventKind.BUILD, None, "b1")
    server.look(0.82, looks=120)
    return server


def test_a_fall_is_told_once_in_the_units_of_people() -> None:
    """Share of draft tokens kept, direction, and the restart that came with it."""
    server = learned()
    assert server.shifts.figures.ready == {Figure.ACCEPTANCE}
    server.hear(EventKind.RESTART)
    restarted = server.at
    found = server.until_news(0.5)
    assert (found.figure, found.direction) == (Figure.ACCEPTANCE, Direction.FALL)
    assert found.before == pytest.approx(0.82, abs=0.02)
    assert found.after == pytest.approx(0.5, abs=0.1)
    assert abs(found.began_unix_seconds - restarted) <= 10
    assert [event.kind for event in found.causes] == [EventKind.RESTART]
    assert "about when the server restarted with build b1" in in_words(found)
    server.look(0.5, looks=20)
    assert server.news == []
    figures = server.shifts.figures
    assert figures.standing == {Figure.ACCEPTANCE: found}
    assert figures.totals == {(Figure.ACCEPTANCE, Direction.FALL): 1}


def test_the_end_of_a_change_is_told() -> None:
    """It is not standing any more, and the total stays."""
    server = learned()
    server.hear(EventKind.RESTART)
    server.until_news(0.5)
    ended = server.until_news(0.82, 40)
    assert ended.ending is Ending.RECOVERED
    assert server.shifts.figures.standing == {}
    assert server.shifts.figures.totals == {(Figure.ACCEPTANCE, Direction.FALL): 1}


def test_an_idle_night_a_restart_and_the_same_traffic_tell_nothing() -> None:
    """Ten hours of looks at a server that does nothing, then a new process."""
    server = learned()
    for _ in range(600):
        server.look(0.82, steps=0)
        server.at += 55
    server.hear(EventKind.STATE, "ready", "unreachable")
    server.hear(EventKind.RESTART)
    server.look(0.82, looks=60)
    assert server.news == []
    assert server.shifts.figures.ready == {Figure.ACCEPTANCE}


def test_a_build_that_halves_acceptance_is_told_as_the_cause() -> None:
    """A change on purpose is no excuse for that; a little less would be the new level."""
    server = learned()
    server.hear(EventKind.BUILD, "b1", "b2")
    found = server.until_news(0.41)
    assert "the build changed from b1 to b2" in in_words(found)
    other = learned()
    other.hear(EventKind.BUILD, "b1", "b2")
    other.look(0.76, looks=60)
    assert other.news == []


def test_the_change_before_a_planned_one_is_over() -> None:
    """What another model does is judged anew."""
    server = learned()
    server.hear(EventKind.RESTART)
    server.until_news(0.5)
    server.hear(EventKind.MODEL, "m", "n")
    assert [change.ending for change in server.news] == [Ending.REPLANNED]


def test_slower_steps_are_a_fall_of_decode_speed() -> None:
    """From 50 steps a second to 25."""
    server = Watch()
    for count in range(60):
        server.ask(probe(*[(3, 1)] * 7, seconds=0.02 + 0.0001 * (count % 7)))
    assert Figure.DECODE_SPEED in server.shifts.figures.ready
    while not server.news:
        server.ask(probe(*[(3, 1)] * 7, seconds=0.04))
    found = server.news[0]
    assert (found.figure, found.direction) == (Figure.DECODE_SPEED, Direction.FALL)
    assert found.before == pytest.approx(49, rel=0.1)
    assert found.after == pytest.approx(25)


def test_divergence_that_was_not_there_is_a_rise() -> None:
    """In nats."""
    server = Watch()
    for _ in range(60):
        server.ask(probe((3, 1), klds=(0.0,)))
    while not server.news:
        server.ask(probe((3, 1), klds=(0.02,)))
    found = server.news[0]
    assert (found.figure, found.direction) == (Figure.KLD, Direction.RISE)
    assert (found.before, found.after) == pytest.approx((0.0, 0.02), abs=3e-3)


def test_probes_alone_tell_acceptance_as_a_share() -> None:
    """On builds whose counters lack drafts, the draft length is that of probes."""
    server = Watch()
    for _ in range(60):
        server.took(looked(server.shifts, Usage(), Usage(), server.at, RULES))
        server.ask(probe(*[(3, 3)] * 16, *[(3, 0)] * 4))
    while not server.news:
        server.ask(probe(*[(3, 3)] * 4, *[(3, 0)] * 16))
    found = server.news[0]
    assert found.figure is Figure.ACCEPTANCE
    assert found.before == pytest.approx(0.8, abs=0.01)
    assert found.after == pytest.approx(0.2, abs=0.01)


def test_a_probe_that_failed_tells_nothing() -> None:
    """It has no steps and no divergence."""
    failed = msgspec.structs.replace(probe((3, 1)), outcome=ProbeOutcome.FAILED)
    assert asked(Shifts(), failed, RULES).figures == Shifts().figures
    assert asked(Shifts(), failed, RULES).acceptance is Shifts().acceptance


def test_rules_are_those_of_the_operator() -> None:
    """A rate by the week, sizes as shares and nats."""
    rules = ShiftRules(false_alarms_per_week=7, least_change=0.1, least_kld_nats=0.5)
    assert (rules.acceptance.alarms_per_day, rules.acceptance.least_change) == (1, 0.1)
    assert rules.pace.alarms_per_day == 1
    assert rules.pace.least_change == pytest.approx(math.log(1.1))
    assert (rules.kld.alarms_per_day, rules.kld.least_change) == (1, 0.5)


def event(seconds: float, kind: EventKind = EventKind.RESTART) -> Event:
    before, after = ("b1", "b2") if kind is not EventKind.RESTART else (None, None)
    return Event(server="a", unix_seconds=seconds, kind=kind, before=before, after=after)


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (change(Figure.ACCEPTANCE), "acceptance fell from 0.82 to 0.61 at 14:03 UTC"),
        (
            change(Figure.ACCEPTANCE, causes=(event(50_460),), build="b11434"),
            (
                "acceptance fell from 0.82 to 0.61 at 14:03 UTC,"
                " 2 m after the server restarted with build b11434"
            ),
        ),
        (
            change(Figure.ACCEPTANCE, causes=(event(50_620),)),
            "acceptance fell from 0.82 to 0.61 at 14:03 UTC, about when the server restarted",
        ),
        (
            change(
                Figure.ACCEPTANCE,
                causes=(event(50_570), event(50_568, EventKind.BUILD), event(50_000)),
                build="b2",
            ),
            (
                "acceptance fell from 0.82 to 0.61 at 14:03 UTC,"
                " about when the server restarted and the build changed from b1 to b2"
            ),
        ),
        (
            change(Figure.DECODE_SPEED, direction=Direction.RISE, before=31.23, after=40.0),
            "decode speed rose from 31.2 to 40 steps/s at 14:03 UTC",
        ),
        (
            change(Figure.KLD, before=0.0, after=0.0123),
            "KL divergence fell from 0.00 to 0.012 nats at 14:03 UTC",
        ),
        (
            change(Figure.ACCEPTANCE, ending=Ending.RECOVERED),
            "acceptance fell from 0.82 to 0.61 at 14:03 UTC; it is back now",
        ),
        (
            change(Figure.ACCEPTANCE, detected_unix_seconds=90_000),
            "acceptance fell from 0.82 to 0.61 at 1970-01-01 14:03 UTC",
        ),
    ],
)
def test_a_change_is_one_sentence(told: Change, words: str) -> None:
    """What, from what to what, when, and what happened just before."""
    assert in_words(told) == words


def test_every_ending_and_figure_has_words() -> None:
    """The closed sets."""
    for figure in Figure:
        for ending in Ending:
            assert ";" in in_words(change(figure, ending=ending))


def test_the_date_is_left_out_today() -> None:
    """Today is when the page is read, if that is said."""
    assert "at 14:03" in in_words(change(Figure.ACCEPTANCE), now=50_600)
    assert "at 1970-01-01 14:03" in in_words(change(Figure.ACCEPTANCE), now=2e5)


def test_the_page_shows_a_standing_change_in_one_line() -> None:
    """With the verdict, not below it somewhere."""
    figures = Shifts(standing={Figure.ACCEPTANCE: change(Figure.ACCEPTANCE)}).figures
    words = "Change: acceptance fell from 0.82 to 0.61"
    assert words in said(ready(shifts=figures))
    assert words not in said(ready())
    assert snapshot(ready()).servers[0].shifts.standing == {}


def test_the_board_notes_a_change_and_tells_it_once() -> None:
    """As an event for the history, with its causes in words; and to who writes the log."""
    noted: list[object] = []
    board = ServerBoard("a", SETTINGS, note=noted.append)
    drafts, positions, rng = 0, np.zeros(3, dtype=int), np.random.default_rng(1)
    for count in range(100):
        _, kept = drawn(rng, 200, chance(0.82 if count < 80 else 0.4))
        drafts, positions = drafts + 200, positions + kept.astype(int)
        look = scrape(5.0 * count, token="t" if count < 80 else "u")
        assert look.counters is not None
        counters = msgspec.structs.replace(
            look.counters,
            drafts=Reading(float(drafts)),
            draft_tokens=Reading(3.0 * drafts),
            accepted_tokens=None,
            accepted_by_position=tuple(int(n) for n in positions),
        )
        if count == 79:
            drafts, positions = 0, np.zeros(3, dtype=int)
        board.scraped(
            msgspec.structs.replace(look, counters=counters, props=Props(model="m", build="b1"))
        )
    (found,) = board.shift_news()
    assert board.shift_news() == ()
    events = [e for e in noted if isinstance(e, Event) and e.kind is EventKind.SHIFT]
    assert [e.detail for e in events] == [in_words(found)]
    assert "the server restarted with build b1" in events[0].detail
    figures = board.snapshot(monotonic_seconds=500).shifts
    assert figures.standing == {Figure.ACCEPTANCE: found}


def test_without_enough_past_there_is_no_sample() -> None:
    """Once there is, a figure is 0 in both directions until a change stands."""
    rows = {row.name: row for row in METRICS}
    shift, start = (
        rows["mtpmon_acceptance_shift"],
        rows["mtpmon_acceptance_shift_start_timestamp_seconds"],
    )
    assert list(shift.samples(ready())) == []
    calm = ready(shifts=learned().shifts.figures)
    assert list(shift.samples(calm)) == [(("fall",), 0.0), (("rise",), 0.0)]
    assert list(start.samples(calm)) == []
