"""A history cut into eras, and what is said of the changes between them."""

import math
import random

import msgspec
import pytest

from mtpmon.eras import Change, Record, record
from mtpmon.model import Completion, ProbeOutcome, ProbeResult, StepStream, Timings
from mtpmon.record import Event, EventKind, Rollup

START = 1_700_000_400.0
MINUTE, HOUR = 60.0, 3600.0


def event(kind: EventKind, at: float, after: str | None = None) -> Event:
    return Event(server="a", unix_seconds=START + at, kind=kind, after=after)


BEGUN = (event(EventKind.BUILD, -5, "b1"), event(EventKind.MODEL, -5, "m"))
UPGRADED = (*BEGUN, event(EventKind.RESTART, HOUR), event(EventKind.BUILD, HOUR, "b2"))


def minute(at: float, accepted: int = 60, drafted: int = 100, seconds: float = 10.0) -> Rollup:
    """A minute of traffic that ends then: steps of two draft tokens."""
    return Rollup(
        server="a",
        unix_seconds=START + at,
        seconds=MINUTE,
        drafts=drafted / 2,
        draft_tokens=drafted,
        accepted_tokens=accepted,
        accepted_by_position=(accepted - accepted // 3, accepted // 3),
        generated_tokens=accepted + drafted / 2,
        generation_seconds=seconds,
    )


def completion(seconds: float, *, drafted: int | None = None, kept: int = 0) -> Completion:
    """Sixty-one tokens."""
    return Completion(
        positions=(),
        timings=Timings(
            prompt_tokens=9,
            prompt_seconds=0.1,
            cached_tokens=0,
            generated_tokens=61,
            generation_seconds=seconds,
            draft_tokens=drafted,
            accepted_tokens=kept if drafted else None,
        ),
        stream=StepStream(),
        wall_seconds=seconds,
    )


def probe(at: float, prompt: str = "p", *, kept: int = 50, speedup: float = 1.5) -> ProbeResult:
    return ProbeResult(
        server="a",
        prompt_id=prompt,
        task="code",
        unix_seconds=START + at,
        duration_seconds=2.0,
        outcome=ProbeOutcome.COMPLETED,
        speculating=completion(2.0 / speedup, drafted=100, kept=kept),
        target_only=completion(2.0),
    )


def recorded(
    events: tuple[Event, ...],
    rollups: list[Rollup],
    probes: list[ProbeResult] | None = None,
    *,
    at_restarts: bool = False,
) -> Record:
    return record(events, rollups, probes or [], at_restarts=at_restarts, confidence=0.95)


def change(found: Record, figure: str) -> Change:
    return next(c for c in found.changes[-1] if c.figure == figure)


TWO_HOURS = [minute(MINUTE * n) for n in range(1, 121)]


def test_a_change_of_build_begins_an_era() -> None:
    """Each with what the server was, and with its own traffic and probes."""
    found = recorded(UPGRADED, TWO_HOURS, [probe(10), probe(HOUR + 10), probe(HOUR + 20)])
    first, second = found.eras
    assert (first.build, second.build) == ("b1", "b2")
    assert first.model == second.model == "m"
    assert first.began_unix_seconds == START
    assert first.ended_unix_seconds == START + HOUR
    assert second.ended_unix_seconds == START + 2 * HOUR
    assert (first.restarts, second.restarts) == (0, 0), "the one that came with it is the cut"
    assert (first.traffic.steps, second.traffic.steps) == (3000, 3000)
    assert first.traffic.kept == (2400, 1200)
    assert first.traffic.acceptance_length == pytest.approx(1 + 60 / 50)
    assert (first.probes.completed, second.probes.completed) == (1, 2)


def test_the_same_build_seen_again_is_no_change() -> None:
    """As after a restart of mtpmon, or of the server; a restart can be asked for."""
    events = (*BEGUN, event(EventKind.RESTART, HOUR), event(EventKind.BUILD, HOUR, "b1"))
    (only,) = recorded(events, TWO_HOURS).eras
    assert only.restarts == 1
    before, after = recorded(events, TWO_HOURS, at_restarts=True).eras
    assert (before.restarts, after.restarts) == (0, 0)
    assert (before.build, after.build) == ("b1", "b1")
    named = (event(EventKind.STATE, 5, "ready"), event(EventKind.BUILD, 5, "b1"))
    assert recorded(named, TWO_HOURS).eras[0].build == "b1"


def test_model_and_build_that_change_together_are_one_change() -> None:
    events = (*UPGRADED, event(EventKind.MODEL, HOUR, "m2"))
    found = recorded(events, TWO_HOURS, at_restarts=True)
    assert [(era.build, era.model) for era in found.eras] == [("b1", "m"), ("b2", "m2")]


def test_nothing_in_the_history_is_no_era() -> None:
    assert recorded(BEGUN, []) == Record(eras=(), changes=())


def test_an_era_without_traffic_is_left_out() -> None:
    """Two upgrades in a row: what was never used cannot be compared."""
    events = (*UPGRADED, event(EventKind.BUILD, HOUR + 5, "b3"))
    assert [era.build for era in recorded(events, TWO_HOURS).eras] == ["b1", "b3"]


def test_bounds_hold_whatever_requests_are_like() -> None:
    """Blocks that differ much make wide bounds; of fewer than three there are none."""
    alike = recorded(BEGUN, TWO_HOURS).eras[0].traffic.acceptance
    assert alike is not None
    assert (alike.value, alike.lower, alike.upper) == pytest.approx((0.6, 0.6, 0.6))
    torn = [minute(MINUTE * n, accepted=30 if n // 10 % 2 else 90) for n in range(1, 121)]
    found = recorded(BEGUN, torn).eras[0].traffic.acceptance
    assert found is not None
    assert found.lower < 0.45
    assert found.upper > 0.75
    short = recorded(BEGUN, TWO_HOURS[:15]).eras[0].traffic
    assert (short.acceptance, short.decode_tokens_per_second) == (None, None)
    assert short.acceptance_length is not None


def test_minutes_that_say_nothing_do_not_count() -> None:
    """Old builds have no speculative counters, and an idle server has none that moved."""
    bare = Rollup(server="a", unix_seconds=START + HOUR, seconds=MINUTE)
    idle = minute(HOUR + MINUTE, accepted=0, drafted=0, seconds=0.0)
    found = recorded(BEGUN, [bare, idle]).eras[0].traffic
    assert (found.steps, found.acceptance, found.acceptance_length) == (0, None, None)
    unknown = recorded(BEGUN, [bare]).eras[0].traffic
    assert (unknown.steps, unknown.draft_tokens, unknown.generated_tokens) == (None, None, None)


def test_what_changed_is_told_with_bounds() -> None:
    """A worse head and a faster machine, both for certain."""
    rng = random.Random(3)
    before = [minute(MINUTE * n, accepted=rng.randint(75, 85)) for n in range(1, 61)]
    after = [minute(MINUTE * n, rng.randint(45, 55), seconds=5.0) for n in range(61, 121)]
    found = recorded(UPGRADED, before + after)
    acceptance, speed = change(found, "live_acceptance"), change(found, "live_decode_speed")
    assert acceptance.certain
    assert acceptance.change.lower < -0.3 < acceptance.change.upper < -0.2
    assert acceptance.over == 14
    assert speed.certain
    assert speed.change.value == pytest.approx(speed.after / speed.before - 1)
    assert speed.change.lower < 0.54 < speed.change.upper


def test_probes_are_compared_prompt_by_prompt() -> None:
    """Prompts that only one of both asked would be a change of the mix."""
    hard = {"a": 20, "b": 50, "c": 80, "d": 60}
    before = [probe(n, name, kept=kept) for n, (name, kept) in enumerate(hard.items())]
    before += [probe(50, "only before", kept=1)]
    after = [
        probe(HOUR + n, name, kept=kept - 10 - n, speedup=1.5 * (1.2 + n / 100))
        for n, (name, kept) in enumerate(hard.items())
    ]
    failed = msgspec.structs.replace(after[0], outcome=ProbeOutcome.FAILED, speculating=None)
    found = recorded(UPGRADED, [], [*before, failed, *after])
    acceptance, speedup = change(found, "probe_acceptance"), change(found, "probe_speedup")
    assert acceptance.over == speedup.over == 4
    assert acceptance.before == pytest.approx(0.525)
    assert acceptance.change.value == pytest.approx(-0.115)
    assert acceptance.certain
    assert speedup.before == pytest.approx(1.5)
    assert speedup.change.value == pytest.approx(
        math.prod(1.2 + n / 100 for n in range(4)) ** 0.25 - 1
    )
    assert speedup.change.lower > 0.18


def test_the_same_figures_are_no_change_for_certain() -> None:
    """Greedy answers repeat exactly, and the mean of three equal numbers may be another number."""
    before = [probe(n, name, kept=70) for n, name in enumerate("abcd")]
    after = [probe(HOUR + 10 * m + n, a, kept=70) for m in range(3) for n, a in enumerate("abcd")]
    found = recorded(UPGRADED, [], [*before, *after])
    assert change(found, "probe_acceptance").change.value != 0, "else this proves nothing"
    assert [each.certain for each in found.changes[-1]] == [False, False]


def test_only_what_asks_the_same_is_compared() -> None:
    """A text under another's name, or longer answers, would pass for a change of the server."""

    def other(result: ProbeResult, **timings: int) -> ProbeResult:
        answer = result.speculating
        assert answer is not None
        changed = msgspec.structs.replace(answer.timings, **timings)
        return msgspec.structs.replace(
            result, speculating=msgspec.structs.replace(answer, timings=changed)
        )

    before = [probe(n, name, kept=80) for n, name in enumerate("abcd")]
    after = [probe(HOUR + n, name, kept=40) for n, name in enumerate("abcd")]
    assert change(recorded(UPGRADED, [], [*before, *after]), "probe_acceptance").certain
    for timings in ({"prompt_tokens": 90}, {"generated_tokens": 128}):
        assert recorded(UPGRADED, [], [*before, *(other(p, **timings) for p in after)]).changes == (
            (),
        )
    partly = [other(p, prompt_tokens=4, cached_tokens=5) for p in after]
    assert change(recorded(UPGRADED, [], [*before, *partly]), "probe_acceptance").over == 4


def test_an_upgrade_is_seen_after_the_first_look_has_left_the_history() -> None:
    """A server that ran longer than ``history.retention``: only what it was before is known."""
    upgrade = msgspec.structs.replace(event(EventKind.BUILD, HOUR, "b2"), before="b1")
    found = recorded((upgrade,), TWO_HOURS)
    assert [era.build for era in found.eras] == ["b1", "b2"]
    assert [era.model for era in found.eras] == [None, None]
    assert len(found.changes) == 1


def test_probes_without_drafts_or_twins_are_not_compared() -> None:
    """Nothing drafted is no acceptance; nothing to compare with is no speed-up."""

    def odd(at: float, name: str) -> ProbeResult:
        drafted = completion(1.0) if name != "none" else None
        return msgspec.structs.replace(probe(at, name), speculating=drafted, target_only=None)

    probes = [odd(start + n, name) for start in (0, HOUR) for n, name in enumerate("abcd")]
    probes += [odd(1, "none"), odd(HOUR + 1, "none")]
    still = msgspec.structs.replace(probe(5, "still"), target_only=completion(0.0))
    found = recorded(UPGRADED, [], [*probes, still])
    assert found.changes == ((),)


def test_equal_eras_show_a_change_as_often_as_the_bounds_allow() -> None:
    """Five in a hundred at most, with requests that differ a lot; more often would cry wolf."""
    rng = random.Random(5)

    def era(first: int) -> list[Rollup]:
        found = []
        for block in range(12):
            share = min(max(rng.gauss(0.6, 0.12), 0.0), 1.0)
            drafted = rng.randint(20, 400)
            found += [
                minute(
                    MINUTE * (first + 10 * block + n), round(share * drafted), drafted, drafted / 9
                )
                for n in range(10)
            ]
        return found

    upgraded = (*BEGUN, event(EventKind.BUILD, 120 * MINUTE, "b2"))
    runs = 400
    shown = sum(
        change(recorded(upgraded, era(0) + era(120)), "live_acceptance").certain
        for _ in range(runs)
    )
    assert 0.02 < shown / runs < 0.09
