"""Has acceptance changed? Users' traffic and probes decide together."""

import math

import msgspec
import numpy as np

from mtpmon.model import Usage
from mtpmon.shift.batch import MOST_POSITIONS, Batch, Meter, metered
from mtpmon.shift.counts import Step, counted
from mtpmon.shift.evidence import Array, highest
from mtpmon.shift.found import Ending, Phase, Shift, Source, closed, described, near, returned
from mtpmon.shift.learned import Counts, counts, grown, rebased, replanning, resumed
from mtpmon.shift.settings import DAY, MOST_STRATA, Settings
from mtpmon.shift.yardstick import yardstick

TRAIL = 256  # probes whose scores are kept, to judge a suspicion that began before them
MOST_RAISED = 64  # suspicions whose times are kept
SETTLED = math.log(100)  # evidence for or against at which probes decide a suspicion


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

    ``since``: when users' traffic was first seen; ``touched``: when something last happened to
    the server that can change it. ``raised``: when there were suspicions. ``trail``: recent
    probes' evidence. ``ended``: the last shift that is over.
    """

    live: Counts = counts(ranged=True)
    probes: Counts = counts(ranged=False)
    meter: Meter | None = None
    since: float | None = None
    touched: float | None = None
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
    since = batch.began_unix_seconds if state.since is None else state.since
    state = msgspec.structs.replace(state, live=step.detector, since=since)
    if held is None:
        return _judged(_suspected(state, step, now), now, settings)
    if step.crossed is not None:
        state = msgspec.structs.replace(state, live=rebased(step.detector))
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
        found = described(step.detector.bank, step.crossed, now)
        return _shifted(state, msgspec.structs.replace(found, source=Source.PROBES))
    if step.crossed is not None:
        state = msgspec.structs.replace(state, probes=rebased(step.detector))
    if held.shift.source is Source.LIVE:
        return state
    return _still(state, held, held.probes, step, batch=batch, settings=settings)


def touched(state: Acceptance, unix_seconds: float) -> Acceptance:
    """Take in that something happened to the server that can change what it keeps."""
    return msgspec.structs.replace(state, touched=unix_seconds)


def replanned(state: Acceptance) -> Acceptance:
    """Take in that the server was changed on purpose: another build, model or draft length.

    From here on only a large loss is news. After some traffic the new level is the reference.
    """
    if state.held is not None:
        state = _over(state, state.held, Ending.REPLANNED, None)
    return msgspec.structs.replace(
        state,
        live=replanning(state.live),
        probes=replanning(state.probes),
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
        detector = grown(detector, 1, 0)
        detector = msgspec.structs.replace(
            detector, strata=(*detector.strata, batch.stratum), by_position=batch.by_position
        )
    width = min(len(batch.trials), MOST_POSITIONS)
    detector = grown(detector, 0, max(width - detector.settled.trials.shape[-1], 0))
    step = counted(
        detector,
        np.array(batch.trials[:width]),
        np.array(batch.kept[:width]),
        settings,
        batch=batch,
        stratum=detector.strata.index(batch.stratum),
    )
    return settled_in(step, settings)


def settled_in(step: Step, settings: Settings) -> Step:
    """A planned change is taken in when it has shown enough steps, and no evidence."""
    detector = step.detector
    enough = np.sum(detector.pending.trials[..., 0]) * step.weight >= settings.planned_steps
    if not detector.replanned or not enough or step.hot:
        return step
    return msgspec.structs.replace(step, detector=rebased(detector))


def _suspected(state: Acceptance, step: Step, now: float) -> Acceptance:
    """Raise a suspicion, follow it, or drop it when its evidence is gone."""
    old = state.suspicion
    if old is not None and not step.hot:
        return msgspec.structs.replace(state, suspicion=None)
    place = highest(step.excess) if old is None else old.place
    if place is None:
        return state
    found = described(step.detector.bank, place, now)
    beyond = highest(step.excess[1:, place[1] : place[1] + 1]) is not None
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
    before keeps as few tokens, or as many. That takes a day of them, or that something happened
    to the server just then.
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
    acquainted = state.since is not None and now - state.since >= settings.acquaint_seconds
    blamed = acquainted or (state.touched is not None and near(state.touched, found))
    if evidence > -SETTLED and suspicion.beyond and blamed and not waiting:
        return _shifted(state, msgspec.structs.replace(found, source=Source.LIVE))
    if evidence <= -SETTLED or now - raised >= settings.suspicion_seconds:
        return msgspec.structs.replace(state, live=rebased(state.live), suspicion=None)
    return state


def _shifted(state: Acceptance, found: Shift) -> Acceptance:
    """From here on the detectors that show the shift learn its level."""
    alone = found.source is Source.LIVE
    return msgspec.structs.replace(
        state,
        live=rebased(state.live),
        probes=state.probes if alone else rebased(state.probes),
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
        found = described(step.detector.bank, step.crossed, now)
        if returned(found.after / max(found.before, 1e-9) * full - 1, full - 1, 1.0):
            return _over(state, held, Ending.RECOVERED, now)
        held = msgspec.structs.replace(held, kept=0.0, expected=0.0, weight=0.0)
        return msgspec.structs.replace(state, held=held)
    if held.weight < settings.learn_steps:
        return state
    if returned(held.kept / max(held.expected, 1e-9) - 1, full - 1, 0.5):
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


def _over(state: Acceptance, held: Held, ending: Ending, now: float | None) -> Acceptance:
    """End a shift. The old references hold again, unless its level has replaced them."""
    relearned = ending is Ending.RELEARNED
    return msgspec.structs.replace(
        state,
        live=state.live if relearned else resumed(held.live, state.live),
        probes=state.probes if relearned else resumed(held.probes, state.probes),
        trail=(),
        held=None,
        ended=closed(held.shift, ending, now),
    )
