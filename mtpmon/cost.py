"""Decode steps of requests → what a step costs, by draft length and by what was kept.

The figure that matters is r: a verification step over a plain decode step. Speed-up is
tokens per step over *mean* step cost, but a mean of raw step times is at the mercy of every
stall of the machine. So the mean is put together from medians: one for each kind of step
(how many tokens it drafted, how many it kept), weighted by how often that kind occurs. Where
times scatter by a factor that is distributed alike on both arms, this ratio is that of the
means; what stalls add to both arms alike cancels in it.

Three sorts of steps of a speculating server are kept apart from its *free* ones:

* The first step of a request carries start-up cost, a few per cent of a short request and
  next to nothing of a long one.
* A step whose draft was cut because the generation was about to end. llama-server drafts in
  full and throws the surplus away, and the odd batch size makes it plan its work anew: such a
  step is not what a server set to that draft length would pay.
* An undrafted step: the draft head still reads the token.

docs/method.md has the derivations and the measured coverage of the bounds.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from enum import StrEnum

import msgspec
import numpy as np

from mtpmon.model import Bounded, Identity
from mtpmon.request import Expiry, Request, cut_drafts, expiry
from mtpmon.spread import Array, Indices, Location, group_medians, robust_mean
from mtpmon.tally import Tally

FEWEST_PAIRS = 3  # pairs, or requests, that a bound needs
FEWEST_REQUESTS = 5  # requests in which a draft length occurred, for that length to have a cost
FEWEST_STEPS = 3  # steps of one request, or of one arm of a pair, that make a median
POOLED_STEPS = 2.0  # what the mean of all rejected steps weighs in one kind's own
POLISHES = 10  # rounds of medians by request and by kind, at most
POLISHED = 1e-3  # a round that changes less is the last
MOST_EXCESS = 2.5
CAPTURE_DRIFT = 0.02


class PlainSource(StrEnum):
    """Where the cost of a plain step comes from, in order of trust."""

    PAIR = "pair"
    CAPTURE = "capture"
    SWITCH = "switch"
    UNDRAFTED = "undrafted"

    @property
    def flatters(self) -> bool:
        """Whether the plain step is known from above only, so that drafting looks better."""
        return self in (PlainSource.SWITCH, PlainSource.UNDRAFTED)


class PlainStep(msgspec.Struct, frozen=True, kw_only=True):
    """A plain step as it was measured once, while the server ran without drafting.

    ``identity`` has no start tokens: the server has been started anew since.
    """

    seconds: Bounded
    requests: int
    unix_seconds: float
    context_tokens: tuple[int, int]
    identity: Identity


class AgainstPlain(msgspec.Struct, frozen=True, kw_only=True):
    """The mean free step against the plain one.

    ``ratio`` is r for the mix of steps it was measured on, with bounds that hold for the
    plain step as it was measured. Where its source flatters, that may be too dear by up to
    a factor ``excess`` and the true ratio higher by that factor; elsewhere it is 1.
    ``undrafted_ratio``: an undrafted step of the speculating server over a plain one.
    """

    source: PlainSource
    ratio: Bounded
    excess: float
    seconds: Bounded
    undrafted_ratio: float
    pairs: int


class LengthCost(msgspec.Struct, frozen=True, kw_only=True):
    """Free steps that drafted so many tokens.

    ``relative``: a fully kept one over the mean free step. The seconds are medians.
    """

    drafted: int
    steps: int
    relative: Location
    kept_seconds: float | None
    rejected_seconds: float | None


class CutCost(msgspec.Struct, frozen=True, kw_only=True):
    """Steps whose draft was cut to ``drafted`` (0: undrafted) at the end of a generation.

    ``relative``: a fully kept one over the mean free step.
    """

    drafted: int
    requests: int
    relative: Location


class StepCosts(msgspec.Struct, frozen=True, kw_only=True):
    """What steps cost, one request at a time. Relative costs are over the mean free step.

    ``step_seconds`` is that step, ``mix`` counts what free steps kept, and ``longest`` is the
    longest draft. ``rollback``: what rejecting adds to a step that kept 0, 1, … tokens of its
    draft, with standard errors. ``startup``: what the first step of a request takes more.
    ``plain`` is ``None`` if there is nothing to compare with.
    """

    plain: AgainstPlain | None
    step_seconds: Bounded
    longest: int
    lengths: tuple[LengthCost, ...]
    cut: tuple[CutCost, ...]
    startup: Location | None
    rollback: tuple[float, ...]
    rollback_errors: tuple[float, ...]
    mix: Tally
    requests: int
    first_unix_seconds: float
    last_unix_seconds: float
    context_tokens: tuple[int, int]
    identity: Identity


def expired(
    costs: StepCosts, *, now: float, identity: Identity, max_age_seconds: float
) -> Expiry | None:
    """Why these costs no longer hold; their age is that of the newest request."""
    return expiry(
        costs.last_unix_seconds,
        costs.identity,
        now=now,
        identity=identity,
        max_age_seconds=max_age_seconds,
    )


def plain_step(requests: Sequence[Request], *, confidence: float) -> PlainStep | None:
    """Measure a plain step from requests to a server that does not draft.

    Returns:
        ``None`` with fewer than three requests of four steps.

    Raises:
        ValueError: the server drafted.
    """
    if any(step.drafted for request in requests for step in request.steps):
        raise ValueError("a plain step cannot be measured on a server that drafts")
    levels = [(level, r) for r in requests if (level := _plain_level([r])) is not None]
    if len(levels) < FEWEST_PAIRS:
        return None
    used = [request for _, request in levels]
    latest = max(used, key=_when).identity
    return PlainStep(
        seconds=_exp(robust_mean([level for level, _ in levels]), confidence),
        requests=len(used),
        unix_seconds=max(r.unix_seconds for r in used),
        context_tokens=_context(used),
        identity=Identity(build=latest.build, model=latest.model),
    )


def step_costs(
    requests: Sequence[Request],
    *,
    confidence: float,
    capture: PlainStep | None = None,
    most_excess: float = MOST_EXCESS,
    capture_drift: float = CAPTURE_DRIFT,
) -> StepCosts | None:
    """Measure what steps cost.

    Args:
        requests: those of one server that still hold (``current``), in any order.
        confidence: of the bounds.
        capture: a plain step measured earlier; used where there are not three pairs.
        most_excess: how much dearer than a plain step an undrafted step of a speculating
            server may be.
        capture_drift: how far the machine may have changed since the capture, as a share.

    Returns:
        ``None`` if fewer than three requests, of three free steps each, drafted in full.
    """
    speculating = [r for r in requests if r.arm == "speculating"]
    longest = max((s.drafted for r in speculating for s in r.steps[1:]), default=0)
    sorts = _sorted(speculating, longest)
    free = sorts.free.of_requests_with(FEWEST_STEPS)
    full = np.unique(free.places[free.drafted == longest])
    if longest == 0 or len(full) < FEWEST_PAIRS:
        return None
    kinds = _kinds(free, longest)
    levels = kinds.levels(free, len(speculating))
    counted = np.unique(free.places)
    ours = _Speculating(
        requests=speculating,
        free=free,
        undrafted=sorts.undrafted,
        levels=levels,
        adjusted=free.logs - np.log(kinds.cost(free)),
    )
    plain, partners = _against_plain(ours, requests, confidence=confidence, capture=capture)
    if plain is not None and plain.source.flatters:
        plain = msgspec.structs.replace(plain, excess=most_excess)
    if plain is not None and plain.source is PlainSource.CAPTURE:
        wider = _widened(plain.ratio, 1 + capture_drift)
        plain = msgspec.structs.replace(plain, ratio=wider)
    used = [*(speculating[place] for place in counted), *partners]
    return StepCosts(
        plain=plain,
        step_seconds=_exp(robust_mean(levels[counted]), confidence),
        longest=longest,
        lengths=_length_costs(free, kinds, levels),
        cut=_cut_costs(sorts.cut, kinds, levels),
        startup=_startup(sorts.firsts, kinds, levels),
        rollback=tuple(kinds.rollback.tolist()),
        rollback_errors=tuple(kinds.rollback_errors.tolist()),
        mix=free.tally(longest),
        requests=len(used),
        first_unix_seconds=min(r.unix_seconds for r in used),
        last_unix_seconds=max(r.unix_seconds for r in used),
        context_tokens=_context(used),
        identity=max(used, key=_when).identity,
    )


def seconds_by_length(costs: StepCosts) -> dict[int, float]:
    """The mean step by draft length, as far as it was measured; 0 is a plain one.

    A plain step that is known from above only is left out.
    """
    found = {}
    if costs.plain is not None and not costs.plain.source.flatters:
        found[0] = costs.plain.seconds.value
    shares = costs.mix.shares(costs.longest)
    for length in costs.lengths:
        rejected = math.fsum(
            share * extra
            for share, extra in zip(shares[: length.drafted], costs.rollback, strict=False)
        )
        found[length.drafted] = costs.step_seconds.value * (length.relative.value + rejected)
    return found


class _Steps(msgspec.Struct, frozen=True):
    """Steps as columns; ``places`` says which request each is of."""

    places: Indices
    drafted: Indices
    kept: Indices
    logs: Array

    def __getitem__(self, which: Indices) -> "_Steps":
        return _Steps(self.places[which], self.drafted[which], self.kept[which], self.logs[which])

    def of_requests_with(self, fewest: int) -> "_Steps":
        """Without requests that have fewer steps of this sort."""
        counts = np.bincount(self.places, minlength=1)
        return self[np.flatnonzero(counts[self.places] >= fewest)]

    def by_request(self, values: Array) -> tuple[Indices, Array]:
        """The requests there are, and the median value in each."""
        places, groups = np.unique(self.places, return_inverse=True)
        return places, group_medians(values, groups, len(places))

    def tally(self, longest: int) -> Tally:
        """What they kept."""
        return Tally(
            drafts=float(len(self.kept)),
            draft_tokens=float(self.drafted.sum()),
            by_position=tuple(float((self.kept > place).sum()) for place in range(longest)),
        )


class _Sorts(msgspec.Struct, frozen=True):
    """The steps of speculating requests, by sort."""

    free: _Steps
    firsts: _Steps
    cut: _Steps
    undrafted: _Steps


def _sorted(requests: Sequence[Request], longest: int) -> _Sorts:
    """Each step to its sort; one that cannot be told to none.

    In a request with steps missing, only drafts of full length are free for certain.
    """
    rows: dict[str, list[tuple[int, int, int, float]]] = defaultdict(list)
    for place, request in enumerate(requests):
        cuts = cut_drafts(request, longest)
        for index, (step, cut) in enumerate(zip(request.steps, cuts, strict=True)):
            if step.seconds <= 0:
                continue
            row = (place, step.drafted, step.kept, math.log(step.seconds))
            full = step.drafted == longest
            if index == 0:
                if full:
                    rows["first"].append(row)
                continue
            if step.drafted == 0:
                rows["undrafted"].append(row)
            if cut:
                rows["cut"].append(row)
            elif full or (request.whole and step.drafted):
                rows["free"].append(row)
    return _Sorts(*(_columns(rows[sort]) for sort in ("free", "first", "cut", "undrafted")))


def _columns(rows: Sequence[tuple[int, int, int, float]]) -> _Steps:
    table = np.array(rows, dtype=np.float64).reshape(-1, 4).T
    places, drafted, kept = table[:3].astype(np.intp)
    return _Steps(places, drafted, kept, table[3])


class _Kinds(msgspec.Struct, frozen=True):
    """What each kind of free step costs over the mean one, by draft length and by kept.

    ``base`` is NaN for a length that no free step had.
    """

    base: Array
    rollback: Array
    rollback_errors: Array

    def rejection(self, steps: _Steps) -> Array:
        """What steps paid for having been rejected."""
        rejected = steps.kept < steps.drafted
        return np.where(rejected, self.rollback[np.where(rejected, steps.kept, 0)], 0.0)

    def cost(self, steps: _Steps) -> Array:
        """Relative cost; at least a quarter of a kept one, so that it has a logarithm."""
        base = self.base[steps.drafted]
        return np.maximum(base + self.rejection(steps), base / 4)

    def levels(self, free: _Steps, count: int) -> Array:
        """The log of what the mean free step took in each request; NaN without any."""
        return group_medians(free.logs - np.log(self.cost(free)), free.places, count)


def _kinds(free: _Steps, longest: int) -> _Kinds:
    """The relative cost of each kind of step, by median polish.

    Medians by request and medians by kind are taken out of the log times in turns: slow and
    fast moments of the machine are told from dear and cheap kinds of steps.
    """
    names, kind = np.unique(free.drafted * (longest + 1) + free.kept, return_inverse=True)
    requests = int(free.places.max()) + 1
    # To begin with, the commonest kind tells the levels of the requests that have it.
    common = np.bincount(kind).argmax()
    levels = group_medians(free.logs[kind == common], free.places[kind == common], requests)
    some = group_medians(free.logs, free.places, requests)
    levels = np.where(np.isnan(levels), some, levels)
    by_kind, change, rounds = np.zeros(len(names)), math.inf, 0
    while change > POLISHED and rounds < POLISHES:
        before = by_kind
        by_kind = group_medians(free.logs - levels[free.places], kind, len(names))
        levels = group_medians(free.logs - by_kind[kind], free.places, requests)
        change = float(np.abs(by_kind - before).max())
        rounds += 1
    costs = np.exp(free.logs - levels[free.places])
    rollback, errors = _rollback(free, costs, longest)
    found = _Kinds(np.ones(longest + 1), rollback, errors)
    taken = group_medians(costs, free.drafted, longest + 1)
    # What rejection is thought to add may be more than the few steps of a short draft took.
    base = np.maximum(
        group_medians(costs - found.rejection(free), free.drafted, longest + 1), taken / 4
    )
    mean = float(_Kinds(base, rollback, errors).cost(free).mean())
    return _Kinds(base / mean, rollback / mean, errors / mean)


def _rollback(free: _Steps, costs: Array, longest: int) -> tuple[Array, Array]:
    """What rejecting adds, by tokens kept, and its error: from full length, where steps abound.

    One kind's own median is drawn towards the mean of them all, which weighs as much as two
    steps and stands in where there are none. The error of a median is √(π/2) times that of
    a mean.
    """
    full = free.drafted == longest
    whole, rejected = costs[full & (free.kept == longest)], costs[full & (free.kept < longest)]
    if len(whole) < FEWEST_REQUESTS or len(rejected) < FEWEST_REQUESTS:
        return np.zeros(longest), np.zeros(longest)
    base = float(np.median(whole))
    kept = free.kept[full & (free.kept < longest)]
    counts = np.bincount(kept, minlength=longest)
    own = np.nan_to_num(group_medians(rejected, kept, longest) - base)
    pooled = float(counts @ own) / len(rejected)
    scatter = 1.4826 * float(np.median(np.abs(whole - base)))
    return (
        (counts * own + POOLED_STEPS * pooled) / (counts + POOLED_STEPS),
        math.sqrt(math.pi / 2) * scatter * np.sqrt(1 / (counts + POOLED_STEPS) + 1 / len(whole)),
    )


def _length_costs(free: _Steps, kinds: _Kinds, levels: Array) -> tuple[LengthCost, ...]:
    """Of the longest drafts, and of other lengths that occurred in enough requests."""
    longest = len(kinds.base) - 1
    found = []
    for drafted in np.unique(free.drafted).tolist():
        steps = free[np.flatnonzero(free.drafted == drafted)]
        costs = np.exp(steps.logs - levels[steps.places]) - kinds.rejection(steps)
        _, medians = steps.by_request(costs)
        if len(medians) < FEWEST_REQUESTS and drafted != longest:
            continue
        kept = steps.kept == drafted
        found.append(
            LengthCost(
                drafted=drafted,
                steps=len(kept),
                relative=robust_mean(medians),
                kept_seconds=_median(np.exp(steps.logs[kept])),
                rejected_seconds=_median(np.exp(steps.logs[~kept])),
            )
        )
    return tuple(found)


def _cut_costs(cut: _Steps, kinds: _Kinds, levels: Array) -> tuple[CutCost, ...]:
    """Of lengths that drafts were cut to in enough requests."""
    found = []
    for drafted in np.unique(cut.drafted).tolist():
        known = (cut.drafted == drafted) & ~np.isnan(levels[cut.places])
        steps = cut[np.flatnonzero(known)]
        costs = np.exp(steps.logs - levels[steps.places]) - kinds.rejection(steps)
        _, medians = steps.by_request(costs)
        if len(medians) >= FEWEST_REQUESTS:
            found.append(
                CutCost(drafted=drafted, requests=len(medians), relative=robust_mean(medians))
            )
    return tuple(found)


def _startup(firsts: _Steps, kinds: _Kinds, levels: Array) -> Location | None:
    """What first steps of full length took more than others of their kind."""
    steps = firsts[np.flatnonzero(~np.isnan(levels[firsts.places]))]
    if len(steps.places) < FEWEST_REQUESTS:
        return None
    return robust_mean(np.exp(steps.logs - levels[steps.places]) - kinds.cost(steps))


class _Speculating(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of the speculating arm. ``adjusted``: logs of free steps less their kind's."""

    requests: Sequence[Request]
    free: _Steps
    undrafted: _Steps
    levels: Array
    adjusted: Array


