"""A viability sweep: the same prompts with every draft length, each against plain decoding.

Two answers to one question are put side by side: how fast each draft length was when a server
really ran with it, and what the server with the longest drafts alone would have made of it.
"""

from collections.abc import Mapping, Sequence

import msgspec

from mtpmon.grade import Graded, GradeRules, grade
from mtpmon.model import Bounded, Identity, ProbeOutcome, ProbeResult
from mtpmon.payoff import probe_payoff
from mtpmon.request import requests_of
from mtpmon.rolling import TaskFigures, task_figures
from mtpmon.worth import Measured, WorthRules, measure


class Predicted(msgspec.Struct, frozen=True, kw_only=True):
    """What the server with the longest drafts says of another setting.

    ``error``: its speed-up over the measured one, less 1. ``within_bounds``: whether the gain
    that was measured, over the longest setting, lies in the bounds of the predicted one;
    ``None`` where there are none.
    """

    speedup: float
    error: float
    within_bounds: bool | None


class Depth(msgspec.Struct, frozen=True, kw_only=True):
    """What a server that drafts up to ``drafted`` tokens did.

    ``speedup`` is the mean over prompts, ``step_ratio`` a drafting step over a plain one and
    ``breakeven`` the acceptance at which that is paid for. ``tasks`` and ``grades`` are by
    task. ``None``: too few prompts completed.
    """

    drafted: int
    probes: int
    failed: int
    figures: TaskFigures
    step_ratio: Bounded | None
    breakeven: Bounded | None
    predicted: Predicted | None
    tasks: Mapping[str, TaskFigures]
    grades: Mapping[str, Graded]

    @property
    def speedup(self) -> Bounded | None:
        return self.figures.speedup


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """All draft lengths, shortest first.

    ``best`` was the fastest and ``as_good`` are those whose bounds overlap with its own; 0 is
    plain decoding. ``named`` is what the server with the longest drafts finds fastest,
    ``words`` its advice. ``by_task`` is the fastest for each task. ``None``: not known.
    """

    depths: tuple[Depth, ...]
    best: int | None
    as_good: tuple[int, ...]
    named: int | None
    words: str | None
    by_task: Mapping[str, int]


def sweep(
    results: Mapping[int, Sequence[ProbeResult]], *, rules: WorthRules, confidence: float
) -> Sweep:
    """Put the probes of all draft lengths together.

    Args:
        results: probes by draft length, each with its plain twin.
        rules: how costs and grades are judged.
        confidence: of the bounds of measured speed-ups.
    """
    longest = max(results)
    measured = {drafted: _measured(found, rules) for drafted, found in results.items()}
    whole = {
        drafted: task_figures(_completed(found), confidence=confidence)
        for drafted, found in results.items()
    }
    depths = tuple(
        _depth(
            drafted,
            results[drafted],
            whole,
            measured,
            longest=longest,
            rules=rules.grades,
            confidence=confidence,
        )
        for drafted in sorted(results)
    )
    best, as_good = _best({d.drafted: d.speedup for d in depths if d.speedup is not None})
    tasks = dict.fromkeys(task for depth in depths for task in depth.tasks)
    advice = measured[longest].advice
    return Sweep(
        depths=depths,
        best=best,
        as_good=as_good,
        named=advice.best if advice is not None else None,
        words=measured[longest].advice_words,
        by_task={
            task: found
            for task in tasks
            if (found := _best(_speedups(depths, task))[0]) is not None
        },
    )


def _completed(results: Sequence[ProbeResult]) -> list[ProbeResult]:
    return [result for result in results if result.outcome is ProbeOutcome.COMPLETED]


def _measured(results: Sequence[ProbeResult], rules: WorthRules) -> Measured:
    """What the probes of one server say of its costs, all of them: the sweep is over."""
    return measure(
        _completed(results),
        identity=Identity(),
        now=max((result.unix_seconds for result in results), default=0.0),
        previous=Measured(),
        rules=rules,
    )


def _depth(
    drafted: int,
    results: Sequence[ProbeResult],
    whole: Mapping[int, TaskFigures],
    measured: Mapping[int, Measured],
    *,
    longest: int,
    rules: GradeRules,
    confidence: float,
) -> Depth:
    completed = _completed(results)
    tasks = {
        task: task_figures([r for r in completed if r.task == task], confidence=confidence)
        for task in dict.fromkeys(r.task for r in completed)
    }
    costs = measured[drafted].costs
    paid = None
    if costs is not None:
        requests = [request for result in completed for request in requests_of(result)]
        paid = probe_payoff(requests, costs, confidence=confidence)
    return Depth(
        drafted=drafted,
        probes=len(completed),
        failed=len(results) - len(completed),
        figures=whole[drafted],
        step_ratio=paid.step_ratio if paid is not None else None,
        breakeven=paid.breakeven if paid is not None else None,
        predicted=_predicted(drafted, whole, measured[longest], longest),
        tasks=tasks,
        grades={
            task: grade(found.speedup, rules)
            for task, found in tasks.items()
            if found.speedup is not None
        },
    )


def _predicted(
    drafted: int, whole: Mapping[int, TaskFigures], seen: Measured, longest: int
) -> Predicted | None:
    """What the server with the longest drafts says of ``drafted``, and how true it was."""
    there, here = whole[longest].speedup, whole[drafted].speedup
    option = seen.advice.option(drafted) if seen.advice is not None else None
    if option is None or option.speedup is None or there is None or here is None:
        return None
    bounds, gain = option.gain_bounds, here.value / there.value - 1
    return Predicted(
        speedup=option.speedup,
        error=option.speedup / here.value - 1,
        within_bounds=bounds.lower <= gain <= bounds.upper if bounds is not None else None,
    )


def _speedups(depths: Sequence[Depth], task: str) -> dict[int, Bounded]:
    found = {depth.drafted: depth.tasks[task].speedup for depth in depths if task in depth.tasks}
    return {drafted: speedup for drafted, speedup in found.items() if speedup is not None}


def _best(speedups: Mapping[int, Bounded]) -> tuple[int | None, tuple[int, ...]]:
    """The fastest setting, plain decoding among them, and those that may be as fast."""
    if not speedups:
        return None, ()
    all_of_them = {0: Bounded(1.0, 1.0, 1.0), **speedups}
    best = max(all_of_them, key=lambda drafted: all_of_them[drafted].value)
    least = all_of_them[best].lower
    as_good = [d for d, found in all_of_them.items() if found.upper >= least]
    return best, tuple(sorted(as_good))
