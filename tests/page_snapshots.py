"""Snapshots for the tests of the status page: what a board may look like."""

import math
from typing import Any

import msgspec

from mtpmon.compare import DivergenceKind
from mtpmon.cost import AgainstPlain, PlainSource, StepCosts
from mtpmon.grade import GradeRules, grade
from mtpmon.kld import KldSummary
from mtpmon.model import (
    Amount,
    Bounded,
    Comparison,
    Completion,
    Counters,
    Identity,
    Outcome,
    ProbeOutcome,
    ProbeResult,
    Props,
    Reading,
    State,
    StepStream,
    Timings,
    Usage,
)
from mtpmon.payoff import Payoff
from mtpmon.rolling import ProbeFigures, TaskFigures
from mtpmon.snapshot import ProbeTotals, ServerSnapshot, Snapshot, Source
from mtpmon.tally import Tally
from mtpmon.trend import Trend, TrendPoint
from mtpmon.trust import Reason
from mtpmon.verdict import Standing, Verdict
from mtpmon.window import TrafficFigures
from mtpmon.worth import Measured, Paying

NOW = 1_795_965_727.0  # 2026-11-29 15:22:07 UTC
WINDOWS = (60.0, 300.0, 3600.0)

WORTH_OF = Tally(drafts=1000.0, draft_tokens=3000.0, by_position=(920.0, 780.0, 650.0))


def payoff(acceptance: float, half: float, breakeven: float, **changes: Any) -> Payoff:
    """What drafting brings at such an acceptance; the cost adds half as much uncertainty."""
    margin, length, ratio = acceptance - breakeven, 1 + 3 * acceptance, 1 + 3 * breakeven
    paid = Payoff(
        drafts=1482.0,
        source=PlainSource.PAIR,
        acceptance=Bounded(acceptance, acceptance - half, acceptance + half),
        acceptance_length=Bounded(length, length - 3 * half, length + 3 * half),
        step_ratio=Bounded(ratio, ratio - half, ratio + half),
        speedup=speedup(length / ratio, half),
        breakeven=Bounded(breakeven, breakeven - half / 2, breakeven + half / 2),
        margin=Bounded(margin, margin - 1.1 * half, margin + 1.1 * half),
    )
    return msgspec.structs.replace(paid, **changes)


def costs(source: PlainSource = PlainSource.PAIR, excess: float = 1.0) -> StepCosts:
    """Steps that cost 2.66 plain ones."""
    return StepCosts(
        plain=AgainstPlain(
            source=source,
            ratio=Bounded(2.656, 2.631, 2.681),
            excess=excess,
            seconds=Bounded(0.0333, 0.0331, 0.0335),
            undrafted_ratio=1.05,
            pairs=256,
        ),
        step_seconds=Bounded(0.0884, 0.0881, 0.0887),
        longest=3,
        lengths=(),
        cut=(),
        startup=None,
        rollback=(0.0, 0.0, 0.0),
        rollback_errors=(0.0, 0.0, 0.0),
        mix=WORTH_OF,
        requests=512,
        first_unix_seconds=NOW - 80_000,
        last_unix_seconds=NOW - 49,
        context_tokens=(40, 640),
        identity=Identity(),
    )


def paying(
    verdict: Verdict, acceptance: float = 0.783, half: float = 0.019, breakeven: float = 0.552
) -> Paying:
    """A verdict, and a payoff in each window."""
    return Paying(
        windows={
            width: payoff(acceptance, half * scale, breakeven)
            for width, scale in zip(WINDOWS, (2.6, 1.0, 0.3), strict=True)
        },
        verdict=Standing(verdict, NOW - 9_000),
    )


NO_PROBES = ProbeTotals(
    outcomes={},
    comparable=0,
    missing=0,
    diverged=0,
    clamped=0,
    divergence_positions=(0,) * 14,
    divergence_position_sum=0.0,
)


def snapshot(*servers: ServerSnapshot, **changes: Any) -> Snapshot:
    """A board with these servers."""
    whole = Snapshot(unix_seconds=NOW, servers=servers, windows_seconds=WINDOWS)
    return msgspec.structs.replace(whole, **changes)


def unseen(**changes: Any) -> ServerSnapshot:
    """A server at which nobody has looked yet."""
    server = ServerSnapshot(
        name="local",
        probed=True,
        paired=True,
        state=None,
        detail="not looked at yet",
        since_unix_seconds=None,
        props=None,
        counters=None,
        scrapes={},
        scrape_duration_seconds=None,
        bad_lines=0,
        contradictions=0,
        restarts=0,
        live=None,
        own=Usage(),
        windows={},
        waiting_seconds=None,
        source=None,
        distrust=frozenset(),
        mismatch=None,
        probe_totals=NO_PROBES,
        probe_figures=ProbeFigures(),
        probe_timeout_seconds=30.0,
        last_probe=None,
        probe_succeeded=None,
        last_success_unix_seconds=None,
    )
    return msgspec.structs.replace(server, **changes)


