"""Every draft length measured, and what the longest alone would have said of the others."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from mtpmon.commands.bench import BenchDocument, rendered
from mtpmon.grade import Grade
from mtpmon.model import (
    Baseline,
    Completion,
    ProbeOutcome,
    ProbeResult,
    StepStream,
    Timings,
    Variant,
)
from mtpmon.request import Request
from mtpmon.sweep import Sweep, sweep
from mtpmon.worth import WorthRules
from tests.test_tables import text
from tests.world import World

RULES = WorthRules()
WORLD = World(scatter=0.02, request_scatter=0.002)
"""Step cost rises by a quarter of a plain step a token: two tokens pay best."""


def set_to(drafted: int) -> World:
    """The same server with another draft length."""
    return replace(
        WORLD,
        conditional=WORLD.conditional[:drafted],
        bases=WORLD.bases[: drafted + 1],
        rollback=WORLD.rollback[:drafted],
    )


def completion(request: Request) -> Completion:
    drafted = sum(step.drafted for step in request.steps)
    kept = sum(step.kept for step in request.steps)
    return Completion(
        positions=(),
        timings=Timings(
            prompt_tokens=10,
            prompt_seconds=0.1,
            cached_tokens=0,
            generated_tokens=1 + len(request.steps) + kept,
            generation_seconds=sum(step.seconds for step in request.steps),
            draft_tokens=drafted or None,
            accepted_tokens=kept if drafted else None,
        ),
        stream=StepStream(steps=request.steps),
        wall_seconds=1.0,
    )


def probes(drafted: int, count: int = 40, *, task: str = "code") -> list[ProbeResult]:
    requests = set_to(drafted).pairs(np.random.default_rng(drafted), count, tokens=200)
    arms = {name: [r for r in requests if r.arm == name] for name in ("speculating", "target_only")}
    return [
        ProbeResult(
            server="bench",
            prompt_id=f"{task}-{number}",
            task=task,
            unix_seconds=1000.0 * drafted + number,
            duration_seconds=1.0,
            outcome=ProbeOutcome.COMPLETED,
            speculating=completion(ours),
            target_only=completion(plain),
            baseline=Baseline.PAIR,
        )
        for number, (ours, plain) in enumerate(
            zip(arms["speculating"], arms["target_only"], strict=True)
        )
    ]


@pytest.fixture(scope="module")
def found() -> Sweep:
    return sweep({d: probes(d) for d in (3, 1, 2)}, rules=RULES, confidence=0.95)


def test_each_length_is_measured_against_plain_decoding(found: Sweep) -> None:
    """Speed-up, step cost and breakeven of the worlds they come from."""
    assert [depth.drafted for depth in found.depths] == [1, 2, 3]
    for depth in found.depths:
        world = set_to(depth.drafted)
        assert depth.speedup is not None
        assert depth.speedup.value == pytest.approx(world.speedup(), rel=0.03)
        assert depth.step_ratio is not None
        assert depth.step_ratio.value == pytest.approx(world.ratio(), rel=0.03)
        assert depth.breakeven is not None
        assert depth.breakeven.value == pytest.approx((world.ratio() - 1) / depth.drafted, abs=0.03)
        assert (depth.probes, depth.failed) == (40, 0)
        assert depth.grades["code"].grade is Grade.RECOMMENDED


def test_the_fastest_is_named_with_those_that_may_be_as_fast(found: Sweep) -> None:
    truth = {d: set_to(d).speedup() for d in (1, 2, 3)}
    assert found.best == max(truth, key=lambda d: truth[d])
    assert found.best in found.as_good
    assert 0 not in found.as_good, "plain decoding is slower for certain"
    assert found.by_task == {"code": found.best}


def test_the_longest_alone_predicts_the_others(found: Sweep) -> None:
    """Within the bounds it states; its own row is the model's word against the clock's."""
    assert found.words is not None
    assert found.named in found.as_good
    for depth in found.depths:
        assert depth.predicted is not None
        assert depth.speedup is not None
        assert depth.predicted.error == pytest.approx(
            depth.predicted.speedup / depth.speedup.value - 1
        )
        assert abs(depth.predicted.error) < 0.1
        assert depth.predicted.within_bounds


def test_where_drafting_costs_plain_decoding_is_best() -> None:
    slow = [
        probe_with(result, plain_seconds=0.1)  # plain decoding is fast here
        for result in probes(1, 12)
    ]
    found = sweep({1: slow}, rules=RULES, confidence=0.95)
    assert (found.best, found.as_good, found.by_task) == (0, (0,), {"code": 0})
    assert found.depths[0].grades["code"].grade is Grade.NOT_RECOMMENDED


def probe_with(result: ProbeResult, *, plain_seconds: float) -> ProbeResult:
    """With plain steps that take that share of their time."""
    plain = result.target_only
    assert plain is not None
    timings = msgspec.structs.replace(
        plain.timings, generation_seconds=plain.timings.generation_seconds * plain_seconds
    )
    steps = tuple(
        msgspec.structs.replace(step, seconds=step.seconds * plain_seconds)
        for step in plain.stream.steps
    )
    faster = msgspec.structs.replace(plain, timings=timings, stream=StepStream(steps=steps))
    return msgspec.structs.replace(result, target_only=faster)


def test_what_did_not_complete_is_counted_and_in_no_figure() -> None:
    """A length that nothing is known of has a row all the same."""
    failed = ProbeResult(
        server="bench",
        prompt_id="p",
        task="code",
        variant=Variant(),
        unix_seconds=1.0,
        duration_seconds=1.0,
        outcome=ProbeOutcome.TIMEOUT,
    )
    found = sweep({2: [failed], 1: [*probes(1, 12), failed]}, rules=RULES, confidence=0.95)
    one, two = found.depths
    assert (one.probes, one.failed, one.predicted) == (12, 1, None)
    assert (two.probes, two.failed, two.speedup, two.step_ratio) == (0, 1, None, None)
    assert found.best == 1
    assert (found.named, found.words) == (None, None)
    nothing = sweep({2: [failed]}, rules=RULES, confidence=0.95)
    assert (nothing.best, nothing.as_good, nothing.by_task) == (None, (), {})


def test_a_task_of_too_few_prompts_has_no_fastest_length() -> None:
    both = [*probes(1, 12), *probes(1, 2, task="essay")]
    found = sweep({1: both, 2: probes(2, 12)}, rules=RULES, confidence=0.95)
    assert set(found.by_task) == {"code"}
    assert found.depths[0].tasks["essay"].probes == 2


def test_figures_of_a_sweep_are_not_cut_at_a_narrow_terminal(found: Sweep) -> None:
    """Eighty columns are enough; without a speed-up of any task there is no table of tasks."""
    document = BenchDocument(
        unix_seconds=1.0,
        model="m.gguf",
        build="b1",
        arguments=(),
        prompts=40,
        tokens=200,
        confidence=0.95,
        sweep=found,
    )
    shown = text(*rendered(document), width=80)
    assert "\N{HORIZONTAL ELLIPSIS}" not in shown
    assert "Speed-up by task" in shown
    bare = msgspec.structs.replace(found, by_task={})
    shown = text(*rendered(msgspec.structs.replace(document, sweep=bare)), width=80)
    assert "Speed-up by task" not in shown
