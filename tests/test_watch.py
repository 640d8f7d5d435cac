"""When a server is looked at and probed, and what is written down about it."""

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from structlog.testing import capture_logs

from mtpmon.board import ServerBoard
from mtpmon.client import LlamaClient
from mtpmon.model import Outcome, ProbeOutcome, State
from mtpmon.probe import Arms, ProbeSettings
from mtpmon.shift.found import Ending
from mtpmon.shift.server import Figure
from mtpmon.shift.words import in_words
from mtpmon.suite import Case, Prompt
from mtpmon.watch import Clock, Timing, Watcher
from tests.captures import events
from tests.far_end import FakeLlama
from tests.shifting import change
from tests.test_board import SETTINGS, seen

CLOCK = Clock(monotonic=time.monotonic, wall=time.time)
PROMPT = Prompt(id="p", task="code", text="hello")
MTP = events("b11434/completion-mtp-stream.sse")


def without_drafts(payloads: list[bytes]) -> list[bytes]:
    """The same stream as a target-only server would send it."""
    plain = []
    for payload in payloads:
        chunk = json.loads(payload)
        for key in ("draft_n", "draft_n_accepted"):
            chunk["timings"].pop(key, None)
        plain.append(json.dumps(chunk).encode())
    return plain


@asynccontextmanager
async def watching(
    fake: FakeLlama,
    twin: FakeLlama | None = None,
    *,
    probing: bool = True,
    idle_for: float = 0.0,
    probe_timeout: float = 2.0,
    probe_interval: float = 0.3,
) -> AsyncIterator[Watcher]:
    """A watcher of ``fake`` that looks ten times a second."""
    async with fake.serving() as url, (twin or FakeLlama()).serving() as twin_url:
        arms = Arms(LlamaClient(url), LlamaClient(twin_url) if twin else None)
        watcher = Watcher(
            arms=arms,
            board=ServerBoard("a", SETTINGS),
            cases=itertools.repeat(Case(PROMPT)) if probing else None,
            settings=ProbeSettings(tokens=24, top_logprobs=8),
            timing=Timing(
                scrape_interval_seconds=0.1,
                scrape_timeout_seconds=0.09,
                probe_interval_seconds=probe_interval,
                probe_timeout_seconds=probe_timeout,
                idle_for_seconds=idle_for,
            ),
            clock=CLOCK,
        )
        try:
            yield watcher
        finally:
            await arms.close()


@asynccontextmanager
async def running(watcher: Watcher) -> AsyncIterator[None]:
    tasks = [
        asyncio.create_task(watcher.scrape_forever()),
        asyncio.create_task(watcher.probe_forever()),
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def until(condition: object, seconds: float = 8.0) -> None:
    """Wait for ``condition()``."""
    assert callable(condition)
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)


def idle() -> FakeLlama:
    fake = FakeLlama(events=list(MTP))
    fake.counters(tokens_predicted_total=10, requests_processing=0, requests_deferred=0)
    return fake


def outcomes(watcher: Watcher) -> dict[ProbeOutcome, int]:
    return dict(seen(watcher.board, time.monotonic()).probe_totals.outcomes)


async def test_an_idle_server_is_probed_on_both_arms() -> None:
    """The same tokens for both, results on the board, our share accounted for."""
    fake, twin = idle(), FakeLlama(events=without_drafts(MTP))
    async with watching(fake, twin) as watcher, running(watcher):
        await until(lambda: len(watcher.board.results) >= 2)
    found = watcher.board.results[0]
    assert found.outcome is ProbeOutcome.COMPLETED
    assert found.comparison is not None
    assert found.comparison.exact
    assert found.next_token is not None
    assert found.next_token.nats == 0
    assert found.speculating is not None
    assert found.speculating.timings.accepted_tokens == 15
    own = seen(watcher.board, time.monotonic()).own
    assert own.requests == len(watcher.board.results)
    assert own.accepted_by_position is not None
    assert sum(own.accepted_by_position) == sum(
        r.speculating.timings.accepted_tokens or 0
        for r in watcher.board.results
        if r.speculating is not None
    )