def figures(acceptance: float = 0.783, half: float = 0.021, **changes: Any) -> TrafficFigures:
    """A window with everything; three draft positions that add up to the acceptance."""
    shares = (1.18 * acceptance, acceptance, 0.82 * acceptance)
    length = 1 + 3 * acceptance
    full = TrafficFigures(
        span_seconds=302.0,
        drafts=1482.0,
        acceptance=Bounded(acceptance, acceptance - half, acceptance + half),
        acceptance_length=Bounded(length, length - 3 * half, length + 3 * half),
        positions=shares,
        conditional_positions=(shares[0], shares[1] / shares[0], shares[2] / shares[1]),
        draft_coverage=0.984,
        decode_tokens_per_second=Bounded(45.23, 43.91, 45.31),
        throughput_tokens_per_second=118.4,
    )
    return msgspec.structs.replace(full, **changes)


def speedup(value: float, half: float) -> Bounded:
    return Bounded(value, value / (1 + half), value * (1 + half))


def task(acceptance: float, speed: float, plain: float, *, half: float = 0.04) -> TaskFigures:
    """A task's row, from its acceptance and the speed of both arms."""
    return TaskFigures(
        last_unix_seconds=1_700_000_000.0,
        probes=51,
        acceptance=acceptance,
        acceptance_length=1 + 3 * acceptance,
        tokens_per_second=speed,
        target_only_tokens_per_second=plain,
        speedup=speedup(speed / plain, half),
    )


TASKS = {  # in keeping with steps that cost 2.66 plain ones
    "code": task(0.823, 39.66, 30.07),
    "factual": task(0.694, 34.91, 30.07),
    "analysis": task(0.542, 30.38, 30.07, half=0.09),
    "essay": task(0.558, 31.95, 30.07, half=0.11),
    "creative": task(0.472, 27.14, 30.07),
}

MEASURED = Measured(
    costs=costs(),
    likeness=0.05,
    disagreement=Bounded(1.01, 0.98, 1.04),
    tasks={name: payoff(found.acceptance or 0.0, 0.03, 0.552) for name, found in TASKS.items()},
    task_verdicts={
        "code": Standing(Verdict.PAYING, NOW - 9_000),
        "factual": Standing(Verdict.PAYING, NOW - 9_000),
        "analysis": Standing(Verdict.UNDECIDED, NOW - 9_000),
        "essay": Standing(Verdict.NO_DATA, NOW - 9_000),
        "creative": Standing(Verdict.COSTING, NOW - 9_000),
    },
    advice_words="keep --spec-draft-n-max 3; 4 is worth a try: +4 % by extrapolation,"
    " which nothing here has measured",
)
GRADES = {
    (name, 0.0, None): grade(found.speedup, GradeRules())
    for name, found in TASKS.items()
    if found.speedup is not None
}

PROBE_FIGURES = ProbeFigures(
    probes=256,
    tasks=TASKS,
    exact_sequences=0.9609,
    token_match=0.9872,
    kld={
        "next_token": KldSummary(
            positions=256,
            mean_nats=0.000021,
            standard_error_nats=0.000003,
            p50_nats=0.000012,
            p95_nats=0.000081,
            p99_nats=0.00012,
            max_nats=0.00031,
        ),
        "after_speculation": KldSummary(
            positions=14_930,
            mean_nats=0.00114,
            standard_error_nats=0.00009,
            p50_nats=0.0004,
            p95_nats=0.0040,
            p99_nats=0.011,
            max_nats=0.073,
        ),
        "teacher_forced": KldSummary(
            positions=9_216,
            mean_nats=0.00087,
            standard_error_nats=0.00007,
            p50_nats=0.0003,
            p95_nats=0.0031,
            p99_nats=0.009,
            max_nats=0.051,
        ),
    },
    regret=KldSummary(
        positions=9_216,
        mean_nats=0.00041,
        standard_error_nats=0.00008,
        p50_nats=0.0,
        p95_nats=0.0,
        p99_nats=0.011,
        max_nats=0.062,
    ),
    emitted_best=0.9964,
    kld_coverage=0.9941,
    top1_agreement=0.9987,
    divergence_margin_nats=0.031,
)


