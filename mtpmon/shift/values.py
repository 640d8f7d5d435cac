"""Has a value (step time, KL divergence) changed?"""

import math

import msgspec
import numpy as np

from mtpmon.shift.evidence import highest
from mtpmon.shift.found import Ending, Phase, Shift, closed, described, returned
from mtpmon.shift.ranks import (
    LEAST_PAST,
    MOST_PAST,
    Ranks,
    known_values,
    ranked,
    ranks,
    relearning,
    usual,
)
from mtpmon.shift.settings import MOST_STRATA, ValueSettings

REPLAN_VALUES = 40  # after a change, that make a past


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
    if detector.replanned and known_values(detector.fresh) >= REPLAN_VALUES:
        detector = relearning(detector, detector.fresh)
    place = highest(step.excess)
    found = described(step.detector.bank, place, ended) if place is not None else None
    if found is not None:
        detector = relearning(detector, np.full_like(detector.past, np.nan))
    state = msgspec.structs.replace(state, ranks=detector)
    if state.held is not None:
        change = value - usual(state.held.ranks, stratum)
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
    detector = relearning(state.ranks, state.ranks.past)
    return msgspec.structs.replace(state, ranks=msgspec.structs.replace(detector, replanned=True))


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
        if returned(found.after - found.before + full, full, 1.0):
            return _passed(state, held, Ending.RECOVERED, now)
        return msgspec.structs.replace(state, held=msgspec.structs.replace(held, changes=()))
    if len(held.changes) < REPLAN_VALUES:
        return state
    if returned(math.fsum(held.changes) / REPLAN_VALUES, full, 0.5):
        return _passed(state, held, Ending.RECOVERED, now)
    if now - held.shift.detected_unix_seconds >= settings.hold_seconds:
        return _passed(state, held, Ending.RELEARNED, now)
    return state


def _passed(state: Values, held: HeldValue, ending: Ending, now: float | None) -> Values:
    """As `_over`."""
    detector = state.ranks
    if ending is not Ending.RELEARNED:
        detector = msgspec.structs.replace(
            relearning(held.ranks, held.ranks.past),
            rate_values=detector.rate_values,
            rate_seconds=detector.rate_seconds,
            last_unix_seconds=detector.last_unix_seconds,
        )
    return Values(ranks=detector, ended=closed(held.shift, ending, now))
