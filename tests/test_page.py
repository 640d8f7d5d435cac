"""The status page: what it says about a snapshot, and that it is sound HTML."""

import re
import time
from collections.abc import Callable
from html.parser import HTMLParser
from itertools import pairwise

import msgspec
import pytest

from mtpmon import __version__
from mtpmon.cost import PlainSource
from mtpmon.grade import Grade, Graded
from mtpmon.kld import KldSummary
from mtpmon.markup import Html, h, together
from mtpmon.model import (
    Amount,
    Bounded,
    Counters,
    Outcome,
    ProbeOutcome,
    Props,
    State,
    Usage,
)
from mtpmon.page import render_page
from mtpmon.pageprobes import speedup_place
from mtpmon.pagetext import (
    EXPIRIES,
    GRADES,
    LENGTH,
    PERCENT,
    PLAIN_SOURCES,
    PROBE_OUTCOMES,
    SPEED,
    TIMES,
    VERDICTS,
    Unit,
    bar,
    bounded,
    duration,
    figure,
    moment,
    nats,
    outcome_words,
    state_words,
)
from mtpmon.request import Expiry
from mtpmon.rolling import ProbeFigures
from mtpmon.snapshot import ServerSnapshot, Snapshot, Source
from mtpmon.trust import Reason
from mtpmon.verdict import Standing, Verdict
from mtpmon.window import TrafficFigures
from mtpmon.worth import Measured, Paying
from tests.page_snapshots import (
    MARKUP,
    MEASURED,
    NO_PROBES,
    NO_TRAFFIC,
    NOW,
    PROBE_FIGURES,
    TASKS,
    WINDOWS,
    costs,
    doubtful,
    figures,
    hostile,
    idle,
    paying,
    payoff,
    ready,
    sleeping,
    snapshot,
    twelve,
    unauthorized,
    unreachable,
    unseen,
)

replace = msgspec.structs.replace

PAGES: dict[str, Snapshot] = {
    "no data": snapshot(unseen()),
    "one ready": snapshot(ready()),
    "idle": snapshot(idle()),
    "sleeping": snapshot(sleeping()),
    "unreachable": snapshot(unreachable()),
    "unauthorized": snapshot(unauthorized()),
    "doubtful": snapshot(doubtful(), ready()),
    "twelve": twelve(),
    "hostile": snapshot(hostile(), ready()),
    "no servers": snapshot(),
}
ANYTHING = pytest.mark.parametrize("shown", PAGES.values(), ids=PAGES.keys())


class Reader(HTMLParser):
    """Reads a page strictly: each tag is closed, in order, and no attribute comes twice."""

    EMPTY = frozenset({"meta", "link"})

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self._open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs)
        self.tags.append((tag, dict(attrs)))
        if tag not in self.EMPTY:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"style", "script"} & set(self._open):
            self.words.append(data)

    @property
    def text(self) -> str:
        """All there is to read, with plain spaces."""
        return " ".join("".join(f" {word}" for word in self.words).split())

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def read(*servers: ServerSnapshot) -> str:
    return Reader(render_page(snapshot(*servers))).text


def plain(text: str) -> str:
    return " ".join(text.split())


# --- every page ---------------------------------------------------------------------------


@ANYTHING
def test_every_tag_is_closed(shown: Snapshot) -> None:
    """The document is well formed, whatever the board holds."""
    assert Reader(render_page(shown)).tags[0] == ("html", {"lang": "en"})


@ANYTHING
def test_nothing_comes_from_elsewhere(shown: Snapshot) -> None:
    """The page names no address but mtpmon's own, not even a namespace."""
    page = render_page(shown)
    assert not re.search(r"https?:|//[a-z]|url\(|@import|@font-face", page)
    addresses = [
        value
        for _, attributes in Reader(page).tags
        for name, value in attributes.items()
        if name in ("href", "src", "action")
    ]
    own = {"metrics", "probes", "config", "-/healthy", "-/ready", "data:,"}
    assert {address for address in addresses if not str(address).startswith("#")} == own


@ANYTHING
def test_python_does_not_show(shown: Snapshot) -> None:
    """No None, nan, inf or object is written where a figure should be."""
    page = render_page(shown)
    visible = Reader(page).text
    assert not re.search(r"\b(None|nan|inf|NaN|True|False)\b|<[A-Z]\w+\(|\{|\}", visible)
    assert not re.search(r"style=\"[^\"]*(nan|inf|None)", page)