def ready(**changes: Any) -> ServerSnapshot:
    """A server that works and of which everything is known."""
    server = unseen(
        name="qwen-coder",
        state=State.READY,
        detail="",
        since_unix_seconds=NOW - 11_525,
        props=Props(
            build="b10434-5f1a2c3d4",
            build_number=10434,
            model="Qwen3.6-27B-MTP",
            quantization="Q4_K_M",
            context_tokens=32768,
            slots=4,
        ),
        counters=Counters(
            drafts=Reading(48_211.0, 1.0),
            accepted_by_position=(42_000, 36_000, 31_000),
            requests_processing=2,
            requests_deferred=0,
        ),
        scrapes={Outcome.OK: 17_280, Outcome.TIMEOUT: 3},
        scrape_duration_seconds=0.004,
        restarts=1,
        live=Usage(drafts=Amount(48_211.0)),
        windows={
            "live": {
                60.0: figures(
                    0.751,
                    0.058,
                    span_seconds=61.0,
                    drafts=214.0,
                    throughput_tokens_per_second=97.1,
                ),
                300.0: figures(),
                3600.0: figures(
                    0.7619,
                    0.006,
                    span_seconds=3602.0,
                    drafts=16_480.0,
                    throughput_tokens_per_second=104.0,
                ),
            }
        },
        waiting_seconds=12.4,
        source=Source.COUNTERS,
        probe_totals=msgspec.structs.replace(
            NO_PROBES,
            outcomes={
                ProbeOutcome.COMPLETED: 1_204,
                ProbeOutcome.SKIPPED_BUSY: 318,
                ProbeOutcome.PREEMPTED: 41,
                ProbeOutcome.TIMEOUT: 2,
            },
            comparable=71_204,
            missing=24,
            diverged=1_911,
            divergence_kinds={DivergenceKind.TIE: 41, DivergenceKind.REAL: 2},
        ),
        measured=MEASURED,
        paying=paying(Verdict.PAYING),
        grades=GRADES,
        probe_figures=PROBE_FIGURES,
        probe_succeeded=True,
        last_success_unix_seconds=NOW - 49,
        recent_probes=RECENT,
    )
    return msgspec.structs.replace(server, **changes)


def drifting(hours: float = 3.0) -> Trend:
    """Acceptance that falls from 0.80 to 0.47 and recovers, with a pause of users in it."""
    points = []
    for step in range(144):
        share = step / 143
        level = 0.80 - 0.33 * math.exp(-(((share - 0.62) / 0.13) ** 2))
        known = not 0.28 < share < 0.36
        points.append(
            TrendPoint(
                unix_seconds=NOW - 3600 * hours * (1 - share),
                acceptance=Bounded(level, level - 0.025, level + 0.025) if known else None,
                breakeven=Bounded(0.552, 0.543, 0.561) if share > 0.05 else None,
            )
        )
    return Trend(points=tuple(points), spacing_seconds=3600 * hours / 143)


def asked(
    number: int, outcome: ProbeOutcome = ProbeOutcome.COMPLETED, **changes: Any
) -> ProbeResult:
    """A probe of a minute ago for each number."""
    done = outcome is ProbeOutcome.COMPLETED
    answer = Completion(
        positions=(),
        timings=Timings(
            prompt_tokens=20,
            prompt_seconds=0.1,
            cached_tokens=0,
            generated_tokens=64,
            generation_seconds=1.4,
            draft_tokens=60,
            accepted_tokens=48 - 3 * number,
        ),
        stream=StepStream(),
        wall_seconds=1.6,
    )
    found = ProbeResult(
        server="qwen-coder",
        prompt_id=f"code-{number + 1}",
        task="code",
        unix_seconds=NOW - 60 * number - 49,
        duration_seconds=3.4,
        outcome=outcome,
        speculating=answer if done else None,
        comparison=Comparison(
            tokens=64,
            matches=64,
            matched_prefix=64,
            first_divergence=None,
            divergence_margin_nats=None,
        )
        if done
        else None,
    )
    return msgspec.structs.replace(found, **changes)


RECENT = (
    asked(0),
    asked(1, comparison=None),
    asked(2, ProbeOutcome.TIMEOUT),
    asked(
        3,
        invalid=("repetition_loop",),
        comparison=Comparison(
            tokens=64,
            matches=40,
            matched_prefix=17,
            first_divergence=17,
            divergence_margin_nats=0.003,
        ),
    ),
    asked(4, speculating=None),
)


NO_TRAFFIC = TrafficFigures(throughput_tokens_per_second=0.0)


