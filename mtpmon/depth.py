"""Which draft length would be fastest, from one server that runs with one of them.

A server set to n drafts n tokens. What it would keep with a shorter setting is known: the
first positions do not change. What a step would cost then is not seen directly:

* On most servers the only shorter drafts are those cut short by the end of a generation.
  They were drafted in full first, so they cost more than a shorter setting would, and only
  bound it from above.
* So the cost is put on the line between an undrafted step of this server and one of full
  length. Verification is not quite linear in the number of tokens: between the ends the cost
  may lie off the line by ``curvature`` of the rise, most in the middle.
* A server that ends drafts itself when it is unsure shows free short drafts: these are
  measured. So are lengths that were measured on a server set to them (``known``).

The gain of one length over another does not need the plain step, and its two acceptance
lengths come from the same steps: both are taken into account.
"""

import math
from collections.abc import Mapping

import msgspec
import numpy as np

from mtpmon.cost import AgainstPlain, StepCosts
from mtpmon.model import Bounded
from mtpmon.payoff import payoff
from mtpmon.spread import Array, Counts, Location, clustered_error, normal_quantile
from mtpmon.tally import Tally

CURVATURE = 0.22
LEAST_GAIN = 0.02


class DepthOption(msgspec.Struct, frozen=True, kw_only=True):
    """One setting. ``gain``: its speed over the present one's, less 1.

    ``gain_bounds`` is ``None`` where the figures are an extrapolation, beyond what the
    server does. ``speedup`` is over plain decoding, ``None`` without a plain step.
    """

    drafted: int
    gain: float
    gain_bounds: Bounded | None
    speedup: float | None

    @property
    def extrapolated(self) -> bool:
        return self.gain_bounds is None


class DepthAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """Settings from 0 (no drafting) to one beyond the present, where something is known.

    ``best`` has the highest expected speed, extrapolations aside. ``advised`` is the best of
    those that are faster for certain, ``None`` without one. All bounds hold at once.
    """

    present: int
    options: tuple[DepthOption, ...]
    best: int
    advised: int | None

    def option(self, drafted: int) -> DepthOption | None:
        """The one with this draft length, if something is known of it."""
        return next((o for o in self.options if o.drafted == drafted), None)


class _Cost(msgspec.Struct, frozen=True):
    """What a step of some setting costs over the mean free step, within ``below``, ``above``."""

    value: float
    below: float = 0.0
    above: float = 0.0

    def log_below(self) -> float:
        """How far the log of the lower bound lies below; a cost is at least a tenth."""
        return -math.log(max(1 - self.below / self.value, 0.1))

    def log_above(self) -> float:
        return math.log1p(self.above / self.value)


def expected_speedups(
    acceptance_lengths: Mapping[int, float], step_ratios: Mapping[int, float]
) -> dict[int, float]:
    """E / r for each draft length that both are known of."""
    return {
        drafted: length / step_ratios[drafted]
        for drafted, length in sorted(acceptance_lengths.items())
        if drafted in step_ratios
    }


