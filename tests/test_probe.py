"""One probe against servers that do as they are told."""

import json
import math
import time
from collections.abc import Callable

import pytest
from aiohttp import web

from mtpmon.client import LlamaClient
from mtpmon.evaluate import Pair, evaluate
from mtpmon.model import Baseline, ProbeResult, TopToken, Usage
from mtpmon.probe import Arms, Books, ProbeFailed, ProbeSettings, probe
from mtpmon.suite import Prompt
from tests.far_end import FakeLlama

PROMPT = Prompt(id="p", task="code", text="hello")
SOFTMAX = {300: 0.6, 301: 0.3, 302: 0.1}


def listed(probabilities: dict[int, float]) -> list[dict[str, object]]:
    top = [{"id": i, "token": "x", "logprob": math.log(p)} for i, p in probabilities.items()]
    return [{"id": 300, "token": "x", "logprob": 0, "top_logprobs": top}]


class Scripted(FakeLlama):
    """Drafts three tokens a step and keeps them all, unless the request or it says not to.

    ``after_rollback`` is what it reports at the end of a drafted answer.
    """

    drafts: bool = True
    honours_switch: bool = False
    after_rollback: dict[int, float] = SOFTMAX

    def __init__(self, **options: object) -> None:
        super().__init__()
        for name, value in options.items():
            setattr(self, name, value)
        self.asked: list[dict[str, object]] = []
        self.counters(tokens_predicted_total=1, requests_processing=0, requests_deferred=0)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        self.asked.append(asked)
        off = self.honours_switch and asked.get("speculative.n_max") == 0
        drafts = self.drafts and not off and asked["n_predict"] > 1
        self.events = [json.dumps(e).encode() for e in self._answer_of(asked["n_predict"], drafts)]
        return await super()._stream(request)

    def _answer_of(self, tokens: int, drafts: bool) -> list[dict[str, object]]:
        found: list[dict[str, object]] = []
        timings: dict[str, object] = {}
        for n in range(1, tokens + 1):
            steps = (n + 2) // 4 if drafts else n - 1
            last = n == tokens
            timings = {"predicted_n": n, "predicted_ms": float(steps), "prompt_n": 4}
            if drafts and n > 1:
                timings |= {
                    "draft_n": 3 * steps,
                    "draft_n_accepted": n - 1 - steps + (4 * steps + 1 - n),
                }
            event: dict[str, object] = {
                "tokens": [300],
                "content": "x",
                "tokens_predicted": n,
                "timings": timings,
            }
            if not drafts or n == 1:
                event["completion_probabilities"] = listed(SOFTMAX)
            elif last:
                event["completion_probabilities"] = listed(self.after_rollback)
            found.append(event)
        end = {"tokens": [], "content": "", "stop": True, "tokens_predicted": tokens}
        return [*found, {**end, "timings": timings}]


async def probed(
    server: Scripted,
    twin: Scripted | None = None,
    *,
    baseline: Baseline,
    forced: int = 4,
    ended: Callable[[Usage], None] = lambda _: None,
) -> Pair:
    async with server.serving() as url, (twin or Scripted()).serving() as twin_url:
        arms = Arms(LlamaClient(url), LlamaClient(twin_url) if twin else None)
        try:
            return await probe(
                arms,
                PROMPT,
                ProbeSettings(tokens=17, top_logprobs=3, forced_positions=forced),
                baseline=baseline,
                baseline_first=False,
                forced_seed=1,
                books=Books(began=lambda: None, ended=ended, clock=time.monotonic),
            )
        finally:
            await arms.close()


def result(pair: Pair) -> ProbeResult:
    return evaluate(pair, PROMPT, server="a", unix_seconds=1, duration_seconds=1)


