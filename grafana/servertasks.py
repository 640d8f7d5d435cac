"""*Server*: which tasks should be drafted for, by what probes measured."""

from collections.abc import Sequence

from grafana.figures import banded
from grafana.layout import Cell, Line
from grafana.looks import (
    AGO,
    BLUE,
    GREEN,
    NOT_MEASURED,
    RED,
    SHARE,
    TIMES,
    TOKENS_PER_SECOND,
    VERDICT_COLOURS,
    YELLOW,
)
from grafana.overtime import graph
from grafana.parts import Query, Text
from grafana.promql import ONE, bounds, series, value
from grafana.tables import Column, matrix
from mtpmon.grade import Grade

GRADE_COLOURS = {
    Grade.RECOMMENDED.value: GREEN,
    Grade.MARGINAL.value: YELLOW,
    Grade.NOT_RECOMMENDED.value: RED,
}
SPEEDUP = "mtpmon_speedup_ratio"
MARGIN = "mtpmon_task_acceptance_margin_ratio"
BREAKEVEN = "mtpmon_task_breakeven_acceptance_ratio"


def _of_task(metric: str, **labels: str) -> str:
    return value(metric, ONE, "task", **labels)


def _between(name: str, metric: str, unit: str, *, signed: bool = False) -> Sequence[Column]:
    """A figure and its bounds, in three columns."""
    low, high = bounds(metric)
    return (
        Column(f"{name}, least", _of_task(low), unit, unknown=NOT_MEASURED, signed=signed),
        Column(name, _of_task(metric), unit, unknown=NOT_MEASURED, signed=signed),
        Column(f"{name}, most", _of_task(high), unit, unknown=NOT_MEASURED, signed=signed),
    )


def tasks() -> Sequence[Line]:
    """The section."""
    verdict = f"max by (task, verdict) ({series('mtpmon_task_verdict', ONE)} == 1)"
    table = matrix(
        Text(
            "Tasks",
            "What probes measured of each kind of prompt. Speed-up: decode speed with drafting over"
            " without, prompt by prompt. Margin: acceptance less breakeven. A task whose margin is"
            " green from least to most gains for certain. Users' prompts may differ from these.",
            NOT_MEASURED,
        ),
        "task",
        [
            Column("verdict", verdict, label="verdict", colours=VERDICT_COLOURS),
            Column("acceptance", _of_task("mtpmon_probe_acceptance_ratio"), SHARE),
            *_between("breakeven", BREAKEVEN, SHARE),
            *_between("margin", MARGIN, SHARE, signed=True),
            *_between("speed-up", SPEEDUP, TIMES),
            Column(
                "drafting",
                _of_task("mtpmon_probe_tokens_per_second", arm="speculating"),
                TOKENS_PER_SECOND,
                unknown=NOT_MEASURED,
            ),
            Column(
                "without",
                _of_task("mtpmon_probe_tokens_per_second", arm="target_only"),
                TOKENS_PER_SECOND,
                unknown=NOT_MEASURED,
            ),
            Column(
                "last probe",
                f"{_of_task('mtpmon_probe_figures_timestamp_seconds')} * 1000",
                AGO,
                unknown=NOT_MEASURED,
            ),
        ],
    )
    labels = ("task", "temperature", "thinking", "grade")
    graded = f"max by ({', '.join(labels)}) ({series('mtpmon_task_grade', ONE)} == 1)"
    grades = matrix(
        Text(
            "Grades",
            "By measured speed-up, for each task, temperature and thinking that was probed:"
            " recommended, marginal, or not recommended, which includes breaking even. The limits"
            " are configured in mtpmon.",
            NOT_MEASURED,
        ),
        "task",
        [Column("grade", graded, label="grade", colours=GRADE_COLOURS)],
        also=labels[1:3],
    )
    speed_up = graph(
        Text(
            "Speed-up by task",
            "Measured by probes: 1 is breakeven. One task falling: its prompts, or the draft head"
            " for them. All falling: load, a build, a setting.",
            NOT_MEASURED,
        ),
        TIMES,
        [Query(_of_task(SPEEDUP), "{{task}}")],
    )
    acceptance = graph(
        Text(
            "Acceptance by task",
            "Of probes, whose prompts are always the same ones: a change here is the server's, not"
            " the users'.",
            NOT_MEASURED,
        ),
        SHARE,
        [Query(_of_task("mtpmon_probe_acceptance_ratio"), "{{task}}")],
    )
    disagreement = graph(
        Text(
            "Modelled over measured speed-up",
            "Of probes, pair by pair, over time. 1 where the cost model holds; bounds that leave 1"
            " out mean that drafting loses time that the model does not know, or the machine is"
            " loaded.",
            NOT_MEASURED,
        ),
        TIMES,
        bands=[banded("mtpmon_speedup_disagreement_ratio", ONE, "modelled over measured", BLUE)],
    )
    return [
        Line(9, Cell("server-tasks", 24, table)),
        Line(
            8,
            Cell("server-grades", 6, grades),
            Cell("server-task-speedup", 6, speed_up),
            Cell("server-task-acceptance", 6, acceptance),
            Cell("server-disagreement", 6, disagreement),
        ),
    ]