@ANYTHING
def test_headings_go_down_one_level_at_a_time(shown: Snapshot) -> None:
    """Heading levels are never skipped, and there is one first-level heading."""
    levels = [int(tag[1]) for tag, _ in Reader(render_page(shown)).tags if re.match(r"h\d", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


@ANYTHING
def test_table_headers_have_a_scope(shown: Snapshot) -> None:
    """Each header cell says whether it heads a row or a column."""
    headers = Reader(render_page(shown)).named("th")
    assert all(header["scope"] in ("row", "col") for header in headers)


@ANYTHING
def test_ids_are_unique_and_links_lead_somewhere(shown: Snapshot) -> None:
    """Each link within the page has its target, and no id is used twice."""
    reader = Reader(render_page(shown))
    ids = [str(a["id"]) for _, a in reader.tags if "id" in a]
    inner = [str(a["href"]) for a in reader.named("a") if str(a["href"]).startswith("#")]
    assert len(set(ids)) == len(ids)
    assert {link[1:] for link in inner} <= set(ids)


def test_what_servers_say_is_escaped() -> None:
    """Markup in names, models, builds, details and tasks is shown, not obeyed."""
    reader = Reader(render_page(snapshot(hostile(), ready())))
    assert len(reader.named("script")) == 1
    assert reader.named("img") == []
    assert reader.text.count(plain(MARKUP)) == 7


def test_the_page_of_twelve_servers_is_small() -> None:
    """Twelve servers in the states they come in take less than 150 kB."""
    assert len(render_page(twelve()).encode()) < 150_000


def test_rendering_is_quick() -> None:
    """A server costs a few milliseconds of processor time, here with a measuring tracer on."""
    page = twelve()
    render_page(page)
    took = []
    for _ in range(5):
        began = time.process_time()
        render_page(page)
        took.append(time.process_time() - began)
    assert min(took) / 12 < 0.020


# --- the head of the page -----------------------------------------------------------------


def test_header_says_which_mtpmon_and_when() -> None:
    """Name, version, the snapshot's time in UTC and the other pages are at the top."""
    text = read(ready())
    assert f"mtpmon {__version__} 2026-11-29 15:22:07 UTC" in text
    assert "/metrics /probes /config /-/healthy /-/ready" in text


@pytest.mark.parametrize(
    ("shown", "title"),
    [
        (snapshot(ready()), "mtpmon: 1 server: MTP paying"),
        (snapshot(idle(), idle(name="b")), "mtpmon: 2 servers: ready"),
        (
            snapshot(ready(), unreachable(), sleeping()),
            "mtpmon: 3 servers: 1 unreachable, 1 sleeping, 1 MTP paying",
        ),
        (
            twelve(),
            (
                "mtpmon: 12 servers: 1 unreachable, 1 key refused, 1 MTP costing, 1 sleeping,"
                " 1 not looked at yet, 2 MTP undecided, 1 ready, 4 MTP paying"
            ),
        ),
        (snapshot(), "mtpmon: 0 servers"),
    ],
)
def test_title_counts_servers_the_worst_first(shown: Snapshot, title: str) -> None:
    """A tab in the background tells whether something is wrong."""
    assert f"<title>{title}</title>" in render_page(shown)


def test_failed_reload_is_announced() -> None:
    """A configuration that could not be read again is said to be out of use."""
    shown = snapshot(ready(), config_reload_successful=False)
    assert "The configuration on disk is not in use" in Reader(render_page(shown)).text
    assert "not in use" not in read(ready())


@pytest.mark.parametrize("fine", [None, True, False])
def test_files_of_servers_that_are_not_in_use_are_announced(fine: bool | None) -> None:
    """Servers of an earlier reading are said to be just that."""
    shown = snapshot(ready(), server_files_successful=fine)
    announced = "Files that list servers are not in use" in Reader(render_page(shown)).text
    assert announced == (fine is False)


def test_no_servers_are_said_to_be_none() -> None:
    """Files that list servers may list none."""
    assert "No server is watched" in Reader(render_page(snapshot())).text
    assert "No server is watched" not in read(ready())


def test_overview_is_for_several_servers() -> None:
    """One server needs no overview; with more, each row leads to its server."""
    assert "speed-up by task" not in read(ready())
    reader = Reader(render_page(snapshot(ready(), idle())))
    assert (
        "qwen-coder ready paying 23.1 points above 75.1 % (69.3–80.9) in 1 m 45.2 tok/s (43.9–45.3)"
    ) in reader.text
    assert (
        "mistral-chat ready no plain step to compare with: probes need a target-only server or a"
        " capture 55.2 % (52.1–58.3) in 1 h"
    ) in reader.text
    assert {"#s0", "#s1"} <= {a["href"] for a in reader.named("a")}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "0.90–1.32× 96.1 % exact"),
        ({"probed": False}, "not probed"),
        ({"paired": False}, "0.90–1.32× 96.1 % exact"),
        (
            {"paired": False, "probe_figures": idle().probe_figures},
            "no target-only server",
        ),
        ({"probe_figures": ProbeFigures()}, "no probe completed"),
        (
            {"probe_figures": ProbeFigures(probes=9, tasks={"code": TASKS["code"]})},
            "1.32× (1.27–1.37) qwen",
        ),
        (
            {
                "probe_figures": ProbeFigures(
                    probes=1, tasks={"code": replace(TASKS["code"], speedup=None)}
                )
            },
            "too few pairs qwen",
        ),
    ],
)
def test_overview_says_what_probes_found(changes: dict[str, object], words: str) -> None:
    """The range of speed-ups and exact sequences, or why there are none."""
    first = ready(name="first", **changes)
    row = read(first, ready()).split("45.2 tok/s (43.9–45.3)")[1]
    assert row.strip().startswith(words)


