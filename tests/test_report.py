"""The figures of a pass, against those of a published evaluation rebuilt from single probes."""

import math
from collections.abc import Iterable, Sequence

import msgspec
import pytest

from mtpmon.model import (
    Bounded,
    Comparison,
    Completion,
    Divergence,
    ForcedToken,
    Position,
    PositionKinds,
    ProbeOutcome,
    ProbeResult,
    Step,
    StepStream,
    Timings,
    Variant,
)
from mtpmon.report import KldRow, Report, Share, report

TOKENS = 64
PROMPTS = 8


def completion(
    steps: Sequence[Step] = (),
    *,
    decode_seconds: float = 1.0,
    wall_seconds: float = 2.0,
    texts: Sequence[str] = (),
    hidden: tuple[int, int] = (0, 0),
) -> Completion:
    """A generation of 64 tokens; ``hidden``: drafted and kept in steps not told apart."""
    drafted = sum(step.drafted for step in steps) + hidden[0]
    return Completion(
        positions=tuple(Position(i, text) for i, text in enumerate(texts)),
        timings=Timings(
            prompt_tokens=9,
            prompt_seconds=0.1,
            cached_tokens=0,
            generated_tokens=TOKENS,
            generation_seconds=decode_seconds,
            draft_tokens=drafted or None,
            accepted_tokens=sum(step.kept for step in steps) + hidden[1] if drafted else None,
        ),
        stream=StepStream(
            steps=tuple(steps),
            unresolved_draft_tokens=hidden[0],
            unresolved_accepted_tokens=hidden[1],
        ),
        wall_seconds=wall_seconds,
    )


def result(
    prompt: str = "p",
    *,
    task: str = "code",
    speculating: Completion | None = None,
    target_only: Completion | None = None,
    first: int | None = None,
    coincidences: int = 0,
    next_token: Divergence | None = None,
    later: Sequence[Divergence] = (),
    forced: Sequence[ForcedToken] = (),
    teacher_forced: Sequence[Divergence] = (),
    margin: float | None = None,
) -> ProbeResult:
    """A completed probe; with a target-only arm, sequences that part at ``first``."""
    comparison, kinds = None, None
    if target_only is not None:
        prefix = TOKENS if first is None else first
        diverged = 0 if first is None else TOKENS - first - 1
        comparable = len(later) + (next_token is not None)
        comparison = Comparison(
            tokens=TOKENS,
            matches=prefix + coincidences,
            matched_prefix=prefix,
            first_divergence=first,
            divergence_margin_nats=margin,
        )
        kinds = PositionKinds(
            comparable=comparable, missing=TOKENS - diverged - comparable, diverged=diverged
        )
    return ProbeResult(
        server="s",
        prompt_id=prompt,
        task=task,
        unix_seconds=0.0,
        duration_seconds=1.0,
        outcome=ProbeOutcome.COMPLETED,
        speculating=speculating or completion(),
        target_only=target_only,
        comparison=comparison,
        next_token=next_token,
        after_speculation=tuple(later),
        teacher_forced=tuple(teacher_forced),
        forced=tuple(forced),
        positions=kinds,
    )


def failure(prompt: str, detail: str) -> ProbeResult:
    return ProbeResult(
        server="s",
        prompt_id=prompt,
        task="code",
        unix_seconds=0.0,
        duration_seconds=0.0,
        outcome=ProbeOutcome.FAILED,
        detail=detail,
    )


def kld(nats: float, *, agrees: bool = True) -> Divergence:
    return Divergence(nats=nats, coverage=0.99, shared_tokens=60, top1_agrees=agrees)


def made(results: Iterable[ProbeResult]) -> Report:
    return report(tuple(results), tasks=("essay", "code"), confidence=0.95)


def sequences(
    steps: Sequence[Step],
    firsts: Sequence[int | None],
    *,
    coincidences: Sequence[int] = (0,) * PROMPTS,
    decode_rate: float = 325.70,
    client_rate: float = 233.81,
) -> list[ProbeResult]:
    """Eight probes that share out ``steps``, with the speeds asked for."""
    return [
        result(
            f"prompt-{i}",
            speculating=completion(
                steps[i::PROMPTS],
                decode_seconds=(TOKENS - 1) / decode_rate,
                wall_seconds=TOKENS / client_rate,
            ),
            target_only=completion(decode_seconds=(TOKENS - 1) / 210, wall_seconds=TOKENS / 172.57),
            first=first,
            coincidences=coincidences[i],
        )
        for i, first in enumerate(firsts)
    ]