async def test_the_arms_take_turns_at_going_first() -> None:
    """So that what drifts does not favour one of them: A B, A B, B A, B A."""
    order: list[str] = []

    class Noted(FakeLlama):
        async def _stream(self, request):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
            order.append("twin" if self is twin else "fake")
            return await super()._stream(request)

    fake = Noted(events=list(MTP))
    fake.metrics = idle().metrics
    twin = Noted(events=without_drafts(MTP))
    async with watching(fake, twin) as watcher, running(watcher):
        await until(lambda: len(watcher.board.results) >= 4)
    pairs = [tuple(order[i : i + 2]) for i in range(0, 8, 2)]
    assert pairs == [("fake", "twin")] * 2 + [("twin", "fake")] * 2


async def test_a_busy_server_is_not_probed() -> None:
    """Not while a request runs; the skipped turn is counted."""
    fake = idle()
    fake.counters(tokens_predicted_total=10, requests_processing=1, requests_deferred=0)
    async with watching(fake) as watcher, running(watcher):
        await until(lambda: outcomes(watcher).get(ProbeOutcome.SKIPPED_BUSY, 0) >= 1)
    assert ("POST", "/completion") not in fake.requests


async def test_a_waiting_request_counts_as_busy() -> None:
    """Deferred ones too."""
    fake = idle()
    fake.counters(tokens_predicted_total=10, requests_processing=0, requests_deferred=1)
    async with watching(fake) as watcher, running(watcher):
        await until(lambda: outcomes(watcher).get(ProbeOutcome.SKIPPED_BUSY, 0) >= 1)
    assert ("POST", "/completion") not in fake.requests


async def test_traffic_between_looks_restarts_the_wait() -> None:
    """Requests shorter than a scrape interval are seen by the tokens they leave."""
    fake = idle()
    async with watching(fake, idle_for=0.5, probe_interval=5) as watcher, running(watcher):
        for tokens in range(20, 200, 10):
            fake.counters(tokens_predicted_total=tokens, requests_processing=0, requests_deferred=0)
            await asyncio.sleep(0.08)
        assert ("POST", "/completion") not in fake.requests
        await until(lambda: ("POST", "/completion") in fake.requests)


async def test_a_sleeping_server_is_neither_scraped_nor_probed() -> None:
    """Only its props are asked for."""
    fake = idle()
    fake.props["is_sleeping"] = True
    async with watching(fake) as watcher, running(watcher):
        await until(lambda: outcomes(watcher).get(ProbeOutcome.SKIPPED_SLEEPING, 0) >= 1)
    assert {path for _, path in fake.requests} == {"/props"}


async def test_a_server_that_is_not_ready_is_not_probed() -> None:
    """Loading, or gone."""
    fake = idle()
    fake.loading = True
    async with watching(fake) as watcher, running(watcher):
        await until(lambda: outcomes(watcher).get(ProbeOutcome.SKIPPED_NOT_READY, 0) >= 1)
        assert seen(watcher.board, time.monotonic()).state is State.LOADING


async def test_an_unprobed_server_is_only_watched() -> None:
    """As configured."""
    fake = idle()
    async with watching(fake, probing=False) as watcher, running(watcher):
        await until(lambda: len(fake.requests) >= 6)
    assert outcomes(watcher) == {}


async def test_a_baseline_that_drafts_is_no_baseline() -> None:
    """The proof is in its timings."""
    fake, twin = idle(), FakeLlama(events=list(MTP))
    async with watching(fake, twin) as watcher:
        found = await watcher.probe_once(PROMPT, baseline_first=True)
    assert found.outcome is ProbeOutcome.BASELINE_DRAFTED
    assert "--spec-type" in found.detail


async def test_a_probe_that_takes_too_long_is_cut_off() -> None:
    """The connection closes, and what was generated is still accounted for."""
    fake = idle()
    fake.stream_delay_seconds = 0.2
    async with watching(fake, probe_timeout=1.0) as watcher:
        found = await watcher.probe_once(PROMPT, baseline_first=False)
        assert found.outcome is ProbeOutcome.TIMEOUT
        assert "probe.timeout" in found.detail
        own = seen(watcher.board, 0).own
        assert own.generated_tokens is not None
        assert own.generated_tokens.value > 0
        assert own.generated_tokens.half_width > 0
        assert watcher.board.overlap_mark() is not None


