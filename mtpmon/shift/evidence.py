"""Sums of evidence that start again at zero (CUSUM), and the alarm that they raise."""

from enum import StrEnum

import msgspec
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Truth = NDArray[np.bool_]
LEAST_THRESHOLD = 3.0
SIGNS: Array = np.array([[-1.0], [1.0]])  # fall, rise


class Direction(StrEnum):
    """Which way a figure moved."""

    FALL = "fall"
    RISE = "rise"


DIRECTIONS = (Direction.FALL, Direction.RISE)


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


def emptied(evidence: Bank) -> Bank:
    return msgspec.structs.replace(evidence, score=np.zeros_like(evidence.score))


def highest(excess: Array) -> tuple[int, int, int] | None:
    """The place of the evidence furthest above its threshold, if there is any."""
    place = np.unravel_index(int(np.argmax(excess)), excess.shape)
    kind, direction, size = (int(i) for i in place)
    return (kind, direction, size) if excess[place] >= 0 else None
