"""Metrics of what drafting is worth: cost, breakeven, verdict and advice, each as a row."""

from collections.abc import Callable, Iterator

from mtpmon.cost import StepCosts
from mtpmon.duration import format_duration
from mtpmon.exportrow import UNLABELLED, Part, Row, Sample, Samples, bounded_rows, known, unlabelled
from mtpmon.grade import Grade
from mtpmon.model import Bounded
from mtpmon.payoff import Payoff
from mtpmon.snapshot import ServerSnapshot
from mtpmon.verdict import Verdict


def _step_seconds(server: ServerSnapshot) -> Iterator[Sample]:
    costs = server.measured.costs
    if costs is None:
        return
    if costs.plain is not None:
        yield from known(costs.plain.seconds.value, "0")
    for length in costs.lengths:
        seconds = length.relative.value * costs.step_seconds.value
        yield from known(seconds, str(length.drafted))


def _longest_context(server: ServerSnapshot) -> float | None:
    costs = server.measured.costs
    return costs.context_tokens[1] if costs is not None else None


def _cost(
    read: Callable[[StepCosts], Bounded | None],
) -> Callable[[ServerSnapshot], Bounded | None]:
    def found(server: ServerSnapshot) -> Bounded | None:
        return read(server.measured.costs) if server.measured.costs is not None else None

    return found


def _one(
    read: Callable[[ServerSnapshot], Bounded | None],
) -> Callable[[Part], Samples]:
    """A bounded figure with no labels but ``server``."""
    return lambda part: lambda server: known(part(read(server)))


def _paid(
    read: Callable[[Payoff], Bounded],
) -> Callable[[Part], Samples]:
    """A bounded figure of live traffic, by window."""

    def rows(part: Part) -> Samples:
        def samples(server: ServerSnapshot) -> Iterator[Sample]:
            for seconds, payoff in server.paying.windows.items():
                yield from known(part(read(payoff)), format_duration(seconds))

        return samples

    return rows


def _task_paid(
    read: Callable[[Payoff], Bounded],
) -> Callable[[Part], Samples]:
    """A bounded figure of probes, by task."""

    def rows(part: Part) -> Samples:
        def samples(server: ServerSnapshot) -> Iterator[Sample]:
            for task, payoff in server.measured.tasks.items():
                yield from known(part(read(payoff)), task)

        return samples

    return rows


def _verdict(server: ServerSnapshot) -> Iterator[Sample]:
    standing = server.paying.verdict
    if standing is not None:
        for verdict in Verdict:
            yield from known(float(standing.verdict is verdict), verdict.value)


def _task_verdicts(server: ServerSnapshot) -> Iterator[Sample]:
    for task, standing in server.measured.task_verdicts.items():
        for verdict in Verdict:
            yield from known(float(standing.verdict is verdict), task, verdict.value)


_THINKING = {True: "on", False: "off", None: "default"}


def _grades(server: ServerSnapshot) -> Iterator[Sample]:
    for (task, temperature, thinking), graded in server.grades.items():
        for grade in Grade:
            labels = task, f"{temperature:g}", _THINKING[thinking], grade.value
            yield from known(float(graded.grade is grade), *labels)


def _advised(server: ServerSnapshot) -> float | None:
    advice = server.measured.advice
    if advice is None:
        return None
    return advice.advised if advice.advised is not None else advice.present


def _gain(server: ServerSnapshot) -> Bounded | None:
    advice, depth = server.measured.advice, _advised(server)
    if advice is None or depth is None:
        return None
    option = advice.option(int(depth))
    return option.gain_bounds if option is not None else None


WORTH: tuple[Row, ...] = (
    Row(
        "mtpmon_step_seconds",
        "gauge",
        ("draft_tokens",),
        "Typical cost of a decode step by draft length; 0 is a plain step.",
        _step_seconds,
    ),
    *bounded_rows(
        "mtpmon_step_cost",
        "ratio",
        UNLABELLED,
        "Cost of a verification step over that of a plain decode step.",
        _one(_cost(lambda costs: costs.plain.ratio if costs.plain is not None else None)),
    ),
    Row(
        "mtpmon_step_cost_context_tokens",
        "gauge",
        UNLABELLED,
        "Longest context of the probes that step costs rest on; they ran one request at a time.",
        unlabelled(_longest_context),
    ),
    *bounded_rows(
        "mtpmon_modelled_speedup",
        "ratio",
        ("window",),
        "Speed-up of live traffic by the cost model: acceptance length over step cost.",
        _paid(lambda p: p.speedup),
    ),
    *bounded_rows(
        "mtpmon_speedup_disagreement",
        "ratio",
        UNLABELLED,
        "Modelled over measured speed-up, pair by pair; 1 where the cost model holds.",
        _one(lambda s: s.measured.disagreement),
    ),
    *bounded_rows(
        "mtpmon_breakeven_acceptance",
        "ratio",
        ("window",),
        "Acceptance at which drafting neither gains nor loses on live traffic; above 1 it"
        " cannot be reached.",
        _paid(lambda p: p.breakeven),
    ),
    *bounded_rows(
        "mtpmon_acceptance_margin",
        "ratio",
        ("window",),
        "Acceptance of live traffic less its breakeven: above 0 drafting pays.",
        _paid(lambda p: p.margin),
    ),
    *bounded_rows(
        "mtpmon_task_breakeven_acceptance",
        "ratio",
        ("task",),
        "Breakeven acceptance of probes of a task.",
        _task_paid(lambda p: p.breakeven),
    ),
    *bounded_rows(
        "mtpmon_task_acceptance_margin",
        "ratio",
        ("task",),
        "Acceptance of probes of a task less its breakeven: above 0 drafting pays.",
        _task_paid(lambda p: p.margin),
    ),
    Row(
        "mtpmon_verdict",
        "gauge",
        ("verdict",),
        "1 for the answer to whether drafting pays on live traffic, 0 for the others.",
        _verdict,
    ),
    Row(
        "mtpmon_task_verdict",
        "gauge",
        ("task", "verdict"),
        "The same for what probes of a task say.",
        _task_verdicts,
    ),
    Row(
        "mtpmon_task_grade",
        "gauge",
        ("task", "temperature", "thinking", "grade"),
        "1 for the grade of drafting for this task and sampling, by measured speed-up.",
        _grades,
    ),
    Row(
        "mtpmon_best_draft_tokens",
        "gauge",
        UNLABELLED,
        "Draft length that is faster for certain than the present one, or the present one."
        " 0: turn drafting off.",
        unlabelled(_advised),
    ),
    *bounded_rows(
        "mtpmon_best_draft_gain",
        "ratio",
        UNLABELLED,
        "Gain in speed at that draft length: 0.07 is 7 % faster.",
        _one(_gain),
    ),
    Row(
        "mtpmon_design_effect_ratio",
        "gauge",
        UNLABELLED,
        "How much the likeness of one request's steps widens the bounds of live figures:"
        " variance of a mean over that of independent steps.",
        unlabelled(lambda s: s.paying.design_effect),
    ),
)
