"""The part of the status page about probes: speed by task, and whether output is the same."""

import math
from collections.abc import Iterable, Iterator, Mapping

from mtpmon.compare import DivergenceKind
from mtpmon.grade import Graded
from mtpmon.kld import KldSummary
from mtpmon.markup import Html, h, together
from mtpmon.model import ProbeOutcome, ProbeResult
from mtpmon.pagetext import (
    GRADES,
    LENGTH,
    NO_DATA,
    PERCENT,
    PLAIN_SPEED,
    PROBE_OUTCOMES,
    SPEED,
    TIMES,
    VERDICTS,
    bar,
    bounded,
    count,
    figure,
    moment,
    nats,
    plural,
)
from mtpmon.rolling import TaskFigures
from mtpmon.snapshot import ServerSnapshot
from mtpmon.suite import DEFAULT_VARIANT
from mtpmon.verdict import Verdict

# Speed-up bars run from half to three times, evenly in the logarithm.
_SLOWEST, _FASTEST = 0.5, 3.0
_USUAL = (DEFAULT_VARIANT.temperature, DEFAULT_VARIANT.thinking)
_PLACES = {
    "next_token": "before any draft",
    "after_speculation": "after speculation",
    "teacher_forced": "teacher-forced",
}
_KINDS = {
    DivergenceKind.TIE: "by a rounding tie",
    DivergenceKind.REAL: "real",
    DivergenceKind.UNKNOWN: "not known which",
}


def probes(server: ServerSnapshot, *, now: float) -> Html:
    """What mtpmon's own requests showed."""
    figures = server.probe_figures
    if not server.probed:
        body: list[Html | None] = [
            h("p", "This server is not probed: probing is off in its configuration.")
        ]
    else:
        body = [h("p", _history(server, now=now), class_="now")]
        if figures.probes:
            body += [_tasks(server), _ways(server), _same_output(server)]
        body.append(_latest(server, now=now))
    return h("section", h("h3", "Probes"), *body)


def in_short(server: ServerSnapshot) -> Html:
    """Probes in one cell: the least and the greatest speed-up of tasks, exact sequences."""
    figures = server.probe_figures
    if not server.probed:
        return h("i", "not probed")
    if not figures.probes:
        return h("i", "no probe completed")
    found = [task.speedup for task in figures.tasks.values() if task.speedup is not None]
    if not server.paired and not found:
        return h("i", "no target-only server")
    if len(found) < 2:
        speed = bounded(found[0] if found else None, TIMES, "too few pairs")
    else:
        values = [bound.value for bound in found]
        speed = together(f"{TIMES.bare(min(values), 2)}–{TIMES.written(max(values))}")
    exact = None
    if figures.exact_sequences is not None:
        exact = h("small", PERCENT.written(figures.exact_sequences), " exact")
    return together(speed, " ", exact)


def _history(server: ServerSnapshot, *, now: float) -> Html:
    outcomes = server.probe_totals.outcomes
    counted = [
        f"{count(outcomes[outcome])} {words}"
        for outcome, words in PROBE_OUTCOMES.items()
        if outcomes.get(outcome)
    ]
    if not counted:
        return together("No probe yet: mtpmon waits until the server is ready and idle.")
    if server.last_success_unix_seconds is None:
        last = together("No probe has completed yet.")
    else:
        last = together("Last success ", moment(server.last_success_unix_seconds, now=now), ".")
    wrong = None
    if outcomes.get(ProbeOutcome.BASELINE_DRAFTED):
        wrong = (
            " The target-only server drafts: start it without --spec-type, or point"
            " target_only_url at one that is."
        )
    failed = None
    if server.probe_succeeded is False:
        failed = together(
            " ",
            h("b", "The last one that ran failed"),
            ": ",
            h("a", "/probes", href="probes"),
            " has the reason.",
        )
    return together(last, failed, " ", ", ".join(counted), ".", wrong)