# --- one server ---------------------------------------------------------------------------


@pytest.mark.parametrize("state", State)
def test_every_state_has_words(state: State) -> None:
    """A state is named in words, and unless all is well, what to do is said."""
    words = state_words(state)
    text = read(unseen(state=state, since_unix_seconds=NOW - 5))
    assert f"{words.name} since 15:22:02 UTC (5 s ago)" in text
    assert words.advice in text
    assert bool(words.advice) == (state is not State.READY)


def test_detail_of_a_state_is_shown_as_a_sentence() -> None:
    """What the client found out precedes what to do."""
    assert "Cannot connect: Connection refused. See whether llama-server runs" in read(
        unreachable()
    )
    assert "Wait for the model." in read(unseen(state=State.LOADING, detail=""))


def test_unseen_server_says_only_that() -> None:
    """A server not looked at yet has no since, and its detail is not said twice."""
    text = read(unseen())
    assert "local not looked at yet The first look comes within one scrape interval." in text
    assert "model, build no data restarts 0 scrapes none yet" in text
    assert "Live traffic No data: not looked at yet." in text
    assert "No probe yet: mtpmon waits until the server is ready and idle." in text


def test_facts_of_a_server() -> None:
    """Model, quantization, build, slots, context, depth, load, restarts and scrapes."""
    assert (
        "model Qwen3.6-27B-MTP quantization Q4_K_M build b10434-5f1a2c3d4 slots 4"
        " context 32 768 tokens drafts up to 3 tokens requests 2 running, 0 queued restarts 1"
        " scrapes 17 280 ok, 3 timeout"
    ) in read(ready())


def test_facts_that_are_not_known() -> None:
    """What /props leaves out is "no data"; what /metrics leaves out is left out."""
    text = read(ready(props=Props(), counters=Counters(), scrapes={Outcome.OK: 2, Outcome.TLS: 0}))
    assert (
        "model no data quantization no data build no data slots no data restarts 1 scrapes 2 ok"
        " Live"
    ) in text


def test_trouble_with_counters_is_counted() -> None:
    """Lines that could not be used and scrapes held back show once there are any."""
    assert "unusable metric lines 3 scrapes held back 2" in read(
        ready(bad_lines=3, contradictions=2)
    )
    assert "held back" not in read(ready())


# --- is it paying? ------------------------------------------------------------------------


def said(server: ServerSnapshot) -> str:
    """What stands between the state and the facts."""
    return read(server).split(" ago) ", 1)[1].split(" model Qwen")[0]


def test_the_verdict_comes_first() -> None:
    """In words, with the margin, what it rests on and what to do."""
    assert said(ready()) == (
        "MTP is paying : acceptance 78.3 % is 23.1 points (21.0–25.2) above its breakeven of"
        " 55.2 %. speed-up of live traffic 1.26× (1.24–1.28) modelled, last 5 m step cost 2.66"
        " (2.63–2.68) plain steps, from the target-only server; one request at a time, contexts of"
        " 40 to 640 tokens advice keep --spec-draft-n-max 3;"
        " 4 is worth a try: +4 % by extrapolation, which nothing here has measured"
    )


@pytest.mark.parametrize(
    ("paid", "words"),
    [
        (
            paying(Verdict.COSTING, 0.412),
            "MTP is costing : acceptance 41.2 % is 14.0 points (11.9–16.1) below its breakeven",
        ),
        (
            paying(Verdict.UNDECIDED, 0.56),
            (
                "MTP is undecided : acceptance 56.0 % is 0.8 points (−1.3 to 2.9) above its"
                " breakeven of 55.2 %, within its bounds on either side: more traffic would tell."
            ),
        ),
        (
            Paying(
                windows={
                    300.0: replace(payoff(0.56, 0.02, 0.552), breakeven=Bounded(0.552, 0.5, 0.6)),
                },
                verdict=Standing(Verdict.UNDECIDED, NOW),
            ),
            "on either side: more probes would tell.",
        ),
    ],
)
def test_each_verdict_is_said_with_its_margin(paid: Paying, words: str) -> None:
    """Which side of breakeven, and what would tell where that is open."""
    assert words in said(ready(paying=paid))


