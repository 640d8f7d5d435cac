"""The page of single probes: what it shows of each, and that it is sound HTML."""

import json
import re
from itertools import pairwise
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp.test_utils import TestClient, TestServer

from mtpmon.board import Board, ServerBoard
from mtpmon.export import METRICS
from mtpmon.model import (
    Completion,
    Divergence,
    ForcedToken,
    Position,
    ProbeOutcome,
    ProbeResult,
    TopToken,
    Variant,
)
from mtpmon.probespage import ServerProbes, contributions, render_probes
from mtpmon.web import Web
from tests.history_writer import NOW, result
from tests.page_snapshots import MARKUP
from tests.test_board import SETTINGS
from tests.test_page import Reader, plain

replace = msgspec.structs.replace


def positions(*texts: str) -> tuple[Position, ...]:
    return tuple(Position(place, text) for place, text in enumerate(texts))


def arm(*texts: str, top: tuple[TopToken, ...] = (), **timings: Any) -> Completion:
    """An arm that said ``texts``; ``top`` is its distribution at each of them."""
    base = result().speculating
    assert base is not None
    return replace(
        base,
        positions=tuple(replace(position, top=top) for position in positions(*texts)),
        timings=replace(base.timings, **timings),
    )


def compared(first: int | None, margin: float | None = None, **values: Any) -> ProbeResult:
    base = result()
    assert base.comparison is not None
    comparison = replace(
        base.comparison, first_divergence=first, divergence_margin_nats=margin, matches=3
    )
    return replace(base, comparison=comparison, **values)


SAME = compared(None)
TIE = compared(
    1,
    2e-5,
    speculating=arm("one", " two", " three", top=(TopToken(2, -0.5, " two"),)),
    target_only=arm(
        "one", "\n", " four", top=(TopToken(3, -0.25, "\n"), TopToken(2, -1.5, " two"))
    ),
)
SHORTER = compared(2, speculating=arm("one", " two"), target_only=arm("one", " two", " three"))
ALONE = result(target_only=None, comparison=None, next_token=None, positions=None)
FORCED = replace(
    ALONE,
    after_speculation=(),
    forced=(
        ForcedToken(index=0, logprob=-0.1, rank=0, regret_nats=0.0),
        ForcedToken(index=4, logprob=None, rank=None, regret_nats=1.25),
    ),
    teacher_forced=(Divergence(nats=0.25, coverage=0.9, shared_tokens=4, top1_agrees=False),),
    reference_forced=(Divergence(nats=0.5, coverage=0.9, shared_tokens=4, top1_agrees=True),),
    variant=Variant(temperature=0.7, thinking=False, depth_tokens=4000),
)
NOTHING = replace(
    ALONE,
    speculating=arm("x", generated_tokens=1, draft_tokens=None, accepted_tokens=None),
    variant=Variant(thinking=True),
)
EMPTY = replace(ALONE, speculating=None, after_speculation=())
FAILED = replace(EMPTY, outcome=ProbeOutcome.TIMEOUT, detail="too slow")
WRONG = replace(ALONE, outcome=ProbeOutcome.FAILED)
HOSTILE = replace(
    compared(1, 0.5),
    prompt_id=MARKUP,
    task=MARKUP,
    speculating=arm("x", MARKUP, MARKUP, top=(TopToken(1, -0.5, MARKUP),)),
)
COMPLETED = (SAME, TIE, SHORTER, ALONE, FORCED, NOTHING, EMPTY)


def page(*completed: ProbeResult, failed: tuple[ProbeResult, ...] = (), name: str = "a") -> str:
    server = ServerProbes(name=name, completed=completed, failed=failed)
    return render_probes([server], unix_seconds=NOW + 60)


def read(*completed: ProbeResult, failed: tuple[ProbeResult, ...] = ()) -> str:
    return Reader(page(*completed, failed=failed)).text


ANYTHING = pytest.mark.parametrize(
    "shown",
    [
        render_probes([], unix_seconds=NOW),
        page(),
        page(*COMPLETED, failed=(FAILED, WRONG)),
        page(HOSTILE, failed=(replace(FAILED, detail=MARKUP, prompt_id=MARKUP),), name=MARKUP),
    ],
    ids=["no servers", "no probes", "all kinds", "hostile"],
)


