"""Findings about whether drafting pays, from probes that the history holds. Pure."""

from collections.abc import Iterator

from mtpmon.facts import Facts, Finding, Level
from mtpmon.model import Bounded
from mtpmon.pagetext import PERCENT, PLAIN_SOURCES, SPACE
from mtpmon.verdict import Verdict
from mtpmon.worth import Measured

_MORE = (
    "let `mtpmon run` probe it for a while; or measure every draft length now: mtpmon bench --model"
    " FILE"
)


def paying_findings(facts: Facts) -> Iterator[Finding]:
    """What probes of the server as it runs now say of cost and draft length."""
    if facts.history_problem is not None:
        yield Finding("paying", "warning", f"not known: {facts.history_problem}", _MORE)
        return
    found = facts.measured
    if found is None:
        return
    if found.costs is None or found.costs.plain is None:
        words = "not known: the history has too few probes of the server as it runs now"
        yield Finding("paying", "warning", words, _MORE)
        return
    ratio = found.costs.plain.ratio
    yield Finding(
        "paying",
        "ok",
        f"a verification step costs {ratio.value:.2f} ({ratio.lower:.2f}–{ratio.upper:.2f}) plain"
        f" ones, {PLAIN_SOURCES[found.costs.plain.source]}",
    )
    yield from _tasks(found)
    if found.advice is not None and found.advice_words is not None:
        certain = found.advice.advised is not None
        yield Finding("paying", "warning" if certain else "ok", found.advice_words)


def _tasks(found: Measured) -> Iterator[Finding]:
    """One line for each verdict that there is, with its tasks."""
    for verdict in (Verdict.PAYING, Verdict.UNDECIDED, Verdict.COSTING):
        tasks = [
            f"{task} (acceptance {_share(found.tasks[task].acceptance)}, breakeven"
            f" {_share(found.tasks[task].breakeven)})"
            for task, standing in found.task_verdicts.items()
            if standing.verdict is verdict and task in found.tasks
        ]
        if tasks:
            level: Level = "warning" if verdict is Verdict.COSTING else "ok"
            yield Finding("paying", level, f"{verdict.value}: {', '.join(tasks)}")


def _share(found: Bounded) -> str:
    return PERCENT.written(found.value).replace(SPACE, " ")  # terminals get no special spaces
