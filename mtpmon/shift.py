"""Has the server changed? Sequential tests of each figure against the server's own past.

Evidence for a change is a sum of log-likelihood ratios that starts again whenever it falls to
zero (CUSUM), one for each of several sizes of change in each direction. A ratio's mean under
"no change" is at most 1, so such a sum reaches h at most once in e^h observations: that is
where the stated rate of false alarms comes from. What it is measured against, the reference,
is learned from the server and followed slowly.

Acceptance has two sources. Users' traffic is plenty, but of unknown kinds of tasks; probes
are few, but of known ones. ``Acceptance`` says how they decide together. ``Values`` is for
single numbers with any distribution (step time, KL divergence): it looks at ranks only.

Arrays may have leading dimensions, one server each: simulations run thousands of servers
through the same code that watches one. docs/change-detection.md has the derivations, the
measured rates and delays, and what can not be seen.
"""

import math
from collections.abc import Callable, Iterable
from enum import StrEnum
from statistics import median

import msgspec
import numpy as np
from numpy.typing import NDArray

from mtpmon.derive import difference, subtracted
from mtpmon.model import Amount, ProbeOutcome, ProbeResult, Usage
from mtpmon.record import Event, EventKind
from mtpmon.window import accepted_amount, plausible_positions

Array = NDArray[np.float64]
Truth = NDArray[np.bool_]

DAY = 86_400.0
TILTS: Array = np.asarray(0.2 * 1.5 ** np.arange(8), dtype=np.float64)
"""Sizes of change looked for: how much the log-odds of keeping a draft token move."""
POWERS: Array = np.array([2.0, 8.0, 16.0, 32.0])
STAKES: Array = np.array([1.0, 1.0, 0.5, 0.2])
"""Bets on ranks: a value at rank u (0…1) multiplies the evidence by 1 - s + s·a·u^(a-1). Those
with a small stake s are for changes that only some values show."""
SIGNS: Array = np.array([[-1.0], [1.0]])  # fall, rise
LEVELS = 64  # bins of the share of draft tokens kept, 0…1
CELL_TRIALS = 100.0  # draft tokens that make one entry there
RANGE_EVERY = 20  # batches after which the range is computed anew
FEWEST_BEYOND = 5  # batches that it takes to be out of the range
RUN = 32  # batches in a row whose sum shows whether they have something in common
RANGE_SHARE = 0.01  # of the entries lie below the range, and as many above
MOST_STRATA = 64
MOST_POSITIONS = 16
MOST_PAST = 400  # values of one stratum that a new one is ranked among
LEAST_PAST = 20
REPLAN_VALUES = 40  # after a change, that make a past
FEWEST_STEPS = 5  # of a probe, to have a step time
RANK_FADE = 0.998  # how much less a value counts, for likeness, with each that follows
TRAIL = 256  # probes whose scores are kept, to judge a suspicion that began before them
KNOWN_TRIALS = 20.0  # a position tried less often says nothing
KNOWN_STEPS = 100.0  # a reference of fewer steps says nothing about how requests scatter
MOST_EVIDENCE = 10.0  # of one batch, when its likelihood ratio is averaged
MOST_RAISED = 64  # suspicions whose times are kept
SETTLED = math.log(100)  # evidence for or against at which probes decide a suspicion
LEAST_THRESHOLD = 3.0
RATE_MEMORY_SECONDS = DAY


class Direction(StrEnum):
    """Which way a figure moved."""

    FALL = "fall"
    RISE = "rise"


class Source(StrEnum):
    """Whose traffic showed a shift of acceptance."""

    LIVE = "live"
    PROBES = "probes"
    BOTH = "both"


class Phase(StrEnum):
    """What a detector is doing. ``suspected``: acceptance moved, tasks may explain it."""

    LEARNING = "learning"
    WATCHING = "watching"
    SUSPECTED = "suspected"
    SHIFTED = "shifted"


DIRECTIONS = (Direction.FALL, Direction.RISE)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How to detect.

    ``alarms_per_day``: false alarms allowed to one detector. ``memory_seconds``: after so long
    a past batch counts half for the level; ``range_seconds``: likewise for how requests
    scatter. ``least_change``: smaller changes are no news, a share of the kept tokens.
    ``learn_steps``, ``learn_batches``: what makes a reference. ``hold_seconds``: how long a
    shift stands before its level becomes the new reference. ``planned_share``: after a planned
    change this share of the kept tokens may be lost unreported, and after ``planned_steps``
    the level is the new reference. ``patience_seconds``: how long probes get to explain a
    change that past tasks do not; ``suspicion_seconds``: to explain one that they do.
    ``probe_fresh_seconds``: older probes do not count as running.
    """

    alarms_per_day: float = 1 / 7
    memory_seconds: float = DAY
    range_seconds: float = 7 * DAY
    least_change: float = 0.03
    learn_steps: float = 300.0
    learn_batches: float = 30.0
    hold_seconds: float = DAY
    planned_share: float = 0.25
    planned_steps: float = 1000.0
    patience_seconds: float = 1800.0
    suspicion_seconds: float = 6 * 3600.0
    probe_fresh_seconds: float = 600.0


# --- what comes in ------------------------------------------------------------------------


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Verification steps that ended between two moments.

    ``trials`` and ``kept``: draft tokens that came to a decision at each position, and those
    kept. Where only totals are known they are one position, and ``spread`` is how much more
    the kept tokens of a step vary than if each were decided by itself. ``*_error``: rounding
    that cancels between successive batches; ``lasting_error``: such as does not.
    ``stratum``: the kind of task, where it is known.
    """

    began_unix_seconds: float
    ended_unix_seconds: float
    steps: float
    trials: tuple[float, ...]
    kept: tuple[float, ...]
    trials_error: float = 0.0
    kept_error: float = 0.0
    lasting_error: float = 0.0
    spread: float = 1.0
    by_position: bool = True
    stratum: str = ""


class Meter(msgspec.Struct, frozen=True, kw_only=True):
    """How far a server's totals have been turned into batches."""

    server: Usage
    own: Usage
    unix_seconds: float


def metered(
    meter: Meter | None, server: Usage, own: Usage, unix_seconds: float
) -> tuple[Meter, Batch | None]:
    """Users' verification steps since the last batch, if they can be told yet.

    Nothing is lost and nothing clamped: what rounding hides now is in a later batch. A total
    that reads too high or too low is so by at most its own rounding, however many batches are
    made of it.

    Args:
        meter: what this returned last; ``None`` at first.
        server: the server's totals.
        own: our own share of them.
        unix_seconds: when they were read, with no request of ours under way.
    """
    here = Meter(server=server, own=own, unix_seconds=unix_seconds)
    if meter is None:
        return here, None
    everybody, ours = difference(server, meter.server), difference(own, meter.own)
    batch = batch_of(
        msgspec.structs.replace(
            everybody,
            drafts=_less(everybody.drafts, ours.drafts),
            draft_tokens=_less(everybody.draft_tokens, ours.draft_tokens),
            accepted_tokens=_less(everybody.accepted_tokens, ours.accepted_tokens),
            accepted_by_position=None
            if everybody.accepted_by_position is None
            else subtracted(everybody.accepted_by_position, ours.accepted_by_position or ()),
            positions_error=everybody.positions_error + ours.positions_error,
        ),
        began=meter.unix_seconds,
        ended=unix_seconds,
    )
    if batch is not None:
        return here, batch
    accepted = accepted_amount(everybody)
    if accepted is None or not accepted.value:  # idle so far: what comes, begins after now
        meter = msgspec.structs.replace(meter, unix_seconds=unix_seconds)
    return meter, None


def _less(everybody: Amount | None, ours: Amount | None) -> Amount | None:
    if everybody is None or ours is None:
        return everybody
    return Amount(
        everybody.value - ours.value,
        everybody.error + ours.error,
        everybody.carried_error + ours.carried_error,
    )


