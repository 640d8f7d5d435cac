"""Is it paying? Everything that the board says of cost, breakeven, verdict and advice.

Probes measure what steps cost and how alike the steps of a request are; live traffic says
what is kept. This module only brings the two together; the estimators are in ``cost``,
``payoff``, ``depth``, ``verdict`` and ``grade``.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from mtpmon.cost import PlainSource, PlainStep, StepCosts, expired, step_costs
from mtpmon.depth import DepthAdvice, best_depth, in_words
from mtpmon.grade import Graded, GradeRules, grade
from mtpmon.model import Bounded, Identity, ProbeResult, Usage
from mtpmon.payoff import FEWEST_PROMPTS, Payoff, disagreement, payoff, probe_payoff
from mtpmon.request import (
    Expiry,
    Request,
    current,
    kept_by_prompt,
    requests_of,
    tally_of_requests,
)
from mtpmon.spread import design_effect, expected_design_effect, kept_correlation
from mtpmon.tally import batches, tally_of_usage
from mtpmon.verdict import Standing, VerdictRules, decide
from mtpmon.window import Sample

Cell = tuple[str, float, bool | None]
"""One cell of the viability matrix: task, temperature, thinking."""


class WorthRules(msgspec.Struct, frozen=True, kw_only=True):
    """How evidence becomes an answer.

    ``max_age_seconds``: older costs do not count any more.
    """

    confidence: float = 0.95
    max_age_seconds: float = 86_400.0
    verdict: VerdictRules = VerdictRules()
    task_verdict: VerdictRules = VerdictRules(min_steps=60.0, settle_seconds=0.0)
    grades: GradeRules = GradeRules()


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What recent probes of a server say; worked out anew after each probe.

    ``likeness``: the intraclass correlation of kept lengths within a request. ``tasks`` and
    ``task_verdicts`` are by task.
    """

    costs: StepCosts | None = None
    expiry: Expiry | None = None
    likeness: float = 0.0
    disagreement: Bounded | None = None
    tasks: Mapping[str, Payoff] = {}
    task_verdicts: Mapping[str, Standing] = {}
    advice: DepthAdvice | None = None
    advice_words: str | None = None


class Paying(msgspec.Struct, frozen=True, kw_only=True):
    """What live traffic makes of it: a payoff for each window, and the verdict.

    ``design_effect``: variance of the mean kept length over that of independent steps.
    """

    design_effect: float | None = None
    windows: Mapping[float, Payoff] = {}
    verdict: Standing | None = None


def measure(
    probed: Iterable[ProbeResult],
    *,
    identity: Identity,
    now: float,
    previous: Measured,
    rules: WorthRules,
    capture: PlainStep | None = None,
) -> Measured:
    """Work out cost and what follows from probes alone.

    Args:
        probed: completed probes, oldest first.
        identity: of the server now.
        now: Unix seconds.
        previous: what held before; verdicts go on from it.
        rules: how evidence becomes an answer.
        capture: a plain step measured while the server ran without drafting.
    """
    every = [request for result in probed for request in requests_of(result)]
    requests = current(every, now=now, identity=identity, max_age_seconds=rules.max_age_seconds)
    costs = step_costs(requests, confidence=rules.confidence, capture=capture)
    if costs is None:
        return Measured(
            expiry=_expiry(previous, now=now, identity=identity, rules=rules),
            task_verdicts=_task_verdicts({}, previous, now, rules),
        )
    counts = kept_by_prompt(requests)
    tasks = {
        task: paid
        for task in dict.fromkeys(request.task for request in requests)
        if (paid := _task_payoff(requests, task, costs, rules)) is not None
    }
    tally = tally_of_requests(requests) or costs.mix
    advice = best_depth(
        tally,
        costs,
        confidence=rules.confidence,
        counts=counts if len(counts) >= FEWEST_PROMPTS else None,
        known=_other_settings(every, now=now, identity=identity, rules=rules),
    )
    return Measured(
        costs=costs,
        likeness=kept_correlation(counts),
        disagreement=disagreement(requests, costs, confidence=rules.confidence),
        tasks=tasks,
        task_verdicts=_task_verdicts(tasks, previous, now, rules),
        advice=advice,
        advice_words=in_words(advice) if advice is not None else None,
    )