def _against_plain(
    ours: _Speculating,
    requests: Sequence[Request],
    *,
    confidence: float,
    capture: PlainStep | None,
) -> tuple[AgainstPlain | None, list[Request]]:
    """From the most trusted source there is; also the requests that it used."""
    by_arm = {arm: [r for r in requests if r.arm == arm] for arm in ("target_only", "switched_off")}
    if (found := _paired(ours, by_arm["target_only"], PlainSource.PAIR, confidence)) is not None:
        return found
    if capture is not None:
        return _captured(ours, capture, confidence), []
    if (found := _paired(ours, by_arm["switched_off"], PlainSource.SWITCH, confidence)) is not None:
        return found
    return _undrafted(ours, confidence), []


def _paired(
    ours: _Speculating, plain: Sequence[Request], source: PlainSource, confidence: float
) -> tuple[AgainstPlain, list[Request]] | None:
    """Log ratios pair by pair: what slows both arms of a pair cancels."""
    arms: dict[str, list[Request]] = defaultdict(list)
    for request in plain:
        if request.pair is not None:
            arms[request.pair].append(request)
    numbers = {pair: number for number, pair in enumerate(arms)}
    pairs = np.array([numbers.get(r.pair or "", -1) for r in ours.requests], dtype=np.intp)
    drafting = _by_pair(pairs[ours.free.places], ours.adjusted, len(arms))
    undrafted = _by_pair(pairs[ours.undrafted.places], ours.undrafted.logs, len(arms))
    levels = np.array([_plain_level(partners) for partners in arms.values()], dtype=np.float64)
    known = ~np.isnan(drafting - levels)
    differences = (drafting - levels)[known]
    if len(differences) < FEWEST_PAIRS:
        return None
    dearer = (undrafted - levels)[known & ~np.isnan(undrafted)]
    against = AgainstPlain(
        source=source,
        ratio=_exp(robust_mean(differences), confidence),
        excess=1.0,
        seconds=_exp(robust_mean(levels[known]), confidence),
        undrafted_ratio=math.exp(_median(dearer) or 0.0),
        pairs=len(differences),
    )
    used = itertools.compress(arms.values(), known.tolist())
    return against, list(itertools.chain.from_iterable(used))