def best_depth(
    tally: Tally,
    costs: StepCosts,
    *,
    confidence: float,
    design_effect: float = 1.0,
    counts: Counts | None = None,
    known: Mapping[int, Bounded] | None = None,
    curvature: float = CURVATURE,
    least_gain: float = LEAST_GAIN,
) -> DepthAdvice | None:
    """Compare draft lengths on some traffic.

    Args:
        tally: what its steps kept.
        costs: what steps cost on its server.
        confidence: that all bounds hold at once; that of each of the bounds of ``costs``.
        design_effect: variance of the mean kept length over that of independent steps.
        counts: kept lengths by prompt where these are known; used in its place.
        known: r of servers of this model that were set to other draft lengths.
        curvature: how far costs may lie off a line, as a share of its rise.
        least_gain: a smaller one is not worth a restart.

    Returns:
        ``None`` if nothing is known of any other setting.
    """
    present = costs.longest
    # Bonferroni: the luckiest of several guesses must not pass for certain.
    each = 1 - (1 - confidence) / present
    costs = _at_confidence(costs, normal_quantile(each) / normal_quantile(confidence))
    paid = payoff(tally, costs, confidence=each, design_effect=design_effect, counts=counts)
    speedup = paid.speedup.value if paid is not None else None
    usual = _mixed(_measured(costs.lengths[-1].relative, each), present, tally, costs)

    def option(drafted: int, gain: float, below: float, above: float) -> DepthOption:
        bounds = Bounded(*(math.expm1(x) for x in (gain, gain - below, gain + above)))
        return DepthOption(
            drafted=drafted,
            gain=bounds.value,
            gain_bounds=bounds,
            speedup=speedup * math.exp(gain) if speedup is not None else None,
        )

    options = []
    if paid is not None:
        logs = [math.log(s) for s in (paid.speedup.value, paid.speedup.lower, paid.speedup.upper)]
        options.append(option(0, -logs[0], logs[2] - logs[0], logs[0] - logs[1]))
    for drafted in range(1, present):
        cost = _known((known or {}).get(drafted), costs.plain, usual)
        if cost is None:
            base = _base(drafted, costs, curvature, each)
            if base is None:
                continue
            cost = _mixed(base, drafted, tally, costs)
        if cost.value <= 0:
            continue  # start-up taken off left less than nothing: scatter, and no cost is known
        gain = math.log(_length(tally, drafted) / _length(tally, present))
        gain -= math.log(cost.value / usual.value)
        values = _influence(drafted, cost, tally, costs) - _influence(present, usual, tally, costs)
        sampled = _sampled(values, tally, counts, design_effect, each)
        below = math.hypot(sampled, cost.log_above(), usual.log_below())
        above = math.hypot(sampled, cost.log_below(), usual.log_above())
        options.append(option(drafted, gain, below, above))
    if not options:
        return None
    options.append(option(present, 0.0, 0.0, 0.0))
    certain = [
        o for o in options if o.gain_bounds and o.gain_bounds.lower > 0 and o.gain >= least_gain
    ]
    advised = max(certain, key=_gain, default=None)
    return DepthAdvice(
        present=present,
        options=(*options, *_beyond(tally, costs, usual, speedup)),
        best=max(options, key=_gain).drafted,
        advised=advised.drafted if advised is not None else None,
    )


def in_words(advice: DepthAdvice) -> str:
    """The advice as a sentence for an operator."""
    option = advice.option(advice.advised) if advice.advised is not None else None
    if option is not None:
        if option.drafted == 0:
            return f"turn drafting off: expected {_expected(option)}"
        return (
            f"lower --spec-draft-n-max from {advice.present} to {option.drafted}:"
            f" expected {_expected(option)}"
        )
    words = f"keep --spec-draft-n-max {advice.present}"
    best = advice.option(advice.best)
    if best is not None and best.drafted != advice.present:
        what = f"{best.drafted} might be" if best.drafted else "no drafting might be"
        words += f"; {what} faster, which is not certain: {_expected(best)}"
    beyond = advice.option(advice.present + 1)
    if beyond is not None and beyond.gain > LEAST_GAIN:
        words += (
            f"; {beyond.drafted} is worth a try:"
            f" {_percent(beyond.gain)} by extrapolation, which nothing here has measured"
        )
    return words


def _gain(option: DepthOption) -> float:
    return option.gain


def _percent(gain: float) -> str:
    return f"{100 * gain:+.0f} %".replace("-", "−")


def _expected(option: DepthOption) -> str:
    bounds = option.gain_bounds or Bounded(option.gain, option.gain, option.gain)
    return f"{_percent(option.gain)} ± {50 * (bounds.upper - bounds.lower):.0f} %"


def _at_confidence(costs: StepCosts, wider: float) -> StepCosts:
    """With bounds of r that are so many times as wide, on the log scale."""
    if costs.plain is None:
        return costs
    ratio = costs.plain.ratio
    lower, upper = (ratio.value * (x / ratio.value) ** wider for x in (ratio.lower, ratio.upper))
    plain = msgspec.structs.replace(costs.plain, ratio=Bounded(ratio.value, lower, upper))
    return msgspec.structs.replace(costs, plain=plain)


def _length(tally: Tally, drafted: int) -> float:
    """The acceptance length of a setting: its positions are the first of those seen."""
    return 1.0 + sum(tally.by_position[:drafted]) / tally.drafts


def _measured(relative: Location, confidence: float) -> _Cost:
    half = relative.half_width(confidence)
    return _Cost(relative.value, half, half)