NO_VERDICT = Paying(verdict=Standing(Verdict.NO_DATA, NOW))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"windows": {"live": dict.fromkeys(WINDOWS, NO_TRAFFIC)}}, "no traffic in 5 m."),
        ({}, "acceptance by position is not counted."),
        ({"measured": Measured()}, "no measured step cost yet: probes need more time."),
        (
            {"measured": Measured(expiry=Expiry.BUILD_CHANGED)},
            (
                "the measured step cost holds no more: the build has changed since; probes measure"
                " it anew."
            ),
        ),
        (
            {"measured": Measured(), "probed": False},
            "no measured step cost, as this server is not probed.",
        ),
        (
            {"measured": Measured(costs=replace(costs(), plain=None))},
            "no plain step to compare with: probes need a target-only server or a capture.",
        ),
        ({"source": Source.NONE}, "this build does not count drafts."),
        ({"windows": {}}, "the last usable look is too long ago."),
        ({"windows": {}, "state": State.LOADING}, "loading."),
        (
            {"paying": replace(NO_VERDICT, windows={300.0: payoff(0.8, 0.1, 0.5, drafts=34.0)})},
            "only 34 drafts in 5 m, too few.",
        ),
    ],
)
def test_no_verdict_has_a_reason(changes: dict[str, object], words: str) -> None:
    """What is missing, in words."""
    asked = f"Is MTP paying? no data : {words}"
    assert asked in read(ready(**{"paying": NO_VERDICT, **changes}))


@pytest.mark.parametrize("expiry", Expiry)
def test_every_expiry_has_words(expiry: Expiry) -> None:
    """Each reason why a cost holds no more is explained."""
    assert EXPIRIES[expiry] in read(ready(paying=NO_VERDICT, measured=Measured(expiry=expiry)))


@pytest.mark.parametrize("source", PlainSource)
def test_where_the_plain_step_comes_from_is_said(source: PlainSource) -> None:
    """And that it flatters, where it does."""
    text = said(ready(measured=replace(MEASURED, costs=costs(source, 1.3))))
    assert PLAIN_SOURCES[source] in text
    assert ("speed-up may be flattered: this plain step may cost up to 1.30×" in text) is (
        source.flatters
    )


def test_everything_has_words() -> None:
    """Verdicts and grades are closed sets."""
    assert (set(VERDICTS), set(GRADES)) == (set(Verdict), set(Grade))


@pytest.mark.parametrize(
    ("off", "words"),
    [
        (
            Bounded(1.08, 1.03, 1.13),
            (
                "The cost model is off: pairs of probes measure a lower speed-up, modelled over"
                " measured is 1.08 (1.03–1.13)."
            ),
        ),
        (Bounded(0.92, 0.89, 0.96), "pairs of probes measure a higher speed-up"),
    ],
)
def test_a_model_that_is_off_is_said(off: Bounded, words: str) -> None:
    """Only if its bounds exclude 1."""
    assert words in said(ready(measured=replace(MEASURED, disagreement=off)))
    assert "model is off" not in said(ready())


@pytest.mark.parametrize(
    ("since", "when"), [(NOW - 60, " since 15:21:07 UTC (1 m ago)"), (None, "")]
)
def test_a_verdict_about_to_change_is_said(since: float | None, when: str) -> None:
    """With what it looks like, and since when if that is known."""
    leaning = Standing(Verdict.PAYING, NOW - 900, Verdict.COSTING, since)
    text = said(ready(paying=replace(paying(Verdict.PAYING, 0.5), verdict=leaning)))
    assert f"It looks costing{when}; the verdict changes if that lasts." in text


def test_a_verdict_from_doubtful_counters_is_doubtful() -> None:
    """Doubts are said where the verdict is."""
    assert "Acceptance may be wrong, and the verdict with it: see live traffic." in said(doubtful())


def test_breakeven_is_marked_and_written() -> None:
    """In each window; one that cannot be reached has no place on the bar."""
    text = read(ready())
    assert "Breakeven 55.2 % (52.7–57.7) 55.2 % (54.3–56.1) 55.2 % (54.9–55.5)" in text
    assert "Speed-up, modelled 1.26× (1.20–1.32) 1.26×" in text
    beyond = ready(paying=paying(Verdict.COSTING, 0.783, 0.02, 1.12))
    assert "112.0 % (109.4–114.6) out of reach" in read(beyond)
    assert "--b:" not in render_page(snapshot(beyond)).split("<body>")[1]
    some = ready(paying=Paying(windows={300.0: payoff(0.8, 0.02, 0.5)}))
    assert "Breakeven no data 50.0 % (49.0–51.0) no data" in read(some)


# --- live traffic -------------------------------------------------------------------------


def test_live_figures_by_window() -> None:
    """Each configured window is a column with every figure and its bounds."""
    text = read(ready())
    for row in (
        "window 1 m 5 m 1 h",
        "Acceptance 75.1 % (69.3–80.9) 78.3 % (76.2–80.4) 76.2 % (75.6–76.8)",
        "position 0 88.6 % 92.4 % 89.9 %",
        "position 2 61.6 % 64.2 % 62.5 %",
        "Acceptance length 3.25 (3.08–3.43) 3.35 (3.29–3.41) 3.29 (3.27–3.30)",
        "Draft coverage 98.4 % 98.4 % 98.4 %",
        "Decode speed 45.2 tok/s (43.9–45.3)",
        "Throughput 97.1 tok/s 118 tok/s 104 tok/s",
        "Measured over 214 drafts in 1 m 1 s 1 482 drafts in 5 m 2 s 16 480 drafts in 1 h",
    ):
        assert row in text


