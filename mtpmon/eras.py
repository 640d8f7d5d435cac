"""A history cut where the server changed: what was it like before, and what since?

An era lasts from one change of build or model (or restart, if asked for) to the next. Users'
traffic of an era is taken in blocks of ten minutes. Blocks are assumed to be independent of
each other and nothing is assumed of what is inside them: requests, and the steps of each,
may be as alike as they like.

Two eras are compared twice. Users' traffic may have asked for other things since, so a change
of its acceptance need not be the server's doing. Probes ask the same prompts, so they are
compared prompt by prompt, which leaves only what the server does differently.
"""

import math
import statistics
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Literal

import msgspec

from mtpmon.model import Bounded, ProbeOutcome, ProbeResult, Variant
from mtpmon.record import Event, EventKind, Rollup
from mtpmon.report import Report, report
from mtpmon.rolling import decode_rate
from mtpmon.spread import t_quantile

BLOCK_SECONDS = 600.0
FEWEST = 3  # blocks, or prompts, that a bound needs
ROUNDING = 1e-9  # far above what sums of equal figures differ by, which have no scatter

Figure = Literal["live_acceptance", "live_decode_speed", "probe_acceptance", "probe_speedup"]


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """Users' traffic of an era.

    Tokens per second are of one stream, without prompts; each request's first token, which
    takes no decode time, is in them. Where there are fewer than three blocks the scatter cannot
    be told: ``acceptance`` and ``decode_tokens_per_second`` are ``None``. ``kept`` is by position.
    What the server does not count is ``None``, and empty.
    """

    steps: float | None
    draft_tokens: float | None
    kept: tuple[int, ...]
    generated_tokens: float | None
    generation_seconds: float | None
    acceptance: Bounded | None
    decode_tokens_per_second: Bounded | None
    acceptance_length: float | None


class Era(msgspec.Struct, frozen=True, kw_only=True):
    """A time in which the server was the same. Unix seconds; ``None``: not known."""

    began_unix_seconds: float
    ended_unix_seconds: float
    build: str | None
    model: str | None
    restarts: int
    traffic: Traffic
    probes: Report


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A figure in two eras that follow each other.

    ``change`` is after less before for acceptances, and after over before, less 1, for speeds.
    ``over`` is what it rests on: blocks of traffic of both eras, or prompts that both asked.
    """

    figure: Figure
    before: float
    after: float
    change: Bounded
    over: int

    @property
    def certain(self) -> bool:
        """Whether the bounds leave out that nothing changed."""
        return self.change.lower > ROUNDING or self.change.upper < -ROUNDING


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A server's history: its eras, oldest first, and what changed between them."""

    eras: tuple[Era, ...]
    changes: tuple[tuple[Change, ...], ...]


def record(
    events: Sequence[Event],
    rollups: Sequence[Rollup],
    probes: Sequence[ProbeResult],
    *,
    at_restarts: bool,
    confidence: float,
) -> Record:
    """Cut a server's history into eras, and compare each with the one before.

    Args:
        events: changes, oldest first, those before the time of interest included.
        rollups: users' traffic, oldest first.
        probes: oldest first.
        at_restarts: whether a restart begins an era as well.
        confidence: of all bounds.
    """
    times = [r.unix_seconds for r in rollups] + [p.unix_seconds for p in probes]
    if not times:
        return Record(eras=(), changes=())
    cuts = _cuts(events, min(times), at_restarts=at_restarts)
    starts = [cut.unix_seconds for cut in cuts]
    traffic: dict[int, list[Rollup]] = defaultdict(list)
    asked: dict[int, list[ProbeResult]] = defaultdict(list)
    for rollup in rollups:
        # A minute that ends after a change began before it, but for a few seconds.
        traffic[bisect_right(starts, rollup.unix_seconds - rollup.seconds / 2)].append(rollup)
    for probe in probes:
        asked[bisect_right(starts, probe.unix_seconds)].append(probe)
    places = sorted({*traffic, *asked})
    eras = tuple(
        _era(
            _known(events, cuts, place),
            traffic[place],
            asked[place],
            restarts=_restarts(events, starts, place, max(times)),
            confidence=confidence,
        )
        for place in places
    )
    return Record(
        eras=eras,
        changes=tuple(
            tuple(_changes(traffic[a], traffic[b], asked[a], asked[b], confidence))
            for a, b in pairwise(places)
        ),
    )


def _cuts(events: Iterable[Event], first: float, *, at_restarts: bool) -> list[Event]:
    """The changes that begin an era; of those in one moment, the first."""
    kinds = {EventKind.BUILD, EventKind.MODEL} | ({EventKind.RESTART} if at_restarts else set())
    known: dict[EventKind, str | None] = {}
    found: list[Event] = []
    for event in events:
        if event.kind not in kinds:
            continue
        # mtpmon's own start sees the same build again, which is no change. What a server was
        # at first may have left the history, which keeps events for as long as probes.
        before = known.get(event.kind, event.before)
        same = event.kind is not EventKind.RESTART and before in (None, event.after)
        known[event.kind] = event.after
        if same or event.unix_seconds <= first:
            continue
        if not found or event.unix_seconds > found[-1].unix_seconds:
            found.append(event)
    return found