def _other_settings(
    every: Iterable[Request], *, now: float, identity: Identity, rules: WorthRules
) -> dict[int, Bounded]:
    """R at other draft lengths that earlier processes of this build and model were set to.

    Only against a target-only server: what flatters would do so by another factor each time.
    Of several with the same length the latest counts.
    """
    found: dict[int, Bounded] = {}
    earlier: dict[str, list[Request]] = {}
    for request in every:
        token = request.identity.start_token
        if token not in (None, identity.start_token):
            earlier.setdefault(token or "", []).append(request)
    for token, requests in earlier.items():
        then = msgspec.structs.replace(identity, start_token=token)
        held = current(requests, now=now, identity=then, max_age_seconds=rules.max_age_seconds)
        costs = step_costs(held, confidence=rules.confidence)
        plain = costs.plain if costs is not None else None
        if costs is not None and plain is not None and plain.source is PlainSource.PAIR:
            found[costs.longest] = plain.ratio
    return found


def _expiry(
    previous: Measured, *, now: float, identity: Identity, rules: WorthRules
) -> Expiry | None:
    """Why there are no costs any more, if there were some."""
    if previous.costs is None:
        return previous.expiry
    return expired(
        previous.costs, now=now, identity=identity, max_age_seconds=rules.max_age_seconds
    )


def _task_payoff(
    requests: Sequence[Request], task: str, costs: StepCosts, rules: WorthRules
) -> Payoff | None:
    chosen = [request for request in requests if request.task == task]
    return probe_payoff(chosen, costs, confidence=rules.confidence)


def _task_verdicts(
    tasks: Mapping[str, Payoff], previous: Measured, now: float, rules: WorthRules
) -> dict[str, Standing]:
    names = dict.fromkeys([*previous.task_verdicts, *tasks])
    return {
        task: decide(
            previous.task_verdicts.get(task),
            margin=tasks[task].margin if task in tasks else None,
            steps=tasks[task].drafts if task in tasks else 0.0,
            now=now,
            rules=rules.task_verdict,
        )
        for task in names
    }


def graded(speedups: Mapping[Cell, Bounded | None], rules: GradeRules) -> dict[Cell, Graded]:
    """The viability matrix: a grade for each cell that was measured."""
    return {
        cell: grade(speedup, rules) for cell, speedup in speedups.items() if speedup is not None
    }


def live_design_effect(samples: Sequence[Sample], usage: Usage | None, likeness: float) -> float:
    """How much the likeness of steps widens the bounds of users' traffic.

    Seen in batches of requests that ended together; few of them say little, so the result
    is drawn towards what the likeness within probes gives for requests as long as users'.
    How many requests there were is known from below, so they count as longer than they are.
    """
    prior = 1.0
    if usage is not None and usage.drafts is not None:
        mean = usage.drafts.value / max(usage.requests, 1)
        # Long requests weigh more; for lengths that scatter like an exponential's, half more.
        prior = expected_design_effect(likeness, 1.5 * mean)
    return design_effect(batches(samples), prior=prior)


def judge(
    usages: Iterable[tuple[float, Usage | None]],
    measured: Measured,
    *,
    effect: float,
    deciding_seconds: float,
    now: float,
    previous: Paying,
    rules: WorthRules,
) -> Paying:
    """Bring live traffic and measured costs together.

    Args:
        usages: what users' traffic did in each window, by its width in seconds.
        measured: by probes.
        effect: the design effect of ``live_design_effect``.
        deciding_seconds: width of the window that the verdict is over.
        now: Unix seconds.
        previous: what held before; the verdict goes on from it.
        rules: how evidence becomes an answer.
    """
    windows: dict[float, Payoff] = {}
    for width, usage in usages:
        tally = tally_of_usage(usage) if usage is not None else None
        if tally is None or measured.costs is None:
            continue
        paid = payoff(
            tally,
            measured.costs,
            confidence=rules.confidence,
            design_effect=effect,
        )
        if paid is not None:
            windows[width] = paid
    deciding = windows.get(deciding_seconds)
    return Paying(
        design_effect=effect if windows else None,
        windows=windows,
        verdict=decide(
            previous.verdict,
            margin=deciding.margin if deciding is not None else None,
            steps=deciding.drafts if deciding is not None else 0.0,
            now=now,
            rules=rules.verdict,
        ),
    )