def test_bars_are_where_the_numbers_are() -> None:
    """Acceptance draws its bounds, a position its share, a speed-up its place."""
    styles = [
        a["style"] for a in Reader(render_page(snapshot(ready()))).named("td") if "style" in a
    ]
    assert styles[0] == "--l:69.3%;--v:75.1%;--u:80.9%;--b:55.2%"
    assert styles[3] == "--v:88.6%"
    assert styles[-1] == "--l:30.8%;--v:33.0%;--u:35.2%"


def test_waiting_is_explained() -> None:
    """Running requests that have not ended are why figures stand still."""
    text = read(ready())
    assert "Waiting: requests have been running for 12 s without one ending." in text
    assert "No request is running." in read(ready(waiting_seconds=0.0))


def live(*windows: TrafficFigures) -> dict[str, dict[float, TrafficFigures]]:
    return {"live": dict(zip(WINDOWS, windows, strict=False))}


def test_windows_without_traffic_are_one_cell() -> None:
    """A window without traffic says so once, beside windows that have figures."""
    page = render_page(snapshot(idle()))
    assert page.count("no traffic in 1\N{NO-BREAK SPACE}m") == 1
    assert 'rowspan="9"' in page


EMPTY = TrafficFigures()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"windows": live(NO_TRAFFIC, NO_TRAFFIC, NO_TRAFFIC)}, "No traffic in 1 h."),
        (
            {"windows": live(*[NO_TRAFFIC] * 3), "since_unix_seconds": NOW - 90},
            "No traffic in 1 m 30 s.",
        ),
        (
            {"windows": live(*[NO_TRAFFIC] * 3), "since_unix_seconds": NOW + 90},
            "No traffic in 0 s.",
        ),
        (
            {"windows": live(*[NO_TRAFFIC] * 3), "since_unix_seconds": None},
            "No traffic in 1 h.",
        ),
        (
            {"windows": live(EMPTY, EMPTY, EMPTY), "waiting_seconds": 40.0},
            "No request ended in 1 h.",
        ),
        ({"windows": live(EMPTY, EMPTY, EMPTY), "waiting_seconds": 0.0}, "No data."),
        (
            {
                "windows": live(EMPTY, EMPTY, EMPTY),
                "waiting_seconds": 0.0,
                "scrapes": {Outcome.OK: 1},
            },
            "No data yet: it takes two looks at the server.",
        ),
        (
            {"windows": {}, "counters": None, "waiting_seconds": None},
            "No data: the last usable look is too long ago.",
        ),
        (
            {
                "windows": {},
                "counters": None,
                "waiting_seconds": None,
                "detail": "idle; its metrics are left alone to let it sleep",
            },
            "No data: idle; its metrics are left alone to let it sleep.",
        ),
        (
            {"windows": {}, "counters": None, "state": State.UNREACHABLE},
            "No data: unreachable.",
        ),
        ({"windows": {}, "counters": None, "state": State.LOADING}, "No data: loading."),
        (
            {"windows": live(*[NO_TRAFFIC] * 3), "state": State.UNREACHABLE},
            "No traffic in 1 h.",
        ),
    ],
)
def test_no_live_figures_have_a_reason(changes: dict[str, object], words: str) -> None:
    """Without a single figure there is one sentence with the reason, where one is known."""
    text = read(ready(**changes))
    assert "Acceptance length" not in text
    assert re.search(
        rf"Live traffic (No request is running\. |Waiting: .* ending\. )?{words}", text
    )


@pytest.mark.parametrize(
    ("usage", "words"),
    [
        (None, "drafting not reported"),
        (Usage(), "drafting not reported"),
        (Usage(drafts=Amount(0.0)), "nothing drafted"),
        (Usage(drafts=Amount(12.0)), "too few drafts"),
    ],
)
def test_missing_acceptance_has_a_reason(usage: Usage | None, words: str) -> None:
    """Where requests ended and acceptance is not known, the cell says why."""
    some = TrafficFigures(
        decode_tokens_per_second=Bounded(20.0, 19.0, 21.0), throughput_tokens_per_second=1234.5
    )
    text = read(ready(live=usage, windows=live(some, some, figures())))
    assert f"Acceptance {words} {words} 78.3 % (76.2–80.4)" in text
    assert "position 0 no data no data 92.4 %" in text
    assert "Draft coverage no data no data 98.4 %" in text
    assert "Throughput 1 234 tok/s" in text
    assert "Measured over no data no data 1 482 drafts" in text
    unjudged = ready(live=usage, windows=live(some, some, some), paying=Paying())
    row = read(unjudged, idle()).split("mistral-chat")[0]
    assert f"qwen-coder ready {words} {words} 20.0 tok/s (19.0–21.0)" in row


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (Source.PROBES, "This build does not count drafts: only probes show its acceptance."),
        (Source.NONE, "This build does not count drafts, and no probe has drafted so far."),
    ],
)
def test_missing_counters_are_said(source: Source, words: str) -> None:
    """Where acceptance can come from is said when it is not the server's counters."""
    assert words in read(ready(source=source))
    assert "does not count" not in read(ready(source=Source.COUNTERS))


