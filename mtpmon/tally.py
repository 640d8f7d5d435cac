"""What verification steps kept: the counts that speed-up, margin and advice start from."""

from collections.abc import Iterable, Sequence

import msgspec

from mtpmon.derive import difference, without
from mtpmon.model import Step, Usage
from mtpmon.spread import Counts
from mtpmon.steps import accepted_by_position
from mtpmon.window import Sample, accepted_amount, plausible_positions

BATCH_ROUNDING = 0.02


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of verification steps.

    ``by_position``: how many of ``drafts`` kept each position. ``undrafted``: decode steps
    without a draft that came with them. ``rounding``: the largest share of ``drafts`` that
    printing may have rounded away.
    """

    drafts: float
    draft_tokens: float
    by_position: tuple[float, ...]
    undrafted: float = 0.0
    rounding: float = 0.0

    @property
    def kept(self) -> float:
        """Mean tokens kept by a step."""
        return sum(self.by_position) / self.drafts

    @property
    def width(self) -> float:
        """Mean tokens drafted by a step."""
        return self.draft_tokens / self.drafts

    def shares(self, longest: int) -> tuple[float, ...]:
        """The share of steps that kept exactly 0, 1, … ``longest`` tokens.

        Tokens at positions beyond ``longest`` are left out: steps that kept more count as
        having kept ``longest``.
        """
        counts = [self.drafts, *self.by_position[:longest]]
        counts += [0.0] * (longest + 2 - len(counts))
        return tuple(max(counts[k] - counts[k + 1], 0.0) / self.drafts for k in range(longest + 1))

    @property
    def histogram(self) -> tuple[float, ...]:
        """How many steps kept exactly 0, 1, … tokens."""
        return tuple(share * self.drafts for share in self.shares(len(self.by_position)))


def tally_of_usage(usage: Usage) -> Tally | None:
    """The tally of counters, or ``None``: no drafts, or no (plausible) per-position counts.

    How many requests there were is known from below only, and every request more is an
    undrafted step less, so ``undrafted`` may be too high: it errs against drafting.
    """
    drafts, drafted, positions = usage.drafts, usage.draft_tokens, usage.accepted_by_position
    if drafts is None or drafted is None or positions is None:
        return None
    if drafts.value < 1 or drafted.value <= 0 or not plausible_positions(positions, drafts):
        return None
    accepted = accepted_amount(usage)
    undrafted = 0.0
    if usage.generated_tokens is not None and accepted is not None:
        steps = usage.generated_tokens.value - usage.requests - accepted.value
        undrafted = max(steps - drafts.value, 0.0)
    return Tally(
        drafts=drafts.value,
        draft_tokens=drafted.value,
        by_position=tuple(float(n) for n in positions),
        undrafted=undrafted,
        rounding=drafts.half_width / drafts.value,
    )


def tally_of_steps(steps: Iterable[Step]) -> Tally | None:
    """The tally of decode steps, or ``None`` if none of them drafted."""
    every = list(steps)
    drafting = [step for step in every if step.drafted]
    if not drafting:
        return None
    return Tally(
        drafts=float(len(drafting)),
        draft_tokens=float(sum(step.drafted for step in drafting)),
        by_position=tuple(float(n) for n in accepted_by_position(drafting)),
        undrafted=float(len(every) - len(drafting)),
    )


def batches(samples: Sequence[Sample]) -> Counts:
    """What users' requests kept, a histogram for each batch of requests that ended together.

    A batch is what the counters gained between two looks; it reaches over several of them
    where printing rounds away more than a fiftieth of fewer.
    """
    found: list[tuple[float, ...]] = []
    if not samples:
        return found
    start = samples[0]
    for sample in samples[1:]:
        if not sample.moved:
            continue
        own = difference(sample.own, start.own)
        tally = tally_of_usage(without(difference(sample.server, start.server), own))
        if tally is not None and tally.rounding <= BATCH_ROUNDING:
            found.append(tally.histogram)
            start = sample
    return found