def idle(**changes: Any) -> ServerSnapshot:
    """A ready server that had some traffic a while ago and has no second server."""
    unpaired = {
        name: msgspec.structs.replace(
            figures, target_only_tokens_per_second=None, speedup=None, acceptance_length=None
        )
        for name, figures in TASKS.items()
    }
    server = ready(
        name="mistral-chat",
        paired=False,
        props=Props(build="b10142-0a1b2c3d4", model="Mistral-Small-24B-MTP", slots=1),
        windows={"live": {60.0: NO_TRAFFIC, 300.0: NO_TRAFFIC, 3600.0: figures(0.552, 0.031)}},
        waiting_seconds=0.0,
        counters=Counters(drafts=Reading(2_114.0), requests_processing=0, requests_deferred=0),
        probe_totals=msgspec.structs.replace(
            NO_PROBES, outcomes={ProbeOutcome.COMPLETED: 88, ProbeOutcome.SKIPPED_BUSY: 3}
        ),
        probe_figures=ProbeFigures(probes=88, tasks=unpaired),
        measured=Measured(costs=msgspec.structs.replace(costs(), plain=None)),
        paying=Paying(verdict=Standing(Verdict.NO_DATA, NOW - 9_000)),
        grades={},
    )
    return msgspec.structs.replace(server, **changes)


def sleeping(**changes: Any) -> ServerSnapshot:
    """A server that fell asleep a day ago."""
    server = unseen(
        name="night-batch",
        state=State.SLEEPING,
        detail="the server sleeps; it is left alone",
        since_unix_seconds=NOW - 93_000,
        props=Props(build="b11434-99aa88bb7", model="Llama-4-Scout-MTP", sleeping=True, slots=8),
        scrapes={Outcome.OK: 212, Outcome.SLEEPING: 18_600},
        probe_totals=msgspec.structs.replace(
            NO_PROBES, outcomes={ProbeOutcome.SKIPPED_SLEEPING: 1_550}
        ),
    )
    return msgspec.structs.replace(server, **changes)


def unreachable(**changes: Any) -> ServerSnapshot:
    """A server that went away three minutes ago."""
    server = ready(
        name="deepseek-eu",
        state=State.UNREACHABLE,
        detail="cannot connect: Connection refused",
        since_unix_seconds=NOW - 194,
        scrapes={Outcome.OK: 17_280, Outcome.REFUSED: 39},
        counters=None,
        windows={},
        waiting_seconds=None,
        paying=Paying(),
        probe_succeeded=False,
    )
    return msgspec.structs.replace(server, **changes)


def unauthorized(**changes: Any) -> ServerSnapshot:
    """A server that wants a key which mtpmon does not have."""
    server = unseen(
        name="gateway",
        state=State.UNAUTHORIZED,
        detail="the server wants an API key: set api_key_env or api_key_file",
        since_unix_seconds=NOW - 3_700,
        scrapes={Outcome.UNAUTHORIZED: 740},
        probe_totals=msgspec.structs.replace(
            NO_PROBES, outcomes={ProbeOutcome.SKIPPED_NOT_READY: 61}
        ),
    )
    return msgspec.structs.replace(server, **changes)


def doubtful(**changes: Any) -> ServerSnapshot:
    """A server whose counters are off."""
    server = ready(
        name="old-build",
        props=Props(build="b9000-00ff00ff0", build_number=9000, model="Qwen3.6-27B-MTP", slots=4),
        distrust=frozenset({Reason.KNOWN_BUILD, Reason.PROBE_MISMATCH, Reason.ALWAYS_ACCEPTED}),
        mismatch=0.183,
    )
    return msgspec.structs.replace(server, **changes)


VERDICTS = (*[Verdict.PAYING] * 4, *[Verdict.UNDECIDED] * 2, Verdict.COSTING)


def twelve() -> Snapshot:
    """A dozen servers, most of them well."""
    names = ("coder-a", "coder-b", "coder-c", "chat-eu", "chat-us", "chat-asia", "rag")
    well = [
        ready(
            name=name,
            windows={
                "live": {
                    width: figures(0.81 - 0.035 * place, 0.05 / (i + 1))
                    for i, width in enumerate(WINDOWS)
                }
            },
            waiting_seconds=0.0,
            trend=drifting(),
            paying=paying(VERDICTS[place], 0.81 - 0.035 * place, 0.03, 0.64),
        )
        for place, name in enumerate(names)
    ]
    return snapshot(*well, idle(), sleeping(), unreachable(), unauthorized(), unseen(name="new"))


MARKUP = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&amp;"


def hostile(**changes: Any) -> ServerSnapshot:
    """A server whose every word is markup, or very long."""
    server = ready(
        name=MARKUP,
        state=State.MALFORMED,
        detail=f"{MARKUP} {'x' * 200}",
        props=Props(build=MARKUP, model="m" * 256, quantization=MARKUP, slots=10**9),
        probe_figures=ProbeFigures(
            probes=7,
            tasks={MARKUP: TASKS["code"], "t" * 64: TASKS["essay"]},
            kld={MARKUP: PROBE_FIGURES.kld["next_token"]},
        ),
    )
    return msgspec.structs.replace(server, **changes)