@pytest.mark.parametrize("reason", Reason)
def test_every_doubt_has_words(reason: Reason) -> None:
    """Each reason not to believe the counters is explained, and the overview shows the doubt."""
    text = read(ready(name="first", distrust=frozenset({reason})), idle())
    assert re.search(r"Acceptance may be wrong: [a-z ]{20,}\. window", text)
    assert "75.1 % (69.3–80.9) in 1 m may be wrong" in text
    assert "may be wrong" not in read(ready(), idle())


def test_doubts_are_said_with_what_is_known() -> None:
    """Several reasons stand together, with the size of the mismatch and the known fault."""
    assert (
        "Acceptance may be wrong: the counters disagree with what probes reported; all drafted"
        " tokens are counted as accepted; this build is known to miscount (ggml-org/"
        "llama.cpp#22506: all drafted tokens were counted as accepted); they are off by 18.3 %"
        " of the tokens drafted in probes."
    ) in read(doubtful())


def test_known_build_alone_is_no_alarm() -> None:
    """A build that may miscount is a notice; counters that were seen to be off are an alarm."""
    known = ready(props=None, distrust=frozenset({Reason.KNOWN_BUILD}))
    assert 'class="todo calm"' in render_page(snapshot(known))
    assert 'class="todo bad"' in render_page(snapshot(doubtful()))


def test_many_windows_can_be_reached() -> None:
    """With more windows than fit a phone the section scrolls, by keyboard too, and has a name."""
    few = Reader(render_page(snapshot(ready()))).named("section")
    assert not any("tabindex" in section for section in few)
    widths = (*WINDOWS, 21600.0, 43200.0, 86400.0)
    found = {"live": dict.fromkeys(widths, figures())}
    page = render_page(snapshot(ready(windows=found), windows_seconds=widths))
    section = Reader(page).named("section")[0]
    assert section == {"tabindex": "0", "aria-label": "live traffic by window"}
    assert 'class="cols many"' in page


# --- probes -------------------------------------------------------------------------------


def test_probes_by_task() -> None:
    """Each task has acceptance, length, the speed of both arms and the speed-up with bounds."""
    text = read(ready())
    assert (
        "code 51 probes 82.3 % 3.47 breakeven 55.2 % paying 39.7 tok/s vs 30.1"
        " 1.32× (1.27–1.37) recommended"
    ) in text
    assert (
        "essay 51 probes 55.8 % 2.67 breakeven 55.2 % 31.9 tok/s vs 30.1"
        " 1.06× (0.96–1.18) probably marginal"
    ) in text
    assert (
        "creative 51 probes 47.2 % 2.42 breakeven 55.2 % costing 27.1 tok/s vs 30.1"
        " 0.90× (0.87–0.94) not recommended"
    ) in text
    without = read(ready(measured=replace(MEASURED, tasks={"factual": MEASURED.tasks["factual"]})))
    assert "82.3 % 3.47 breakeven not known 39.7 tok/s" in without
    assert "82.3 % 3.47 39.7 tok/s" in read(ready(measured=Measured()))


def test_tasks_that_are_surely_slower_stand_out() -> None:
    """A speed-up whose upper bound is below 1 is marked, one whose range holds 1 is not."""
    assert render_page(snapshot(ready())).count('class="slow"') == 1


def test_probes_without_a_second_server() -> None:
    """Without a target-only server there is no speed-up, and what to configure is said."""
    text = read(idle())
    assert "code 51 probes 82.3 % breakeven not known 39.7 tok/s no target-only server" in text
    assert "Same output? No data: to compare output and speed, give target_only_url" in text


def test_few_pairs_give_no_speedup() -> None:
    """A task with fewer pairs than a spread needs says so; an arm without a speed has no data."""
    task = replace(TASKS["code"], probes=1, speedup=None, target_only_tokens_per_second=None)
    text = read(ready(probe_figures=ProbeFigures(probes=1, tasks={"code": task})))
    assert "82.3 % 3.47 breakeven 55.2 % paying 39.7 tok/s vs no data too few pairs" in text


def test_same_output_figures() -> None:
    """Exact sequences, token match, agreement, coverage, KLD and positions are all there."""
    text = read(ready())
    for part in (
        "Same output? last 256 probes",
        "exact sequences 96.1 %",
        "token match 98.7 %",
        "top-1 agreement 99.9 %",
        "KLD coverage 99.4 %",
        "gap at divergence 0.031 nats",
        "target's best 99.6 %",
        "regret 0.00041 nats",
        "teacher-forced 0.00087 ± 0.00007 0.0031 0.051 9 216",
        "First divergences: 41 by a rounding tie, 2 real.",
        "KLD, nats mean ± se p95 max positions",
        "before any draft 0.000021 ± 0.000003 0.000081 0.00031 256",
        "after speculation 0.00114 ± 0.00009 0.0040 0.073 14 930",
        "71 204 comparable, 24 without log-probabilities, 1 911 after a divergence.",
    ):
        assert part in text


