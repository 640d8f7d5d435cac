"""Where drafting pays: the viability matrix of a pass, on simulated servers of known truth."""

import math
from dataclasses import replace as changed
from itertools import groupby

import msgspec
import numpy as np
import pytest

from mtpmon.cost import PlainSource, plain_step
from mtpmon.grade import Grade, GradeRules
from mtpmon.model import (
    Baseline,
    Bounded,
    Completion,
    ProbeOutcome,
    ProbeResult,
    StepStream,
    Timings,
    Variant,
)
from mtpmon.request import Request
from mtpmon.viability import Viability, viability
from tests.world import World

GOOD = World(conditional=(0.95, 0.92, 0.9))
BAD = World(conditional=(0.35, 0.3, 0.3))
TASKS = ("code", "creative")
HOT = Variant(temperature=0.8)
THINKING = Variant(thinking=True)


def completion(request: Request) -> Completion:
    steps = request.steps
    drafted = sum(step.drafted for step in steps)
    kept = sum(step.kept for step in steps)
    return Completion(
        positions=(),
        timings=Timings(
            prompt_tokens=9,
            prompt_seconds=0.1,
            cached_tokens=0,
            generated_tokens=1 + len(steps) + kept,
            generation_seconds=math.fsum(step.seconds for step in steps),
            draft_tokens=drafted or None,
            accepted_tokens=kept if drafted else None,
        ),
        stream=StepStream(steps=steps),
        wall_seconds=1.0,
    )


def probes(
    world: World,
    task: str,
    variant: Variant = Variant(),  # noqa: B008  frozen
    *,
    pairs: int = 12,
    seed: int = 1,
    paired: bool = True,
) -> list[ProbeResult]:
    """Probes of one cell; without ``paired`` the target-only answers are left out."""
    requests = world.pairs(np.random.default_rng(seed), pairs)
    found = []
    for number, (_, both) in enumerate(groupby(requests, key=lambda request: request.pair)):
        arms = {request.arm: completion(request) for request in both}
        found.append(
            ProbeResult(
                server="s",
                prompt_id=f"{task}-{number}",
                task=task,
                variant=variant,
                unix_seconds=float(number + 1000 * seed),
                duration_seconds=1.0,
                outcome=ProbeOutcome.COMPLETED,
                speculating=arms["speculating"],
                target_only=arms["target_only"] if paired else None,
                baseline=Baseline.PAIR if paired else Baseline.SINGLE,
            )
        )
    return found


def found(*results: list[ProbeResult], **options: object) -> Viability:
    flat = [result for some in results for result in some]
    return viability(flat, tasks=TASKS, confidence=0.95, rules=GradeRules(), **options)  # type: ignore[arg-type]


def test_each_task_and_way_has_a_cell() -> None:
    """In the order of tasks, temperatures, thinking; with figures of its own probes alone."""
    made = found(
        probes(BAD, "creative", seed=2),
        probes(GOOD, "code", HOT, seed=3),
        probes(GOOD, "code", THINKING, seed=4),
        probes(GOOD, "code", seed=5, pairs=9),
    )
    assert [(c.task, c.temperature, c.thinking, c.probes) for c in made.cells] == [
        ("code", 0.0, None, 9),
        ("code", 0.0, True, 12),
        ("code", 0.8, None, 12),
        ("creative", 0.0, None, 12),
    ]
    assert made.plain is PlainSource.PAIR
    *code, creative = made.cells
    assert creative.acceptance is not None
    assert all(c.acceptance is not None and c.acceptance > creative.acceptance for c in code)