def _known(events: Iterable[Event], cuts: Sequence[Event], place: int) -> Mapping[EventKind, str]:
    """What was known of the server at the end of an era."""
    ends = cuts[place].unix_seconds if place < len(cuts) else math.inf
    known: dict[EventKind, str] = {}
    for event in events:
        if event.unix_seconds < ends and event.after is not None:
            known[event.kind] = event.after
        elif event.unix_seconds >= ends and event.before is not None:
            known.setdefault(event.kind, event.before)
    return known


def _restarts(events: Iterable[Event], starts: Sequence[float], place: int, last: float) -> int:
    """Restarts within an era, the one that began it left out."""
    began = starts[place - 1] if place else -math.inf
    ends = starts[place] if place < len(starts) else last + 1
    return sum(
        event.kind is EventKind.RESTART and began < event.unix_seconds < ends for event in events
    )


def _era(
    known: Mapping[EventKind, str],
    rollups: Sequence[Rollup],
    probes: Sequence[ProbeResult],
    *,
    restarts: int,
    confidence: float,
) -> Era:
    began = [r.unix_seconds - r.seconds for r in rollups] + [p.unix_seconds for p in probes]
    ended = [r.unix_seconds for r in rollups]
    ended += [p.unix_seconds + p.duration_seconds for p in probes]
    return Era(
        began_unix_seconds=min(began),
        ended_unix_seconds=max(ended),
        build=known.get(EventKind.BUILD),
        model=known.get(EventKind.MODEL),
        restarts=restarts,
        traffic=_traffic(rollups, confidence),
        probes=report(
            probes, tasks=tuple(dict.fromkeys(p.task for p in probes)), confidence=confidence
        ),
    )


# --- users' traffic -----------------------------------------------------------------------


def _traffic(rollups: Sequence[Rollup], confidence: float) -> Traffic:
    kept = [
        sum(column)
        for column in zip(*_padded([r.accepted_by_position or () for r in rollups]), strict=True)
    ]
    steps = _total(r.drafts for r in rollups)
    accepted = _total(r.accepted_tokens for r in rollups)
    return Traffic(
        steps=steps,
        draft_tokens=_total(r.draft_tokens for r in rollups),
        kept=tuple(kept),
        generated_tokens=_total(r.generated_tokens for r in rollups),
        generation_seconds=_total(r.generation_seconds for r in rollups),
        acceptance=_bounds(_ratio(rollups, _acceptance), confidence),
        decode_tokens_per_second=_bounds(_ratio(rollups, _speed), confidence),
        acceptance_length=1 + accepted / steps if steps and accepted is not None else None,
    )


def _total(amounts: Iterable[float | None]) -> float | None:
    """The sum of what is known; ``None`` if nothing is, which is not 0."""
    known = [amount for amount in amounts if amount is not None]
    return math.fsum(known) if known else None


