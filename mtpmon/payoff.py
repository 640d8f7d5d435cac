"""Counts of kept tokens and costs of steps → speed-up, breakeven, margin, with bounds.

With K tokens kept by a step and r_K its cost in plain steps, a step emits 1 + K tokens where
plain decoding would have emitted r_K. So drafting pays if the mean of 1 + K - r_K is above
zero, and that mean, over the tokens drafted per step, is the margin: acceptance less
breakeven. The per-position counts give the whole distribution of K, hence the scatter of
that mean; what the cost adds is independent of it. The two are combined by the method of
variance estimates recovery (Zou and Donner 2008): the distances of a difference's bounds are
those of its terms, summed in quadrature, each on the side where it matters.
"""

import math
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from mtpmon.cost import AgainstPlain, PlainSource, StepCosts
from mtpmon.model import Bounded
from mtpmon.request import Request, kept_by_prompt, tally_of_requests
from mtpmon.spread import Array, Counts, clustered_error, normal_quantile, robust_mean
from mtpmon.tally import Tally, tally_of_steps
from mtpmon.window import FEW_DRAFTS, kept_length_offsets

FEWEST_PROMPTS = 3
FEWEST_PAIRS = 3
LEAST_STEP = 0.1  # of the mean one: a step is never free

Sampling = Callable[[Array], tuple[float, float]]
"""How far the bounds of a mean over steps lie below and above, given each kept length's value."""


class Payoff(msgspec.Struct, frozen=True, kw_only=True):
    """What drafting brings on some traffic.

    ``acceptance`` less ``breakeven`` is ``margin``; these are shares of draft tokens, and a
    breakeven above 1 cannot be reached. ``step_ratio`` is r of the drafting steps; undrafted
    ones are in ``speedup``, ``breakeven`` and ``margin``. Where ``source`` flatters, speed-up
    and margin are at most their value; the bounds hold the truth all the same.
    """

    drafts: float
    source: PlainSource
    acceptance: Bounded
    acceptance_length: Bounded
    step_ratio: Bounded
    speedup: Bounded
    breakeven: Bounded
    margin: Bounded


def payoff(
    tally: Tally,
    costs: StepCosts,
    *,
    confidence: float,
    design_effect: float = 1.0,
    counts: Counts | None = None,
) -> Payoff | None:
    """What drafting brings on some traffic.

    Args:
        tally: what its steps kept.
        costs: what steps cost on its server.
        confidence: of the bounds, and of those of ``costs``.
        design_effect: variance of the mean kept length over that of independent steps.
        counts: kept lengths by prompt or request, where these are known; used in its place.

    Returns:
        ``None`` without a plain step to compare with.
    """
    z = normal_quantile(confidence)

    def by_step(values: Array) -> tuple[float, float]:
        shares = np.array(tally.shares(len(values) - 1))
        spread = float(shares @ (values - shares @ values) ** 2)
        effective = tally.drafts / design_effect
        if tally.drafts >= FEW_DRAFTS and spread > 0 and effective > 1:
            half = z * math.sqrt(spread / (effective - 1))
            return half, half
        below, above = kept_length_offsets(
            tally.drafts,
            sum(tally.by_position),
            [int(n) for n in tally.by_position],
            longest=tally.width,
            z=z,
            design_effect=design_effect,
        )
        steepest = float(np.max(np.abs(np.diff(values))))
        return below * steepest, above * steepest

    def by_request(values: Array) -> tuple[float, float]:
        half = clustered_error(counts or (), values).half_width(confidence)
        return half, half

    sampling = by_step if counts is None else by_request
    if costs.plain is None:
        return None
    best = _at(tally, costs, costs.plain, sampling, z)
    if costs.plain.excess == 1.0:
        return best
    dearer = msgspec.structs.replace(
        costs.plain,
        ratio=_scaled(costs.plain.ratio, costs.plain.excess),
        undrafted_ratio=costs.plain.undrafted_ratio * costs.plain.excess,
    )
    worst = _at(tally, costs, dearer, sampling, z)
    return msgspec.structs.replace(
        best,
        step_ratio=Bounded(best.step_ratio.value, best.step_ratio.lower, worst.step_ratio.upper),
        breakeven=Bounded(best.breakeven.value, best.breakeven.lower, worst.breakeven.upper),
        speedup=Bounded(best.speedup.value, worst.speedup.lower, best.speedup.upper),
        margin=Bounded(best.margin.value, worst.margin.lower, best.margin.upper),
    )


def probe_payoff(
    requests: Sequence[Request], costs: StepCosts, *, confidence: float
) -> Payoff | None:
    """What drafting brings on the traffic that the prompts of these requests are a sample of.

    Args:
        requests: speculating ones count; of one task, or of a mix that is wanted.
        costs: what steps cost on their server.
        confidence: of the bounds, and of those of ``costs``.

    Returns:
        ``None`` without a plain step to compare with, or with fewer than three prompts.
    """
    counts = kept_by_prompt(requests)
    tally = tally_of_requests(requests)
    if tally is None or len(counts) < FEWEST_PROMPTS:
        return None
    return payoff(tally, costs, confidence=confidence, counts=counts)