def test_kld_of_one_position_has_no_error() -> None:
    """A single value has no standard error; a place without words of its own is spelled out."""
    one = KldSummary(
        positions=1,
        mean_nats=0.25,
        standard_error_nats=None,
        p50_nats=0.25,
        p95_nats=0.25,
        p99_nats=0.25,
        max_nats=0.25,
    )
    found = replace(
        PROBE_FIGURES,
        kld={"some_place": one},
        divergence_margin_nats=None,
        regret=None,
        emitted_best=None,
    )
    text = read(ready(probe_figures=found, probe_totals=NO_PROBES))
    assert "some place 0.25 0.25 0.25 1" in text
    for absent in ("gap at divergence 0", "target's best 9", "regret 0", "First divergences"):
        assert absent not in text


def test_output_is_compared_without_a_second_server_too() -> None:
    """What was compared otherwise, such as with a capture, is shown."""
    text = read(ready(paired=False))
    assert "exact sequences 96.1 %" in text
    assert "give target_only_url" not in text


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        (640, "KLD: no data, the servers gave no log-probabilities."),
        (0, "KLD: no data, no comparable positions."),
    ],
)
def test_missing_kld_has_a_reason(missing: int, words: str) -> None:
    """Without a distribution on both sides KLD is no data, not 0."""
    totals = replace(NO_PROBES, outcomes={ProbeOutcome.COMPLETED: 10}, missing=missing)
    found = replace(PROBE_FIGURES, kld={}, kld_coverage=None, top1_agreement=None)
    text = read(ready(probe_figures=found, probe_totals=totals))
    assert words in text
    assert "top-1 agreement no data KLD coverage no data" in text


def test_probe_history() -> None:
    """Last success and the counts by outcome, those of zero left out."""
    assert (
        "Probes Last success 15:21:18 UTC (49 s ago). 1 204 completed, 318 skipped: server busy,"
        " 41 given up for a user's request, 2 out of time. task"
    ) in read(ready())
    assert "No probe has completed yet. 1 550 skipped: server asleep." in read(sleeping())


def test_long_drafts_do_not_make_a_long_page() -> None:
    """Chained n-gram drafts have 64 positions: the first eight, and the rest in one row."""
    shares = tuple(0.8**place for place in range(1, 65))
    windows = {"live": {width: figures(positions=shares) for width in WINDOWS}}
    text = read(ready(windows=windows))
    assert "position 7 16.8 %" in text
    assert "position 8" not in text
    assert "positions 8 to 63 up to 13.4 % up to 13.4 % up to 13.4 % Breakeven" in text
    one_short = windows["live"] | {60.0: figures(positions=shares[:3])}
    assert "positions 8 to 63 no data up to 13.4 %" in read(ready(windows={"live": one_short}))


def test_the_last_probes_are_listed() -> None:
    """How each went, whatever way that was."""
    assert (
        "Last probes all of them began prompt result"
        " 15:21:18 UTC code-1 80.0 % accepted, same output"
        " 15:20:18 UTC code-2 75.0 % accepted"
        " 15:19:18 UTC code-3 out of time"
        " 15:18:18 UTC code-4 65.0 % accepted, differs from token 18 on, repetition loop"
        " 15:17:18 UTC code-5 nothing drafted, same output"
    ) in read(ready())
    assert "Last probes" not in read(ready(recent_probes=()))


def test_other_ways_to_ask_are_graded_side_by_side() -> None:
    """By task, temperature and thinking; a cell without enough probes says so."""
    good, poor = Graded(Grade.RECOMMENDED, True), Graded(Grade.NOT_RECOMMENDED, False)
    grades = {
        ("code", 0.0, None): good,
        ("code", 0.7, True): good,
        ("code", 0.7, False): poor,
        ("essay", 0.0, None): poor,
    }
    text = read(ready(grades=grades))
    assert (
        "Other ways to ask task temperature 0 temperature 0.7, not thinking temperature 0.7,"
        " thinking code recommended probably not recommended recommended"
        " essay probably not recommended no data no data"
    ) in text
    assert "Other ways" not in read(ready()), "of the usual way alone the tasks' table tells"


def test_failed_probe_points_to_its_reason() -> None:
    """When the last probe failed, the page says where the reason is."""
    assert "The last one that ran failed : /probes has the reason." in read(unreachable())
    assert "that ran failed" not in read(ready())


def test_drafting_baseline_is_explained() -> None:
    """A target-only server that drafts is a mistake in the set-up, and the fix is named."""
    totals = replace(NO_PROBES, outcomes={ProbeOutcome.BASELINE_DRAFTED: 4})
    text = read(ready(probe_totals=totals, probe_figures=ProbeFigures()))
    assert "4 target-only server drafted. The target-only server drafts: start it without" in text


def test_server_that_is_not_probed() -> None:
    """Probing can be off, which is not a fault."""
    text = read(ready(probed=False))
    assert "This server is not probed: probing is off in its configuration." in text