def batch_of(usage: Usage, *, began: float, ended: float) -> Batch | None:
    """The verification steps in a difference of two totals; ``None``: not known, or none.

    From per-position counts: a position is tried by the steps that kept the one before it.
    Those beyond the mean draft length were not drafted. From totals: each draft token is a
    trial. A step loses all its tokens after the first rejected one, and if a step of w tokens
    rejects one at a random place, lost tokens vary (2w + 1) / 3 times as much as single ones
    would. That is the limit for high acceptance, and more than at any lower one.
    """
    drafts, drafted, accepted = usage.drafts, usage.draft_tokens, accepted_amount(usage)
    if drafts is None or accepted is None or drafts.value <= 0:
        return None
    positions = usage.accepted_by_position
    if positions is not None:
        width = drafted.value / drafts.value if drafted is not None else float(MOST_POSITIONS)
        seen = tuple(n for i, n in enumerate(positions) if n or i < width - 0.5)[:MOST_POSITIONS]
        if not seen or not plausible_positions(seen, drafts):
            return None
        return Batch(
            began_unix_seconds=began,
            ended_unix_seconds=ended,
            steps=drafts.value,
            trials=(drafts.value, *seen[:-1]),
            kept=seen,
            trials_error=drafts.error,
            lasting_error=max(drafts.carried_error + usage.positions_error, 0.0),
        )
    if drafted is None or drafted.value <= 0:
        return None
    return Batch(
        began_unix_seconds=began,
        ended_unix_seconds=ended,
        steps=drafts.value,
        trials=(drafted.value,),
        kept=(accepted.value,),
        trials_error=drafted.error,
        kept_error=accepted.error,
        lasting_error=max(drafted.carried_error + accepted.carried_error, 0.0),
        spread=max((2 * drafted.value / drafts.value + 1) / 3, 1.0),
        by_position=False,
    )


def batch_of_probe(result: ProbeResult) -> Batch | None:
    """The drafting steps of a probe, its task as the stratum; ``None``: it has none to show."""
    if result.outcome is not ProbeOutcome.COMPLETED or result.speculating is None:
        return None
    steps = [s for s in result.speculating.stream.steps if s.drafted]
    if not steps:
        return None
    longest = min(max(s.drafted for s in steps), MOST_POSITIONS)
    tried = [[s for s in steps if s.drafted > i and s.kept >= i] for i in range(longest)]
    return Batch(
        began_unix_seconds=result.unix_seconds,
        ended_unix_seconds=result.unix_seconds + result.duration_seconds,
        steps=float(len(steps)),
        trials=tuple(float(len(some)) for some in tried),
        kept=tuple(float(sum(s.kept > i for s in some)) for i, some in enumerate(tried)),
        stratum=_stratum(result),
    )


def _stratum(result: ProbeResult) -> str:
    """The kind of task: the prompts and the way they are asked."""
    way = result.variant
    return f"{result.task}, {way.temperature:g}, {way.thinking}, {way.depth_tokens}"


def pace_of_probe(result: ProbeResult) -> tuple[float, str] | None:
    """Logarithm of the median seconds of a probe's full verification steps, and its stratum."""
    if result.outcome is not ProbeOutcome.COMPLETED or result.speculating is None:
        return None
    steps = result.speculating.stream.steps
    longest = max((s.drafted for s in steps), default=0)
    times = [s.seconds for s in steps if s.drafted == longest and s.seconds > 0]
    if not longest or len(times) < FEWEST_STEPS:
        return None
    return math.log(median(times)), _stratum(result)


def kld_of_probe(result: ProbeResult) -> tuple[float, str] | None:
    """Mean KL divergence, in nats, after a probe's drafts, and its stratum."""
    found = result.after_speculation
    if result.outcome is not ProbeOutcome.COMPLETED or not found:
        return None
    return math.fsum(d.nats for d in found) / len(found), _stratum(result)


# --- evidence -----------------------------------------------------------------------------


class Bank(msgspec.Struct, frozen=True, kw_only=True):
    """Sums of evidence, [..., references, directions, sizes], and what each has seen.

    ``began``: since when it has been above zero; ``amount``, ``seen``, ``expected``: how much
    it has seen since, and what came of it, and what would have at the reference.
    """

    score: Array
    began: Array
    amount: Array
    seen: Array
    expected: Array


def bank(*shape: int) -> Bank:
    """A bank without evidence."""
    zero = np.zeros(shape)
    return Bank(score=zero, began=zero, amount=zero, seen=zero, expected=zero)


def collected(
    before: Bank, scores: Array, *, began: float, amount: Array, seen: Array, expected: Array
) -> Bank:
    """Add one observation's log-likelihood ratios."""
    fresh = before.score <= 0

    def more(old: Array, new: Array) -> Array:
        return np.where(fresh, 0.0, old) + new[..., None, None, None]

    return Bank(
        score=np.maximum(before.score + scores, 0.0),
        began=np.where(fresh, began, before.began),
        amount=more(before.amount, amount),
        seen=more(before.seen, seen),
        expected=more(before.expected, expected),
    )


# --- acceptance: what is learned ----------------------------------------------------------


