"""The page at ``/probes``: single probes, what both arms said and what became of it."""

import math
from collections.abc import Iterator, Sequence
from importlib import resources
from statistics import fmean

import msgspec

from mtpmon.compare import DivergenceKind, divergence_kind
from mtpmon.markup import Html, h, together
from mtpmon.model import (
    Completion,
    Divergence,
    Position,
    ProbeOutcome,
    ProbeResult,
    TopToken,
    Variant,
)
from mtpmon.pagetext import (
    NO_DATA,
    PERCENT,
    PROBE_OUTCOMES,
    SPACE,
    SPEED,
    TIMES,
    count,
    duration,
    figure,
    moment,
    nats,
    plural,
)
from mtpmon.rolling import divergences_of, task_figures

_STATIC = resources.files("mtpmon") / "static"
_STYLE = Html("".join((_STATIC / name).read_text("utf-8") for name in ("page.css", "probes.css")))
_KINDS = {
    DivergenceKind.TIE: "a rounding tie",
    DivergenceKind.REAL: "no tie",
    DivergenceKind.UNKNOWN: "no log-probabilities, so it may be a tie",
}


class ServerProbes(msgspec.Struct, frozen=True, kw_only=True):
    """The probes of one server that are kept to be looked at, oldest first."""

    name: str
    completed: tuple[ProbeResult, ...]
    failed: tuple[ProbeResult, ...]


def render_probes(servers: Sequence[ServerProbes], *, unix_seconds: float) -> str:
    """The whole document, newest probes first. It does not change by itself."""
    head = h(
        "head",
        h("meta", charset="utf-8"),
        h("meta", name="viewport", content="width=device-width,initial-scale=1"),
        h("meta", name="color-scheme", content="light dark"),
        h("link", rel="icon", href="data:,"),
        h("title", "mtpmon: probes"),
        h("style", _STYLE),
    )
    body = h(
        "body",
        h(
            "header",
            h("h1", "mtpmon probes"),
            h(
                "nav",
                h("a", "status", href="./"),
                " ",
                h("a", "as JSON", href="?format=json"),
                aria_label="other pages",
            ),
        ),
        h("main", *(_server(server, now=unix_seconds) for server in servers)),
    )
    return "<!doctype html>" + h("html", head, body, lang="en")


def _server(server: ServerProbes, *, now: float) -> Html:
    if not server.completed and not server.failed:
        body = together(h("p", "No probe yet."))
    else:
        body = together(
            _failures(server.failed, now=now) if server.failed else None,
            h("h3", plural(len(server.completed), "completed probe"), class_="where"),
            *(_probe(result, now=now) for result in reversed(server.completed)),
        )
    return h("article", h("h2", server.name), body)


def _failures(failed: Sequence[ProbeResult], *, now: float) -> Html:
    rows = [
        h(
            "tr",
            h("td", moment(result.unix_seconds, now=now)),
            h("td", result.prompt_id, " ", h("small", _variant(result))),
            h("td", PROBE_OUTCOMES[result.outcome], _detail(result), _said(result)),
            h("td", duration(result.duration_seconds)),
        )
        for result in reversed(failed)
    ]
    head = _head("when", "prompt", "what went wrong", "took")
    return together(
        h("h3", plural(len(failed), "failed probe"), class_="where"), h("table", head, *rows)
    )


def _detail(result: ProbeResult) -> str:
    return f": {result.detail}" if result.detail else ""


def _said(result: ProbeResult) -> Html | None:
    if result.speculating is None:
        return None
    return h("details", h("summary", "what was said"), h("div", _texts(result), _timings(result)))


def _variant(result: ProbeResult) -> str:
    """Task, and how the prompt was asked where that was not the usual way."""
    variant, words = result.variant, [result.task]
    if variant.temperature != Variant().temperature:
        words.append(f"temperature {variant.temperature:g}")
    if variant.thinking is not None:
        words.append("thinking" if variant.thinking else "no thinking")
    if variant.depth_tokens:
        words.append(f"{count(variant.depth_tokens)} tokens deep")
    return ", ".join(words)


