"""All that is watched for change on one server: acceptance, decode speed and KL divergence."""

import math
from collections.abc import Iterator, Mapping
from enum import StrEnum

import msgspec

from mtpmon.model import ProbeResult, Usage
from mtpmon.record import Event, EventKind
from mtpmon.shift.acceptance import Acceptance, probed, replanned, scraped, touched
from mtpmon.shift.batch import batch_of_probe, kld_of_probe, pace_of_probe
from mtpmon.shift.evidence import Direction
from mtpmon.shift.found import Ending, Phase, Shift, causes, is_cause
from mtpmon.shift.settings import KLD, PACE, Settings, ValueSettings
from mtpmon.shift.values import Values, measured, remeasured

EVENTS_KEPT = 32


class Figure(StrEnum):
    """What is watched. The closed set of figure labels.

    ``decode_speed``: full verification steps a second in probes, which neither acceptance nor
    the number of users at a time moves.
    """

    ACCEPTANCE = "acceptance"
    DECODE_SPEED = "decode_speed"
    KLD = "kld"


class ShiftRules(msgspec.Struct, frozen=True, kw_only=True):
    """What is a change worth telling.

    ``false_alarms_per_week``: allowed at most, of each figure. ``least_change``: of
    acceptance and decode speed, as a share; ``least_kld_nats``: of the divergence.
    """

    false_alarms_per_week: float = 1.0
    least_change: float = 0.05
    least_kld_nats: float = 0.001

    @property
    def acceptance(self) -> Settings:
        return Settings(alarms_per_day=self._per_day, least_change=self.least_change)

    @property
    def pace(self) -> ValueSettings:
        return msgspec.structs.replace(
            PACE, alarms_per_day=self._per_day, least_change=math.log1p(self.least_change)
        )

    @property
    def kld(self) -> ValueSettings:
        return msgspec.structs.replace(
            KLD, alarms_per_day=self._per_day, least_change=self.least_kld_nats
        )

    @property
    def _per_day(self) -> float:
        return self.false_alarms_per_week / 7


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A change of a figure, for people.

    ``before``, ``after``: the share of draft tokens kept, full verification steps a second, or
    nats. ``causes``: what happened to the server near its start, nearest first; ``build``: what
    it ran when the change was found. ``ending``: how it ended, ``None`` while it stands.
    """

    figure: Figure
    direction: Direction
    began_unix_seconds: float
    detected_unix_seconds: float
    before: float
    after: float
    causes: tuple[Event, ...] = ()
    build: str | None = None
    ending: Ending | None = None


class ShiftFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of changes. ``ready``: figures whose usual level is known by now."""

    ready: frozenset[Figure] = frozenset()
    standing: Mapping[Figure, Change] = {}
    totals: Mapping[tuple[Figure, Direction], int] = {}


class Shifts(msgspec.Struct, frozen=True, kw_only=True):
    """The detectors of one server, and what happened to it lately.

    ``news``: what began or ended with the last thing taken in. ``draft_tokens``: mean length
    of a draft so far.
    """

    acceptance: Acceptance = Acceptance()
    pace: Values = Values()
    kld: Values = Values()
    events: tuple[Event, ...] = ()
    build: str | None = None
    draft_tokens: float | None = None
    standing: Mapping[Figure, Change] = {}
    totals: Mapping[tuple[Figure, Direction], int] = {}
    news: tuple[Change, ...] = ()

    @property
    def figures(self) -> ShiftFigures:
        ready = {f for f, state in _detectors(self) if state.phase is not Phase.LEARNING}
        return ShiftFigures(
            ready=frozenset(ready), standing=dict(self.standing), totals=dict(self.totals)
        )


def _detectors(shifts: Shifts) -> Iterator[tuple[Figure, Acceptance | Values]]:
    yield Figure.ACCEPTANCE, shifts.acceptance
    yield Figure.DECODE_SPEED, shifts.pace
    yield Figure.KLD, shifts.kld


