"""Two greedy sequences from one prompt → where they part, and where KLD is meaningful."""

from collections.abc import Sequence
from enum import StrEnum
from itertools import zip_longest
from typing import NamedTuple

from mtpmon.model import Comparison, Position, PositionKinds


class DivergenceKind(StrEnum):
    """What a first divergence is. The closed set of label values.

    ``tie``: the target's two best tokens were so close there that another rounding swaps
    them. ``real``: they were not. ``unknown``: the target's distribution is not there.
    """

    TIE = "tie"
    REAL = "real"
    UNKNOWN = "unknown"


# A verification batch rounds differently from a single token. In 16-bit arithmetic logits of
# about 20 are 0.02 apart, and a few such steps add up; a gap of 0.1 is odds of 1.1 to 1.
TIE_NATS = 0.1


def divergence_kind(comparison: Comparison) -> DivergenceKind | None:
    """Classify the first divergence; ``None`` if there is none."""
    if comparison.exact:
        return None
    margin = comparison.divergence_margin_nats
    if margin is None:
        return DivergenceKind.UNKNOWN
    return DivergenceKind.TIE if margin <= TIE_NATS else DivergenceKind.REAL


class _Group(NamedTuple):
    """The smallest stretch of tokens that can be compared: one, or hidden ones and a closer.

    ``text`` is empty for a single token: its id says all.
    """

    start: int
    end: int
    id: int | None
    text: str


def compare(speculating: Sequence[Position], target_only: Sequence[Position]) -> Comparison:
    """Compare two sequences position by position, also after they have parted.

    A stream leaves out the tokens inside an unfinished multi-byte character (``id`` is
    ``None``); the token that completes the character carries the joined text. Hidden
    tokens and the one that follows them are compared as a whole: equal if they span the
    same positions and the closing id and the joined text are equal, otherwise different
    from the first of them on. Tokens hidden up to the end on both sides alike, with no
    closing token, are unknown: they are not counted in ``tokens``.

    Args:
        speculating: The tokens of the server that drafts.
        target_only: The tokens of the baseline.

    Returns:
        The comparison. Positions past the end of the shorter sequence are mismatches, and
        the first of them is a divergence if there was none before. The margin is ``None``
        where the baseline has no two candidates listed at the divergence.
    """
    pairs = list(zip_longest(_groups(speculating), _groups(target_only)))
    known = [(ours, theirs) for ours, theirs in pairs if not _unknown(ours, theirs)]
    equal = [ours == theirs for ours, theirs in known]
    first = equal.index(False) if not all(equal) else None
    return Comparison(
        tokens=len(known),
        matches=sum(equal),
        matched_prefix=len(known) if first is None else first,
        first_divergence=first,
        divergence_margin_nats=None if first is None else _margin_nats(target_only, first),
    )


def classify_positions(
    speculating: Sequence[Position], target_only: Sequence[Position]
) -> tuple[PositionKinds, tuple[int, ...]]:
    """Tell the positions at which two distributions can be compared from the others.

    The position of the first divergence still follows the same prefix on both sides, so it
    is comparable or missing; ``diverged`` starts after it. Counting every position without
    a pair of distributions as missing, whatever its prefix, gives ``missing + diverged``.

    Args:
        speculating: The tokens of the server that drafts.
        target_only: The tokens of the baseline.

    Returns:
        The counts, which add up to the length of the longer sequence, and the 0-based
        indices of the comparable positions.
    """
    length = max(len(speculating), len(target_only))
    first = compare(speculating, target_only).first_divergence
    same_prefix = length if first is None else first + 1
    comparable = tuple(
        index
        for index, (ours, theirs) in enumerate(zip(speculating, target_only, strict=False))
        if index < same_prefix and ours.top and theirs.top
    )
    kinds = PositionKinds(
        comparable=len(comparable),
        missing=same_prefix - len(comparable),
        diverged=length - same_prefix,
    )
    return kinds, comparable


def _groups(positions: Sequence[Position]) -> list[_Group]:
    """Give each position the group it is in."""
    groups: list[_Group] = []
    for index, position in enumerate(positions):
        start = len(groups)
        last = index == len(positions) - 1
        if position.id is None and not last:
            continue
        text = position.text if index > start else ""
        group = _Group(start, index + 1, position.id, text)
        groups += [group] * (group.end - group.start)
    return groups


def _unknown(ours: _Group | None, theirs: _Group | None) -> bool:
    return ours is not None and ours.id is None and ours == theirs


def _margin_nats(target_only: Sequence[Position], index: int) -> float | None:
    top = target_only[index].top if index < len(target_only) else ()
    best = sorted((entry.logprob for entry in top), reverse=True)[:2]
    return best[0] - best[1] if len(best) == 2 else None
