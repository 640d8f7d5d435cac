"""Whether a server's speculative counters can be believed."""

from enum import StrEnum

import msgspec

from mtpmon.model import Amount, Counters, Reading, Usage
from mtpmon.window import plausible_positions

ENOUGH_DRAFT_TOKENS = 500  # a long run of identical text is kept whole; this much is not
MOST_MISMATCH = 0.01


class Reason(StrEnum):
    """Why figures from counters should not be believed. The closed set of label values."""

    ALWAYS_ACCEPTED = "always_accepted"
    ABOVE_ONE = "above_one"
    RISING_POSITIONS = "rising_positions"
    SUM_MISMATCH = "sum_mismatch"
    PROBE_MISMATCH = "probe_mismatch"
    KNOWN_BUILD = "known_build"


class KnownBuild(msgspec.Struct, frozen=True, kw_only=True):
    """Builds that are known to miscount: numbers ``first`` to ``last``, both included."""

    first: int
    last: int
    reference: str
    fault: str


# Public reports. The last build is the one before the first in which the fix was found; the
# exact one may be earlier, and forks differ. Builds that do not know their number are not here.
KNOWN_BUILDS = (
    KnownBuild(
        first=0,
        last=9092,
        reference="ggml-org/llama.cpp#22506",
        fault="all drafted tokens were counted as accepted",
    ),
    KnownBuild(
        first=9093,
        last=10433,
        reference="ggml-org/llama.cpp#26320, #25682",
        fault="on models that restore a checkpoint after a rejection (recurrent layers, sliding"
        " windows) the replayed token was counted as an accepted draft token",
    ),
)


def known_build(build_number: int | None) -> KnownBuild | None:
    """The entry for a build, if it is known to miscount."""
    if build_number is None:
        return None
    return next((b for b in KNOWN_BUILDS if b.first <= build_number <= b.last), None)


class Reconciliation(msgspec.Struct, frozen=True):
    """What the counters made of probes that ran alone: tokens they are off, of how many."""

    off_tokens: float
    draft_tokens: float


def reconcile(server: Usage, own: Usage) -> Reconciliation | None:
    """Compare what the server counted in an interval with what our probes in it reported.

    Only possible when nobody else was served, which equal numbers of generated tokens
    show; ``None`` otherwise. What rounding or a cut-off stream leaves open is no fault.
    """
    if own.requests < 1 or own.draft_tokens is None or own.draft_tokens.value <= 0:
        return None
    if _excess(server.generated_tokens, own.generated_tokens) != 0:
        return None
    excesses = [
        _excess(getattr(server, name), getattr(own, name))
        for name in ("drafts", "draft_tokens", "accepted_tokens")
    ]
    known = [excess for excess in excesses if excess is not None]
    if not known:
        return None
    return Reconciliation(max(known), own.draft_tokens.value)


def _excess(counted: Amount | None, reported: Amount | None) -> float | None:
    """By how much two amounts differ beyond their errors."""
    if counted is None or reported is None:
        return None
    apart = abs(counted.value - reported.value)
    return max(apart - counted.half_width - reported.half_width, 0.0)


def mismatch(found: list[Reconciliation]) -> float | None:
    """Share of drafted tokens that the counters were off by, over reconciled probes."""
    drafted = sum(each.draft_tokens for each in found)
    return sum(each.off_tokens for each in found) / drafted if drafted else None


def distrust(
    counters: Counters | None, *, build_number: int | None, mismatch_share: float | None
) -> frozenset[Reason]:
    """Everything that speaks against a server's speculative counters.

    Args:
        counters: the latest scrape; its totals since the server started.
        build_number: of the server, if it knows it.
        mismatch_share: of ``mismatch``.
    """
    reasons = set()
    if mismatch_share is not None and mismatch_share > MOST_MISMATCH:
        reasons.add(Reason.PROBE_MISMATCH)
    if counters is None or counters.drafts is None:
        return frozenset(reasons)
    if known_build(build_number) is not None:
        reasons.add(Reason.KNOWN_BUILD)
    positions = counters.accepted_by_position
    accepted, drafted = counters.accepted_tokens, counters.draft_tokens
    if positions is not None:
        if not plausible_positions(positions, _amount(counters.drafts)):
            reasons.add(Reason.RISING_POSITIONS)
        if accepted is not None and abs(accepted.value - sum(positions)) > accepted.quantum / 2:
            reasons.add(Reason.SUM_MISMATCH)
        accepted = Reading(float(sum(positions)))
    if accepted is not None and drafted is not None:
        low, high = _bounds(accepted)
        drafted_low, drafted_high = _bounds(drafted)
        if low > drafted_high:
            reasons.add(Reason.ABOVE_ONE)
        elif drafted.value >= ENOUGH_DRAFT_TOKENS and high >= drafted_low:
            reasons.add(Reason.ALWAYS_ACCEPTED)
    return frozenset(reasons)


def _amount(reading: Reading) -> Amount:
    return Amount(reading.value, reading.quantum / 2)


def _bounds(reading: Reading) -> tuple[float, float]:
    return reading.value - reading.quantum / 2, reading.value + reading.quantum / 2