async def test_a_switch_that_works_is_a_baseline() -> None:
    """The same server, and its timings show that it drafted nothing."""
    server = Scripted(honours_switch=True)
    pair = await probed(server, baseline=Baseline.SWITCH)
    assert pair.baseline is Baseline.SWITCH
    assert pair.target_only is not None
    assert pair.target_only.timings.draft_tokens is None
    assert pair.speculating.timings.draft_tokens
    found = result(pair)
    assert found.comparison is not None
    assert found.comparison.exact


async def test_a_switch_that_is_ignored_is_none() -> None:
    """What was asked for is not believed, what was done is."""
    pair = await probed(Scripted(), baseline=Baseline.SWITCH)
    assert pair.baseline is Baseline.SINGLE
    assert pair.target_only is None
    assert len(pair.forced) == 4


async def test_a_switch_on_a_server_that_never_drafts_shows_nothing() -> None:
    """Nothing drafted with it, nothing drafted without it."""
    pair = await probed(Scripted(drafts=False), baseline=Baseline.SWITCH)
    assert pair.baseline is Baseline.SINGLE
    assert pair.target_only is None


async def test_a_failure_of_the_twin_says_so() -> None:
    """Two servers, one detail."""
    twin = Scripted()
    twin.status = {"/completion": 500}
    with pytest.raises(ProbeFailed, match="target-only server: HTTP 500"):
        await probed(Scripted(), twin, baseline=Baseline.PAIR)
    broken = Scripted()
    broken._answer_of = lambda tokens, drafts: []  # type: ignore[method-assign]
    with pytest.raises(ProbeFailed, match=r"target-only server: .* without its final chunk"):
        await probed(Scripted(), broken, baseline=Baseline.PAIR)


async def test_a_single_server_is_its_own_target() -> None:
    """One undrafted token at a time, with the cached prefix; all of it on the books."""
    server = Scripted()
    usages: list[Usage] = []
    pair = await probed(server, baseline=Baseline.SINGLE, ended=usages.append)
    assert [f.index for f in pair.forced][-1] == 16
    assert all(f.speculating == () for f in pair.forced)
    assert pair.forced[0].target == tuple(TopToken(i, math.log(p), "x") for i, p in SOFTMAX.items())
    assert len(usages) == 1 + 4
    answer, *ones = server.asked
    assert answer["cache_prompt"] is False
    assert all(one["cache_prompt"] is True and one["n_predict"] == 1 for one in ones)
    prompt = answer["prompt"]
    assert isinstance(prompt, list)
    for one, forced in zip(ones, pair.forced, strict=True):
        assert one["prompt"] == [*prompt, *[300] * forced.index]


async def test_with_a_pair_both_servers_are_forced() -> None:
    """The target-only one for what the target says, the other to compare."""
    server, twin = Scripted(), Scripted(drafts=False)
    pair = await probed(server, twin, baseline=Baseline.PAIR)
    assert len(server.asked) == len(twin.asked) == 1 + 4
    assert all(f.speculating == f.target for f in pair.forced)
    assert len(result(pair).teacher_forced) == 4


async def test_no_forced_positions_cost_nothing() -> None:
    """They can be turned off."""
    server = Scripted()
    pair = await probed(server, baseline=Baseline.SINGLE, forced=0)
    assert pair.forced == ()
    assert len(server.asked) == 1


async def test_a_fault_that_only_speculation_sees_is_seen() -> None:
    """State corrupted after a rollback: the next-token figure is blind, this one is not."""
    corrupt = {300: 0.2, 301: 0.2, 302: 0.6}
    for twin, baseline in ((Scripted(drafts=False), Baseline.PAIR), (None, Baseline.SINGLE)):
        sound = result(await probed(Scripted(), twin, baseline=baseline))
        faulty = result(await probed(Scripted(after_rollback=corrupt), twin, baseline=baseline))
        assert [d.nats for d in sound.after_speculation] == [0.0]
        assert [d.nats > 0.3 for d in faulty.after_speculation] == [True]
        for found in (sound, faulty):
            assert found.next_token is None or found.next_token.nats == 0