def _latest(server: ServerSnapshot, *, now: float) -> Html | None:
    """The last few probes, one line each."""
    if not server.recent_probes:
        return None
    rows = (
        h(
            "tr",
            h("td", moment(probe.unix_seconds, now=now).partition(" (")[0]),
            h("td", probe.prompt_id),
            h("td", *_how_it_went(probe)),
        )
        for probe in server.recent_probes
    )
    return together(
        h("h4", "Last probes ", h("small", h("a", "all of them", href="probes"))),
        h("table", _head(("began", "prompt", "result")), *rows, class_="latest"),
    )


def _how_it_went(probe: ProbeResult) -> Iterator[Html | str]:
    if probe.outcome is not ProbeOutcome.COMPLETED:
        yield h("span", PROBE_OUTCOMES[probe.outcome], class_="mood bad")
        return
    timings = probe.speculating.timings if probe.speculating is not None else None
    if timings is not None and timings.draft_tokens:
        accepted = timings.accepted_tokens or 0
        yield f"{PERCENT.written(accepted / timings.draft_tokens)} accepted"
    else:
        yield "nothing drafted"
    if probe.comparison is not None:
        place = probe.comparison.first_divergence
        yield ", same output" if place is None else f", differs from token {place + 1} on"
    for name in probe.invalid:
        yield ", "
        yield h("span", name.replace("_", " "), class_="mood bad")


def _tasks(server: ServerSnapshot) -> Html:
    columns = ("task", "acceptance, length", "with MTP vs without", "speed-up, line at 1×")
    rows = [_task(name, task, server) for name, task in server.probe_figures.tasks.items()]
    return h("table", _head(columns), *rows, class_="tasks")


def _head(columns: Iterable[str]) -> Html:
    return h("tr", *(h("th", name, scope="col") for name in columns))


def _task(name: str, task: TaskFigures, server: ServerSnapshot) -> Html:
    length = plain = None
    paired = server.paired
    if task.acceptance_length is not None:
        length = h("small", figure(task.acceptance_length, LENGTH))
    if paired:
        plain = h("small", "vs ", figure(task.target_only_tokens_per_second, PLAIN_SPEED))
    slower = task.speedup is not None and task.speedup.upper < 1
    return h(
        "tr",
        h("th", name, " ", h("small", plural(task.probes, "probe")), scope="row"),
        h("td", figure(task.acceptance, PERCENT), " ", length, " ", _verdict(name, server)),
        h("td", figure(task.tokens_per_second, SPEED), " ", plain),
        h(
            "td",
            bounded(task.speedup, TIMES, "too few pairs" if paired else "no target-only server"),
            " ",
            _grade(name, server),
            class_="slow" if slower else None,
            style=bar(task.speedup, speedup_place),
        ),
    )


def _verdict(task: str, server: ServerSnapshot) -> Html | None:
    """What acceptance would break even, and which side of it this task is on."""
    standing, paid = server.measured.task_verdicts.get(task), server.measured.tasks.get(task)
    if paid is None or standing is None:
        return h("i", "breakeven not known") if server.measured.costs is not None else None
    verdict = None
    if standing.verdict is not Verdict.NO_DATA:
        mood = VERDICTS[standing.verdict].mood
        verdict = h("small", standing.verdict.value, class_=f"mood {mood}")
    breakeven = h("small", f"breakeven {PERCENT.written(paid.breakeven.value)}")
    return together(breakeven, " ", verdict)


def _grade(task: str, server: ServerSnapshot) -> Html | None:
    """The grade of the usual way to ask, which the other figures of the row are of."""
    return _graded(server.grades.get((task, *_USUAL)))