@pytest.mark.parametrize(
    ("world", "expected"), [(GOOD, Grade.RECOMMENDED), (BAD, Grade.NOT_RECOMMENDED)]
)
def test_figures_are_those_of_the_server(world: World, expected: Grade) -> None:
    """Acceptance, breakeven and speed-up are within a few per cent of the truth, and graded."""
    made = found(probes(world, "code", pairs=30))
    (cell,) = made.cells
    assert cell.acceptance == pytest.approx((world.length() - 1) / 3, rel=0.1)
    assert cell.breakeven is not None
    assert cell.breakeven.value == pytest.approx((world.ratio() - 1) / 3, rel=0.1)
    assert cell.speedup is not None
    assert cell.speedup.value == pytest.approx(world.speedup(), rel=0.1)
    assert not cell.modelled
    assert cell.graded is not None
    assert (cell.graded.grade, cell.graded.certain) == (expected, True)
    assert made.below_breakeven == (world is BAD)


def test_without_pairs_the_speedup_is_an_upper_bound_and_has_no_grade() -> None:
    """Undrafted steps flatter: what cannot be known is not graded, nor below for certain."""
    world = changed(GOOD, bases=(1.6, 1.35, 1.6, 1.85))
    made = found(probes(world, "code", paired=False, pairs=30))
    (cell,) = made.cells
    assert made.plain is PlainSource.UNDRAFTED
    assert cell.modelled
    assert cell.speedup is not None
    assert cell.speedup.lower < world.speedup() < cell.speedup.upper
    assert cell.graded is None
    assert not made.below_breakeven


def test_a_captured_step_makes_a_modelled_speedup() -> None:
    """Which is graded, since the plain step is known."""
    pairs = GOOD.pairs(np.random.default_rng(9), 20)
    plain = [msgspec.structs.replace(r, pair=None) for r in pairs if r.arm == "target_only"]
    capture = plain_step(plain, confidence=0.95)
    (cell,) = found(probes(GOOD, "code", paired=False, pairs=20), capture=capture).cells
    assert cell.modelled
    assert cell.speedup is not None
    assert cell.speedup.value == pytest.approx(GOOD.speedup(), rel=0.1)
    assert cell.graded is not None
    assert cell.graded.grade is Grade.RECOMMENDED


def test_a_few_probes_have_an_acceptance_and_nothing_else() -> None:
    """Two pairs make neither a spread nor a cost."""
    made = found(probes(GOOD, "code", pairs=2))
    (cell,) = made.cells
    assert cell.acceptance is not None
    assert (cell.breakeven, cell.speedup, cell.graded, cell.modelled) == (None, None, None, False)
    assert (made.plain, made.overall, made.below_breakeven) == (None, None, False)


def test_deep_and_failed_probes_do_not_count() -> None:
    """Steps in deep contexts cost more, and a failure has none."""
    deep = probes(GOOD, "code", Variant(depth_tokens=4000))
    failed = [
        msgspec.structs.replace(each, outcome=ProbeOutcome.TIMEOUT, speculating=None)
        for each in probes(GOOD, "code")
    ]
    assert found(deep, failed) == Viability()


def test_costs_without_a_plain_step_say_what_is_kept() -> None:
    """A server whose answers never end in an undrafted step has nothing to compare with."""
    short = [
        msgspec.structs.replace(
            each,
            speculating=msgspec.structs.replace(
                each.speculating,
                stream=StepStream(
                    steps=tuple(s for s in each.speculating.stream.steps if s.drafted == 3)
                ),
            ),
        )
        for each in probes(GOOD, "code", paired=False)
        if each.speculating is not None
    ]
    made = found(short)
    (cell,) = made.cells
    assert (made.plain, cell.breakeven, cell.speedup) == (None, None, None)
    assert cell.acceptance is not None


def test_what_is_below_breakeven_is_so_with_all_of_its_margin() -> None:
    """A margin that may be 0 is not below."""
    overall = found(probes(BAD, "code", pairs=30)).overall
    assert overall is not None
    assert overall.margin.upper < 0
    wide = msgspec.structs.replace(overall, margin=Bounded(-0.1, -0.3, 0.0))
    assert not Viability(overall=wide).below_breakeven
