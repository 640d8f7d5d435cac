"""The cumulative timings along one stream → the decode steps behind it."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

from mtpmon.model import Step, StepStream, Timings


class _Stretch(msgspec.Struct):
    """The tokens seen with one state of the totals, which the last step of a change left."""

    first_token: int
    last_token: int
    draft_tokens: int
    accepted_tokens: int
    seconds: float


def steps(points: Sequence[Timings]) -> StepStream:
    """Rebuild decode steps from the timings of successive chunks of one stream.

    A step moves the totals once, before its tokens are sent, so each change of the totals
    is a step. The first token comes from the prompt and is no step: the time total starts
    at it. A step without a draft only moves the time.

    Tokens inside an unfinished multi-byte character are not sent, so a change may hide
    several steps. It is one step if its first token is the next one due (each step emits at
    least one token), or if the tokens up to the next change are as many as were kept and
    one more (two steps would emit yet another). Otherwise it is unresolved. The last change
    has no next one, and the end of the stream is no substitute: a stop word or an
    end-of-text token, though never a token limit, can cut the tokens that a step kept.
    ``kept`` counts these too, as the server does: it is what the verification decided.

    Args:
        points: The totals of each chunk in the order received. The last chunk of a stream
            repeats them; repeats are harmless.

    Returns:
        The steps and what could not be resolved. Time that runs backwards counts as none.

    Raises:
        ValueError: A count falls along the stream.
    """
    stretches = _stretches(points)
    found: list[Step] = []
    draft_tokens = accepted_tokens = 0
    seconds = 0.0
    # The earlier steps' last token is this one or a later one: a server that verifies again
    # after a rejection emits a token more than it counts as kept.
    end = 1
    for place, (before, now) in enumerate(pairwise(stretches), start=1):
        step = Step(
            now.draft_tokens - before.draft_tokens,
            now.accepted_tokens - before.accepted_tokens,
            now.seconds - before.seconds,
        )
        # A server that counts more as kept than it sends is caught by a token too early.
        due = 1 + (end if end < now.first_token else before.last_token)
        following = stretches[place + 1].first_token if place + 1 < len(stretches) else None
        single = now.first_token == due or following == due + 1 + step.kept
        if single and step.kept <= step.drafted:
            found.append(step)
        else:
            draft_tokens += step.drafted
            accepted_tokens += step.kept
            seconds += step.seconds
        end = max(now.last_token, due + step.kept)
    return StepStream(
        steps=tuple(found),
        unresolved_draft_tokens=draft_tokens,
        unresolved_accepted_tokens=accepted_tokens,
        unresolved_seconds=seconds,
    )


def accepted_by_position(steps: Iterable[Step]) -> tuple[int, ...]:
    """Count, for each draft position, the steps that kept it.

    Args:
        steps: Decode steps; plain ones do not matter.

    Returns:
        One count for each position, 0-based, as many as the longest draft had: entry i is
        the number of steps that kept more than i tokens. A server's own per-position
        counter is as long as its configured draft, so it may go on with zeros.
    """
    drafted = [step for step in steps if step.drafted]
    longest = max((step.drafted for step in drafted), default=0)
    return tuple(sum(step.kept > position for step in drafted) for position in range(longest))


def _stretches(points: Sequence[Timings]) -> list[_Stretch]:
    """Join the chunks that show the same totals, after the free first token."""
    now = _Stretch(first_token=1, last_token=1, draft_tokens=0, accepted_tokens=0, seconds=0.0)
    found = [now]
    totals = (0, 0, 0.0)
    for point in points:
        token = point.generated_tokens
        if token <= 1 and len(found) == 1:
            continue
        drafted, kept = point.draft_tokens or 0, point.accepted_tokens or 0
        if token < now.last_token or drafted < now.draft_tokens or kept < now.accepted_tokens:
            raise ValueError("a count falls along the stream")
        if (drafted, kept, point.generation_seconds) != totals:
            totals = (drafted, kept, point.generation_seconds)
            seconds = max(point.generation_seconds, now.seconds)
            now = _Stretch(token, token, drafted, kept, seconds)
            found.append(now)
        now.last_token = token
    return found