def _by_pair(pairs: Indices, values: Array, count: int) -> Array:
    """The median of each pair; NaN where it has no value."""
    paired = pairs >= 0
    return group_medians(values[paired], pairs[paired], count)


def _captured(ours: _Speculating, capture: PlainStep, confidence: float) -> AgainstPlain:
    """Against another time: nothing cancels, so the scatter of both is in the bounds."""
    level = robust_mean(ours.levels[~np.isnan(ours.levels)])
    half = level.half_width(confidence)
    seconds = capture.seconds
    ratio = math.exp(level.value) / seconds.value
    return AgainstPlain(
        source=PlainSource.CAPTURE,
        ratio=Bounded(
            ratio,
            ratio * math.exp(-math.hypot(half, math.log(seconds.upper / seconds.value))),
            ratio * math.exp(math.hypot(half, math.log(seconds.value / seconds.lower))),
        ),
        excess=1.0,
        seconds=seconds,
        undrafted_ratio=(_median(np.exp(ours.undrafted.logs)) or seconds.value) / seconds.value,
        pairs=0,
    )


def _undrafted(ours: _Speculating, confidence: float) -> AgainstPlain | None:
    """Against the undrafted steps of the same requests."""
    places, plain = ours.undrafted.by_request(ours.undrafted.logs)
    levels = ours.levels[places]
    known = ~np.isnan(levels)
    if int(known.sum()) < FEWEST_PAIRS:
        return None
    return AgainstPlain(
        source=PlainSource.UNDRAFTED,
        ratio=_exp(robust_mean((levels - plain)[known]), confidence),
        excess=1.0,
        seconds=_exp(robust_mean(plain[known]), confidence),
        undrafted_ratio=1.0,
        pairs=0,
    )


def _plain_level(requests: Iterable[Request]) -> float | None:
    """The median log of plain steps, the first of each request left out."""
    logs = [
        math.log(step.seconds)
        for request in requests
        for step in request.steps[1:]
        if not step.drafted and step.seconds > 0
    ]
    return float(np.median(logs)) if len(logs) >= FEWEST_STEPS else None


def _median(values: Array) -> float | None:
    return float(np.median(values)) if len(values) else None


def _exp(location: Location, confidence: float) -> Bounded:
    half = location.half_width(confidence)
    return Bounded(*(math.exp(location.value + offset) for offset in (0.0, -half, half)))


def _widened(bounded: Bounded, factor: float) -> Bounded:
    return Bounded(bounded.value, bounded.lower / factor, bounded.upper * factor)


def _context(requests: Sequence[Request]) -> tuple[int, int]:
    sizes = [r.context_tokens for r in requests]
    return min(sizes), max(sizes)


def _when(request: Request) -> float:
    return request.unix_seconds
