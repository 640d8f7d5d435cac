"""Probes of real servers: what one server says of itself is what a second one says of it."""

import math
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from mtpmon.client import LlamaClient
from mtpmon.demo.model import ModelSpec, cached_model
from mtpmon.demo.server import LlamaServer
from mtpmon.evaluate import Pair, evaluate
from mtpmon.model import Baseline, Divergence, ProbeOutcome, TopToken
from mtpmon.probe import Arms, Books, ProbeSettings, probe
from mtpmon.suite import builtin_suite

pytestmark = pytest.mark.real
PROMPTS = builtin_suite().prompts[::8]


async def probed(
    url: str, twin_url: str | None, place: int, *, baseline: Baseline, tokens: int = 48
) -> Pair:
    arms = Arms(LlamaClient(url), LlamaClient(twin_url) if twin_url else None)
    try:
        return await probe(
            arms,
            PROMPTS[place],
            ProbeSettings(tokens=tokens, top_logprobs=64, forced_positions=tokens),
            baseline=baseline,
            baseline_first=place % 2 == 1,
            forced_seed=place,
            books=Books(began=lambda: None, ended=lambda _: None, clock=time.monotonic),
        )
    finally:
        await arms.close()


def apart(a: Sequence[TopToken], b: Sequence[TopToken]) -> float:
    """The largest difference of probability between two lists of the same tokens."""
    ours = {entry.id: math.exp(entry.logprob) for entry in a}
    theirs = {entry.id: math.exp(entry.logprob) for entry in b}
    return max(abs(ours.get(i, 0.0) - theirs.get(i, 0.0)) for i in ours.keys() | theirs.keys())


async def test_one_server_knows_its_own_target(model: Path) -> None:
    """Teacher-forced on the speculating server and on a target-only one: equal everywhere."""
    async with (
        LlamaServer(None, model) as server,
        LlamaServer(None, model, speculate=False) as twin,
    ):
        for place in range(3):
            pair = await probed(server.url, twin.url, place, baseline=Baseline.PAIR)
            assert len(pair.forced) == 48
            for forced in pair.forced:
                assert apart(forced.target, forced.speculating) <= 1e-6
            alone = await probed(server.url, None, place, baseline=Baseline.SINGLE)
            for own, other in zip(alone.forced, pair.forced, strict=True):
                assert own.index == other.index
                assert apart(own.target, other.target) <= 1e-6


async def test_an_answer_without_fault_has_no_regret(model: Path) -> None:
    """Each token of a greedy speculative answer is the target's best, or tied with it."""
    last: list[Divergence] = []
    async with LlamaServer(None, model) as server:
        for tokens in range(31, 49, 2):
            pair = await probed(server.url, None, 0, baseline=Baseline.SWITCH, tokens=tokens)
            assert pair.baseline is Baseline.SINGLE  # this build ignores the switch
            found = evaluate(pair, PROMPTS[0], server="a", unix_seconds=0, duration_seconds=0)
            assert found.outcome is ProbeOutcome.COMPLETED
            assert len(found.forced) == tokens
            assert max(token.regret_nats for token in found.forced) < 1e-3
            last += found.after_speculation
    # A last step that keeps its whole draft leaves no distribution: most do not.
    assert len(last) >= 3
    assert max(d.nats for d in last) < 1e-5


async def test_another_model_is_not_the_same(model: Path) -> None:
    """A sibling with noise in its trunk: seen along the whole answer."""
    sibling = cached_model(ModelSpec(trunk_noise=0.05))
    async with (
        LlamaServer(None, sibling) as server,
        LlamaServer(None, model, speculate=False) as twin,
    ):
        pair = await probed(server.url, twin.url, 0, baseline=Baseline.PAIR)
    found = evaluate(pair, PROMPTS[0], server="a", unix_seconds=0, duration_seconds=0)
    nats = [d.nats for d in found.teacher_forced]
    assert len(nats) == 48
    assert sum(nats) / len(nats) > 1e-3
    assert max(token.regret_nats for token in found.forced) > 0