class Learned(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over batches. Older ones weigh less.

    ``trials``, ``kept``: [..., strata, positions], the level. ``squares``, ``information``,
    ``information_squares``: of each batch's residual r = Σ (kept - expected) and its variance
    v if draft tokens were independent: Σ r², Σ v, Σ v². ``levels``: a histogram of the share
    kept in short stretches. ``ratios``, ``ratio_squares``: [..., references, directions,
    sizes], of the likelihood ratios of ``batches`` batches. ``runs``: of `RUN` batches in a
    row; ``run_squares``: Σ (Σ r)² of these, ``run_parts``: Σ Σ r².
    """

    trials: Array
    kept: Array
    squares: Array
    information: Array
    information_squares: Array
    levels: Array
    ratios: Array
    ratio_squares: Array
    batches: Array
    runs: Array
    run_squares: Array
    run_parts: Array


def _faded(learned: Learned, level: float, scatter: float) -> Learned:
    faded = {name: getattr(learned, name) * scatter for name in Learned.__struct_fields__}
    return Learned(**faded | {"trials": learned.trials * level, "kept": learned.kept * level})


def _sum(a: Learned, b: Learned) -> Learned:
    return Learned(
        **{name: getattr(a, name) + getattr(b, name) for name in Learned.__struct_fields__}
    )


def _chosen(mask: Truth, a: Learned, b: Learned) -> Learned:
    """``a`` where the mask is true, else ``b``."""

    def either(x: Array, y: Array) -> Array:
        return np.where(mask.reshape(mask.shape + (1,) * (x.ndim - mask.ndim)), x, y)

    return Learned(
        **{name: either(getattr(a, name), getattr(b, name)) for name in Learned.__struct_fields__}
    )


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """A detector of changes in kept draft tokens.

    ``settled`` is the reference. ``pending`` may belong to a change: it joins ``settled`` when
    the evidence is gone, or replaces its level when the change has become the new normal.
    ``ranged``: tasks are not known, so a range of levels is normal; ``edges``: its ends, as
    tilts. ``ready``: the last batch could have shown a change. ``replanned``: a planned change
    is being taken in.
    """

    ranged: bool
    strata: tuple[str, ...]
    by_position: bool
    settled: Learned
    pending: Learned
    cell_trials: Array
    cell_kept: Array
    run_sum: Array
    run_part: Array
    edges: Array
    unexplained: Array
    bank: Bank
    rate_steps: Array
    rate_seconds: Array
    ready: Truth
    batches: int = 0
    last_unix_seconds: float | None = None
    replanned: bool = False


def counts(*shape: int, ranged: bool, positions: int = 1, strata: tuple[str, ...] = ()) -> Counts:
    """A detector that knows nothing yet; ``shape``: of the leading dimensions."""
    zero = np.zeros(shape)
    sizes = (*shape, 2 if ranged else 1, 2, len(TILTS))
    level = np.zeros((*shape, len(strata), positions))
    nothing = Learned(
        trials=level,
        kept=level,
        squares=zero,
        information=zero,
        information_squares=zero,
        levels=np.zeros((*shape, LEVELS)),
        ratios=np.zeros(sizes),
        ratio_squares=np.zeros(sizes),
        batches=zero,
        runs=zero,
        run_squares=zero,
        run_parts=zero,
    )
    return Counts(
        ranged=ranged,
        strata=strata,
        by_position=True,
        settled=nothing,
        pending=nothing,
        cell_trials=zero,
        cell_kept=zero,
        run_sum=zero,
        run_part=zero,
        edges=np.zeros((*shape, 2)),
        unexplained=np.ones((*shape, sizes[-3])),
        bank=bank(*sizes),
        rate_steps=zero,
        rate_seconds=zero,
        ready=np.zeros(shape, dtype=np.bool_),
    )


class Yardstick(msgspec.Struct, frozen=True, kw_only=True):
    """What a batch is measured with; arrays are [..., references, directions, sizes].

    The evidence for a size of change is Σ kept · ``gain`` - Σ trials · ``cost`` (which has
    positions as its last dimension), over 1 + information · ``unexplained``, times ``caution``,
    less ``surplus``. ``seen``: the positions that are known; ``exact``: those whose counts are
    not rounded; ``reached``: tokens kept at each per step. ``ends``: where the reference is an
    end of the range. ``weight``: what a step of a usual batch counts for.
    """

    exact: slice
    seen: Truth
    chances: Array
    reached: Array
    known_steps: Array
    known_information: Array
    scatter: Array
    scatter_error: Array
    unexplained: Array
    ends: Truth
    caution: Array
    weight: Array
    surplus: Array
    active: Truth
    gain: Array
    cost: Array
    thresholds: Array


def yardstick(detector: Counts, stratum: int, settings: Settings) -> Yardstick:
    """Everything that follows from what was learned, for batches of one stratum.

    Tilt: all positions' log-odds of being kept move by the same amount. The evidence is the
    likelihood of one tilt over that of another, the null. The null is the reference, moved
    towards the alternative by what the reference itself may be wrong: h·σ²/δ for a threshold
    h, a size δ and a standard error σ, which makes the mean of e^(h·error) what it would be
    without error. The second null is the edge of the range of levels seen before.

    Scatter: requests differ, by a variance τ² of their log-odds. So the residual of a batch
    with information v has the variance v·(1 + v·τ²). Caution: for n batches known, what makes
    the mean of e^(h·error) 1, as above; and that batches resemble the ones before.

    Threshold: a size of change with mean evidence -K per step under the null reaches h once
    in e^h / K steps. That is exact for small steps, and an overstatement for others.
    """
    settled = detector.settled
    per_size = (..., None, None, None)

    trials, kept = settled.trials[..., stratum, :], settled.kept[..., stratum, :]
    seen = trials >= KNOWN_TRIALS
    exact = slice(1 if np.any(seen[..., 1:]) else 0, None)
    chances = np.where(seen, np.clip((kept + 0.5) / (trials + 1.0), 1e-4, 1 - 1e-4), 1e-4)
    reached = np.asarray(np.cumprod(chances, axis=-1), dtype=np.float64)
    known = np.maximum(np.sum(trials * chances * (1 - chances), axis=-1), 1e-9)

    information = np.maximum(settled.information, 1e-9)
    squares = np.maximum(settled.information_squares, 1e-9)
    batches = np.maximum(settled.information**2 / squares, 1.0)
    scatter = np.maximum(settled.squares - settled.information, 0.0) / squares
    unexplained = scatter[..., None] * detector.unexplained
    per_step = reached * (1 - chances)  # information
    in_all = np.sum(per_step, axis=-1) / np.sum(per_step[..., exact], axis=-1)
    steps_a_day = DAY * detector.rate_steps / np.maximum(detector.rate_seconds, 1.0)
    steps_to_alarm = np.maximum(steps_a_day / settings.alarms_per_day, math.e)
    caution = 1 / (1 + np.log(steps_to_alarm) / batches) / _likeness(settled)
    usual = squares / information * in_all  # information of a batch
    typical = (1 + unexplained * usual[..., None]) / caution[..., None]

    base = _null_tilts(detector, chances, settings)
    null, other = SIGNS * base, SIGNS * (base + TILTS)
    distance = _mean_evidence(chances, null, other)
    alarms = steps_to_alarm[per_size] * 2 * len(TILTS) * distance / typical[..., None, None]
    thresholds = np.log(np.maximum(alarms, math.exp(LEAST_THRESHOLD)))
    shift = thresholds * (typical / known[..., None])[..., None, None] / TILTS
    null = SIGNS * (base + np.minimum(shift, TILTS / 4))
    learned = (np.sum(settled.trials[..., 0], axis=-1) >= settings.learn_steps) & (
        batches >= settings.learn_batches
    )
    return Yardstick(
        exact=exact,
        seen=seen,
        chances=chances,
        reached=reached,
        known_steps=trials[..., 0],
        known_information=np.sum((trials * chances * (1 - chances))[..., exact], axis=-1),
        scatter=scatter,
        scatter_error=np.sqrt(2 / batches) * information / squares,
        unexplained=unexplained,
        ends=(detector.unexplained < 1)[..., None, None],
        caution=caution,
        weight=1 / typical[..., 0],
        surplus=_surplus(settled),
        active=(shift <= TILTS / 4) & learned[per_size],
        gain=other - null,
        cost=_log_growth(chances, other) - _log_growth(chances, null),
        thresholds=thresholds,
    )


def _surplus(settled: Learned) -> Array:
    """Logarithm of how far the mean likelihood ratio of past batches was above 1.

    That is where it would be if requests scattered as assumed. They may not: a tenth of them
    may be of a kind that keeps half as much. Twice its standard error is let pass.
    """
    n = np.maximum(settled.batches, 1.0)[..., None, None, None]
    mean = settled.ratios / n
    error = np.sqrt(np.maximum(settled.ratio_squares / n - mean**2, 0.0) / n)
    return np.asarray(np.log(np.maximum(mean - 2 * error, 1.0)))


def _likeness(settled: Learned) -> Array:
    """How much more the sum of batches in a row varies than if they had nothing in common.

    People work on one thing for a while, so that requests resemble the ones before. Twice the
    standard error is let pass, so that it costs nothing where they do not.
    """
    found = settled.run_squares / np.maximum(settled.run_parts, 1e-9)
    return np.asarray(np.maximum(found * (1 - 2 * np.sqrt(2 / np.maximum(settled.runs, 1.0))), 1.0))


def _null_tilts(detector: Counts, chances: Array, settings: Settings) -> Array:
    """How far, [..., references, directions, 1], levels may move without being news."""
    tilts = np.zeros_like(detector.edges)[..., None, :]
    if detector.ranged:
        tilts = np.concatenate([tilts, detector.edges[..., None, :]], axis=-2)
    if detector.replanned:
        level = _kept_tokens(chances, np.zeros_like(detector.edges[..., 0]))
        fall = _solved(
            lambda tilt: _kept_tokens(chances, tilt), (1 - settings.planned_share) * level
        )
        tilts = np.maximum(tilts, np.abs(fall)[..., None, None])
    return tilts[..., None]


def _range(detector: Counts, measure: Yardstick) -> tuple[Array, Array]:
    """How far, [..., directions], the ends of the range of levels lie from the level, as tilts.

    Without scatter that is more than its own error, there is no range: what the histogram
    shows are ups and downs of independent steps.

    Returns:
        The tilts, and which share of the scatter of requests the range stands for.
    """
    chances, exact = measure.chances, measure.exact
    levels = _sharpened(detector.settled.levels)
    low = _share_below(levels, RANGE_SHARE) - 1 / LEVELS
    high = _share_below(levels, 1 - RANGE_SHARE) + 1 / LEVELS
    here = _kept_share(chances, np.zeros_like(low), exact)
    least = measure.scatter - 2 * measure.scatter_error
    seen = 1 + np.maximum(least, 0.0) * CELL_TRIALS * here * (1 - here)
    real = np.sqrt(1 - 1 / seen)
    targets = here[..., None] + real[..., None] * np.stack(
        [np.minimum(low - here, 0.0), np.maximum(high - here, 0.0)], axis=-1
    )
    tilts = _solved(lambda tilt: _kept_share(chances[..., None, :], tilt, exact), targets)
    return np.where(real[..., None] > 0, np.abs(tilts), 0.0), real


def _log_growth(chances: Array, tilts: Array) -> Array:
    """Logarithm of the normalizer that tilting a chance needs; positions last."""
    return np.asarray(np.log1p(chances[..., None, None, None, :] * np.expm1(tilts)[..., None]))


def _tilted(chances: Array, tilts: Array) -> Array:
    odds = chances / (1 - chances) * np.exp(tilts)[..., None]
    return np.asarray(odds / (1 + odds))


def _mean_evidence(chances: Array, null: Array, other: Array) -> Array:
    """Kullback-Leibler divergence of one step, null ‖ other."""
    at_null = _tilted(chances[..., None, None, None, :], null)
    reach = np.cumprod(at_null, axis=-1) / at_null
    cost = _log_growth(chances, other) - _log_growth(chances, null)
    terms = reach * (cost - at_null * (other - null)[..., None])
    return np.asarray(np.maximum(np.sum(terms, axis=-1), 0.0))


def _kept_tokens(chances: Array, tilt: Array) -> Array:
    """Draft tokens kept per step."""
    return np.asarray(np.sum(np.cumprod(_tilted(chances, tilt), axis=-1), axis=-1))


def _kept_share(chances: Array, tilt: Array, exact: slice) -> Array:
    """Share of the draft tokens that come to a decision, at the given positions."""
    tilted = _tilted(chances, tilt)[..., exact]
    kept = np.cumprod(tilted, axis=-1)
    return np.asarray(np.sum(kept, axis=-1) / np.sum(kept / tilted, axis=-1))


def _solved(value: Callable[[Array], Array], target: Array) -> Array:
    """The tilt at which a growing function of it has the target value."""
    low, high = np.full_like(target, -12.0), np.full_like(target, 12.0)
    for _ in range(24):
        middle = (low + high) / 2
        below = value(middle) < target
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return np.asarray((low + high) / 2)


def _blur() -> Array:
    """Chance that a stretch of a level (row) shows up in a bin (column)."""
    trials = int(CELL_TRIALS)
    kept = np.arange(trials + 1)
    ways = np.array([math.lgamma(k + 1) + math.lgamma(trials - k + 1) for k in kept])
    level = ((np.arange(LEVELS) + 0.5) / LEVELS)[:, None]
    logs = (
        math.lgamma(trials + 1) - ways + kept * np.log(level) + (trials - kept) * np.log1p(-level)
    )
    into = np.minimum(kept * LEVELS // trials, LEVELS - 1)[:, None] == np.arange(LEVELS)
    return np.asarray(np.exp(logs) @ into)


BLUR = _blur()


def _sharpened(levels: Array) -> Array:
    """The distribution of true levels behind that of levels seen in short stretches.

    Maximum likelihood by expectation maximization, stopped early: each round moves the
    weights to where they explain more of what was seen.
    """
    total = np.maximum(np.sum(levels, axis=-1, keepdims=True), 1e-9)
    weights = np.full(levels.shape, 1 / LEVELS)
    for _ in range(40):
        seen = np.maximum(weights @ BLUR, 1e-12)
        weights = weights * ((levels / total / seen) @ BLUR.T)
    return weights


def _share_below(levels: Array, share: float) -> Array:
    """Quantile of a histogram over 0…1, interpolated within bins."""
    summed = np.cumsum(levels, axis=-1)
    wanted = share * summed[..., -1:]
    place = np.minimum(np.sum(summed < wanted, axis=-1), LEVELS - 1)
    inside = np.take_along_axis(levels, place[..., None], axis=-1)[..., 0]
    before = np.take_along_axis(summed, place[..., None], axis=-1)[..., 0] - inside
    part = (wanted[..., 0] - before) / np.where(inside > 0, inside, 1.0)
    return np.asarray((place + np.clip(part, 0.0, 1.0)) / LEVELS)


# --- acceptance: one more batch -----------------------------------------------------------


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A detector after one more batch.

    ``scores``: the batch's evidence. ``excess``: all evidence, above its threshold. ``hot``:
    some is above half of it, so that the reference must not learn what may be a change.
    ``weight``: what a step of a usual batch counts for, since steps of one request are alike.
    """

    detector: Counts
    scores: Array
    excess: Array
    hot: Truth
    weight: Array

    @property
    def crossed(self) -> tuple[int, int, int] | None:
        """Of one server: where evidence against the reference is above its threshold."""
        return _highest(self.excess[:1])


def counted(
    detector: Counts,
    trials: Array,
    kept: Array,
    settings: Settings,
    *,
    batch: Batch,
    stratum: int,
) -> Step:
    """Add a batch to a detector.

    Args:
        detector: of all servers.
        trials: [..., positions], by server, as are ``kept``; positions left out: not drafted.
        kept: of these.
        settings: how to detect.
        batch: times and errors, common to all servers.
        stratum: its place in ``detector.strata``.
    """
    began, ended = batch.began_unix_seconds, batch.ended_unix_seconds
    measure = yardstick(detector, stratum, settings)
    if detector.ranged and detector.batches % RANGE_EVERY == 0:
        edges, explained = _range(detector, measure)
        detector = msgspec.structs.replace(
            detector,
            edges=edges,
            unexplained=np.stack([np.ones_like(explained), 1 - explained], axis=-1),
        )
        measure = yardstick(detector, stratum, settings)
    width, missing = trials.shape[-1], measure.seen.shape[-1] - trials.shape[-1]
    if missing:
        room = [(0, 0)] * (trials.ndim - 1) + [(0, missing)]
        trials, kept = np.pad(trials, room), np.pad(kept, room)
    trials, kept = trials / batch.spread, kept / batch.spread
    tried, got = np.where(measure.seen, trials, 0.0), np.where(measure.seen, kept, 0.0)
    information = np.sum(tried * measure.chances * (1 - measure.chances), axis=-1)
    information = np.maximum(information, 0.0)[..., None]
    weight = measure.caution[..., None] / (1 + measure.unexplained * information)
    parts = (
        measure.gain[..., None] * got[..., None, None, None, :]
        - measure.cost * tried[..., None, None, None, :]
    ) * weight[..., None, None, None]
    margin = (
        batch.trials_error * np.abs(measure.cost[..., 0]) + batch.kept_error * np.abs(measure.gain)
    ) / batch.spread
    thresholds = measure.thresholds + margin
    lasting = batch.lasting_error / batch.spread * np.abs(measure.gain)  # at least as much as cost
    scores = np.sum(parts, axis=-1) - lasting * weight[..., None, None]
    # What rounding adds to one batch and takes from the next must not look like scatter.
    ratios = np.sum(parts[..., measure.exact], axis=-1) if batch.trials_error else scores
    ratios = ratios - margin if measure.exact.start == 0 else ratios
    most = np.where(measure.ends, thresholds / FEWEST_BEYOND, np.inf)
    scores, ratios = np.minimum(scores, most), np.minimum(ratios, most)
    ratios = np.exp(np.minimum(np.where(measure.active, ratios, 0.0), MOST_EVIDENCE))
    scores = np.where(measure.active, scores - measure.surplus, 0.0)
    steps = trials[..., 0] if batch.by_position else np.full_like(trials[..., 0], batch.steps)
    evidence = collected(
        detector.bank,
        scores,
        began=began,
        amount=steps,
        seen=np.sum(got, axis=-1) * batch.spread,
        expected=trials[..., 0] * np.sum(measure.reached[..., :width], axis=-1) * batch.spread,
    )
    small = SIGNS * (evidence.seen - evidence.expected) < settings.least_change * evidence.expected
    dropped = (evidence.score >= thresholds) & small
    score = np.where(dropped, 0.0, np.minimum(evidence.score, 2 * thresholds))
    evidence = msgspec.structs.replace(evidence, score=score)
    excess = np.where(measure.active, evidence.score - thresholds, -np.inf)

    last = detector.last_unix_seconds if detector.last_unix_seconds is not None else began
    passed = max(ended - last, 0.0)
    news, rest = _news(detector, measure, trials, kept, ratios, stratum=stratum, batch=batch)
    hot = np.any(evidence.score > measure.thresholds / 2, axis=(-3, -2, -1))
    waits = hot | detector.replanned
    idle = min(passed, settings.memory_seconds / 24)
    aged = _faded(
        detector.settled,
        0.5 ** (idle / settings.memory_seconds),
        0.5 ** (idle / settings.range_seconds),
    )
    pending = _sum(detector.pending, news)
    rate_fade = 0.5 ** (passed / RATE_MEMORY_SECONDS)
    return Step(
        detector=msgspec.structs.replace(
            detector,
            settled=_chosen(waits, detector.settled, _sum(aged, pending)),
            pending=_chosen(waits, pending, _faded(pending, 0.0, 0.0)),
            **rest,
            batches=detector.batches + 1,
            bank=evidence,
            rate_steps=detector.rate_steps * rate_fade + np.maximum(steps, 0.0),
            rate_seconds=detector.rate_seconds * rate_fade + max(ended - min(last, began), 0.0),
            last_unix_seconds=ended,
            ready=np.any(measure.active, axis=(-3, -2, -1)),
        ),
        scores=scores,
        excess=excess,
        hot=np.asarray(hot),
        weight=measure.weight,
    )


def _news(
    detector: Counts,
    measure: Yardstick,
    trials: Array,
    kept: Array,
    ratios: Array,
    *,
    stratum: int,
    batch: Batch,
) -> tuple[Learned, dict[str, Array]]:
    """What there is to learn from a batch, and what is not long enough yet to learn from.

    Level from all positions; scatter and range from those after the first, where there are
    any: their counts are exact however large they are.
    """
    exact = measure.exact
    known = measure.known_steps >= KNOWN_STEPS
    tried = np.where(measure.seen, trials, 0.0)[..., exact]
    got = np.where(measure.seen, kept, 0.0)[..., exact]
    chances = measure.chances[..., exact]
    here = np.maximum(np.sum(tried * chances * (1 - chances), axis=-1), 0.0) * known
    residual = np.sum(got - tried * chances, axis=-1)
    rounding = 0.0
    if exact.start == 0:  # uniform errors of two readings, or four
        rounding = (batch.trials_error**2 + batch.kept_error**2) / (6 * batch.spread**2)
    own_error = 1 + here / np.maximum(measure.known_information, 1e-9)
    row = np.zeros_like(detector.settled.trials)
    row_kept = row.copy()
    row[..., stratum, :], row_kept[..., stratum, :] = trials, kept
    cell_trials = detector.cell_trials + np.sum(trials[..., exact], axis=-1)
    cell_kept = detector.cell_kept + np.sum(kept[..., exact], axis=-1)
    full = cell_trials >= max(CELL_TRIALS, 40 * (batch.trials_error if exact.start == 0 else 0.0))
    share = cell_kept / np.where(full, cell_trials, 1.0)
    place = np.clip(np.floor(share * LEVELS), 0, LEVELS - 1)
    entry = full[..., None] & (np.arange(LEVELS) == place[..., None])
    square = np.where(known, (residual**2 - rounding) / own_error, 0.0)
    run_sum = detector.run_sum + np.where(known, residual / np.sqrt(own_error), 0.0)
    run_part = detector.run_part + square
    ends = float((detector.batches + 1) % RUN == 0)
    return (
        Learned(
            trials=row,
            kept=row_kept,
            squares=square,
            information=here,
            information_squares=here**2,
            levels=entry.astype(np.float64),
            ratios=ratios,
            ratio_squares=ratios**2,
            batches=np.ones_like(here),
            runs=np.full_like(here, ends),
            run_squares=ends * run_sum**2,
            run_parts=ends * run_part,
        ),
        {
            "cell_trials": np.where(full, 0.0, cell_trials),
            "cell_kept": np.where(full, 0.0, cell_kept),
            "run_sum": (1 - ends) * run_sum,
            "run_part": (1 - ends) * run_part,
        },
    )


# --- single values ------------------------------------------------------------------------


class ValueSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How to detect changes of a value.

    ``least_change``: smaller ones are no news; ``planned_change``: as large ones go
    unreported after a planned change; both in the value's unit. The rest is as in `Settings`.
    """

    least_change: float
    planned_change: float
    alarms_per_day: float = 1 / 7
    hold_seconds: float = DAY


PACE = ValueSettings(least_change=math.log(1.05), planned_change=math.log(4 / 3))
"""For the logarithm of seconds per step."""
KLD = ValueSettings(least_change=0.001, planned_change=0.02)
"""For nats."""


class Ranks(msgspec.Struct, frozen=True, kw_only=True):
    """A detector of changes in a value with any distribution.

    ``past``: [..., strata, places], the latest value last, NaN where there is none yet.
    ``fresh``: likewise, what came since a change. ``products``, ``squares``: of successive
    ranks' distances from the middle, for how much values resemble the ones before.
    """

    strata: tuple[str, ...]
    past: Array
    fresh: Array
    bank: Bank
    last_rank: Array
    products: Array
    squares: Array
    rate_values: Array
    rate_seconds: Array
    last_unix_seconds: float | None = None
    replanned: bool = False


def ranks(*shape: int, strata: tuple[str, ...] = ()) -> Ranks:
    """A detector that knows nothing yet; ``shape``: of the leading dimensions."""
    zero, none = np.zeros(shape), np.full((*shape, len(strata), MOST_PAST), np.nan)
    return Ranks(
        strata=strata,
        past=none,
        fresh=none,
        bank=bank(*shape, 1, 2, len(POWERS)),
        last_rank=zero,
        products=zero,
        squares=zero,
        rate_values=zero,
        rate_seconds=zero,
    )


class RankStep(msgspec.Struct, frozen=True, kw_only=True):
    """A detector after one more value. ``excess``: evidence above its threshold."""

    detector: Ranks
    excess: Array


def ranked(
    detector: Ranks,
    value: Array,
    settings: ValueSettings,
    *,
    stratum: int,
    began: float,
    ended: float,
) -> RankStep:
    """Add a value to a detector.

    If nothing changed, a value is as likely to have one rank among its predecessors as any
    other, whatever the distribution. A bet 1 - s + s·a·u^(a-1) on the rank u, or on 1 - u, then
    has the mean 1, and less if equal values share their middle rank: the bet is convex. Where
    successive values resemble each other, a bet counts for less.

    Args:
        detector: of all servers.
        value: by server.
        settings: how to detect.
        stratum: its place in ``detector.strata``.
        began: when the measurement began, in Unix seconds.
        ended: when it ended.
    """
    past = detector.past[..., stratum, :]
    slack = settings.planned_change if detector.replanned else 0.0
    known = np.sum(~np.isnan(past), axis=-1)
    low = _rank(past, value + slack, known)
    high = low if not slack else _rank(past, value - slack, known)
    likeness = np.maximum(detector.products / (detector.squares + 1.0), 0.0)
    weight = np.where(known >= LEAST_PAST, (1 - likeness) / (1 + likeness), 0.0)
    places = np.stack([1 - low, high], axis=-1)[..., None]
    bets = np.log(1 - STAKES + STAKES * POWERS * places ** (POWERS - 1))
    scores = (bets * weight[..., None, None])[..., None, :, :]
    values_to_alarm = (
        detector.rate_values
        / np.maximum(detector.rate_seconds, 1.0)
        * (DAY / settings.alarms_per_day)
    )
    thresholds = np.maximum(
        np.log(np.maximum(values_to_alarm, 1.0) * 2 * len(POWERS)), LEAST_THRESHOLD
    )[..., None, None, None]
    evidence = collected(
        detector.bank,
        scores,
        began=began,
        amount=np.ones_like(value),
        seen=value,
        expected=np.nansum(past, axis=-1) / np.maximum(known, 1),
    )
    moved = SIGNS * (evidence.seen - evidence.expected)
    dropped = (evidence.score >= thresholds) & (moved < settings.least_change * evidence.amount)
    score = np.where(dropped, 0.0, np.minimum(evidence.score, 2 * thresholds))
    evidence = msgspec.structs.replace(evidence, score=score)
    last = detector.last_unix_seconds if detector.last_unix_seconds is not None else began
    rate_fade = 0.5 ** (max(ended - last, 0.0) / RATE_MEMORY_SECONDS)
    middle = np.where(known >= LEAST_PAST, (low + high) / 2 - 0.5, 0.0)
    collect = detector.replanned
    return RankStep(
        detector=msgspec.structs.replace(
            detector,
            past=detector.past if collect else _appended(detector.past, value, stratum),
            fresh=_appended(detector.fresh, value, stratum) if collect else detector.fresh,
            bank=evidence,
            last_rank=middle,
            products=detector.products * RANK_FADE + middle * detector.last_rank,
            squares=detector.squares * RANK_FADE + middle**2,
            rate_values=detector.rate_values * rate_fade + 1.0,
            rate_seconds=detector.rate_seconds * rate_fade + max(ended - min(last, began), 0.0),
            last_unix_seconds=ended,
        ),
        excess=evidence.score - thresholds,
    )


def _rank(past: Array, value: Array, known: Array) -> Array:
    """The value's place, 0…1, among its predecessors and itself; the middle one of equals."""
    less = np.sum(past < value[..., None], axis=-1)
    equal = np.sum(past == value[..., None], axis=-1)
    return np.asarray((less + 0.5 * (equal + 1)) / (known + 1))


def _appended(rows: Array, value: Array, stratum: int) -> Array:
    changed = rows.copy()
    changed[..., stratum, :-1] = rows[..., stratum, 1:]
    changed[..., stratum, -1] = value
    return changed


# --- decisions ----------------------------------------------------------------------------


class Ending(StrEnum):
    """How a shift ended. ``relearned``: its level became the reference."""

    RECOVERED = "recovered"
    RELEARNED = "relearned"
    REPLANNED = "replanned"


class Shift(msgspec.Struct, frozen=True, kw_only=True):
    """A change that was detected.

    ``before`` and ``after`` are means since ``began_unix_seconds``, the likeliest start: what
    the same observations would have been at the reference, and what they were. Kept draft
    tokens per step for acceptance (mean acceptance length is one more), else the value's unit.
    """

    direction: Direction
    began_unix_seconds: float
    detected_unix_seconds: float
    before: float
    after: float
    source: Source | None = None
    ending: Ending | None = None
    ended_unix_seconds: float | None = None


class Suspicion(msgspec.Struct, frozen=True, kw_only=True):
    """Users' acceptance moved by more than chance. ``beyond``: out of the range seen before."""

    shift: Shift
    place: tuple[int, int, int]
    beyond: bool = False


class Scores(msgspec.Struct, frozen=True):
    """A probe's evidence, [directions, sizes]."""

    unix_seconds: float
    scores: Array


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """A shift that stands.

    ``live``, ``probes``: the detectors as they were before, while those in use learn its level.
    ``kept``, ``expected``, ``weight``: what its source has seen since the last change, and
    would have seen at the old level.
    """

    shift: Shift
    live: Counts
    probes: Counts
    kept: float = 0.0
    expected: float = 0.0
    weight: float = 0.0


class Acceptance(msgspec.Struct, frozen=True, kw_only=True):
    """The detector of changes in acceptance, of one server.

    ``raised``: when there were suspicions. ``trail``: recent probes' evidence. ``ended``: the
    last shift that is over.
    """

    live: Counts = counts(ranged=True)
    probes: Counts = counts(ranged=False)
    meter: Meter | None = None
    suspicion: Suspicion | None = None
    raised: tuple[float, ...] = ()
    trail: tuple[Scores, ...] = ()
    held: Held | None = None
    ended: Shift | None = None

    @property
    def shift(self) -> Shift | None:
        return self.held.shift if self.held is not None else None

    @property
    def phase(self) -> Phase:
        if self.held is not None:
            return Phase.SHIFTED
        if self.suspicion is not None:
            return Phase.SUSPECTED
        return Phase.WATCHING if self.live.ready or self.probes.ready else Phase.LEARNING


def scraped(
    state: Acceptance, server: Usage, own: Usage, unix_seconds: float, settings: Settings
) -> Acceptance:
    """Take in a server's totals and our own share of them, as `metered` does."""
    meter, batch = metered(state.meter, server, own, unix_seconds)
    state = msgspec.structs.replace(state, meter=meter)
    return state if batch is None else lived(state, batch, settings)


def lived(state: Acceptance, batch: Batch, settings: Settings) -> Acceptance:
    """Take in a batch of users' verification steps."""
    step = _taken(state.live, batch, _shared(state, settings))
    if step is None:
        return state
    now, held = batch.ended_unix_seconds, state.held
    state = msgspec.structs.replace(state, live=step.detector)
    if held is None:
        return _judged(_suspected(state, step, now), now, settings)
    if step.crossed is not None:
        state = msgspec.structs.replace(state, live=_rebased(step.detector))
    if held.shift.source is not Source.LIVE:
        return state
    return _still(state, held, held.live, step, batch=batch, settings=settings)


def probed(state: Acceptance, batch: Batch, settings: Settings) -> Acceptance:
    """Take in a probe's verification steps."""
    step = _taken(state.probes, batch, _shared(state, settings))
    if step is None:
        return state
    now, held = batch.ended_unix_seconds, state.held
    seen = Scores(batch.began_unix_seconds, step.scores[0])
    state = msgspec.structs.replace(
        state, probes=step.detector, trail=(*state.trail, seen)[-TRAIL:]
    )
    if held is None:
        if step.crossed is None:
            return _judged(state, now, settings)
        found = _described(step.detector.bank, step.crossed, now)
        return _shifted(state, msgspec.structs.replace(found, source=Source.PROBES))
    if step.crossed is not None:
        state = msgspec.structs.replace(state, probes=_rebased(step.detector))
    if held.shift.source is Source.LIVE:
        return state
    return _still(state, held, held.probes, step, batch=batch, settings=settings)


def replanned(state: Acceptance) -> Acceptance:
    """Take in that the server was changed on purpose: another build, model or draft length.

    From here on only a large loss is news. After some traffic the new level is the reference.
    """
    if state.held is not None:
        state = _over(state, state.held, Ending.REPLANNED, None)
    return msgspec.structs.replace(
        state,
        live=_replanning(state.live),
        probes=_replanning(state.probes),
        suspicion=None,
        trail=(),
    )


def _shared(state: Acceptance, settings: Settings) -> Settings:
    """Each of two sources gets half the false alarms."""
    sources = 2 if state.live.strata and state.probes.strata else 1
    return msgspec.structs.replace(settings, alarms_per_day=settings.alarms_per_day / sources)


def _taken(detector: Counts, batch: Batch, settings: Settings) -> Step | None:
    """A batch of any shape into the detector of one server; ``None``: it holds nothing."""
    if batch.steps <= 0 or not batch.trials:
        return None
    if detector.strata and detector.by_position != batch.by_position:
        detector = counts(ranged=detector.ranged)  # other figures now: nothing can be compared
    if batch.stratum not in detector.strata:
        if len(detector.strata) >= MOST_STRATA:
            return None
        detector = _grown(detector, 1, 0)
        detector = msgspec.structs.replace(
            detector, strata=(*detector.strata, batch.stratum), by_position=batch.by_position
        )
    width = min(len(batch.trials), MOST_POSITIONS)
    detector = _grown(detector, 0, max(width - detector.settled.trials.shape[-1], 0))
    step = counted(
        detector,
        np.array(batch.trials[:width]),
        np.array(batch.kept[:width]),
        settings,
        batch=batch,
        stratum=detector.strata.index(batch.stratum),
    )
    return _planned(step, settings)


def _grown(detector: Counts, strata: int, positions: int) -> Counts:
    """Room for more strata and positions."""
    if not strata and not positions:
        return detector
    room = [(0, strata), (0, positions)]

    def more(learned: Learned) -> Learned:
        return msgspec.structs.replace(
            learned, trials=np.pad(learned.trials, room), kept=np.pad(learned.kept, room)
        )

    return msgspec.structs.replace(
        detector, settled=more(detector.settled), pending=more(detector.pending)
    )


def _planned(step: Step, settings: Settings) -> Step:
    """A planned change is taken in when it has shown enough steps, and no evidence."""
    detector = step.detector
    enough = np.sum(detector.pending.trials[..., 0]) * step.weight >= settings.planned_steps
    if not detector.replanned or not enough or step.hot:
        return step
    return msgspec.structs.replace(step, detector=_rebased(detector))


def _replanning(detector: Counts) -> Counts:
    nothing = _faded(detector.pending, 0.0, 0.0)
    return msgspec.structs.replace(
        detector, pending=nothing, bank=_emptied(detector.bank), replanned=True
    )


def _rebased(detector: Counts) -> Counts:
    """What was pending is the level from now on; how requests scatter stays known."""
    settled, pending = detector.settled, detector.pending
    return msgspec.structs.replace(
        detector,
        settled=msgspec.structs.replace(
            settled,
            trials=pending.trials,
            kept=pending.kept,
            levels=settled.levels + pending.levels,
        ),
        pending=_faded(pending, 0.0, 0.0),
        bank=_emptied(detector.bank),
        batches=0,
        run_sum=np.zeros_like(detector.run_sum),
        run_part=np.zeros_like(detector.run_part),
        replanned=False,
    )


def _resumed(old: Counts, latest: Counts) -> Counts:
    """The old reference holds again; what was pending belonged to something else."""
    return msgspec.structs.replace(
        old,
        pending=_faded(old.pending, 0.0, 0.0),
        bank=_emptied(old.bank),
        rate_steps=latest.rate_steps,
        rate_seconds=latest.rate_seconds,
        last_unix_seconds=latest.last_unix_seconds,
    )


def _emptied(evidence: Bank) -> Bank:
    return msgspec.structs.replace(evidence, score=np.zeros_like(evidence.score))


def _highest(excess: Array) -> tuple[int, int, int] | None:
    """The place of the evidence furthest above its threshold, if there is any."""
    place = np.unravel_index(int(np.argmax(excess)), excess.shape)
    kind, direction, size = (int(i) for i in place)
    return (kind, direction, size) if excess[place] >= 0 else None


def _described(evidence: Bank, place: tuple[int, int, int], now: float) -> Shift:
    amount = max(float(evidence.amount[place]), 1.0)
    return Shift(
        direction=DIRECTIONS[place[1]],
        began_unix_seconds=float(evidence.began[place]),
        detected_unix_seconds=now,
        before=float(evidence.expected[place]) / amount,
        after=float(evidence.seen[place]) / amount,
    )


def _suspected(state: Acceptance, step: Step, now: float) -> Acceptance:
    """Raise a suspicion, follow it, or drop it when its evidence is gone."""
    old = state.suspicion
    if old is not None and not step.hot:
        return msgspec.structs.replace(state, suspicion=None)
    place = _highest(step.excess) if old is None else old.place
    if place is None:
        return state
    found = _described(step.detector.bank, place, now)
    beyond = _highest(step.excess[1:, place[1] : place[1] + 1]) is not None
    if old is None:
        state = msgspec.structs.replace(state, raised=(*state.raised, now)[-MOST_RAISED:])
    else:
        found = msgspec.structs.replace(
            found, detected_unix_seconds=old.shift.detected_unix_seconds
        )
        beyond = beyond or old.beyond
    return msgspec.structs.replace(
        state, suspicion=Suspicion(shift=found, place=place, beyond=beyond)
    )


def _judged(state: Acceptance, now: float, settings: Settings) -> Acceptance:
    """Decide what a suspicion is, if that can be told yet.

    Tasks may have changed, or the server. Probes tell these apart, by the likelihood of a
    change two thirds the size of the suspected one over that of none: they must be the surer,
    the more suspicions there are. Without probes the server it is if no mix of tasks seen
    before keeps as few tokens, or as many.
    """
    suspicion = state.suspicion
    if suspicion is None:
        return state
    _, direction, size = suspicion.place
    began, raised = suspicion.shift.began_unix_seconds, suspicion.shift.detected_unix_seconds
    evidence = sum(
        float(seen.scores[direction, max(size - 1, 0)])
        for seen in state.trail
        if seen.unix_seconds >= began
    )
    found = msgspec.structs.replace(suspicion.shift, detected_unix_seconds=now)
    per_day = len(state.raised) / max((now - state.raised[0]) / DAY, 1.0)
    if evidence >= max(SETTLED, math.log(per_day / (settings.alarms_per_day / 2))):
        return _shifted(
            state,
            msgspec.structs.replace(found, source=Source.BOTH),
        )
    latest = state.trail[-1].unix_seconds if state.trail else -math.inf
    waiting = (
        now - latest <= settings.probe_fresh_seconds and now - raised < settings.patience_seconds
    )
    if evidence > -SETTLED and suspicion.beyond and not waiting:
        return _shifted(state, msgspec.structs.replace(found, source=Source.LIVE))
    if evidence <= -SETTLED or now - raised >= settings.suspicion_seconds:
        return msgspec.structs.replace(state, live=_rebased(state.live), suspicion=None)
    return state


def _shifted(state: Acceptance, found: Shift) -> Acceptance:
    """From here on the detectors that show the shift learn its level."""
    alone = found.source is Source.LIVE
    return msgspec.structs.replace(
        state,
        live=_rebased(state.live),
        probes=state.probes if alone else _rebased(state.probes),
        suspicion=None,
        held=Held(shift=found, live=state.live, probes=state.probes),
    )


def _still(
    state: Acceptance, held: Held, old: Counts, step: Step, *, batch: Batch, settings: Settings
) -> Acceptance:
    """A shift stands until its level has returned, or has become the normal one.

    It has returned when a change back is found, by the same test, or when the mean since the
    last change is near the old level: then it did not last long enough to be learned. Levels
    are compared as shares of what the same tasks would have kept before.
    """
    now = batch.ended_unix_seconds
    expected = _expected(old, batch, settings)
    held = msgspec.structs.replace(
        held,
        kept=held.kept + (math.fsum(batch.kept) if expected else 0.0),
        expected=held.expected + expected,
        weight=held.weight + batch.steps * float(step.weight),
    )
    state = msgspec.structs.replace(state, held=held)
    full = held.shift.after / max(held.shift.before, 1e-9)
    if step.crossed is not None:
        found = _described(step.detector.bank, step.crossed, now)
        if _returned(found.after / max(found.before, 1e-9) * full - 1, full - 1, 1.0):
            return _over(state, held, Ending.RECOVERED, now)
        held = msgspec.structs.replace(held, kept=0.0, expected=0.0, weight=0.0)
        return msgspec.structs.replace(state, held=held)
    if held.weight < settings.learn_steps:
        return state
    if _returned(held.kept / max(held.expected, 1e-9) - 1, full - 1, 0.5):
        return _over(state, held, Ending.RECOVERED, now)
    if now - held.shift.detected_unix_seconds >= settings.hold_seconds:
        return _over(state, held, Ending.RELEARNED, now)
    return state


def _expected(old: Counts, batch: Batch, settings: Settings) -> float:
    """Tokens that a batch would have kept at an old level; 0 if that is not known."""
    if batch.stratum not in old.strata or old.by_position != batch.by_position:
        return 0.0
    measure = yardstick(old, old.strata.index(batch.stratum), settings)
    return batch.trials[0] * float(np.sum(measure.reached[: len(batch.trials)]))


def _returned(change: float, full: float, share: float) -> bool:
    """Whether a change is nearer, by so much, to none than to the full one of a shift."""
    return abs(change) < share * abs(change - full)


def _over(state: Acceptance, held: Held, ending: Ending, now: float | None) -> Acceptance:
    """End a shift. The old references hold again, unless its level has replaced them."""
    relearned = ending is Ending.RELEARNED
    return msgspec.structs.replace(
        state,
        live=state.live if relearned else _resumed(held.live, state.live),
        probes=state.probes if relearned else _resumed(held.probes, state.probes),
        trail=(),
        held=None,
        ended=_ended(held.shift, ending, now),
    )


def _ended(shift: Shift, ending: Ending, now: float | None) -> Shift:
    return msgspec.structs.replace(shift, ending=ending, ended_unix_seconds=now)


class HeldValue(msgspec.Struct, frozen=True, kw_only=True):
    """A shift that stands, and the detector as it was before.

    ``changes``: how far the first values since the last change are from the old mean of their
    stratum.
    """

    shift: Shift
    ranks: Ranks
    changes: tuple[float, ...] = ()


class Values(msgspec.Struct, frozen=True, kw_only=True):
    """The detector of changes in a value, of one server. ``ended``: the last shift that is over."""

    ranks: Ranks = ranks()
    held: HeldValue | None = None
    ended: Shift | None = None

    @property
    def shift(self) -> Shift | None:
        return self.held.shift if self.held is not None else None

    @property
    def phase(self) -> Phase:
        if self.held is not None:
            return Phase.SHIFTED
        known = np.sum(~np.isnan(self.ranks.past), axis=-1)
        return Phase.WATCHING if np.any(known >= LEAST_PAST) else Phase.LEARNING


def measured(
    state: Values,
    value: float,
    settings: ValueSettings,
    *,
    stratum: str,
    began: float,
    ended: float,
) -> Values:
    """Take in one value, measured between two moments in Unix seconds."""
    detector = state.ranks
    if not math.isfinite(value):
        return state
    if stratum not in detector.strata:
        if len(detector.strata) >= MOST_STRATA:
            return state
        room = np.full((1, MOST_PAST), np.nan)
        detector = msgspec.structs.replace(
            detector,
            strata=(*detector.strata, stratum),
            past=np.concatenate([detector.past, room]),
            fresh=np.concatenate([detector.fresh, room]),
        )
    step = ranked(
        detector,
        np.asarray(value),
        settings,
        stratum=detector.strata.index(stratum),
        began=began,
        ended=ended,
    )
    detector = step.detector
    if detector.replanned and _count(detector.fresh) >= REPLAN_VALUES:
        detector = _relearning(detector, detector.fresh)
    place = _highest(step.excess)
    found = _described(step.detector.bank, place, ended) if place is not None else None
    if found is not None:
        detector = _relearning(detector, np.full_like(detector.past, np.nan))
    state = msgspec.structs.replace(state, ranks=detector)
    if state.held is not None:
        change = value - _usual(state.held.ranks, stratum)
        changes = (*state.held.changes, change) if math.isfinite(change) else state.held.changes
        held = msgspec.structs.replace(state.held, changes=changes[:REPLAN_VALUES])
        return _still_off(
            msgspec.structs.replace(state, held=held), held, found, now=ended, settings=settings
        )
    if found is None:
        return state
    return msgspec.structs.replace(state, held=HeldValue(shift=found, ranks=step.detector))


def remeasured(state: Values) -> Values:
    """Take in that the server was changed on purpose, as `replanned` does."""
    if state.held is not None:
        state = _passed(state, state.held, Ending.REPLANNED, None)
    detector = _relearning(state.ranks, state.ranks.past)
    return msgspec.structs.replace(state, ranks=msgspec.structs.replace(detector, replanned=True))


def _usual(old: Ranks, stratum: str) -> float:
    """The mean of a stratum's past, NaN if there was none."""
    if stratum not in old.strata:
        return math.nan
    past = old.past[old.strata.index(stratum)]
    return float(np.nansum(past)) / _count(past) if _count(past) else math.nan


def _still_off(
    state: Values,
    held: HeldValue,
    found: Shift | None,
    *,
    now: float,
    settings: ValueSettings,
) -> Values:
    """As `_still`, but levels are compared by their differences."""
    full = held.shift.after - held.shift.before
    if found is not None:
        if _returned(found.after - found.before + full, full, 1.0):
            return _passed(state, held, Ending.RECOVERED, now)
        return msgspec.structs.replace(state, held=msgspec.structs.replace(held, changes=()))
    if len(held.changes) < REPLAN_VALUES:
        return state
    if _returned(math.fsum(held.changes) / REPLAN_VALUES, full, 0.5):
        return _passed(state, held, Ending.RECOVERED, now)
    if now - held.shift.detected_unix_seconds >= settings.hold_seconds:
        return _passed(state, held, Ending.RELEARNED, now)
    return state


def _passed(state: Values, held: HeldValue, ending: Ending, now: float | None) -> Values:
    """As `_over`."""
    detector = state.ranks
    if ending is not Ending.RELEARNED:
        detector = msgspec.structs.replace(
            _relearning(held.ranks, held.ranks.past),
            rate_values=detector.rate_values,
            rate_seconds=detector.rate_seconds,
            last_unix_seconds=detector.last_unix_seconds,
        )
    return Values(ranks=detector, ended=_ended(held.shift, ending, now))


def _relearning(detector: Ranks, past: Array) -> Ranks:
    """Another past, and no evidence."""
    return msgspec.structs.replace(
        detector,
        past=past,
        fresh=np.full_like(detector.fresh, np.nan),
        bank=_emptied(detector.bank),
        replanned=False,
    )


def _count(values: Array) -> int:
    return int(np.sum(~np.isnan(values)))


# --- why ----------------------------------------------------------------------------------


def causes(
    events: Iterable[Event], shift: Shift, *, slack_seconds: float = 60.0
) -> tuple[Event, ...]:
    """What happened to the server near the start of a shift, nearest first.

    The start is an estimate: it may be off by part of the time that detection took. What came
    after the detection is no cause. Nor is what was only seen for the first time, or a server
    that could not be reached for a while.
    """
    began, detected = shift.began_unix_seconds, shift.detected_unix_seconds
    reach = slack_seconds + (detected - began) / 2
    near = [
        event
        for event in events
        if event.kind is not EventKind.STATE
        and (event.kind is EventKind.RESTART or event.before is not None)
        and abs(event.unix_seconds - began) <= reach
        and event.unix_seconds <= detected
    ]
    return tuple(sorted(near, key=lambda event: abs(event.unix_seconds - began)))
