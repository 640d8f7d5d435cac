"""Teacher forcing: what the target would have said at each place of what was said.

Given the prompt and the first i tokens of an answer, one undrafted token is asked for: its
distribution is the target's at position i. So what came out of speculation can be judged
token by token, although the server keeps the distributions of its verification steps to
itself, and without a second server.
"""

import random
from collections.abc import Sequence

import msgspec

from mtpmon.model import ForcedToken, Position, TopToken


class Forced(msgspec.Struct, frozen=True, kw_only=True):
    """Distributions at one position after the same prefix.

    ``speculating`` is the speculating server's own, undrafted; empty where it was not asked.
    """

    index: int
    target: tuple[TopToken, ...]
    speculating: tuple[TopToken, ...] = ()


def known_prefix(positions: Sequence[Position]) -> tuple[int, ...]:
    """The ids up to the first one that the stream left out."""
    ids: list[int] = []
    for position in positions:
        if position.id is None:
            break
        ids.append(position.id)
    return tuple(ids)


def chosen_positions(known: int, wanted: int, *, seed: int) -> tuple[int, ...]:
    """Which of ``known`` positions to look at: the last, and others drawn at random.

    The last one is decoded after states that speculation wrote; drawn ones cover all
    places over time.

    Args:
        known: positions whose prefix is known.
        wanted: how many at most.
        seed: of the draw; callers change it from probe to probe.

    Returns:
        Indices in ascending order, so that each prefix extends the one before.
    """
    if known < 1 or wanted < 1:
        return ()
    rng = random.Random(seed)  # noqa: S311  places to look at, not a secret
    others = rng.sample(range(known - 1), min(wanted - 1, known - 1))
    return (*sorted(others), known - 1)


def drawn_length(most: int, *, seed: int) -> int:
    """Tokens to generate, 2 to ``most``: so that over time every position is once the last.

    The last token of an answer is the one whose distribution the server still tells.
    """
    return random.Random(seed).randint(2, most)  # noqa: S311  a length, not a secret


def judged(index: int, token: int | None, target: Sequence[TopToken]) -> ForcedToken | None:
    """What the target thought of the token that was emitted.

    A token outside the list has no known probability or rank; its regret is at least the
    gap from the best to the last one listed. ``None`` without a distribution.

    Args:
        index: position, 0-based.
        token: id of the emitted token.
        target: the target's top-k list there, in any order.
    """
    if not target:
        return None
    ordered = sorted(target, key=lambda entry: -entry.logprob)
    best = ordered[0].logprob
    for rank, entry in enumerate(ordered):
        if entry.id == token:
            # Of tied tokens each is the best one.
            ties = sum(other.logprob > entry.logprob for other in ordered[:rank])
            return ForcedToken(
                index=index, logprob=entry.logprob, rank=ties, regret_nats=best - entry.logprob
            )
    return ForcedToken(index=index, logprob=None, rank=None, regret_nats=best - ordered[-1].logprob)
