"""Other ways to ask a prompt, on servers that do as they are told."""

import asyncio
import itertools
import json
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from mtpmon.board import ServerBoard
from mtpmon.client import LlamaClient
from mtpmon.compose import read_config
from mtpmon.config import ConfigError
from mtpmon.daemon import Daemon
from mtpmon.model import Baseline, ProbeOutcome, Variant
from mtpmon.probe import (
    SPARE_TOKENS,
    Arms,
    Books,
    ProbeFailed,
    ProbeSettings,
    _token_ids,
    probe,
)
from mtpmon.suite import DEFAULT_VARIANT, Case, Prompt, sampling_seed
from mtpmon.watch import Timing, Watcher
from tests.far_end import FakeLlama
from tests.test_board import SETTINGS, seen
from tests.test_watch import CLOCK, MTP, running, until, without_drafts

PROMPT = Prompt(id="p", task="code", text="one two three")
TOKENS = 24


class Worded(FakeLlama):
    """Its tokens are words. Keeps what it was asked."""

    def __init__(self, *, context: int | None = 4096, **options: object) -> None:
        super().__init__(events=list(MTP))
        self.props["default_generation_settings"] = {} if context is None else {"n_ctx": context}
        self.counters(tokens_predicted_total=10, requests_processing=0, requests_deferred=0)
        self.asked: list[tuple[str, dict[str, object]]] = []
        for name, value in options.items():
            setattr(self, name, value)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if request.method == "POST":
            body = await request.json()
            self.asked.append((request.path, body))
            if request.path == "/apply-template":
                return web.json_response({"prompt": f"user: {body['messages'][0]['content']}"})
            if request.path == "/tokenize":
                ids = list(range(1, len(body["content"].split()) + 1))
                return web.json_response({"tokens": ids})
        return await super()._answer(request)

    def completions(self) -> list[dict[str, object]]:
        return [body for path, body in self.asked if path == "/completion"]


async def depth_of(
    server: Worded, variant: Variant, *, twin: Worded | None = None, model: str | None = None
) -> int:
    """Tokens of the prompt that this variant makes."""
    settings = ProbeSettings(tokens=TOKENS, variant=variant, model=model)
    async with server.serving() as url, (twin or Worded()).serving() as twin_url:
        arms = Arms(LlamaClient(url), LlamaClient(twin_url) if twin else None)
        try:
            return len(await _token_ids(arms, PROMPT, settings))
        finally:
            await arms.close()


# --- depth ---


@pytest.mark.parametrize("depth", [300, 1000, 3000])
async def test_a_context_is_as_deep_as_asked_for(depth: int) -> None:
    """To within three sentences, and never deeper."""
    found = await depth_of(Worded(), Variant(depth_tokens=depth))
    assert depth - 100 < found <= depth


async def test_a_shallow_depth_is_the_prompt_alone() -> None:
    """There is no less than the prompt."""
    assert await depth_of(Worded(), Variant(depth_tokens=5)) == 4
    assert await depth_of(Worded(), DEFAULT_VARIANT) == 4


@pytest.mark.parametrize("small_twin", [False, True])
async def test_filler_leaves_room_for_the_answer(small_twin: bool) -> None:
    """In the smaller of both contexts."""
    room = 512 - TOKENS - SPARE_TOKENS
    contexts = (4096, 512) if small_twin else (512, 4096)
    server, twin = (Worded(context=context) for context in contexts)
    found = await depth_of(server, Variant(depth_tokens=3000), twin=twin)
    assert room - 100 < found <= room


async def test_a_context_of_unknown_length_cuts_nothing() -> None:
    """Some servers do not say; then the server itself refuses what is too long."""
    found = await depth_of(Worded(context=None), Variant(depth_tokens=3000))
    assert 2900 < found <= 3000


async def test_filler_that_turns_out_too_long_is_cut() -> None:
    """Also where its beginning had been shorter."""

    class Growing(Worded):
        async def _answer(self, request: web.Request) -> web.StreamResponse:
            if request.path == "/tokenize":
                words = len((await request.json())["content"].split())
                count = words if words < 1000 else 3 * words
                return web.json_response({"tokens": list(range(1, count + 1))})
            return await super()._answer(request)

    assert await depth_of(Growing(), Variant(depth_tokens=2000)) <= 2000


async def test_where_nothing_fits_the_prompt_is_asked_alone() -> None:
    """The server then says what it thinks of that."""
    assert await depth_of(Worded(context=32), Variant(depth_tokens=2000)) == 4


async def test_a_router_is_asked_about_its_model() -> None:
    """Without loading it."""
    server = Worded()
    await depth_of(server, Variant(depth_tokens=300), model="m")
    assert ("GET", "/props?model=m&autoload=false") in server.requests
    assert all(body["model"] == "m" for _, body in server.asked)


async def test_a_server_without_props_fails_the_probe() -> None:
    """With its own words."""
    server = Worded(status={"/props": 500})
    async with server.serving() as url:
        arms = Arms(LlamaClient(url))
        with pytest.raises(ProbeFailed, match="told to fail") as caught:
            await probe(
                arms,
                PROMPT,
                ProbeSettings(tokens=TOKENS, variant=Variant(depth_tokens=300)),
                baseline=Baseline.SINGLE,
                baseline_first=False,
                forced_seed=1,
                books=Books(began=lambda: None, ended=lambda _: None, clock=time.monotonic),
            )
        await arms.close()
    assert caught.value.outcome is ProbeOutcome.FAILED


# --- temperature and thinking ---