# Drafts of two tokens, a few cut to one at the end of a generation, by tokens kept.
FAST = [Step(2, 2, 0.01)] * 142 + [Step(2, 1, 0.01)] * 24 + [Step(1, 1, 0.01)] * 2
FAST += [Step(2, 0, 0.01)] * 22
SEQUENTIAL = [Step(2, 2, 0.01)] * 146 + [Step(2, 1, 0.01)] * 18 + [Step(1, 1, 0.01)] * 3
SEQUENTIAL += [Step(2, 0, 0.01)] * 22


@pytest.mark.parametrize(
    ("steps", "firsts", "coincidences", "acceptance", "by_position", "exact", "match"),
    [
        (
            FAST,
            [None] * 6 + [60, 34],
            [0] * PROMPTS,
            "310/378 = 82.01%",
            ("0.884", "0.747"),
            "6/8",
            "478/512 = 93.36%",
        ),
        (
            SEQUENTIAL,
            [None] * 4 + [25, 43, 60, None],
            [0] * 4 + [4, 2, 1, 0],
            "313/375 = 83.47%",
            ("0.884", "0.772"),
            "5/8",
            "455/512 = 88.87%",
        ),
    ],
)
def test_sequence_table(
    steps: list[Step],
    firsts: list[int | None],
    coincidences: list[int],
    acceptance: str,
    by_position: tuple[str, ...],
    exact: str,
    match: str,
) -> None:
    """Acceptance, by position too, exact sequences and token match are the published ones."""
    found = made(sequences(steps, firsts, coincidences=coincidences))
    _, ours = found.arms
    assert found.match is not None
    assert written(ours.acceptance) == acceptance
    assert tuple(f"{share:.3f}" for share in ours.positions) == by_position
    assert ours.positions_exact
    assert f"{found.match.exact.part}/{found.match.exact.whole}" == exact
    assert written(found.match.tokens) == match


def written(share: Share) -> str:
    assert share.ratio is not None
    return f"{share.part}/{share.whole} = {share.ratio:.2%}"


def test_speeds_of_both_arms() -> None:
    """Client speed is all tokens over all waiting, decode speed leaves the free first token out."""
    baseline, ours = made(sequences(FAST, [None] * PROMPTS)).arms
    assert (baseline.arm, ours.arm) == ("target_only", "speculating")
    assert (baseline.sequences, baseline.tokens) == (8, 512)
    assert baseline.client_tokens_per_second == pytest.approx(172.57)
    assert baseline.decode_tokens_per_second == pytest.approx(210)
    assert ours.client_tokens_per_second == pytest.approx(233.81)
    assert ours.decode_tokens_per_second == pytest.approx(325.70)


def test_acceptance_length_counts_the_targets_own_token() -> None:
    """190 drafts that kept 310 tokens gave 1 + 310/190 tokens each."""
    _, ours = made(sequences(FAST, [None] * PROMPTS)).arms
    assert ours.acceptance_length == pytest.approx(1 + 310 / 190)


def test_target_only_arm_has_no_acceptance() -> None:
    """An arm that drafted nothing has no ratio, which is not a ratio of 0."""
    baseline, _ = made(sequences(FAST, [None] * PROMPTS)).arms
    assert baseline.acceptance == Share(0, 0, None)
    assert baseline.acceptance_length is None
    assert baseline.positions == ()


def test_first_divergences() -> None:
    """Only sequences that part are listed, with the place, the margin and both tokens there."""
    ours = completion(texts=["the", " cat", " sat"])
    theirs = completion(texts=["the", " cat", " ran"])
    parted = result("b", task="essay", speculating=ours, target_only=theirs, first=2, margin=0.003)
    found = made([result("a", target_only=completion()), parted])
    assert found.match is not None
    assert found.match.exact == Share(1, 2, 0.5)
    (only,) = found.divergences
    assert msgspec.structs.asdict(only) == {
        "prompt_id": "b",
        "task": "essay",
        "variant": Variant(),
        "position": 2,
        "matched_prefix": 2,
        "margin_nats": 0.003,
        "target_only_text": " ran",
        "speculating_text": " sat",
    }


def test_divergence_at_the_end_of_the_shorter_sequence() -> None:
    """A sequence that ends before the other wrote nothing at the first mismatch."""
    parted = result(
        speculating=completion(texts=["the"]),
        target_only=completion(texts=["the", " cat"]),
        first=1,
    )
    (only,) = made([parted]).divergences
    assert (only.target_only_text, only.speculating_text) == (" cat", "")


