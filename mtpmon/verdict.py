"""Is drafting paying? One of four answers, from the bounds of the margin, that does not flap.

* ``paying`` when the whole interval of the margin is above 0, ``costing`` when it is below.
* A verdict reached is kept while the middle of the interval stays on its side: to lose it,
  the figure must move by half an interval, which noise that just sufficed to reach it
  seldom does.
* ``undecided`` if neither was reached, or one was lost.
* ``no_data`` without a margin or with too few steps. Twice as many are needed to begin as to
  go on, so that traffic near the limit does not switch back and forth.
* A change must last ``settle_seconds`` before it counts, except to or from ``no_data``, and
  except where the evidence is clear: the interval is farther from 0 than half its width.
"""

from enum import StrEnum

import msgspec

from mtpmon.model import Bounded


class Verdict(StrEnum):
    """Exactly one holds at a time."""

    PAYING = "paying"
    COSTING = "costing"
    UNDECIDED = "undecided"
    NO_DATA = "no_data"


class VerdictRules(msgspec.Struct, frozen=True, kw_only=True):
    """When a verdict is given and when it changes.

    ``min_steps``: verification steps that it needs to begin with; half to go on.
    ``settle_seconds``: half the window that the margin is over is a good choice.
    """

    min_steps: float = 200.0
    settle_seconds: float = 150.0


class Standing(msgspec.Struct, frozen=True):
    """A verdict and since when it holds; the one that may follow, and since when that shows."""

    verdict: Verdict
    since_unix_seconds: float
    leaning: Verdict | None = None
    leaning_since_unix_seconds: float | None = None


def decide(
    previous: Standing | None,
    *,
    margin: Bounded | None,
    steps: float,
    now: float,
    rules: VerdictRules,
) -> Standing:
    """The verdict now, given the one before.

    Args:
        previous: what held so far; ``None`` at the start.
        margin: acceptance less breakeven; ``None`` if it is not known (any more).
        steps: verification steps behind it.
        now: Unix seconds, at which a new verdict begins.
        rules: how much must be seen, and for how long.
    """
    if previous is None:
        return Standing(_shown(Verdict.NO_DATA, margin, steps, rules), now)
    before = previous.verdict
    shown = _shown(before, margin, steps, rules)
    if shown is before:
        return Standing(before, previous.since_unix_seconds)
    since = now
    if shown is previous.leaning and previous.leaning_since_unix_seconds is not None:
        since = previous.leaning_since_unix_seconds
    if (
        Verdict.NO_DATA in (before, shown)
        or _is_clear(margin)
        or now - since >= rules.settle_seconds
    ):
        return Standing(shown, now)
    return Standing(before, previous.since_unix_seconds, shown, since)


def _shown(before: Verdict, margin: Bounded | None, steps: float, rules: VerdictRules) -> Verdict:
    """What this margin shows, to one who held ``before``."""
    fewest = rules.min_steps / (1 if before is Verdict.NO_DATA else 2)
    if margin is None or steps < fewest:
        return Verdict.NO_DATA
    if margin.lower > 0:
        return Verdict.PAYING
    if margin.upper < 0:
        return Verdict.COSTING
    middle = (margin.lower + margin.upper) / 2
    if (before is Verdict.PAYING and middle > 0) or (before is Verdict.COSTING and middle < 0):
        return before
    return Verdict.UNDECIDED


def _is_clear(margin: Bounded | None) -> bool:
    return (
        margin is not None and max(margin.lower, -margin.upper) > (margin.upper - margin.lower) / 2
    )
