"""What change detection looks at: users' verification steps between two scrapes, and probes."""

import math
from statistics import median

import msgspec

from mtpmon.derive import difference, subtracted
from mtpmon.model import Amount, ProbeOutcome, ProbeResult, Usage
from mtpmon.window import accepted_amount, plausible_positions

MOST_POSITIONS = 16
FEWEST_STEPS = 5  # of a probe, to have a step time


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Verification steps that ended between two moments.

    ``trials`` and ``kept``: draft tokens that came to a decision at each position, and those
    kept. Where only totals are known they are one position, and ``spread`` is how much more
    the kept tokens of a step vary than if each were decided by itself. ``*_error``: rounding
    that cancels between successive batches; ``lasting_error``: such as does not.
    ``stratum``: the kind of task, where it is known. ``draft_tokens``: drafted, in probes.
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
    draft_tokens: float = 0.0


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
        draft_tokens=float(sum(s.drafted for s in steps)),
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