def _probe(result: ProbeResult, *, now: float) -> Html:
    figures = task_figures([result], confidence=0.95)
    return h(
        "details",
        h(
            "summary",
            h("b", result.prompt_id),
            " ",
            h("small", _variant(result)),
            f" {moment(result.unix_seconds, now=now)}: {_verdict(result)}, acceptance ",
            figure(figures.acceptance, PERCENT),
            ", ",
            figure(figures.tokens_per_second, SPEED),
        ),
        h(
            "div",
            _texts(result),
            _distributions(result),
            h("h4", "Timings"),
            _timings(result),
            h("h4", "What went into the metrics"),
            _exported(result),
        ),
    )


def _verdict(result: ProbeResult) -> str:
    found = result.comparison
    if found is None:
        return "not compared"
    kind = divergence_kind(found)
    if kind is None:
        return "same output"
    gap = ""
    if found.divergence_margin_nats is not None:
        gap = f", {nats(found.divergence_margin_nats)} nats apart"
    return f"differs from token {found.first_divergence} on ({_KINDS[kind]}{gap})"


# --- what was said ------------------------------------------------------------------------


def _arms(result: ProbeResult) -> Iterator[tuple[str, Completion]]:
    if result.speculating is not None:
        yield "speculating", result.speculating
    if result.target_only is not None:
        yield "target only", result.target_only


def _place(result: ProbeResult) -> int | None:
    return result.comparison.first_divergence if result.comparison is not None else None


def _texts(result: ProbeResult) -> Html:
    arms, place = list(_arms(result)), _place(result)
    if len(arms) == 2 and result.comparison is not None and place is None:
        arms = [("both arms", arms[0][1])]
    return h(
        "div",
        *(h("div", h("h4", name), _text(arm.positions, place)) for name, arm in arms),
        class_="texts",
    )


def _text(positions: Sequence[Position], place: int | None) -> Html:
    def said(part: Sequence[Position]) -> str:
        return "".join(position.text for position in part)

    if place is None:
        # A line break right after the tag would be lost without another one before it.
        return h("pre", "\n", said(positions))
    first = said(positions[place : place + 1]) if place < len(positions) else "(end)"
    return h("pre", "\n", said(positions[:place]), h("mark", first), said(positions[place + 1 :]))


def _distributions(result: ProbeResult) -> Html | None:
    """Both sides' likeliest tokens where they first differ."""
    place = _place(result)
    if place is None:
        return None
    title = h("h4", f"Likeliest tokens at token {place}")
    sides = [_top(arm, place) for _, arm in _arms(result)]
    if not any(sides):
        return together(title, h("p", "The servers gave no log-probabilities there."))
    rows = [
        h("tr", *(_likely(side[rank] if rank < len(side) else None) for side in sides))
        for rank in range(max(map(len, sides)))
    ]
    return together(title, h("table", _head(*(name for name, _ in _arms(result))), *rows))


def _top(arm: Completion, place: int) -> tuple[TopToken, ...]:
    return arm.positions[place].top if place < len(arm.positions) else ()


def _likely(entry: TopToken | None) -> Html:
    if entry is None:
        return h("td", h("i", NO_DATA))
    return h(
        "td",
        h("code", repr(entry.text)),
        f" {PERCENT.written(math.exp(entry.logprob))} ",
        h("small", f"{entry.logprob:.6f} nats, token {entry.id}"),
    )


# --- what was measured --------------------------------------------------------------------


def _timings(result: ProbeResult) -> Html:
    rows = []
    for name, arm in _arms(result):
        timings, drafted = arm.timings, arm.timings.draft_tokens
        kept = timings.accepted_tokens or 0
        seconds = timings.generation_seconds
        later = timings.generated_tokens - 1  # the first token is the prompt's
        rows.append(
            h(
                "tr",
                h("th", name, scope="row"),
                h("td", f"{plural(timings.prompt_tokens, 'token')} in {_short(arm, prompt=True)}"),
                h("td", f"{plural(timings.generated_tokens, 'token')} in {_short(arm)}"),
                h("td", figure(later / seconds if later > 0 and seconds > 0 else None, SPEED)),
                h("td", f"{count(kept)} of {count(drafted)}" if drafted else "nothing drafted"),
                h("td", figure(kept / drafted if drafted else None, PERCENT)),
                h("td", count(len(arm.stream.steps))),
                h("td", duration(arm.wall_seconds)),
            )
        )
    head = _head("arm", "prompt", "answer", "speed", "kept", "acceptance", "steps", "in all")
    return h("table", head, *rows)


