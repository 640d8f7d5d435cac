"""What two arms said about one prompt: compared, measured, and let go of."""

import math
import statistics
from collections.abc import Sequence

import msgspec

from mtpmon.compare import classify_positions, compare
from mtpmon.derive import added, nothing
from mtpmon.forced import Forced, judged
from mtpmon.kld import divergence
from mtpmon.model import (
    Amount,
    Baseline,
    Completion,
    Divergence,
    Position,
    PositionKinds,
    ProbeOutcome,
    ProbeResult,
    TopToken,
    Usage,
    Variant,
)
from mtpmon.steps import accepted_by_position
from mtpmon.suite import DEFAULT_VARIANT, Prompt

STEPS_AFTER_A_CUT = 2  # seen: one on b11434, up to two on b10434
KEPT_TOPS = 5  # log-probabilities kept of each side at a divergence, for people to look at


class Pair(msgspec.Struct, frozen=True):
    """What the two arms said. ``target_only`` is ``None`` without a second arm.

    ``reference`` pairs a captured reference's distributions (``target``) with the
    speculating server's own after the same prefix of the captured answer.
    """

    speculating: Completion
    target_only: Completion | None
    forced: tuple[Forced, ...] = ()
    baseline: Baseline | None = None
    prompt_ids: tuple[int, ...] = ()
    reference: tuple[Forced, ...] = ()


def usage_of(completion: Completion | None, *, wanted: int | None = None) -> Usage:
    """What one request has put, or will put, into a server's counters.

    Of a request that was cut off only a lower bound is known: see ``steps_after_a_cut``.
    Their size is the error, which stays in every total from then on. Tokens of steps that
    cannot be told apart are laid out evenly, so that per-position counts still add up to the
    total.

    Args:
        completion: the answer as far as it came; ``None``: nothing did.
        wanted: tokens asked for, which a server never exceeds.
    """
    if completion is None:
        return msgspec.structs.replace(nothing(), generated_tokens=Amount(0, 0, 1), requests=1)
    timings, stream = completion.timings, completion.stream
    drafting = [step for step in stream.steps if step.drafted]
    longest = max((step.drafted for step in drafting), default=1)
    hidden_steps = math.ceil(stream.unresolved_draft_tokens / longest)
    hidden = _evenly(stream.unresolved_accepted_tokens, hidden_steps)
    cut = steps_after_a_cut(completion, wanted=wanted)
    cut_tokens = cut * (longest + 1)
    if wanted is not None:
        cut_tokens = min(cut_tokens, max(wanted - timings.generated_tokens, 0))
    draft_tokens, accepted = timings.draft_tokens or 0, timings.accepted_tokens or 0
    return Usage(
        drafts=Amount(len(drafting) + hidden_steps, 0, cut + hidden_steps),
        draft_tokens=Amount(draft_tokens, 0, cut * longest),
        accepted_tokens=Amount(accepted, 0, min(cut * longest, cut_tokens)),
        accepted_by_position=added(accepted_by_position(stream.steps), hidden),
        generated_tokens=Amount(timings.generated_tokens, 0, cut_tokens),
        generation_seconds=Amount(timings.generation_seconds),
        prompt_tokens=Amount(timings.prompt_tokens),
        positions_error=min(cut * longest, cut_tokens),
        requests=1,
    )


def steps_after_a_cut(completion: Completion, *, wanted: int | None = None) -> int:
    """How many steps more than it has shown a server may have made of a request cut off.

    Until it notices, it goes on for a step or two. Before that it may have been ahead: what it
    had sent lies unread where mtpmon itself was kept waiting for a processor. It was ahead by
    no more than the time since the request was sent, less what its own timings account for,
    which is so many of its typical steps. Where no step has shown its length, all that was
    asked for may be there.

    Args:
        completion: as far as it came; ``wall_seconds`` from the request to the cut.
        wanted: tokens asked for: each step makes one at least.

    Returns:
        Steps; 0 of a request that was not cut off.
    """
    if completion.finished:
        return 0
    timings = completion.timings
    lag = completion.wall_seconds - timings.prompt_seconds - timings.generation_seconds
    lengths = [step.seconds for step in completion.stream.steps if step.seconds > 0]
    if lengths:
        found = STEPS_AFTER_A_CUT + math.ceil(max(lag, 0.0) / statistics.median(lengths))
    elif wanted is None:
        return STEPS_AFTER_A_CUT
    else:
        found = wanted
    return found if wanted is None else min(found, max(wanted - timings.generated_tokens, 0))


