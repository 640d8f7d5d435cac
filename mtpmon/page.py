"""The status page: one HTML document, from a snapshot, for people without dashboards."""

from collections import Counter
from datetime import UTC, datetime
from importlib import resources

from mtpmon import __version__
from mtpmon.markup import Html, h, together
from mtpmon.model import State
from mtpmon.pagelive import (
    answer,
    answer_in_short,
    is_empty,
    live_traffic,
    prominent,
    verdict_of,
    why_no_acceptance,
)
from mtpmon.pageprobes import in_short, probes
from mtpmon.pagetext import (
    NO_DATA,
    PERCENT,
    SPACE,
    SPEED,
    VERDICTS,
    bounded,
    count,
    duration,
    moment,
    outcome_words,
    plural,
    state_words,
)
from mtpmon.snapshot import ServerSnapshot, Snapshot
from mtpmon.verdict import Verdict

_STATIC = resources.files("mtpmon") / "static"
_STYLE = Html((_STATIC / "page.css").read_text("utf-8"))
_SCRIPT = Html((_STATIC / "page.js").read_text("utf-8"))
_SIDE_BY_SIDE = 5  # windows; with more, live traffic and probes go below each other
_MOODS = ("bad", "calm", "good")
_LINKS = ("metrics", "probes", "config", "-/healthy", "-/ready")


def render_page(snapshot: Snapshot) -> str:
    """The whole document.

    Its script fetches it again every few seconds and puts what changed in place.
    """
    summary = _summary(snapshot)
    head = h(
        "head",
        h("meta", charset="utf-8"),
        h("meta", name="viewport", content="width=device-width,initial-scale=1"),
        h("meta", name="color-scheme", content="light dark"),
        h("link", rel="icon", href="data:,"),
        h("title", f"mtpmon: {summary}"),
        h("style", _STYLE),
    )
    body = h(
        "body",
        _header(snapshot),
        h("p", id="lost", role="status"),
        _main(snapshot, summary),
        _terms(),
        h("script", _SCRIPT),
    )
    return "<!doctype html>" + h("html", head, body, lang="en")


def _header(snapshot: Snapshot) -> Html:
    now = datetime.fromtimestamp(snapshot.unix_seconds, UTC)
    return h(
        "header",
        h("h1", "mtpmon ", h("small", __version__)),
        h(
            "p",
            h(
                "time",
                now.strftime("%Y-%m-%d %H:%M:%S UTC"),
                id="now",
                datetime=now.strftime("%Y-%m-%dT%H:%M:%SZ"),
            ),
            " ",
            h("button", "Pause", id="pause", type="button", hidden=""),
            h("noscript", "Reload for newer figures."),
        ),
        h(
            "nav",
            *(together(h("a", f"/{path}", href=path), " ") for path in _LINKS),
            aria_label="other pages",
        ),
    )


def _summary(snapshot: Snapshot) -> str:
    """``3 servers: 1 unreachable, 1 ready, 1 MTP paying``, the worst first."""
    servers = plural(len(snapshot.servers), "server")
    found = Counter(_in_a_word(server) for server in snapshot.servers)
    if len(found) <= 1:
        return ": ".join([servers, *(name for _, name in found)])
    return f"{servers}: " + ", ".join(
        f"{number} {name}"
        for (_, name), number in sorted(found.items(), key=lambda item: item[0][0])
    )


def _in_a_word(server: ServerSnapshot) -> tuple[int, str]:
    """How bad it is, least first, and what to call it: its state, or the verdict if it is well."""
    words, verdict = state_words(server.state), verdict_of(server)
    if server.state is not State.READY or verdict is Verdict.NO_DATA:
        return 2 * _MOODS.index(words.mood), words.name
    return 2 * _MOODS.index(VERDICTS[verdict].mood) + 1, f"MTP {verdict.value}"


def _main(snapshot: Snapshot, summary: str) -> Html:
    refused = None
    if not snapshot.config_reload_successful:
        refused = h(
            "p",
            h("b", "The configuration on disk is not in use:"),
            " reading it again failed, and the one before goes on. ",
            h("code", "mtpmon check"),
            " and mtpmon's log say what is wrong.",
            class_="todo bad",
        )
    unlisted = None
    if snapshot.server_files_successful is False:
        unlisted = h(
            "p",
            h("b", "Files that list servers are not in use as they are:"),
            " what they said before goes on. mtpmon's log says what is wrong with them.",
            class_="todo bad",
        )
    return h(
        "main",
        refused,
        unlisted,
        None if snapshot.servers else h("p", "No server is watched: none is listed at present."),
        _overview(snapshot, summary) if len(snapshot.servers) > 1 else None,
        *(_server(server, f"s{place}", snapshot) for place, server in enumerate(snapshot.servers)),
    )


# --- overview -----------------------------------------------------------------------------


def _overview(snapshot: Snapshot, summary: str) -> Html:
    columns = ("server", "is MTP paying?", "acceptance", "decode speed", "speed-up by task")
    rows = [
        _overview_row(server, f"s{place}", snapshot)
        for place, server in enumerate(snapshot.servers)
    ]
    return h(
        "section",
        h("h2", summary),
        h(
            "table",
            h("tr", *(h("th", name, scope="col") for name in columns)),
            *rows,
        ),
        class_="all",
    )