def disagreement(
    requests: Sequence[Request], costs: StepCosts, *, confidence: float
) -> Bounded | None:
    """Modelled over measured speed-up, pair by pair: 1 where the cost model holds.

    Measured: all decode time of both arms, nothing left out. Modelled: each step at the
    typical cost of its kind. Above 1, the speculating arm loses time that the model does
    not know: start-up of short requests, stalls, steps that cannot be told apart.

    Returns:
        ``None`` without a plain step to compare with, or with fewer than three pairs.
    """
    if costs.plain is None:
        return None
    arms: dict[str, tuple[list[Request], list[Request]]] = {}
    for request in requests:
        if request.pair is not None:
            arms.setdefault(request.pair, ([], []))[request.arm != "speculating"].append(request)
    logs = []
    for ours, plain in arms.values():
        drafting = tally_of_steps(step for r in ours for step in r.steps)
        seconds = math.fsum(step.seconds for r in ours for step in r.steps)
        baseline = [step.seconds for r in plain for step in r.steps]
        if drafting is None or seconds <= 0 or math.fsum(baseline) <= 0:
            continue
        ratios = step_ratios(drafting, costs, costs.plain)
        modelled = drafting.drafts * float(np.array(drafting.shares(len(ratios) - 1)) @ ratios)
        modelled += drafting.undrafted * costs.plain.undrafted_ratio
        logs.append(math.log(seconds * len(baseline) / math.fsum(baseline) / modelled))
    if len(logs) < FEWEST_PAIRS:
        return None
    found = robust_mean(logs)
    half = found.half_width(confidence)
    return Bounded(*(math.exp(found.value + offset) for offset in (0.0, -half, half)))


def step_ratios(tally: Tally, costs: StepCosts, plain: AgainstPlain) -> Array:
    """What a step costs in plain ones if it kept 0, 1, … tokens, in traffic like ``tally``.

    ``plain.ratio`` holds for the mix it was measured on. Where rejected steps cost more, it
    moves with how many there are. Where free steps of several lengths were seen, it also
    moves with the mean draft length, on lines between these.
    """
    rejection = np.zeros(max(costs.longest, len(tally.by_position)) + 1)
    rejection[: costs.longest] = costs.rollback
    usual = float(rejection @ np.array(costs.mix.shares(len(rejection) - 1)))
    wide, usually_wide = np.interp(
        [tally.width, costs.mix.width],
        [length.drafted for length in costs.lengths],
        [length.relative.value for length in costs.lengths],
    )
    relative: Array = 1.0 + wide - usually_wide + rejection - usual
    return plain.ratio.value * np.maximum(relative, LEAST_STEP)


def _at(
    tally: Tally, costs: StepCosts, plain: AgainstPlain, sampling: Sampling, z: float
) -> Payoff:
    """The figures if the plain step is what ``plain`` says."""
    ratios = step_ratios(tally, costs, plain)
    lengths: Array = 1.0 + np.arange(len(ratios), dtype=np.float64)
    shares = np.array(tally.shares(len(ratios) - 1))
    length, ratio = 1.0 + tally.kept, float(shares @ ratios)
    # All per drafting step; a step without a draft is a share of one that came with it.
    undrafted = tally.undrafted / tally.drafts
    tokens, cost = length + undrafted, ratio + undrafted * plain.undrafted_ratio
    tax = undrafted * (plain.undrafted_ratio - 1.0)

    # How far r may be off: its level, and what rejecting adds as far as that is another share.
    errors = np.zeros(len(ratios))
    errors[: costs.longest] = costs.rollback_errors
    moved = shares - np.array(costs.mix.shares(len(ratios) - 1))
    mixed = z * math.sqrt(float(moved**2 @ errors**2))
    below = ratio * math.hypot(1 - plain.ratio.lower / plain.ratio.value, mixed)
    above = ratio * math.hypot(plain.ratio.upper / plain.ratio.value - 1, mixed)

    def bounds(value: float, influence: Array, dearer: float, cheaper: float) -> Bounded:
        """Around ``value``, whose steps have ``influence``, ``dearer`` and ``cheaper`` steps.

        Of rounded counts, the steps that kept nothing are those that may be more or fewer.
        """
        low, high = sampling(influence)
        rounded = tally.rounding * abs(float(influence[0] - shares @ influence))
        return Bounded(
            value,
            value - math.hypot(low, dearer) - rounded,
            value + math.hypot(high, cheaper) + rounded,
        )

    kept = bounds(tally.kept, lengths, 0.0, 0.0)
    kept = Bounded(kept.value, max(kept.lower, 0.0), max(min(kept.upper, tally.width), kept.value))
    gain = bounds(length - ratio - tax, lengths - ratios, above, below)
    log = bounds(
        math.log(tokens / cost),
        lengths / tokens - ratios / cost,
        math.log1p(above / cost),
        -math.log(max(1 - below / cost, 0.01)),
    )
    return Payoff(
        drafts=tally.drafts,
        source=plain.source,
        acceptance=_scaled(kept, 1 / tally.width),
        acceptance_length=_shifted(kept, 1.0),
        step_ratio=Bounded(ratio, ratio - below, ratio + above),
        speedup=Bounded(math.exp(log.value), math.exp(log.lower), math.exp(log.upper)),
        breakeven=_scaled(
            _shifted(Bounded(ratio, ratio - below, ratio + above), tax - 1.0), 1 / tally.width
        ),
        margin=_scaled(gain, 1 / tally.width),
    )


def _scaled(bounded: Bounded, factor: float) -> Bounded:
    return Bounded(bounded.value * factor, bounded.lower * factor, bounded.upper * factor)


def _shifted(bounded: Bounded, by: float) -> Bounded:
    return Bounded(bounded.value + by, bounded.lower + by, bounded.upper + by)