def _evenly(accepted: int, steps: int) -> tuple[int, ...]:
    """Per-position counts of ``steps`` steps that kept ``accepted`` tokens, as alike as can be."""
    if not steps:
        return ()
    each, more = divmod(accepted, steps)
    return (*[steps] * each, more)


def evaluate(
    pair: Pair,
    prompt: Prompt,
    *,
    variant: Variant = DEFAULT_VARIANT,
    server: str,
    unix_seconds: float,
    duration_seconds: float,
) -> ProbeResult:
    """Compare the arms of a completed probe. Pure.

    Of sampled answers only the distributions after the prompt are compared. Both arms draw
    from the same distributions with the same seed, but a server that drafts may spend its
    random numbers otherwise: the sequences may differ without any fault, and what comes
    later then follows different prefixes.

    Distributions are used here and then let go, except at the first divergence: a few
    hundred results with 64 log-probabilities per token would be hundreds of megabytes.
    """
    ours, baseline = pair.speculating, pair.target_only
    comparison, kinds, first = None, None, None
    next_token: Divergence | None = None
    later: list[Divergence] = []
    if baseline is not None:
        compared = None if variant.greedy else 1
        if variant.greedy and pair.baseline is Baseline.CAPTURE:
            compared = _common_length(ours.positions, baseline.positions)
        mine, theirs = ours.positions[:compared], baseline.positions[:compared]
        if variant.greedy:
            comparison = compare(mine, theirs)
            first = comparison.first_divergence
        kinds, places = classify_positions(mine, theirs)
        for place in places:
            found = _divergence(baseline.positions[place].top, ours.positions[place].top)
            if found is None:
                kinds = PositionKinds(
                    comparable=kinds.comparable - 1,
                    missing=kinds.missing + 1,
                    diverged=kinds.diverged,
                )
            elif place == 0:
                next_token = found
            else:
                later.append(found)
    if pair.forced:
        later = _after_speculation(ours, pair.forced)
    forced = (_divergence(f.target, f.speculating) for f in pair.forced)
    drifts = [(f.index, _divergence(f.target, f.speculating)) for f in pair.reference]
    tokens = (judged(f.index, ours.positions[f.index].id, f.target) for f in pair.forced)
    return ProbeResult(
        server=server,
        prompt_id=prompt.id,
        task=prompt.task,
        variant=variant,
        unix_seconds=unix_seconds,
        duration_seconds=duration_seconds,
        outcome=ProbeOutcome.COMPLETED,
        speculating=_stripped(ours, first),
        target_only=_stripped(baseline, first) if baseline is not None else None,
        comparison=comparison,
        next_token=next_token,
        after_speculation=tuple(later),
        teacher_forced=tuple(found for found in forced if found is not None),
        forced=tuple(token for token in tokens if token is not None),
        baseline=pair.baseline,
        positions=kinds,
        reference_next_token=next((d for index, d in drifts if index == 0), None),
        reference_forced=tuple(d for index, d in drifts if index > 0 and d is not None),
    )


def _common_length(ours: Sequence[Position], captured: Sequence[Position]) -> int:
    """How many tokens both have, up to the end of a character in both.

    A captured answer may be longer or shorter, and a place that is inside a character in one
    would look like a difference at the end of the other.
    """
    length = min(len(ours), len(captured))
    while length and (ours[length - 1].id is None or captured[length - 1].id is None):
        length -= 1
    return length


def _divergence(p: Sequence[TopToken], q: Sequence[TopToken]) -> Divergence | None:
    """KL of two lists, or ``None``: one that is no distribution is as good as none."""
    if not p or not q:
        return None
    try:
        return divergence(p, q)
    except ValueError:
        return None


def _after_speculation(ours: Completion, forced: Sequence[Forced]) -> list[Divergence]:
    """The target's distributions against those that came with the speculative answer.

    Position 0 is left out: no draft came before it.
    """
    found = (_divergence(f.target, ours.positions[f.index].top) for f in forced if f.index > 0)
    return [each for each in found if each is not None]


def _stripped(completion: Completion, keep: int | None) -> Completion:
    def top(place: int, entries: tuple[TopToken, ...]) -> tuple[TopToken, ...]:
        if place != keep:
            return ()
        return tuple(sorted(entries, key=lambda entry: -entry.logprob)[:KEPT_TOPS])

    return Completion(
        positions=tuple(
            Position(p.id, p.text, top(i, p.top)) for i, p in enumerate(completion.positions)
        ),
        timings=completion.timings,
        stream=completion.stream,
        wall_seconds=completion.wall_seconds,
        finished=completion.finished,
    )
