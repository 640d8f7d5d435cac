"""Windows over a server's totals, and the figures of a window with their bounds.

A window is the difference of two samples, never a sum of intervals, so rounding does not
add up. Three things decide which two samples:

* The width asked for, ending at the latest sample.
* Rounding: llama-server prints six digits, so at 1e8 drafts a minute of traffic may be
  lost in one step of the last digit. A ratio's window widens, up to the longest one
  configured, until the rounding error is below a stated share; if that is not enough
  there is no ratio.
* Edges: counters move when a request ends. Throughput is only right between moments at
  which nothing was half done: the server at rest, or a request just ended.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import NormalDist

import msgspec

from mtpmon.derive import difference, without
from mtpmon.model import Amount, Bounded, Usage

# Accepted tokens are summed from exact positions, except on servers without them.
_RATIO_COUNTS = ("drafts", "draft_tokens")
_DECODE_COUNTS = ("generated_tokens", "generation_seconds")
MOST_LEFT_OPEN = 0.1  # of a count; what is less is in the bounds
FEW_DRAFTS = 40  # below this the normal approximation is not to be trusted


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """A server's totals and our own share of them at one moment.

    ``at_rest``: no request was being processed or waiting. ``moved``: some generation of a
    user had ended since the sample before.
    """

    monotonic_seconds: float
    server: Usage
    own: Usage
    at_rest: bool
    moved: bool


class TrafficFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one window. ``None``: not known, or nothing happened to measure.

    ``span_seconds`` is the time the ratios cover, which may be longer than the width asked
    for (rounding) or shorter (we have not watched that long). Ratios are 0 to 1. ``usage``
    is what they were worked out from.
    """

    span_seconds: float | None = None
    drafts: float | None = None
    acceptance: Bounded | None = None
    acceptance_length: Bounded | None = None
    positions: tuple[float, ...] = ()
    conditional_positions: tuple[float, ...] = ()
    draft_coverage: float | None = None
    decode_tokens_per_second: Bounded | None = None
    throughput_tokens_per_second: float | None = None
    usage: Usage | None = None


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What a ratio needs before it is published.

    ``rounding_error``: the largest share of a count that printing may have rounded away.
    """

    min_drafts: int = 1
    rounding_error: float = 0.01
    confidence: float = 0.95

    @property
    def z(self) -> float:
        return NormalDist().inv_cdf(0.5 + self.confidence / 2)


class History:
    """A bounded run of samples in time order: all recent ones, older ones on a coarse grid.

    Args:
        keep_seconds: how far back windows reach.
        recent: samples kept as they came.
        older: places of the grid that the rest of the time is laid out on.
    """

    def __init__(self, *, keep_seconds: float, recent: int = 1024, older: int = 2048) -> None:
        self._keep_seconds = keep_seconds
        self._recent = recent
        self._spacing_seconds = keep_seconds / older
        self._samples: list[Sample] = []

    def __len__(self) -> int:
        return len(self._samples)

    def add(self, sample: Sample) -> None:
        samples = self._samples
        samples.append(sample)
        # The one at or before the horizon stays: the longest window starts there.
        horizon = sample.monotonic_seconds - self._keep_seconds
        first = bisect_right(samples, horizon, key=_time) - 1
        if first > 0:
            del samples[:first]
        leaving = len(samples) - self._recent - 1
        if leaving > 0:
            gap = _time(samples[leaving + 1]) - _time(samples[leaving - 1])
            if gap <= self._spacing_seconds:
                samples[leaving + 1] = _merged(samples[leaving], samples[leaving + 1])
                del samples[leaving]

    @property
    def samples(self) -> Sequence[Sample]:
        return self._samples


def _time(sample: Sample) -> float:
    return sample.monotonic_seconds


def _merged(dropped: Sample, kept: Sample) -> Sample:
    """``kept``, which must not forget that something ended since the sample before both."""
    return msgspec.structs.replace(kept, moved=dropped.moved or kept.moved)


def figures(
    samples: Sequence[Sample], *, live: bool, width_seconds: float, evidence: Evidence
) -> TrafficFigures:
    """The figures of the window of ``width_seconds`` that ends at the last sample.

    Args:
        samples: in time order; their span limits how far a window can widen.
        live: users' traffic (the server's totals less our own) or our probes'.
        width_seconds: the width asked for.
        evidence: what a ratio needs.
    """
    if len(samples) < 2:
        return TrafficFigures()
    spans = _Spans(samples, live=live, width_seconds=width_seconds)
    throughput = spans.throughput(evidence.rounding_error)
    if not spans.moved:  # a window that must widen would show what is long over
        return TrafficFigures(throughput_tokens_per_second=throughput)
    drafted = spans.resolved(evidence.rounding_error, _RATIO_COUNTS)
    decoded = spans.resolved(evidence.rounding_error, _DECODE_COUNTS)
    decode_rate = _decode_rate(decoded[1]) if decoded is not None else None
    if drafted is None:
        return TrafficFigures(
            decode_tokens_per_second=decode_rate, throughput_tokens_per_second=throughput
        )
    seconds, usage = drafted
    drafts, draft_tokens = usage.drafts, usage.draft_tokens
    accepted = accepted_amount(usage)
    if (
        drafts is None
        or draft_tokens is None
        or accepted is None
        or drafts.value < max(evidence.min_drafts, 1)
        or draft_tokens.value <= 0
        or accepted.value - accepted.half_width > draft_tokens.value + draft_tokens.half_width
    ):
        return TrafficFigures(
            decode_tokens_per_second=decode_rate, throughput_tokens_per_second=throughput
        )
    by_position = usage.accepted_by_position
    if by_position is not None and not plausible_positions(by_position, drafts):
        by_position = None
    below, above = kept_length_offsets(
        drafts.value,
        accepted.value,
        by_position,
        longest=max(draft_tokens.value / drafts.value, 1.0),
        z=evidence.z,
    )
    width = draft_tokens.value / drafts.value
    positions = tuple(min(n / drafts.value, 1.0) for n in by_position or ())
    return TrafficFigures(
        span_seconds=seconds,
        drafts=drafts.value,
        acceptance=_bounded(_quotient(accepted, draft_tokens), below / width, above / width, 1.0),
        acceptance_length=_shifted(_bounded(_quotient(accepted, drafts), below, above, math.inf)),
        positions=positions,
        conditional_positions=tuple(_conditional(positions)),
        draft_coverage=_coverage(usage, drafts, accepted),
        decode_tokens_per_second=decode_rate,
        throughput_tokens_per_second=throughput,
        usage=usage,
    )


class _Spans:
    """Picks the two samples that a figure is the difference of."""

    def __init__(self, samples: Sequence[Sample], *, live: bool, width_seconds: float) -> None:
        self._samples = samples
        self._live = live
        self._width_seconds = width_seconds
        start = self._start_before(range(len(samples)), samples[-1])
        self._inside = samples[start + 1 :]
        if live:
            self.moved = any(sample.moved for sample in self._inside)
        else:
            self.moved = samples[-1].own.requests > samples[start].own.requests

    def _usage(self, start: int, end: int) -> Usage:
        later, earlier = self._samples[end], self._samples[start]
        own = difference(later.own, earlier.own)
        if not self._live:
            return own
        return without(difference(later.server, earlier.server), own)

    def resolved(self, share: float, names: Sequence[str]) -> tuple[float, Usage] | None:
        """Seconds and usage of the shortest window that is wide enough and resolved enough.

        Wide enough: as wide as asked for, or all there is. Resolved: of none of the counts
        ``names`` is the rounding error above ``share``, nor what requests of ours that were
        cut off have left open above ``MOST_LEFT_OPEN``. ``None``: even all there is does not
        resolve it.
        """
        return self._between(range(len(self._samples)), share, names)

    def throughput(self, share: float) -> float | None:
        """Tokens of all streams over wall time, between two edges.

        ``None`` while the latest edge is further back than the window is wide: what runs
        since then has not been counted yet.
        """
        if self._live:
            edges = [i for i, s in enumerate(self._samples) if s.at_rest or s.moved]
        else:
            edges = list(range(len(self._samples)))
        if len(edges) < 2:
            return None
        latest = self._samples[-1].monotonic_seconds
        if latest - self._samples[edges[-1]].monotonic_seconds > self._width_seconds:
            return None
        if not self.moved:
            return 0.0 if all(s.at_rest or not self._live for s in self._inside) else None
        found = self._between(edges, share, ["generated_tokens"])
        if found is None or found[1].generated_tokens is None:
            return None
        return found[1].generated_tokens.value / found[0]

    def _start_before(self, candidates: Sequence[int], end: Sample) -> int:
        """Which of ``candidates`` is the latest one a whole width before ``end``, or the first."""
        moment = end.monotonic_seconds - self._width_seconds
        after = bisect_right(candidates, moment, key=lambda i: self._samples[i].monotonic_seconds)
        return max(after - 1, 0)

    def _is_resolved(self, name: str, start: int, end: int, share: float) -> bool:
        """As ``self._usage`` and a look at one count of it, but fast: windows search."""
        later, earlier = self._samples[end], self._samples[start]
        value = rounded = left_open = 0.0
        for sign, after, before in (
            (1, later.server, earlier.server),
            (-1, later.own, earlier.own),
        )[0 if self._live else 1 :]:
            x, y = getattr(after, name), getattr(before, name)
            if x is None or y is None:
                return True
            value += sign * (x.value - y.value)
            rounded += x.error + y.error
            if sign > 0:
                rounded += x.carried_error - y.carried_error
            else:
                left_open += x.carried_error - y.carried_error
        return bool(rounded <= share * abs(value) and left_open <= MOST_LEFT_OPEN * abs(value))

    def _between(
        self,
        candidates: Sequence[int],
        share: float,
        names: Sequence[str],
    ) -> tuple[float, Usage] | None:
        """As ``resolved``, between two of ``candidates`` (indices of samples, in order).

        Counts only grow with the window while the error stays, so halving finds it.
        """
        end = candidates[-1]
        low, high = 0, self._start_before(candidates, self._samples[end])

        def enough(place: int) -> bool:
            start = candidates[place]
            return all(self._is_resolved(name, start, end, share) for name in names)

        if not enough(high):
            if not enough(low):
                return None
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if enough(middle) else (low, middle)
            high = low
        start = candidates[high]
        seconds = self._samples[end].monotonic_seconds - self._samples[start].monotonic_seconds
        return (seconds, self._usage(start, end)) if seconds > 0 else None


def accepted_amount(usage: Usage) -> Amount | None:
    """Accepted tokens: the exact per-position counts where there are any."""
    if usage.accepted_by_position is not None:
        return Amount(float(sum(usage.accepted_by_position)), usage.positions_error)
    return usage.accepted_tokens


def plausible_positions(by_position: Sequence[int], drafts: Amount) -> bool:
    """A later position is kept only if the one before is: counts never rise, nor pass D."""
    bounds = (drafts.value + drafts.half_width, *by_position)
    return all(later <= earlier for earlier, later in pairwise(bounds))


def kept_length_offsets(
    drafts: float,
    accepted: float,
    by_position: Sequence[int] | None,
    *,
    longest: float,
    z: float,
    design_effect: float = 1.0,
) -> tuple[float, float]:
    """How far the bounds of the mean kept length lie below and above it, in tokens.

    Per-position counts give the whole distribution of the kept length K, since
    ``#{K > i} = A_i``: the mean is ``Σ A_i / D`` and the mean of K² is ``Σ (2i+1) A_i / D``.
    So the variance is known and not assumed. Few steps, or steps all alike, get Wilson
    bounds on each position instead, whose sum is wider. Without the counts K is only known
    to lie in 0…``longest``, and a variable with mean m there has variance at most
    m · (longest - m).

    Args:
        drafts: verification steps D, at least 1.
        accepted: tokens kept.
        by_position: tokens kept at each position, or ``None``.
        longest: draft tokens per step.
        z: normal quantile of the confidence wanted.
        design_effect: variance of the mean over that of independent steps.
    """
    mean = accepted / drafts
    effective = drafts / design_effect
    if by_position is None:
        spread = max(mean * (longest - mean), 0.0)
        shares = [min(mean / longest, 1.0)] * math.ceil(longest)
    else:
        second = sum((2 * i + 1) * n for i, n in enumerate(by_position)) / drafts
        spread = max(second - mean * mean, 0.0)
        shares = [min(n / drafts, 1.0) for n in by_position]
    if drafts < FEW_DRAFTS or spread == 0:
        bounds = [wilson(share, effective, z) for share in shares]
        return (
            max(sum(shares) - sum(low for low, _ in bounds), 0.0),
            max(sum(high for _, high in bounds) - sum(shares), 0.0),
        )
    error = z * math.sqrt(spread / (effective - 1) if effective > 1 else spread)
    return error, error


def wilson(share: float, n: float, z: float) -> tuple[float, float]:
    """Wilson score bounds of a proportion seen as ``share`` of ``n`` trials."""
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(centre - half, 0.0), min(centre + half, 1.0)


def _quotient(a: Amount, b: Amount) -> Bounded:
    """Divide, with what rounding leaves open; b is above its own error."""
    return Bounded(
        a.value / b.value,
        max(a.value - a.half_width, 0.0) / (b.value + b.half_width),
        (a.value + a.half_width) / (b.value - b.half_width),
    )


def _bounded(rounded: Bounded, below: float, above: float, most: float) -> Bounded:
    """Sampling error on top of rounding, within 0…``most``."""
    value = min(rounded.value, most)
    return Bounded(
        value,
        min(max(rounded.lower - below, 0.0), value),
        max(min(rounded.upper + above, most), value),
    )


def _shifted(kept: Bounded) -> Bounded:
    """Mean acceptance length: the kept tokens and the target's own one."""
    return Bounded(1 + kept.value, 1 + kept.lower, 1 + kept.upper)