@ANYTHING
def test_it_is_sound(shown: str) -> None:
    """Tags are closed, headings and headers are in order, and Python does not show."""
    reader = Reader(shown)
    levels = [int(tag[1]) for tag, _ in reader.tags if re.match(r"h\d", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert all(header["scope"] in ("row", "col") for header in reader.named("th"))
    assert not re.search(r"\b(None|nan|inf|NaN|True|False)\b|<[A-Z]\w+\(", reader.text)


@ANYTHING
def test_nothing_comes_from_elsewhere(shown: str) -> None:
    """It asks for no other file, runs no script, and links only mtpmon's own pages."""
    assert not re.search(r"https?:|//[a-z]|url\(|@import|@font-face", shown)
    reader = Reader(shown)
    assert reader.named("script") == []
    assert reader.named("img") == []
    assert {a["href"] for a in reader.named("a")} == {"./", "?format=json"}


def test_what_servers_say_is_escaped() -> None:
    """Markup in names, prompts, answers, tokens and details is shown, not obeyed."""
    text = Reader(page(HOSTILE, failed=(replace(FAILED, detail=MARKUP),), name=MARKUP)).text
    assert text.count(plain(MARKUP)) == 10
    assert plain(repr(MARKUP)) in text


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        (SAME, "p0 code 15:22:07 UTC (1 m ago): same output, acceptance 66.7 %, 8.00 tok/s"),
        (TIE, "differs from token 1 on (a rounding tie, 0.000020 nats apart)"),
        (compared(0, 0.75), "differs from token 0 on (no tie, 0.75 nats apart)"),
        (SHORTER, "differs from token 2 on (no log-probabilities, so it may be a tie)"),
        (ALONE, "not compared, acceptance 66.7 %"),
        (NOTHING, "p0 code, thinking 15:22:07 UTC (1 m ago): not compared, acceptance no data"),
        (FORCED, "code, temperature 0.7, no thinking, 4\N{NARROW NO-BREAK SPACE}000 tokens deep"),
    ],
)
def test_a_probe_in_one_line(shown: ProbeResult, words: str) -> None:
    """Prompt, task and how it was asked, when, whether both arms agree, and how fast it was."""
    assert plain(words) in read(shown)


def test_the_first_difference_is_marked() -> None:
    """In both texts, at the same token; where one had ended, that is said."""
    assert re.findall(r"<pre>.*?</pre>", page(TIE), re.DOTALL) == [
        "<pre>\none<mark> two</mark> three</pre>",
        "<pre>\none<mark>\n</mark> four</pre>",
    ]
    assert re.findall(r"<mark>.*?</mark>", page(SHORTER)) == [
        "<mark>(end)</mark>",
        "<mark> three</mark>",
    ]


def test_equal_texts_are_shown_once() -> None:
    """For both arms, with nothing marked."""
    assert "both arms" in read(SAME)
    assert page(SAME).count("<pre>") == 1
    assert "<mark>" not in page(SAME)
    assert page(ALONE).count("<pre>") == 1
    assert page(EMPTY).count("<pre>") == 0


def test_distributions_at_the_difference() -> None:
    """Both arms' likeliest tokens side by side, or that there are none."""
    found = read(TIE)
    assert "Likeliest tokens at token 1 speculating target only" in found
    assert (
        "' two' 60.7 % -0.500000 nats, token 2 '\\n' 77.9 % -0.250000 nats, token 3 no data"
        " ' two' 22.3 % -1.500000 nats, token 2"
    ) in found
    assert "The servers gave no log-probabilities there." in read(SHORTER)
    assert "Likeliest" not in read(SAME)


def test_timings_of_both_arms() -> None:
    """Prompt, answer, speed, what was kept, steps and the whole time."""
    found = read(compared(0, target_only=arm("x", draft_tokens=None, accepted_tokens=None)))
    assert (
        "speculating 5 tokens in 100 ms 3 tokens in 250 ms 8.00 tok/s 2 of 3 66.7 % 1 0.4 s"
        " target only 5 tokens in 100 ms 3 tokens in 250 ms 8.00 tok/s nothing drafted no data 1"
    ) in found


def test_failures_say_why() -> None:
    """Above the others, the latest first, with what was said if anything was."""
    found = read(SAME, failed=(FAILED, WRONG))
    assert "2 failed probes when prompt what went wrong took" in found
    assert "out of time: too slow" in found
    assert found.index("failed what was said") < found.index("out of time: too slow")
    assert found.index("out of time: too slow") < found.index("1 completed probe")


def test_the_latest_probe_comes_first() -> None:
    """Whoever looks wants to know about now."""
    found = read(result(1), result(2))
    assert found.index("p2 code") < found.index("p1 code")