def test_every_outcome_has_words() -> None:
    """The closed sets of outcomes are all named."""
    assert set(PROBE_OUTCOMES) == set(ProbeOutcome)
    assert outcome_words(Outcome.OK) == "ok"
    assert outcome_words(Outcome.HTTP_ERROR) == "http error"


# --- how figures are written --------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.783, PERCENT, "78.3 %"),
        (0.0, PERCENT, "0.0 %"),
        (0.0002, PERCENT, "<0.1 %"),
        (1.0, PERCENT, "100.0 %"),
        (0.9998, PERCENT, ">99.9 %"),
        (1234.4, SPEED, "1 234 tok/s"),
        (45.23, SPEED, "45.2 tok/s"),
        (4.5, SPEED, "4.50 tok/s"),
        (0.001, SPEED, "<0.01 tok/s"),
        (1.623, TIMES, "1.62×"),
        (3.349, LENGTH, "3.35"),
        (None, SPEED, "no data"),
        (float("nan"), SPEED, "no data"),
        (float("inf"), PERCENT, "no data"),
    ],
)
def test_figures_for_people(value: float | None, unit: Unit, text: str) -> None:
    """Digits that matter, a unit, and nothing that reads as 0 or all when it is not."""
    assert plain(Reader(figure(value, unit)).text) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Bounded(0.783, 0.761, 0.804), "78.3 % (76.1–80.4)"),
        (Bounded(0.783, 0.761, float("inf")), "78.3 %"),
        (Bounded(0.783, float("-inf"), 0.8), "78.3 %"),
        (Bounded(float("nan"), 0.0, 1.0), "nothing"),
        (None, "nothing"),
    ],
)
def test_bounds_for_people(value: Bounded | None, text: str) -> None:
    """A value with its bounds in brackets; bounds that say nothing are left out."""
    assert Reader(bounded(value, PERCENT, "nothing")).text == text


@pytest.mark.parametrize(
    "value", [None, Bounded(0.5, float("-inf"), 0.6), Bounded(float("nan"), 0.0, 1.0)]
)
def test_no_bar_without_numbers(value: Bounded | None) -> None:
    """What cannot be drawn is not."""
    assert bar(value) is None


def test_style_sheet_knows_where_1_is() -> None:
    """The line at speed-up 1 is drawn where the bar puts a speed-up of 1."""
    place = f"{speedup_place(1.0):.1%}"
    assert f"calc({place} - 1px)" in render_page(snapshot())


@pytest.mark.parametrize(("ratio", "place"), [(0.0, 0.0), (0.5, 0.0), (3.0, 1.0), (70.0, 1.0)])
def test_speedups_beyond_the_bar_stay_at_its_ends(ratio: float, place: float) -> None:
    """Bars have an end."""
    assert speedup_place(ratio) == pytest.approx(place)


@pytest.mark.parametrize(
    ("value", "like", "text"),
    [
        (0.00114, 0.00009, "0.00114"),
        (0.00114, None, "0.0011"),
        (0.73, None, "0.73"),
        (12.3, None, "12.30"),
        (0.0, None, "0.00"),
        (0.0, 0.002, "0.000"),
        (3e-9, None, "<0.000001"),
        (0.0004, 0.03, "<0.01"),
        (0.0, 0.0, "0.00"),
    ],
)
def test_nats_are_written_out(value: float, like: float | None, text: str) -> None:
    """Small numbers need no exponent, and one that is not 0 does not read as 0."""
    assert nats(value, like=like) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3.0, "0 s"),
        (0.0, "0 s"),
        (0.25, "0.2 s"),
        (59.6, "1 m"),
        (61.0, "1 m 1 s"),
        (3600.0, "1 h"),
        (3602.0, "1 h"),
        (7500.0, "2 h 5 m"),
        (273_600.0, "3 d 4 h"),
    ],
)
def test_durations_have_two_units(seconds: float, text: str) -> None:
    """Two neighbouring units say how long something took."""
    assert plain(duration(seconds)) == text


def test_moments_of_another_day_have_a_date() -> None:
    """A time of today is a time of day."""
    assert plain(moment(NOW - 60, now=NOW)) == "15:21:07 UTC (1 m ago)"
    assert plain(moment(NOW - 86_400, now=NOW)) == "2026-11-28 15:22:07 UTC (1 d ago)"


# --- markup -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (lambda: h("p", "a < b & c"), "<p>a &lt; b &amp; c</p>"),
        (lambda: h("p", h("b", "<"), None, "'\""), "<p><b>&lt;</b>'\"</p>"),
        (lambda: h("p", class_='"><', aria_label=None), '<p class="&quot;&gt;&lt;"></p>'),
        (lambda: h("link", rel="icon"), '<link rel="icon">'),
        (lambda: together("&", Html("<hr>")), "&amp;<hr>"),
    ],
)
def test_markup_escapes_what_is_not_markup(made: Callable[[], Html], text: str) -> None:
    """Text is escaped in content and attributes, markup is not escaped twice."""
    assert made() == text