def looked(
    shifts: Shifts, server: Usage, own: Usage, unix_seconds: float, rules: ShiftRules
) -> Shifts:
    """Take in a look at the counters.

    Args:
        shifts: what was known.
        server: the server's totals.
        own: our own share of them; no request of ours was under way.
        unix_seconds: when.
        rules: what is worth telling.
    """
    found = msgspec.structs.replace(
        shifts,
        acceptance=scraped(shifts.acceptance, server, own, unix_seconds, rules.acceptance),
        draft_tokens=_draft_tokens(server) or shifts.draft_tokens,
    )
    return _told(shifts, found)


def asked(shifts: Shifts, result: ProbeResult, rules: ShiftRules) -> Shifts:
    """Take in a probe."""
    began = result.unix_seconds
    ended = began + result.duration_seconds
    batch, pace, kld = batch_of_probe(result), pace_of_probe(result), kld_of_probe(result)
    found = shifts
    if batch is not None:
        acceptance = probed(shifts.acceptance, batch, rules.acceptance)
        length = shifts.draft_tokens or batch.draft_tokens / batch.steps
        found = msgspec.structs.replace(found, acceptance=acceptance, draft_tokens=length)
    if pace is not None:
        value, stratum = pace
        state = measured(shifts.pace, value, rules.pace, stratum=stratum, began=began, ended=ended)
        found = msgspec.structs.replace(found, pace=state)
    if kld is not None:
        value, stratum = kld
        state = measured(shifts.kld, value, rules.kld, stratum=stratum, began=began, ended=ended)
        found = msgspec.structs.replace(found, kld=state)
    return _told(shifts, found)


def happened(shifts: Shifts, event: Event) -> Shifts:
    """Take in that something happened to the server.

    Another build or model is a change on purpose. A restart alone is not: figures are compared
    with what they were before, and the restart may be named as the cause.
    """
    found = msgspec.structs.replace(shifts, events=(*shifts.events, event)[-EVENTS_KEPT:])
    if event.kind is EventKind.BUILD:
        found = msgspec.structs.replace(found, build=event.after)
    if is_cause(event):
        acceptance = touched(found.acceptance, event.unix_seconds)
        found = msgspec.structs.replace(found, acceptance=acceptance)
    if event.kind in (EventKind.BUILD, EventKind.MODEL) and event.before is not None:
        found = msgspec.structs.replace(
            found,
            acceptance=replanned(found.acceptance),
            pace=remeasured(found.pace),
            kld=remeasured(found.kld),
        )
    return _told(shifts, found)


def _draft_tokens(usage: Usage) -> float | None:
    drafts, tokens = usage.drafts, usage.draft_tokens
    if drafts is None or tokens is None or drafts.value <= 0:
        return None
    return tokens.value / drafts.value


def _told(before: Shifts, now: Shifts) -> Shifts:
    """Name the changes that began or ended."""
    standing, totals, news = dict(before.standing), dict(before.totals), []
    for figure, state in _detectors(now):
        old = standing.get(figure)
        if old is not None and state.shift is None:
            del standing[figure]
            ending = state.ended.ending if state.ended is not None else None
            news.append(msgspec.structs.replace(old, ending=ending))
        elif old is None and state.shift is not None:
            new = _change(figure, state.shift, now)
            standing[figure] = new
            totals[figure, new.direction] = totals.get((figure, new.direction), 0) + 1
            news.append(new)
    return msgspec.structs.replace(now, standing=standing, totals=totals, news=tuple(news))


_OTHER = {Direction.FALL: Direction.RISE, Direction.RISE: Direction.FALL}


def _change(figure: Figure, shift: Shift, now: Shifts) -> Change:
    """A shift in the unit of its figure."""
    direction, before, after = shift.direction, shift.before, shift.after
    if figure is Figure.ACCEPTANCE:
        length = now.draft_tokens or 1.0
        before, after = before / length, after / length
    elif figure is Figure.DECODE_SPEED:  # what takes longer is slower
        direction, before, after = _OTHER[direction], math.exp(-before), math.exp(-after)
    return Change(
        figure=figure,
        direction=direction,
        began_unix_seconds=shift.began_unix_seconds,
        detected_unix_seconds=shift.detected_unix_seconds,
        before=before,
        after=after,
        causes=causes(now.events, shift),
        build=now.build,
    )