def test_what_was_exported_is_shown() -> None:
    """Each metric that the probe went into, and what it put there."""
    assert dict(contributions(TIE)) == {
        'mtpmon_probes_total{outcome="completed"}': "+1",
        'mtpmon_generated_tokens_total{traffic="probe"}': "+3",
        'mtpmon_draft_tokens_total{traffic="probe"}': "+3",
        'mtpmon_accepted_tokens_total{traffic="probe"}': "+2",
        'mtpmon_probe_acceptance_ratio{task="code"}': "66.7\N{NO-BREAK SPACE}%",
        'mtpmon_probe_tokens_per_second{task="code",arm="speculating"}': (
            "8.00\N{NO-BREAK SPACE}tok/s"
        ),
        'mtpmon_probe_tokens_per_second{task="code",arm="target_only"}': (
            "8.00\N{NO-BREAK SPACE}tok/s"
        ),
        'mtpmon_speedup_ratio{task="code"}': "1.00×",
        "mtpmon_exact_sequence_ratio": "0",
        "mtpmon_token_match_ratio": "3 of 3",
        "mtpmon_first_divergence_position": "1",
        'mtpmon_divergences_total{kind="tie"}': "+1",
        "mtpmon_divergence_margin_nats": "0.000020",
        'mtpmon_kld_positions_total{result="comparable"}': "+3",
        'mtpmon_kld_positions_total{result="missing"}': "+0",
        'mtpmon_kld_positions_total{result="diverged"}': "+0",
        'mtpmon_kld_nats{at="next_token"}': "1 position, mean 0.0010, max 0.0010",
        'mtpmon_kld_nats{at="after_speculation"}': "2 positions, mean 0.0010, max 0.0010",
        "mtpmon_kld_coverage_ratio": "99.0\N{NO-BREAK SPACE}%",
        "mtpmon_top1_agreement_ratio": "3 of 3",
    }
    forced = dict(contributions(FORCED))
    assert forced["mtpmon_regret_nats"] == "2 tokens, max 1.25"
    assert forced["mtpmon_emitted_best_ratio"] == "1 of 2"
    assert forced['mtpmon_kld_nats{at="teacher_forced"}'] == "1 position, mean 0.25, max 0.25"
    assert forced["mtpmon_reference_kld_nats"] == "1 position, mean 0.50, max 0.50"
    assert "mtpmon_exact_sequence_ratio" not in forced
    assert not any(name.startswith("mtpmon_probe_acceptance_ratio") for name in forced)
    assert dict(contributions(SAME))["mtpmon_exact_sequence_ratio"] == "1"


def test_only_metrics_that_exist_are_named() -> None:
    """With the labels they have, ``server`` apart."""
    labels = {row.name: set(row.labels) for row in METRICS}
    for shown in COMPLETED:
        for name, _ in contributions(shown):
            metric, _, rest = name.partition("{")
            assert set(re.findall(r"(\w+)=", rest)) <= labels[metric]


# --- over HTTP ---


async def asked(path: str, accept: str | None = None) -> tuple[int, str, str]:
    """Status, type and text of an answer of mtpmon's own server."""
    board = ServerBoard("a", SETTINGS)
    board.restore(
        [*(replace(result(number), prompt_id=f"q{number}") for number in range(3)), FAILED]
    )
    whole = Board([board], (60.0,))

    async def reload() -> str:
        raise AssertionError

    app = Web(
        snapshot=lambda: whole.snapshot(monotonic_seconds=0, unix_seconds=NOW),
        board=lambda: whole,
        public_config=dict,
        reload=reload,
    ).application()
    headers = {} if accept is None else {"Accept": accept}
    async with TestClient(TestServer(app)) as client, client.get(path, headers=headers) as reply:
        assert isinstance(reply, aiohttp.ClientResponse)
        return reply.status, reply.content_type, await reply.text()


BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


@pytest.mark.parametrize(
    ("path", "accept", "kind"),
    [
        ("/probes", BROWSER, "text/html"),
        ("/probes", None, "application/json"),
        ("/probes", "application/json", "application/json"),
        ("/probes?format=json", BROWSER, "application/json"),
        ("/probes?format=html", "*/*", "text/html"),
    ],
)
async def test_browsers_get_a_page_and_programs_json(
    path: str, accept: str | None, kind: str
) -> None:
    """By what they accept, unless the address says which."""
    status, content_type, text = await asked(path, accept)
    assert (status, content_type) == (200, kind)
    if kind == "application/json":
        found = json.loads(text)["a"]
        assert [each["prompt_id"] for each in found["completed"]] == ["q0", "q1", "q2"]
        assert [each["outcome"] for each in found["failed"]] == ["timeout"]
    else:
        assert text.startswith("<!doctype html>")
        assert "q2" in Reader(text).text


async def test_another_format_is_refused() -> None:
    """With the words to use."""
    assert await asked("/probes?format=xml") == (400, "text/plain", "format is html or json\n")