def _conditional(positions: Sequence[float]) -> Iterator[float]:
    """c_i = p_i / p_{i-1}, as far as it is defined."""
    for before, here in pairwise((1.0, *positions)):
        if before == 0:
            return
        yield here / before


def _coverage(usage: Usage, drafts: Amount, accepted: Amount) -> float | None:
    """Share of decode steps that drafted.

    Every token that is neither a request's first (which comes from the prompt) nor a kept
    draft token took a step of its own.
    """
    if usage.generated_tokens is None:
        return None
    all_steps = usage.generated_tokens.value - usage.requests - accepted.value
    return drafts.value / max(all_steps, drafts.value)


def _decode_rate(usage: Usage) -> Bounded | None:
    """Decode steps' tokens per second of one stream.

    A request's first token comes out of the prompt and costs no decode time, so it must
    not be counted. Counters do not tell how many requests there were, only bounds: at
    least one in every scrape interval in which they moved; at most one for each token that
    is neither kept nor a drafting step's own, and for each prompt token.
    """
    tokens, seconds = usage.generated_tokens, usage.generation_seconds
    if tokens is None or seconds is None or seconds.value <= 0:
        return None
    fewest = float(usage.requests)
    most = tokens.value
    accepted = accepted_amount(usage)
    if usage.drafts is not None and accepted is not None:
        most = tokens.value - usage.drafts.value - accepted.value
    if usage.prompt_tokens is not None:
        most = min(most, usage.prompt_tokens.value + usage.prompt_tokens.half_width)
    most = max(most, fewest)
    value = max(tokens.value - fewest, 0.0) / seconds.value
    return Bounded(
        value,
        max(tokens.value - tokens.half_width - most, 0.0) / (seconds.value + seconds.half_width),
        max(tokens.value + tokens.half_width - fewest, 0.0) / (seconds.value - seconds.half_width),
    )
