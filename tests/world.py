"""Simulated servers whose truth is known: what estimators are tested against."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mtpmon.model import Step
from mtpmon.request import Request
from mtpmon.tally import Tally

Array = npt.NDArray[np.float64]
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(60)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A speculating server and its target-only twin. A plain step costs 1 at level 1.

    Attributes:
        conditional: Chance of keeping each position, given the one before was kept.
        likeness: Standard deviation of the log odds of these between requests.
        bases: What a kept step costs on servers set to draft 0, 1, … tokens; entry 0 is the
            line's start: an undrafted step without the cost of planning.
        rollback: What a rejected step costs more, by tokens kept.
        pass_cost: One draft token drafted, whether used or not.
        planning: What a step costs more whose batch differs from the one before.
        startup: What the first step of a request costs more, planning included.
        scatter: Of the log of one step's time.
        request_scatter: Of the log of one request's level.
        stall: Chance that a step of cost 1 stalls; longer ones stall more often.
        stall_size: What a stall adds.
        disturbed: Chance that one request runs beside something else, 1.4 times as slow.
        drift: Standard deviation of the log of the machine's speed from pair to pair.
    """

    conditional: tuple[float, ...] = (0.85, 0.8, 0.75)
    likeness: float = 0.0
    bases: tuple[float, ...] = (1.1, 1.35, 1.6, 1.85)
    rollback: tuple[float, ...] = (0.0, 0.0, 0.0)
    pass_cost: float = 0.1
    planning: float = 0.1
    startup: float = 0.15
    scatter: float = 0.05
    request_scatter: float = 0.01
    stall: float = 0.0
    stall_size: float = 5.0
    disturbed: float = 0.0
    drift: float = 0.0

    @property
    def longest(self) -> int:
        return len(self.conditional)

    def positions(self) -> Array:
        """Chance that a step keeps each position, over requests of equally many steps."""
        chances = _shifted(self.conditional, self.likeness * NODES)
        kept: Array = np.cumprod(chances, axis=1).T @ (WEIGHTS / WEIGHTS.sum())
        return kept

    def shares(self) -> Array:
        """Chance that a step keeps exactly 0, 1, … tokens."""
        steps = np.concatenate(([1.0], self.positions(), [0.0]))
        return steps[:-1] - steps[1:]

    def length(self, drafted: int | None = None) -> float:
        """True acceptance length of a server set to ``drafted``."""
        return 1.0 + float(self.positions()[:drafted].sum())

    def ratio(self, drafted: int | None = None) -> float:
        """True mean step cost in plain steps of a server set to ``drafted``."""
        drafted = self.longest if drafted is None else drafted
        extra = np.zeros(self.longest + 1)
        extra[:drafted] = self.rollback[:drafted]
        return self.bases[drafted] + float(self.shares() @ extra)

    def speedup(self, drafted: int | None = None) -> float:
        return self.length(drafted) / self.ratio(drafted)

    def margin(self) -> float:
        return (self.length() - self.ratio()) / self.longest

    def kept(self, rng: np.random.Generator, requests: int, steps: int) -> npt.NDArray[np.intp]:
        """Tokens kept by each step (column) of each request (row)."""
        chances = _shifted(self.conditional, self.likeness * rng.standard_normal(requests))
        draws = rng.random((requests, steps, self.longest)) < chances[:, None, :]
        found: npt.NDArray[np.intp] = np.cumprod(draws, axis=2).sum(axis=2)
        return found

    def pairs(self, rng: np.random.Generator, pairs: int, *, tokens: int = 64) -> list[Request]:
        """Interleaved comparisons, both arms of each; the order alternates."""
        kept = self.kept(rng, pairs, tokens)
        levels = np.exp(self.drift * np.cumsum(rng.standard_normal((pairs, 2)).ravel()))
        found = []
        for pair, row in enumerate(kept):
            arms = [
                self._speculating(row, tokens),
                (np.zeros((2, tokens - 1), int), self._plain(tokens)),
            ]
            order = (0, 1) if pair % 2 else (1, 0)
            for place, arm in enumerate(order):
                counts, costs = arms[arm]
                seconds = self._timed(rng, costs) * levels[2 * pair + place] * 0.02
                found.append(
                    Request(
                        arm="target_only" if arm else "speculating",
                        steps=tuple(map(Step, *counts.tolist(), seconds.tolist())),
                        unix_seconds=100.0 * pair + place,
                        task="code",
                        prompt=str(pair),
                        pair=str(pair),
                        context_tokens=100 + tokens,
                    )
                )
        return found

    def _speculating(
        self, kept: npt.NDArray[np.intp], tokens: int
    ) -> tuple[npt.NDArray[np.intp], Array]:
        left = tokens - 1 - np.concatenate(([0], np.cumsum(1 + kept)[:-1]))
        kept, left = kept[left > 0], left[left > 0]
        drafted = np.minimum(left - 1, self.longest)
        kept = np.minimum(kept, drafted)
        costs = np.array(self.bases)[drafted]
        cut = drafted < self.longest
        costs = costs + np.where(cut, self.planning, 0.0)
        costs += np.where(cut & (drafted > 0), self.pass_cost * (self.longest - drafted), 0.0)
        extra = np.append(np.array(self.rollback), 0.0)
        costs += np.where(kept < drafted, extra[kept], 0.0)
        costs[0] += self.startup
        return np.array([drafted, kept]), costs

    def _plain(self, tokens: int) -> Array:
        costs = np.ones(tokens - 1)
        costs[0] += self.startup
        return costs

    def _timed(self, rng: np.random.Generator, costs: Array) -> Array:
        """What the steps of one request take, in plain steps."""
        noise = self.scatter * rng.standard_normal(len(costs))
        level = self.request_scatter * rng.standard_normal()
        level += np.log(1.4) * (rng.random() < self.disturbed)
        stalled = rng.random(len(costs)) < self.stall * costs
        found: Array = costs * np.exp(noise + level) + np.where(stalled, self.stall_size, 0.0)
        return found

    def traffic(
        self, rng: np.random.Generator, steps: int, lengths: Sequence[int]
    ) -> tuple[Tally, list[Tally]]:
        """Users' requests of ``lengths`` steps in turn until there are ``steps``, and each."""
        sizes: list[int] = []
        while sum(sizes) < steps:
            sizes.append(min(lengths[len(sizes) % len(lengths)], steps - sum(sizes)))
        kept = self.kept(rng, len(sizes), max(sizes))
        each = [self.tally(row[:size]) for row, size in zip(kept, sizes, strict=True)]
        return self.tally(
            np.concatenate([row[:n] for row, n in zip(kept, sizes, strict=True)])
        ), each

    def tally(self, kept: npt.NDArray[np.intp]) -> Tally:
        """Counts of steps that all drafted in full."""
        at_least = np.bincount(kept, minlength=self.longest + 1)[::-1].cumsum()[::-1]
        return Tally(
            drafts=float(len(kept)),
            draft_tokens=float(len(kept) * self.longest),
            by_position=tuple(at_least[1:].astype(float).tolist()),
        )


def _shifted(conditional: Sequence[float], by: Array) -> Array:
    """Chances with their log odds moved by each of ``by`` (rows)."""
    odds = np.log(np.array(conditional) / (1 - np.array(conditional)))
    chances: Array = 1 / (1 + np.exp(-(odds[None, :] + by[:, None])))
    return chances