def _padded(rows: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    width = max(map(len, rows), default=0)
    return [row + (0,) * (width - len(row)) for row in rows]


class _Estimate(msgspec.Struct, frozen=True):
    """A value, its standard error with degrees of freedom, and how many it is from."""

    value: float
    error: float
    degrees: int
    count: int


Parts = Callable[[Rollup], tuple[float | None, float | None]]


def _acceptance(rollup: Rollup) -> tuple[float | None, float | None]:
    return rollup.accepted_tokens, rollup.draft_tokens


def _speed(rollup: Rollup) -> tuple[float | None, float | None]:
    return rollup.generated_tokens, rollup.generation_seconds


def _ratio(rollups: Iterable[Rollup], parts: Parts) -> _Estimate | None:
    """A ratio of sums over blocks, with its jackknife error: what leaving one out changes.

    Blocks are of unequal weight, and the heaviest few carry most of the error: hence fewer
    degrees of freedom than blocks. Whole counts are differences of the server's totals, so what
    these were rounded by does not add up over an era.
    """
    blocks: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for rollup in rollups:
        part, whole = parts(rollup)
        if part is not None and whole is not None and whole > 0:
            block = blocks[math.floor(rollup.unix_seconds / BLOCK_SECONDS)]
            block[0] += part
            block[1] += whole
    if len(blocks) < FEWEST:
        return None
    count, total = len(blocks), math.fsum(whole for _, whole in blocks.values())
    value = math.fsum(part for part, _ in blocks.values()) / total
    squares = math.fsum(
        ((part - value * whole) / (total - whole)) ** 2 for part, whole in blocks.values()
    )
    weights = [whole * whole for _, whole in blocks.values()]
    effective = math.fsum(weights) ** 2 / math.fsum(weight * weight for weight in weights)
    degrees = max(round(effective) - 1, 1)
    return _Estimate(value, math.sqrt(squares * (count - 1) / count), degrees, count)


def _bounds(estimate: _Estimate | None, confidence: float) -> Bounded | None:
    if estimate is None:
        return None
    half = t_quantile(confidence, estimate.degrees) * estimate.error
    return Bounded(estimate.value, estimate.value - half, estimate.value + half)


# --- changes ------------------------------------------------------------------------------


def _changes(
    traffic_before: Sequence[Rollup],
    traffic_after: Sequence[Rollup],
    probes_before: Sequence[ProbeResult],
    probes_after: Sequence[ProbeResult],
    confidence: float,
) -> Iterator[Change]:
    for figure, parts in _LIVE.items():
        before, after = _ratio(traffic_before, parts), _ratio(traffic_after, parts)
        if before is not None and after is not None:
            relative = figure == "live_decode_speed"
            yield _between(figure, before, after, relative=relative, confidence=confidence)
    for figure, value in _PROBED.items():
        old, new = _by_prompt(probes_before, value), _by_prompt(probes_after, value)
        both = [key for key in old if key in new]
        if len(both) < FEWEST:
            continue
        differences = [new[key] - old[key] for key in both]
        error = statistics.stdev(differences) / math.sqrt(len(both))
        estimate = _Estimate(statistics.fmean(differences), error, len(both) - 1, len(both))
        change = _bounds(estimate, confidence) or Bounded(math.nan, math.nan, math.nan)
        levels = [statistics.fmean(values[key] for key in both) for values in (old, new)]
        if figure == "probe_speedup":  # these are logarithms
            change = Bounded(*(math.expm1(x) for x in msgspec.structs.astuple(change)))
            levels = [math.exp(level) for level in levels]
        yield Change(
            figure=figure, before=levels[0], after=levels[1], change=change, over=len(both)
        )


def _between(
    figure: Figure, before: _Estimate, after: _Estimate, *, relative: bool, confidence: float
) -> Change:
    """By Welch's approximation: two independent estimates of unequal scatter."""
    scale = before.value if relative and before.value else 1.0
    errors = (before.error / scale, after.error / scale)
    if relative:  # of the quotient: the error of what is divided by counts as often
        errors = (errors[0] * after.value / scale, errors[1])
    squares = [error * error for error in errors]
    parts = math.fsum(
        square**2 / estimate.degrees
        for square, estimate in zip(squares, (before, after), strict=True)
    )
    degrees = max(int(sum(squares) ** 2 / parts), 1) if parts > 0 else 1
    value = (after.value - before.value) / scale
    half = t_quantile(confidence, degrees) * math.sqrt(sum(squares))
    return Change(
        figure=figure,
        before=before.value,
        after=after.value,
        change=Bounded(value, value - half, value + half),
        over=before.count + after.count,
    )


class _Asked(msgspec.Struct, frozen=True):
    """What was asked. Another text under a prompt's old name shows in its length, mostly."""

    prompt_id: str
    variant: Variant
    prompt_tokens: int
    generated_tokens: int


def _by_prompt(
    probes: Iterable[ProbeResult], value: Callable[[ProbeResult], float | None]
) -> dict[_Asked, float]:
    """The mean of each prompt, asked in each way and for so many tokens."""
    found: dict[_Asked, list[float]] = defaultdict(list)
    for probe in probes:
        if probe.outcome is not ProbeOutcome.COMPLETED or probe.speculating is None:
            continue
        timings, one = probe.speculating.timings, value(probe)
        if one is not None:
            prompt = timings.prompt_tokens + timings.cached_tokens
            asked = _Asked(probe.prompt_id, probe.variant, prompt, timings.generated_tokens)
            found[asked].append(one)
    return {asked: statistics.fmean(values) for asked, values in found.items()}


def _probe_acceptance(probe: ProbeResult) -> float | None:
    timings = probe.speculating.timings if probe.speculating is not None else None
    if timings is None or not timings.draft_tokens:
        return None
    return (timings.accepted_tokens or 0) / timings.draft_tokens


def _log_speedup(probe: ProbeResult) -> float | None:
    if probe.speculating is None or probe.target_only is None:
        return None
    ours, theirs = decode_rate([probe.speculating]), decode_rate([probe.target_only])
    return math.log(ours / theirs) if ours and theirs else None


_LIVE: dict[Figure, Parts] = {"live_acceptance": _acceptance, "live_decode_speed": _speed}
_PROBED: dict[Figure, Callable[[ProbeResult], float | None]] = {
    "probe_acceptance": _probe_acceptance,
    "probe_speedup": _log_speedup,
}