def _short(arm: Completion, *, prompt: bool = False) -> str:
    seconds = arm.timings.prompt_seconds if prompt else arm.timings.generation_seconds
    return f"{count(seconds * 1000)}{SPACE}ms"


def _exported(result: ProbeResult) -> Html:
    rows = [
        h("tr", h("td", h("code", name)), h("td", value)) for name, value in contributions(result)
    ]
    return h("table", *rows, class_="put")


def contributions(result: ProbeResult) -> Iterator[tuple[str, str]]:
    """What a completed probe put into which metric, with its labels but for ``server``."""
    yield f'mtpmon_probes_total{{outcome="{ProbeOutcome.COMPLETED.value}"}}', "+1"
    yield from _of_figures(result)
    found = result.comparison
    if found is not None:
        yield "mtpmon_exact_sequence_ratio", "1" if found.exact else "0"
        yield "mtpmon_token_match_ratio", f"{found.matches} of {found.tokens}"
        kind = divergence_kind(found)
        if kind is not None:
            yield "mtpmon_first_divergence_position", str(found.first_divergence)
            yield f'mtpmon_divergences_total{{kind="{kind.value}"}}', "+1"
        if found.divergence_margin_nats is not None:
            yield "mtpmon_divergence_margin_nats", nats(found.divergence_margin_nats)
    kinds = result.positions
    if kinds is not None:
        for name, number in msgspec.structs.asdict(kinds).items():
            yield f'mtpmon_kld_positions_total{{result="{name}"}}', f"+{number}"
    first = [result.next_token] if result.next_token is not None else []
    yield from _divergences('mtpmon_kld_nats{at="next_token"}', first)
    yield from _divergences('mtpmon_kld_nats{at="after_speculation"}', result.after_speculation)
    yield from _divergences('mtpmon_kld_nats{at="teacher_forced"}', result.teacher_forced)
    everything = list(divergences_of(result))
    if everything:
        yield "mtpmon_kld_coverage_ratio", PERCENT.written(fmean(d.coverage for d in everything))
        agreed = sum(d.top1_agrees for d in everything)
        yield "mtpmon_top1_agreement_ratio", f"{agreed} of {len(everything)}"
    if result.forced:
        worst = max(token.regret_nats for token in result.forced)
        yield "mtpmon_regret_nats", f"{plural(len(result.forced), 'token')}, max {nats(worst)}"
        best = sum(token.rank == 0 for token in result.forced)
        yield "mtpmon_emitted_best_ratio", f"{best} of {len(result.forced)}"
    drifts = [d for d in (result.reference_next_token, *result.reference_forced) if d is not None]
    yield from _divergences("mtpmon_reference_kld_nats", drifts)


def _of_figures(result: ProbeResult) -> Iterator[tuple[str, str]]:
    figures = task_figures([result], confidence=0.95)
    ours, theirs = figures.tokens_per_second, figures.target_only_tokens_per_second
    task = f'task="{result.task}"'
    if result.speculating is not None:
        timings = result.speculating.timings
        for name, number in (
            ("generated", timings.generated_tokens),
            ("draft", timings.draft_tokens or 0),
            ("accepted", timings.accepted_tokens or 0),
        ):
            yield f'mtpmon_{name}_tokens_total{{traffic="probe"}}', f"+{number}"
    if result.variant != Variant():
        return  # figures by task are about the usual way to ask
    if figures.acceptance is not None:
        yield f"mtpmon_probe_acceptance_ratio{{{task}}}", PERCENT.written(figures.acceptance)
    for arm, rate in (("speculating", ours), ("target_only", theirs)):
        if rate is not None:
            yield f'mtpmon_probe_tokens_per_second{{{task},arm="{arm}"}}', SPEED.written(rate)
    if ours and theirs:
        yield f"mtpmon_speedup_ratio{{{task}}}", TIMES.written(ours / theirs)


def _divergences(name: str, found: Sequence[Divergence]) -> Iterator[tuple[str, str]]:
    if found:
        values = [d.nats for d in found]
        size = f"mean {nats(fmean(values))}, max {nats(max(values))}"
        yield name, f"{plural(len(values), 'position')}, {size}"


def _head(*names: str) -> Html:
    return h("tr", *(h("th", name, scope="col") for name in names))
