"""Servers for change detection to watch, whose truth is known."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import msgspec
import numpy as np

from mtpmon.model import (
    Amount,
    Completion,
    Divergence,
    ProbeOutcome,
    ProbeResult,
    Step,
    StepStream,
    Timings,
    Usage,
)
from mtpmon.shift.acceptance import Acceptance, lived, probed
from mtpmon.shift.batch import Batch
from mtpmon.shift.evidence import Array, Direction
from mtpmon.shift.found import Phase
from mtpmon.shift.learned import Counts
from mtpmon.shift.server import Change, Figure, Shifts
from mtpmon.shift.settings import Settings
from tests.fleet import Fleet, chance, drawn, mixed

SETTINGS = Settings(acquaint_seconds=0.0)
CODE, MIDDLE, CREATIVE = 0.85, 0.65, 0.45


def batch(
    began: float, ended: float, trials: Sequence[float] | Array, kept: Sequence[float] | Array
) -> Batch:
    return Batch(
        began_unix_seconds=began,
        ended_unix_seconds=ended,
        steps=float(trials[0]) if len(trials) else 0.0,
        trials=tuple(float(n) for n in trials),
        kept=tuple(float(n) for n in kept),
    )


@cache
def _two_tasks() -> tuple[Counts, float]:
    fleet = Fleet(20).learn(mixed({CODE: 1, CREATIVE: 1}), 300, 100)
    return fleet.detector, fleet.at


def two_tasks() -> Fleet:
    """Servers whose requests are of two tasks, and who have learned that."""
    fleet = Fleet(20)
    fleet.detector, fleet.at = _two_tasks()
    return fleet


def usage(
    drafts: float, *positions: int, width: float = 3.0, error: float = 0.0, carried: float = 0.0
) -> Usage:
    return Usage(
        drafts=Amount(drafts, error, carried),
        draft_tokens=Amount(width * drafts, width * error, width * carried),
        accepted_tokens=Amount(float(sum(positions)), error),
        accepted_by_position=positions,
    )


class Watched:
    """One server as the daemon keeps it."""

    def __init__(self, state: Acceptance, at: float, seed: int = 1) -> None:
        self.state, self.at, self.rng = state, at, np.random.default_rng(seed)
        self.settings = SETTINGS

    def live(self, *levels: float, batches: int = 1, steps: int = 350) -> "Watched":
        """Requests, one every five minutes, of tasks chosen at random."""
        for _ in range(batches):
            began, self.at = self.at, self.at + 300
            trials, kept = drawn(self.rng, steps, chance(float(self.rng.choice(levels))))
            self.state = lived(self.state, batch(began, self.at, trials, kept), self.settings)
        return self

    def probe(self, factor: float = 1.0) -> "Watched":
        """A probe of each of two tasks."""
        for task, level in (("code", CODE), ("creative", CREATIVE)):
            began, self.at = self.at, self.at + 30
            trials, kept = drawn(self.rng, 20, chance(level * factor))
            found = msgspec.structs.replace(batch(began, self.at, trials, kept), stratum=task)
            self.state = probed(self.state, found, self.settings)
        return self

    def until(self, phase: Phase, act: Callable[[], object], most: int) -> int:
        for count in range(1, most + 1):
            act()
            if self.state.phase is phase:
                return count
        raise AssertionError(f"not {phase} within {most}")


@cache
def _mixed(*, probes: bool) -> Watched:
    server = Watched(Acceptance(), 0.0)
    for _ in range(220):
        server.live(CODE, CREATIVE)
        if probes:
            server.probe()
    return server


def known(*, probes: bool, seed: int = 1) -> Watched:
    """A server with two tasks whose detector has learned."""
    learned = _mixed(probes=probes)
    return Watched(learned.state, learned.at, seed)


@cache
def _steady() -> Watched:
    return Watched(Acceptance(), 0.0).live(0.82, batches=220)


def steady(seed: int = 1) -> Watched:
    """A server with one task, without probes."""
    learned = _steady()
    return Watched(learned.state, learned.at, seed)


def probe(
    *steps: tuple[int, int], task: str = "code", klds: Sequence[float] = (), seconds: float = 0.02
) -> ProbeResult:
    drafted, kept = sum(s[0] for s in steps), sum(s[1] for s in steps)
    return ProbeResult(
        server="a",
        prompt_id="p",
        task=task,
        unix_seconds=100,
        duration_seconds=9,
        outcome=ProbeOutcome.COMPLETED,
        speculating=Completion(
            positions=(),
            timings=Timings(
                prompt_tokens=1,
                prompt_seconds=0,
                cached_tokens=0,
                generated_tokens=9,
                generation_seconds=1,
                draft_tokens=drafted,
                accepted_tokens=kept,
            ),
            stream=StepStream(steps=tuple(Step(*s, seconds) for s in steps)),
            wall_seconds=1,
        ),
        after_speculation=tuple(
            Divergence(nats=n, coverage=1, shared_tokens=5, top1_agrees=True) for n in klds
        ),
    )


def change(figure: Figure, **other: Any) -> Change:
    """Acceptance that fell from 0.82 to 0.61 at 14:03, found seven minutes later."""
    usual: dict[str, Any] = {
        "direction": Direction.FALL,
        "began_unix_seconds": 50_580.0,
        "detected_unix_seconds": 51_000.0,
        "before": 0.82,
        "after": 0.61,
    }
    return Change(figure=figure, **usual | other)


def shifted() -> Shifts:
    """A fall of every figure."""
    return Shifts(
        standing={figure: change(figure) for figure in Figure},
        totals={(figure, Direction.FALL): 1 for figure in Figure},
    )
