"""Where does drafting pay? A grade for each task, temperature and thinking mode of a pass.

Acceptance and speed-up are measured in each cell; what steps cost, and so the breakeven, comes
from all probes of the pass, since a step costs what it costs whatever it is asked for.
"""

from collections.abc import Iterator, Sequence

import msgspec

from mtpmon.cost import PlainSource, PlainStep, StepCosts, step_costs
from mtpmon.grade import Graded, GradeRules, grade
from mtpmon.model import Bounded, ProbeOutcome, ProbeResult
from mtpmon.payoff import Payoff, probe_payoff
from mtpmon.request import Request, requests_of
from mtpmon.rolling import TaskFigures, matrix
from mtpmon.suite import DEFAULT_VARIANT


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One task, asked in one way.

    ``breakeven`` is the acceptance at which drafting would neither gain nor lose. Without
    enough pairs for a ``speedup`` that was measured, it is ``modelled`` from acceptance and
    costs. There is no grade where only an upper bound of the speed-up is known.
    """

    task: str
    temperature: float
    thinking: bool | None
    probes: int
    acceptance: float | None
    breakeven: Bounded | None
    speedup: Bounded | None
    modelled: bool
    graded: Graded | None


class Viability(msgspec.Struct, frozen=True, kw_only=True):
    """The matrix of a pass, and what drafting brings on its usual, greedy answers together.

    ``plain``: where the cost of a plain step comes from; ``None`` if it is not known.
    """

    cells: tuple[Cell, ...] = ()
    plain: PlainSource | None = None
    overall: Payoff | None = None

    @property
    def below_breakeven(self) -> bool:
        """Whether drafting costs more than it brings for certain: the whole margin is below 0."""
        return self.overall is not None and self.overall.margin.upper < 0


def viability(
    results: Sequence[ProbeResult],
    *,
    tasks: Sequence[str],
    confidence: float,
    rules: GradeRules,
    capture: PlainStep | None = None,
) -> Viability:
    """Put the probes of one server together.

    Args:
        results: of one pass, so of one build and model; with nothing before the prompt, since
            steps get dearer in deep contexts. Others are left out.
        tasks: the order of the rows.
        confidence: of all bounds.
        rules: how speed-ups are graded.
        capture: a plain step measured while the server ran without drafting.
    """
    shallow = [
        result
        for result in results
        if result.outcome is ProbeOutcome.COMPLETED and result.variant.depth_tokens == 0
    ]
    costs = step_costs(_requests(shallow), confidence=confidence, capture=capture)
    usual = [result for result in shallow if result.variant == DEFAULT_VARIANT]
    return Viability(
        cells=tuple(_cells(shallow, tasks, costs, confidence, rules)),
        plain=costs.plain.source if costs is not None and costs.plain is not None else None,
        overall=_payoff(usual, costs, confidence),
    )


def _cells(
    shallow: Sequence[ProbeResult],
    tasks: Sequence[str],
    costs: StepCosts | None,
    confidence: float,
    rules: GradeRules,
) -> Iterator[Cell]:
    found = matrix(shallow, confidence=confidence)
    modes = (None, False, True)
    for task, temperature, thinking in sorted(
        found, key=lambda cell: (tasks.index(cell[0]), cell[1], modes.index(cell[2]))
    ):
        mine = [
            result
            for result in shallow
            if (result.task, result.variant.temperature, result.variant.thinking)
            == (task, temperature, thinking)
        ]
        figures = found[task, temperature, thinking]
        paid = _payoff(mine, costs, confidence)
        speedup, modelled, known = _speedup(figures, paid)
        yield Cell(
            task=task,
            temperature=temperature,
            thinking=thinking,
            probes=figures.probes,
            acceptance=figures.acceptance,
            breakeven=paid.breakeven if paid is not None else None,
            speedup=speedup,
            modelled=modelled,
            graded=grade(speedup, rules) if speedup is not None and known else None,
        )


def _speedup(figures: TaskFigures, paid: Payoff | None) -> tuple[Bounded | None, bool, bool]:
    """The speed-up, whether it is modelled, and whether it is more than an upper bound."""
    if figures.speedup is not None:
        return figures.speedup, False, True
    if paid is None:
        return None, False, False
    return paid.speedup, True, not paid.source.flatters


def _payoff(
    results: Sequence[ProbeResult], costs: StepCosts | None, confidence: float
) -> Payoff | None:
    if costs is None:
        return None
    return probe_payoff(_requests(results), costs, confidence=confidence)


def _requests(results: Sequence[ProbeResult]) -> list[Request]:
    return [request for result in results for request in requests_of(result)]