def _overview_row(server: ServerSnapshot, anchor: str, snapshot: Snapshot) -> Html:
    width, figures = prominent(server, snapshot.windows_seconds)
    words = state_words(server.state)
    why = why_no_acceptance(server, figures, width, now=snapshot.unix_seconds)
    if is_empty(figures):
        live = [h("td", h("i", why)), h("td", h("i", NO_DATA))]
    else:
        window = h("small", f"in {duration(width)}") if figures.acceptance is not None else None
        doubt = h("small", "may be wrong") if server.distrust else None
        live = [
            h("td", bounded(figures.acceptance, PERCENT, why), " ", window, " ", doubt),
            h("td", bounded(figures.decode_tokens_per_second, SPEED)),
        ]
    name = h("a", server.name, href=f"#{anchor}")
    return h(
        "tr",
        h("th", name, " ", h("b", words.name), scope="row", class_=f"state {words.mood}"),
        answer_in_short(server, snapshot),
        *live,
        h("td", in_short(server)),
    )


# --- one server ---------------------------------------------------------------------------


def _server(server: ServerSnapshot, anchor: str, snapshot: Snapshot) -> Html:
    words = state_words(server.state)
    now = snapshot.unix_seconds
    since = None
    if server.since_unix_seconds is not None:
        since = f" since {moment(server.since_unix_seconds, now=now)}"
    todo = None
    if words.advice:
        detail = None
        if server.detail and server.state is not None:
            detail = f"{server.detail[0].upper()}{server.detail[1:]}. "
        todo = h("p", detail, h("b", words.advice), class_=f"todo {words.mood}")
    return h(
        "article",
        h("h2", server.name),
        h("p", h("span", words.name, class_=f"state {words.mood}"), since, class_="status"),
        todo,
        answer(server, snapshot),
        _facts(server),
        h(
            "div",
            live_traffic(server, snapshot),
            probes(server, now=now),
            class_="cols many" if len(snapshot.windows_seconds) > _SIDE_BY_SIDE else "cols",
        ),
        id=anchor,
    )


def _facts(server: ServerSnapshot) -> Html:
    """What the server is, in one line of terms and values."""
    facts: list[tuple[str, str]] = []
    if server.props is not None:
        props = server.props
        facts += [
            ("model", props.model or NO_DATA),
            ("quantization", props.quantization or NO_DATA),
            ("build", props.build or NO_DATA),
            ("slots", count(props.slots) if props.slots is not None else NO_DATA),
        ]
        if props.context_tokens is not None:
            facts.append(("context", f"{count(props.context_tokens)} tokens"))
    else:
        facts.append(("model, build", NO_DATA))
    counters = server.counters
    if counters is not None and counters.accepted_by_position:
        facts.append(("drafts up to", plural(len(counters.accepted_by_position), "token")))
    if counters is not None and counters.requests_processing is not None:
        queued = counters.requests_deferred or 0
        facts.append(("requests", f"{counters.requests_processing} running, {queued} queued"))
    looks = ", ".join(
        f"{count(number)} {outcome_words(outcome)}"
        for outcome, number in server.scrapes.items()
        if number
    )
    facts += [("restarts", count(server.restarts)), ("scrapes", looks or "none yet")]
    if server.bad_lines:
        facts.append(("unusable metric lines", count(server.bad_lines)))
    if server.contradictions:
        facts.append(("scrapes held back", count(server.contradictions)))
    return h(
        "dl",
        *(together(h("dt", name), SPACE, h("dd", value), " ") for name, value in facts),
        class_="facts",
    )


# --- terms --------------------------------------------------------------------------------

_TERMS = {
    "acceptance": "draft tokens that were kept, of all that were drafted; in brackets, its bounds",
    "breakeven": "acceptance at which MTP neither gains nor loses, from what probes measured of"
    " the step cost; the upright line on the bar of acceptance",
    "points": "difference of two percentages: of acceptance and its breakeven",
    "step cost": "a step that verifies a draft, in steps without MTP (plain steps)",
    "modelled speed-up": "acceptance length over step cost, for users' own traffic",
    "recommended, marginal, not recommended": "by the measured speed-up of a task, by limits in"
    " the documentation; probably: its bounds reach into another grade",
    "target's best, regret": "tokens given out that the target itself finds likeliest, and how"
    " much likelier than the one given out it finds its best",
    "position 0, 1, …": "drafts that kept their first, second, … token",
    "acceptance length": "tokens that a drafting step yields on average, the target's own included",
    "draft coverage": "decode steps that drafted, of all",
    "decode speed": "of one stream, without the time a prompt takes",
    "throughput": "of all streams together, over wall time",
    "speed-up": "speed with MTP over speed without, in pairs of probes with the same prompt",
    "exact sequences": "probes that said the same with and without MTP, to the last token",
    "token match": "tokens that are the same with and without MTP, place by place",
    "gap at divergence": "how far apart the target's two best tokens were where outputs first"
    " differed, half of them more; near 0 it was a rounding tie",
    "KLD": "how far MTP moved the distribution of the next token: a lower bound, from the"
    " likeliest tokens; before any draft, which MTP cannot touch, it shows the noise",
    "KLD coverage": "probability that those tokens hold",
    "top-1 agreement": "places at which both find the same token likeliest",
}


def _terms() -> Html:
    """What the figures mean. The same for every snapshot: opened, it stays open."""
    return h(
        "details",
        h("summary", "What the figures mean"),
        h("dl", *(h("div", h("dt", name), h("dd", text)) for name, text in _TERMS.items())),
    )