def watcher(url: str, twin_url: str | None, cases: Sequence[Case]) -> Watcher:
    return Watcher(
        arms=Arms(LlamaClient(url), LlamaClient(twin_url) if twin_url else None),
        board=ServerBoard("a", SETTINGS),
        cases=itertools.cycle(cases),
        settings=ProbeSettings(tokens=TOKENS, top_logprobs=8, seed=5, forced_positions=2),
        timing=Timing(
            scrape_interval_seconds=0.1,
            scrape_timeout_seconds=0.09,
            probe_interval_seconds=0.3,
            probe_timeout_seconds=5,
            idle_for_seconds=0,
        ),
        clock=CLOCK,
    )


async def test_each_case_is_asked_in_its_own_way() -> None:
    """Both arms alike; a sampled one with a seed of its own, and no token asked about."""
    hot = Variant(temperature=0.8, thinking=True)
    server, twin = Worded(), Worded(events=without_drafts(MTP))
    async with server.serving() as url, twin.serving() as twin_url:
        watching = watcher(url, twin_url, [Case(PROMPT)])
        try:
            greedy = await watching.probe_once(PROMPT, baseline_first=False)
            sampled = [
                await watching.probe_once(PROMPT, variant=hot, baseline_first=False)
                for _ in range(2)
            ]
        finally:
            await watching.arms.close()
    assert greedy.variant == DEFAULT_VARIANT
    assert greedy.comparison is not None
    assert greedy.forced
    assert all(found.outcome is ProbeOutcome.COMPLETED for found in (greedy, *sampled))
    assert all(found.variant == hot for found in sampled)
    assert all(found.comparison is None and not found.forced for found in sampled)
    ours = [body for body in server.completions() if body["n_predict"] == TOKENS]
    theirs = [body for body in twin.completions() if body["n_predict"] == TOKENS]
    assert ours == theirs
    assert [(body["temperature"], body["seed"]) for body in ours] == [
        (-1, 5),
        (0.8, sampling_seed(5, 1)),
        (0.8, sampling_seed(5, 2)),
    ]
    templates = [body for path, body in server.asked if path == "/apply-template"]
    assert [body.get("chat_template_kwargs") for body in templates] == [
        None,
        {"enable_thinking": True},
        {"enable_thinking": True},
    ]


async def test_cases_keep_their_lengths_and_take_turns_apart() -> None:
    """Only greedy answers have drawn lengths, whatever the rhythm of the cases."""
    hot = Variant(temperature=0.8)
    server = Worded()
    async with server.serving() as url:
        watching = watcher(url, None, [Case(PROMPT), Case(PROMPT, hot)])
        with capture_logs() as logs:
            async with running(watching):
                await until(lambda: len(watching.board.results) >= 8, seconds=30)
        await watching.arms.close()
    results = watching.board.results[:8]
    lengths: dict[bool, list[int]] = {True: [], False: []}
    for found in results:
        assert found.speculating is not None
        lengths[found.variant.greedy].append(found.speculating.timings.generated_tokens)
    assert lengths[False] == [TOKENS] * 4
    assert lengths[True][::2] == [TOKENS] * 2
    assert all(length < TOKENS for length in lengths[True][1::2])
    completed = [entry for entry in logs if entry["event"] == "probe_completed"]
    assert "temperature" not in completed[0]
    assert completed[1]["temperature"] == 0.8


# --- what is found wanting ---


async def test_a_shorter_answer_than_asked_for_fails_the_probe() -> None:
    """It is counted by its validator, and logged."""
    end = {**json.loads(MTP[12]), "tokens": [], "content": "", "stop": True}
    server = Worded(events=[*MTP[:13], json.dumps(end).encode()])
    async with server.serving() as url:
        watching = watcher(url, None, [Case(PROMPT)])
        with capture_logs() as logs:
            async with running(watching):
                await until(lambda: len(watching.board.failures) >= 1)
        await watching.arms.close()
    found = watching.board.failures[0]
    assert found.invalid == ("wrong_length",)
    assert found.detail == "the server generated 13 of 24 tokens: is the context long enough?"
    assert seen(watching.board, time.monotonic()).probe_totals.invalid["wrong_length"] >= 1
    failure = next(entry for entry in logs if entry["event"] == "probe_failed")
    assert failure["invalid"] == ["wrong_length"]


# --- own prompts that change ---


async def test_reload_reads_prompt_files_again(tmp_path: Path) -> None:
    """Though the configuration itself is as it was; a bad file changes nothing."""
    mine = tmp_path / "mine.yaml"
    mine.write_text("task: mine\nprompts: [{id: a, text: x}]", encoding="utf-8")
    path = tmp_path / "mtpmon.yaml"
    path.write_text(
        "servers: [{name: a, url: 'http://127.0.0.1:1'}]\n"
        "probe: {prompt_files: [mine.yaml], tasks: [mine]}\n"
        "listen: {address: '127.0.0.1:0'}\n",
        encoding="utf-8",
    )
    daemon, started = Daemon(read_config(path), path=path), asyncio.Event()
    running = asyncio.create_task(daemon.run(started=started.set))
    await started.wait()
    first = daemon.board["a"]
    await daemon.reload()
    assert daemon.board["a"] is first
    mine.write_text("task: mine\nprompts: [{id: a, text: another}]", encoding="utf-8")
    await daemon.reload()
    second = daemon.board["a"]
    assert second is not first
    mine.write_text("task: mine\nprompts: []", encoding="utf-8")
    with pytest.raises(ConfigError, match="has 0 items"):
        await daemon.reload()
    assert daemon.board["a"] is second
    daemon.stop()
    await running
