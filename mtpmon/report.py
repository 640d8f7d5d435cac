"""Probes of one server, made into the figures of an evaluation.

Every figure here is a plain count, a mean or a quantile over completed probes; the one with
bounds is the speed-up. Counts keep both their parts, so that a reader can check a ratio.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Literal

import msgspec

from mtpmon.derive import nothing, total
from mtpmon.evaluate import usage_of
from mtpmon.kld import summary
from mtpmon.model import (
    Amount,
    ArmName,
    Bounded,
    Completion,
    Divergence,
    ProbeOutcome,
    ProbeResult,
    Variant,
)
from mtpmon.rolling import TaskFigures, task_figures
from mtpmon.suite import DEFAULT_VARIANT

ALL_TASKS = "all"

Place = Literal["next_token", "after_speculation", "both", "teacher_forced"]


class Share(msgspec.Struct, frozen=True):
    """``part`` of ``whole``; ``ratio`` is ``None`` of nothing."""

    part: int
    whole: int
    ratio: float | None


class KldRow(msgspec.Struct, frozen=True, kw_only=True):
    """KLD over positions of one kind; ``both`` is ``next_token`` and ``after_speculation``."""

    at: Place
    positions: int
    mean_nats: float
    mean_bits: float
    p50_nats: float
    p95_nats: float
    max_nats: float
    top1_match: Share


class Emitted(msgspec.Struct, frozen=True, kw_only=True):
    """What the target thinks of the emitted tokens about which it was ``asked``.

    ``best``: those it finds likeliest. Regret: by how much its best is likelier, a lower
    bound where the emitted one is in none of its lists.
    """

    asked: int
    best: Share
    mean_regret_nats: float
    p95_regret_nats: float
    max_regret_nats: float


class ArmSpeed(msgspec.Struct, frozen=True, kw_only=True):
    """How fast one arm was, and how well it drafted.

    ``client_tokens_per_second`` is all tokens over all wall time, prompts included;
    ``decode_tokens_per_second`` is decode steps' alone, by the server's own timings.
    ``positions`` is the share of drafts that kept each position. Where some steps could
    not be told apart, ``positions_exact`` is false and they were taken to be alike.
    """

    arm: ArmName
    sequences: int
    tokens: int
    client_tokens_per_second: float | None
    decode_tokens_per_second: float | None
    acceptance: Share
    acceptance_length: float | None
    positions: tuple[float, ...]
    positions_exact: bool


class SequenceMatch(msgspec.Struct, frozen=True, kw_only=True):
    """How often both arms wrote the same: whole sequences, and tokens at equal places."""

    exact: Share
    tokens: Share


class FirstDivergence(msgspec.Struct, frozen=True, kw_only=True):
    """Where two sequences parted, what each arm wrote there, and how close a call it was."""

    prompt_id: str
    task: str
    variant: Variant = DEFAULT_VARIANT
    position: int
    matched_prefix: int
    margin_nats: float | None
    target_only_text: str
    speculating_text: str


class Comparability(msgspec.Struct, frozen=True, kw_only=True):
    """At how many pairs of positions two answers can be compared by their distributions.

    ``comparable``, ``missing`` and ``diverged`` add up to ``paired``.
    """

    paired: int
    comparable: int
    missing: int
    diverged: int


class TaskRow(msgspec.Struct, frozen=True, kw_only=True):
    """What MTP does for one task; ``all`` for every task together."""

    task: str
    probes: int
    acceptance: Share
    acceptance_length: float | None
    tokens_per_second: float | None
    target_only_tokens_per_second: float | None
    speedup: Bounded | None


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Probes that ended alike and not well."""

    outcome: ProbeOutcome
    detail: str
    prompt_ids: tuple[str, ...]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One server's probes. What needs a baseline is ``None`` or empty without one.

    ``reference`` compares a captured reference's distributions with the server's own,
    undrafted, after the prompts and (``teacher_forced``) along the captured answers.
    """

    completed: int
    failures: tuple[Failure, ...]
    arms: tuple[ArmSpeed, ...]
    match: SequenceMatch | None
    divergences: tuple[FirstDivergence, ...]
    comparability: Comparability | None
    kld: tuple[KldRow, ...]
    emitted: Emitted | None
    tasks: tuple[TaskRow, ...]
    reference: tuple[KldRow, ...] = ()


def report(results: Sequence[ProbeResult], *, tasks: Sequence[str], confidence: float) -> Report:
    """Put the probes of one server together.

    Figures by task and by server are over probes in the default variant, as everywhere. What
    compares answers or distributions is over all that can be compared, in whatever variant.

    Args:
        results: in the order they were made; those that did not complete are only listed.
        tasks: the order of their rows; those without a completed probe have none.
        confidence: of the bounds of the speed-up.
    """
    completed = [r for r in results if r.outcome is ProbeOutcome.COMPLETED]
    usual = [r for r in completed if r.variant == DEFAULT_VARIANT]
    overall = task_figures(usual, confidence=confidence)
    compared = [r.comparison for r in completed if r.comparison is not None]
    match = None
    if compared:
        match = SequenceMatch(
            exact=_share(sum(c.exact for c in compared), len(compared)),
            tokens=_share(sum(c.matches for c in compared), sum(c.tokens for c in compared)),
        )
    return Report(
        completed=len(completed),
        failures=tuple(_failures(results)),
        arms=tuple(_arms(usual, overall)),
        match=match,
        divergences=tuple(_divergences(completed)),
        comparability=_comparability(completed),
        kld=tuple(_kld_rows(completed)),
        emitted=_emitted(completed),
        tasks=tuple(_task_rows(usual, tasks, overall, confidence)),
        reference=tuple(_reference_rows(completed)),
    )


def _share(part: int, whole: int) -> Share:
    return Share(part, whole, part / whole if whole else None)


def _failures(results: Iterable[ProbeResult]) -> Iterable[Failure]:
    alike: dict[tuple[ProbeOutcome, str], list[str]] = {}
    for result in results:
        if result.outcome is not ProbeOutcome.COMPLETED:
            alike.setdefault((result.outcome, result.detail), []).append(result.prompt_id)
    for (outcome, detail), prompts in alike.items():
        yield Failure(outcome=outcome, detail=detail, prompt_ids=tuple(prompts))


def _arms(completed: Sequence[ProbeResult], overall: TaskFigures) -> Iterable[ArmSpeed]:
    baselines = [r.target_only for r in completed if r.target_only is not None]
    ours = [r.speculating for r in completed if r.speculating is not None]
    if baselines:
        yield _arm("target_only", baselines, overall.target_only_tokens_per_second, None)
    if ours:
        yield _arm("speculating", ours, overall.tokens_per_second, overall.acceptance_length)


def _arm(
    name: ArmName,
    completions: Sequence[Completion],
    decode_rate: float | None,
    acceptance_length: float | None,
) -> ArmSpeed:
    tokens = sum(c.timings.generated_tokens for c in completions)
    wall_seconds = sum(c.wall_seconds for c in completions)
    usage = reduce(total, map(usage_of, completions), nothing())
    drafts = usage.drafts or Amount(0.0)
    return ArmSpeed(
        arm=name,
        sequences=len(completions),
        tokens=tokens,
        client_tokens_per_second=tokens / wall_seconds if wall_seconds > 0 else None,
        decode_tokens_per_second=decode_rate,
        acceptance=_acceptance(completions),
        acceptance_length=acceptance_length,
        positions=tuple(n / drafts.value for n in usage.accepted_by_position or ()),
        positions_exact=not drafts.half_width,
    )


def _acceptance(completions: Iterable[Completion]) -> Share:
    held = [c.timings for c in completions]
    return _share(sum(t.accepted_tokens or 0 for t in held), sum(t.draft_tokens or 0 for t in held))


def _divergences(completed: Iterable[ProbeResult]) -> Iterable[FirstDivergence]:
    for result in completed:
        comparison = result.comparison
        if comparison is not None and comparison.first_divergence is not None:
            place = comparison.first_divergence
            yield FirstDivergence(
                prompt_id=result.prompt_id,
                task=result.task,
                variant=result.variant,
                position=place,
                matched_prefix=comparison.matched_prefix,
                margin_nats=comparison.divergence_margin_nats,
                target_only_text=_text_at(result.target_only, place),
                speculating_text=_text_at(result.speculating, place),
            )


def _text_at(completion: Completion | None, place: int) -> str:
    if completion is None or place >= len(completion.positions):
        return ""
    return completion.positions[place].text


def _comparability(completed: Iterable[ProbeResult]) -> Comparability | None:
    kinds = [r.positions for r in completed if r.positions is not None]
    if not kinds:
        return None
    return Comparability(
        paired=sum(k.comparable + k.missing + k.diverged for k in kinds),
        comparable=sum(k.comparable for k in kinds),
        missing=sum(k.missing for k in kinds),
        diverged=sum(k.diverged for k in kinds),
    )


def _kld_rows(completed: Sequence[ProbeResult]) -> Iterable[KldRow]:
    first = [r.next_token for r in completed if r.next_token is not None]
    later = [d for r in completed for d in r.after_speculation]
    places: dict[Place, list[Divergence]] = {
        "next_token": first,
        "after_speculation": later,
        "both": first + later if first and later else [],
        "teacher_forced": [d for r in completed for d in r.teacher_forced],
    }
    yield from _rows(places)


def _reference_rows(completed: Sequence[ProbeResult]) -> Iterable[KldRow]:
    first = [r.reference_next_token for r in completed if r.reference_next_token is not None]
    along = [d for r in completed for d in r.reference_forced]
    places: dict[Place, list[Divergence]] = {"next_token": first, "teacher_forced": along}
    yield from _rows(places)


def _rows(places: Mapping[Place, Sequence[Divergence]]) -> Iterable[KldRow]:
    for at, found in places.items():
        if found:
            figures = summary([d.nats for d in found])
            yield KldRow(
                at=at,
                positions=figures.positions,
                mean_nats=figures.mean_nats,
                mean_bits=figures.mean_bits,
                p50_nats=figures.p50_nats,
                p95_nats=figures.p95_nats,
                max_nats=figures.max_nats,
                top1_match=_share(sum(d.top1_agrees for d in found), len(found)),
            )


def _emitted(completed: Sequence[ProbeResult]) -> Emitted | None:
    tokens = [token for r in completed for token in r.forced]
    if not tokens:
        return None
    regret = summary([token.regret_nats for token in tokens])
    return Emitted(
        asked=len(tokens),
        best=_share(sum(token.rank == 0 for token in tokens), len(tokens)),
        mean_regret_nats=regret.mean_nats,
        p95_regret_nats=regret.p95_nats,
        max_regret_nats=regret.max_nats,
    )


def _task_rows(
    completed: Sequence[ProbeResult],
    tasks: Iterable[str],
    overall: TaskFigures,
    confidence: float,
) -> Iterable[TaskRow]:
    for task in tasks:
        mine = [r for r in completed if r.task == task]
        if mine:
            yield _task_row(task, mine, task_figures(mine, confidence=confidence))
    if completed:
        yield _task_row(ALL_TASKS, completed, overall)


def _task_row(task: str, results: Sequence[ProbeResult], figures: TaskFigures) -> TaskRow:
    return TaskRow(
        task=task,
        probes=figures.probes,
        acceptance=_acceptance(r.speculating for r in results if r.speculating is not None),
        acceptance_length=figures.acceptance_length,
        tokens_per_second=figures.tokens_per_second,
        target_only_tokens_per_second=figures.target_only_tokens_per_second,
        speedup=figures.speedup,
    )