P50, P95, MAX, MEAN = 0.0492811974, 0.1593743642, 0.3348258511, 0.0731382442


def row(found: Report, at: str) -> KldRow:
    (only,) = [each for each in found.kld if each.at == at]
    return only


def test_next_token_kld() -> None:
    """Mean in nats and bits, median, 95th percentile, maximum and top-1 match of 32 pairs."""
    middle = (32 * MEAN - 15 * 0.02 - 2 * P50 - 2 * P95 - MAX) / 12
    nats = [0.02] * 15 + [P50] * 2 + [middle] * 12 + [P95] * 2 + [MAX]
    found = made(
        result(target_only=completion(), next_token=kld(value, agrees=place >= 3))
        for place, value in enumerate(nats)
    )
    assert [each.at for each in found.kld] == ["next_token"]
    first = row(found, "next_token")
    assert first.positions == 32
    assert first.mean_nats == pytest.approx(MEAN)
    assert first.mean_bits == pytest.approx(0.1055161823)
    assert first.mean_bits == first.mean_nats / math.log(2)
    assert first.p50_nats == pytest.approx(P50)
    assert first.p95_nats == pytest.approx(P95)
    assert first.max_nats == MAX
    assert first.top1_match == Share(29, 32, 29 / 32)


def test_comparable_positions() -> None:
    """12 of 512 positions have a KLD; the other 500 are missing or after a divergence."""
    mean, most = 0.0011215739, 0.0040239103
    rest = (12 * mean - most) / 3
    later = [[kld(most)], [kld(rest)], [kld(rest)], [kld(rest)], [], [], [], []]
    firsts = [None] * 6 + [60, 34]
    found = made(
        result(str(i), target_only=completion(), first=first, next_token=kld(0.0), later=later[i])
        for i, first in enumerate(firsts)
    )
    kinds = found.comparability
    assert kinds is not None
    assert (kinds.paired, kinds.comparable) == (512, 12)
    assert kinds.missing + kinds.diverged == 500
    assert kinds.diverged == 3 + 29
    assert [(each.at, each.positions) for each in found.kld] == [
        ("next_token", 8),
        ("after_speculation", 4),
        ("both", 12),
    ]
    assert row(found, "next_token").max_nats == 0.0
    assert row(found, "after_speculation").mean_nats == pytest.approx(12 * mean / 4)
    assert row(found, "both").mean_nats == pytest.approx(mean)
    assert row(found, "both").max_nats == most


def test_missing_is_no_distance() -> None:
    """Without any pair of distributions there is no KLD, and every position is missing."""
    found = made([result(target_only=completion())])
    assert found.kld == ()
    assert found.comparability is not None
    assert (found.comparability.comparable, found.comparability.missing) == (0, 64)


def test_teacher_forced_kld() -> None:
    """KLD along the speculative answer, both servers undrafted, is a row of its own."""
    found = made([result(teacher_forced=[kld(0.0), kld(0.5, agrees=False)])])
    only = row(found, "teacher_forced")
    assert (only.positions, only.mean_nats, only.top1_match) == (2, 0.25, Share(1, 2, 0.5))


def test_emitted_tokens() -> None:
    """Tokens the target was asked about: how many are its best, and its regret of the others."""
    best = ForcedToken(index=3, logprob=-0.1, rank=0, regret_nats=0.0)
    second = ForcedToken(index=9, logprob=-1.0, rank=1, regret_nats=0.8)
    unlisted = ForcedToken(index=20, logprob=None, rank=None, regret_nats=4.0)
    found = made([result(forced=[best, second]), result(forced=[best, unlisted])]).emitted
    assert found is not None
    assert (found.asked, found.best) == (4, Share(2, 4, 0.5))
    assert found.mean_regret_nats == pytest.approx(1.2)
    assert found.max_regret_nats == 4.0
    assert 0.8 < found.p95_regret_nats < 4.0