def _ways(server: ServerSnapshot) -> Html | None:
    """Grades of other ways to ask, if there are any: by task, temperature and thinking."""
    ways = sorted({(t, thinking) for _, t, thinking in server.grades}, key=str)
    if not set(ways) - {_USUAL}:
        return None
    rows = (
        h(
            "tr",
            h("th", task, scope="row"),
            *(h("td", _graded(server.grades.get((task, *way))) or h("i", NO_DATA)) for way in ways),
        )
        for task in dict.fromkeys(task for task, _, _ in server.grades)
    )
    return together(
        h("h4", "Other ways to ask"),
        h("table", _head(("task", *map(_way, ways))), *rows, class_="ways"),
    )


def _way(way: tuple[float, bool | None]) -> str:
    temperature, thinking = way
    said = "" if thinking is None else ", thinking" if thinking else ", not thinking"
    return f"temperature {temperature:g}{said}"


def _graded(found: Graded | None) -> Html | None:
    if found is None:
        return None
    words = GRADES[found.grade]
    name = words.name if found.certain else f"probably {words.name}"
    return h("small", name, class_=f"mood {words.mood}")


def speedup_place(ratio: float) -> float:
    """Where a speed-up is on its bar, 0 to 1."""
    within = min(max(ratio, _SLOWEST), _FASTEST)
    return math.log(within / _SLOWEST) / math.log(_FASTEST / _SLOWEST)


def _same_output(server: ServerSnapshot) -> Html:
    figures, totals = server.probe_figures, server.probe_totals
    if not server.paired and not figures.kld and figures.exact_sequences is None:
        return together(
            h("h4", "Same output?"),
            h(
                "p",
                "No data: to compare output and speed, give target_only_url, a second"
                " llama-server with the same model and without drafting.",
            ),
        )
    facts = [
        ("exact sequences", figure(figures.exact_sequences, PERCENT)),
        ("token match", figure(figures.token_match, PERCENT)),
        ("top-1 agreement", figure(figures.top1_agreement, PERCENT)),
        ("KLD coverage", figure(figures.kld_coverage, PERCENT)),
    ]
    if figures.divergence_margin_nats is not None:
        facts.append(("gap at divergence", together(nats(figures.divergence_margin_nats), " nats")))
    if figures.emitted_best is not None:
        facts.append(("target's best", figure(figures.emitted_best, PERCENT)))
    if figures.regret is not None:
        facts.append(("regret", together(nats(figures.regret.mean_nats), " nats")))
    return together(
        h("h4", "Same output? ", h("small", f"last {plural(figures.probes, 'probe')}")),
        h("dl", *(h("div", h("dt", name), h("dd", value)) for name, value in facts), class_="same"),
        _kld(figures.kld, missing=totals.missing > 0),
        h(
            "p",
            f"Positions so far: {count(totals.comparable)} comparable, {count(totals.missing)}"
            f" without log-probabilities, {count(totals.diverged)} after a divergence.",
            _divergences(totals.divergence_kinds),
            class_="now",
        ),
    )


def _divergences(kinds: Mapping[DivergenceKind, int]) -> str | None:
    found = [f"{count(kinds[kind])} {name}" for kind, name in _KINDS.items() if kinds.get(kind)]
    return f" First divergences: {', '.join(found)}." if found else None


def _kld(kld: dict[str, KldSummary], *, missing: bool) -> Html:
    if not kld:
        why = "the servers gave no log-probabilities" if missing else "no comparable positions"
        return h("p", f"KLD: no data, {why}.")
    rows = [
        h(
            "tr",
            h("th", _PLACES.get(at, at.replace("_", " ")), scope="row"),
            h("td", _mean(found)),
            h("td", nats(found.p95_nats)),
            h("td", nats(found.max_nats)),
            h("td", count(found.positions)),
        )
        for at, found in kld.items()
    ]
    head = _head(("KLD, nats", "mean ± se", "p95", "max", "positions"))
    return h("table", head, *rows, class_="kld")


def _mean(found: KldSummary) -> Html:
    error = found.standard_error_nats
    if error is None:
        return together(nats(found.mean_nats))
    mean = nats(found.mean_nats, like=error)
    return together(mean, " ", h("small", f"± {nats(error, like=error)}"))