@pytest.mark.parametrize(
    ("payloads", "words"),
    [
        ([], "without its final chunk"),
        (MTP[:5], "without its final chunk"),
        ([b"not json"], "cannot be read"),
        ([b'{"error":{"message":"context full"}}'], "context full"),
        ([MTP[0], MTP[-1]], "the server"),
        ([MTP[0], b'{"stop":true,"tokens_predicted":1}'], ""),
    ],
)
async def test_a_broken_stream_fails_the_probe_only(payloads: list[bytes], words: str) -> None:
    """With a sentence, and the request is off the books."""
    fake = idle()
    fake.events = payloads
    async with watching(fake) as watcher:
        found = await watcher.probe_once(PROMPT, baseline_first=False)
        if words == "the server":
            assert found.outcome is ProbeOutcome.COMPLETED
            assert found.speculating is not None
            assert found.speculating.positions[1].id is None
        elif words:
            assert found.outcome is ProbeOutcome.FAILED
            assert words in found.detail
        assert watcher.board.overlap_mark() is not None


@pytest.mark.parametrize(
    ("path", "status", "outcome"),
    [
        ("/apply-template", 404, ProbeOutcome.FAILED),
        ("/tokenize", 401, ProbeOutcome.FAILED),
        ("/completion", 500, ProbeOutcome.FAILED),
    ],
)
async def test_a_refused_request_fails_the_probe_only(
    path: str, status: int, outcome: ProbeOutcome
) -> None:
    """Whichever of its requests it is."""
    fake = idle()
    fake.status = {path: status}
    async with watching(fake) as watcher:
        found = await watcher.probe_once(PROMPT, baseline_first=False)
    assert found.outcome is outcome
    assert found.detail


async def test_a_server_that_begins_to_load_is_not_a_failure() -> None:
    """It restarted between the look and the probe."""
    fake = idle()
    fake.loading = True
    async with watching(fake) as watcher:
        found = await watcher.probe_once(PROMPT, baseline_first=False)
    assert found.outcome is ProbeOutcome.SKIPPED_NOT_READY


async def test_a_change_of_outcome_is_logged_once() -> None:
    """One line per problem, not per scrape."""
    fake = idle()
    async with watching(fake, probing=False) as watcher:
        with capture_logs() as logs:
            await watcher.look()
            await watcher.look()
            fake.status = {"/metrics": 501}
            await watcher.look()
            await watcher.look()
            fake.props["is_sleeping"] = True
            await watcher.look()
    assert [entry["event"] for entry in logs] == [
        "server_ready",
        "scrape_failed",
        "server_sleeping",
    ]
    assert logs[1]["outcome"] == Outcome.METRICS_DISABLED.value
    assert "--metrics" in logs[1]["detail"]
    assert all(entry["server"] == "a" for entry in logs)


async def test_looks_keep_their_rhythm() -> None:
    """Slow answers do not stretch the interval; a probe adds a look and moves nothing."""
    fake = idle()
    fake.delay_seconds = 0.02
    async with watching(fake, probing=False) as watcher, running(watcher):
        await asyncio.sleep(1.05)
    looks = sum(path == "/props" for _, path in fake.requests)
    assert 8 <= looks <= 12


async def test_changes_of_a_figure_are_logged_once() -> None:
    """A warning when one is found, a note when it is over."""
    told = change(Figure.ACCEPTANCE)
    over = change(Figure.ACCEPTANCE, ending=Ending.RECOVERED)
    async with watching(idle(), probing=False) as watcher:
        watcher.board._shift_news += [told, over]
        with capture_logs() as logs:
            await watcher.look()
            await watcher.look()
    found = [entry for entry in logs if entry["event"].startswith("shift_")]
    assert [(entry["event"], entry["log_level"]) for entry in found] == [
        ("shift_found", "warning"),
        ("shift_ended", "info"),
    ]
    assert [entry["detail"] for entry in found] == [in_words(told), in_words(over)]
    assert found[0]["figure"] == "acceptance"
    assert found[0]["direction"] == "fall"