def test_tasks() -> None:
    """Tasks come in the order asked for, those without probes not at all, and all together last."""
    code = [Step(3, 3, 0.01)] * 10
    essay = [Step(3, 1, 0.01)] * 10
    found = made(
        result(task=task, speculating=completion(steps))
        for task, steps in [("code", code), ("code", code), ("essay", essay)]
    )
    assert [(row.task, row.probes, row.acceptance) for row in found.tasks] == [
        ("essay", 1, Share(10, 30, 1 / 3)),
        ("code", 2, Share(60, 60, 1.0)),
        ("all", 3, Share(70, 90, 7 / 9)),
    ]
    assert [row.acceptance_length for row in found.tasks] == [2.0, 4.0, 1 + 70 / 30]


def test_other_variants_do_not_mix_with_the_usual_one() -> None:
    """Figures by task and by server are of the default variant; answers are compared in all."""
    usual = result("a", speculating=completion([Step(3, 3, 0.01)] * 10), target_only=completion())
    deep = msgspec.structs.replace(
        result(
            "b", speculating=completion([Step(3, 0, 0.09)] * 10), target_only=completion(), first=9
        ),
        variant=Variant(depth_tokens=4000),
    )
    found = made([usual, deep])
    assert found.completed == 2
    assert [(row.probes, row.acceptance) for row in found.tasks] == [(1, Share(30, 30, 1.0))] * 2
    assert {arm.sequences for arm in found.arms} == {1}
    assert found.match is not None
    assert found.match.exact == Share(1, 2, 0.5)
    assert [each.variant for each in found.divergences] == [Variant(depth_tokens=4000)]


def test_task_without_probes_has_no_row() -> None:
    """A task that was not probed has no figures, which are not figures of 0."""
    assert [row.task for row in made([result(task="code")]).tasks] == ["code", "all"]


def test_speedup() -> None:
    """Pairs of equal ratio have that speed-up, with bounds of no width."""
    found = made(
        result(
            str(i),
            speculating=completion(FAST[:9], decode_seconds=1.0 + i),
            target_only=completion(decode_seconds=1.5 * (1.0 + i)),
        )
        for i in range(4)
    )
    overall = found.tasks[-1]
    speedup = overall.speedup
    assert speedup is not None
    assert (speedup.lower, speedup.value, speedup.upper) == pytest.approx((1.5,) * 3)
    assert overall.tokens_per_second == pytest.approx(4 * 63 / 10)
    assert overall.target_only_tokens_per_second == pytest.approx(4 * 63 / 15)


def test_steps_that_cannot_be_told_apart() -> None:
    """Hidden steps count in the acceptance; positions are then marked, and there is no length."""
    (ours,) = made([result(speculating=completion([Step(2, 2, 0.01)], hidden=(4, 2)))]).arms
    assert ours.acceptance == Share(4, 6, 4 / 6)
    assert ours.acceptance_length is None
    assert ours.positions == (1.0, 1 / 3)
    assert not ours.positions_exact


def test_without_a_target_only_server() -> None:
    """One arm alone has acceptance and speed, and nothing that compares."""
    found = made([result(speculating=completion(FAST[:9]))])
    assert [arm.arm for arm in found.arms] == ["speculating"]
    assert found.match is None
    assert found.comparability is None
    assert found.emitted is None
    assert found.divergences == ()
    assert found.kld == ()
    assert found.tasks[-1].speedup is None


def test_failures() -> None:
    """Probes that failed alike are one row, and count in no figure."""
    found = made([failure("a", "cannot connect"), result("b"), failure("c", "cannot connect")])
    assert found.completed == 1
    (only,) = found.failures
    assert only.outcome is ProbeOutcome.FAILED
    assert (only.detail, only.prompt_ids) == ("cannot connect", ("a", "c"))


def test_nothing_completed() -> None:
    """Without a completed probe there are failures and no figures."""
    found = made([failure("a", "one way"), failure("b", "another")])
    assert [row.detail for row in found.failures] == ["one way", "another"]
    assert (found.completed, found.arms, found.tasks) == (0, (), ())


def test_no_wall_time() -> None:
    """A client speed over no time is not known."""
    (ours,) = made([result(speculating=completion(wall_seconds=0.0))]).arms
    assert ours.client_tokens_per_second is None


def test_speedup_is_plain_data() -> None:
    """A report becomes JSON as it is, bounds and unknowns included."""
    found = made(
        result(str(i), speculating=completion(FAST[:9]), target_only=completion()) for i in range(3)
    )
    overall = msgspec.json.decode(msgspec.json.encode(found))["tasks"][-1]
    assert overall["speedup"] == msgspec.structs.asdict(Bounded(1.0, 1.0, 1.0))
    assert msgspec.json.decode(msgspec.json.encode(made([])))["match"] is None