def _base(drafted: int, costs: StepCosts, curvature: float, confidence: float) -> _Cost | None:
    """A fully kept step of a server set to ``drafted``, a length below the present one."""
    for length in costs.lengths:
        if length.drafted == drafted:
            return _measured(length.relative, confidence)
    start = _intercept(costs, confidence)
    if start is None:
        return None
    full = _measured(costs.lengths[-1].relative, confidence)
    share = drafted / costs.longest
    rise = max(full.value - start.value, 0.0)
    half = math.hypot(share * full.above, (1 - share) * start.above)
    half += curvature * rise * 4 * share * (1 - share)
    value = full.value - rise * (1 - share)
    for cut in costs.cut:
        if cut.drafted == drafted:
            # Drafted in full, then cut: a server set to this length would not pay more.
            most = _measured(cut.relative, confidence)
            upper = max(min(value + half, most.value + most.above), 0.0)
            value = min(value, most.value)
            return _Cost(value, half, upper - value)
    return _Cost(value, half, half)


def _intercept(costs: StepCosts, confidence: float) -> _Cost | None:
    """An undrafted step without the planning that a change of size costs.

    That is some part of what a first step takes more, perhaps all: its half is allowed for.
    The step is no cheaper than a plain one.
    """
    if costs.startup is None or not costs.cut or costs.cut[0].drafted:
        return None
    undrafted, planning = costs.cut[0].relative, max(costs.startup.value, 0.0)
    value = undrafted.value - planning
    if costs.plain is not None and not costs.plain.source.flatters:
        value = max(value, min(1 / costs.plain.ratio.value, undrafted.value))
    half = math.hypot(undrafted.half_width(confidence), costs.startup.half_width(confidence))
    return _Cost(value, half + planning / 2, half + planning / 2)


def _rollback(drafted: int, costs: StepCosts) -> Array:
    """What a step of this setting pays for rejecting, by the tokens it could have kept."""
    extra = np.zeros(costs.longest + 1)
    extra[:drafted] = costs.rollback[:drafted]
    return extra


def _mixed(base: _Cost, drafted: int, tally: Tally, costs: StepCosts) -> _Cost:
    """The mean step: some are kept whole, some are rolled back."""
    shares = np.array(tally.shares(costs.longest))
    return _Cost(base.value + float(shares @ _rollback(drafted, costs)), base.below, base.above)


def _known(theirs: Bounded | None, plain: AgainstPlain | None, usual: _Cost) -> _Cost | None:
    """From r as it was measured at that setting."""
    if theirs is None or plain is None:
        return None
    ours = plain.ratio
    value = usual.value * theirs.value / ours.value
    below = math.hypot(math.log(theirs.value / theirs.lower), math.log(ours.upper / ours.value))
    above = math.hypot(math.log(theirs.upper / theirs.value), math.log(ours.value / ours.lower))
    return _Cost(value, -value * math.expm1(-below), value * math.expm1(above))


def _influence(drafted: int, cost: _Cost, tally: Tally, costs: StepCosts) -> Array:
    """What a step adds to the log of speed, by the tokens it kept."""
    kept = np.minimum(np.arange(costs.longest + 1), drafted)
    return (1.0 + kept) / _length(tally, drafted) - _rollback(drafted, costs) / cost.value


def _sampled(
    values: Array, tally: Tally, counts: Counts | None, design_effect: float, confidence: float
) -> float:
    """The half width of the bounds of a mean over steps."""
    if counts is not None:
        return clustered_error(counts, values).half_width(confidence)
    shares = np.array(tally.shares(len(values) - 1))
    spread = float(shares @ (values - shares @ values) ** 2)
    effective = max(tally.drafts / design_effect - 1, 1.0)
    return normal_quantile(confidence) * math.sqrt(spread / effective)


def _beyond(
    tally: Tally, costs: StepCosts, usual: _Cost, speedup: float | None
) -> tuple[DepthOption, ...]:
    """One token more, if acceptance and cost go on as they do."""
    present = costs.longest
    start = _intercept(costs, 0.5)
    kept = (tally.drafts, *tally.by_position)
    if start is None or len(kept) <= present or kept[present - 1] <= 0:
        return ()
    length = _length(tally, present)
    longer = length + kept[present] / tally.drafts * kept[present] / kept[present - 1]
    rise = max(costs.lengths[-1].relative.value - start.value, 0.0) / present
    gain = longer / length * usual.value / (usual.value + rise) - 1
    return (
        DepthOption(
            drafted=present + 1,
            gain=gain,
            gain_bounds=None,
            speedup=speedup * (1 + gain) if speedup is not None else None,
        ),
    )
