"""The bound from top-64 lists of real servers against whole-vocabulary divergences."""

import asyncio
import math
from collections.abc import AsyncIterator
from itertools import combinations, islice
from pathlib import Path
from typing import NamedTuple

import pytest
import pytest_asyncio

from mtpmon.client import LlamaClient
from mtpmon.compare import classify_positions, compare
from mtpmon.demo.model import ModelSpec, cached_model
from mtpmon.demo.server import LlamaServer
from mtpmon.forced import known_prefix
from mtpmon.kld import divergence
from mtpmon.model import Completion, TopToken
from mtpmon.suite import builtin_suite, rotation
from mtpmon.wire import assemble, completion_request, parse_chunk, parse_tokens

pytestmark = pytest.mark.real

POSITIONS = 120
WHOLE_VOCABULARY = 4096
"""More entries than the demo vocabulary has: the server sends what there is."""
PROMPT = "Compare the cost and the risk of"
FLOAT32 = 5e-6
"""How far a divergence of two whole lists may be off, since 1 - Σp is within 1e-6 there."""
LEFTOVER_ROUNDING = 1e-3
TEXTS, TEXT_TOKENS = 15, 224  # 3360 positions, each compared by three pairs of models


class Pair(NamedTuple):
    """Whole next-token distributions after one prefix, likeliest first."""

    p: tuple[TopToken, ...]
    q: tuple[TopToken, ...]

    @property
    def exact_nats(self) -> float:
        logprobs = {entry.id: entry.logprob for entry in self.q}
        return math.fsum(
            math.exp(entry.logprob) * (entry.logprob - logprobs[entry.id]) for entry in self.p
        )


class Servers(NamedTuple):
    """Two models, the second a disturbed sibling; the first also drafting; one unrelated."""

    target: LlamaClient
    sibling: LlamaClient
    stranger: LlamaClient
    drafting: LlamaClient


@pytest_asyncio.fixture
async def servers(tmp_path: Path) -> AsyncIterator[Servers]:
    model = cached_model(ModelSpec(), tmp_path)
    sibling = cached_model(ModelSpec(trunk_noise=0.05), tmp_path)
    stranger = cached_model(ModelSpec(seed=2), tmp_path)
    async with (
        LlamaServer(None, model, speculate=False) as one,
        LlamaServer(None, sibling, speculate=False) as two,
        LlamaServer(None, stranger, speculate=False) as three,
        LlamaServer(None, model) as four,
        LlamaClient(one.url) as first,
        LlamaClient(two.url) as second,
        LlamaClient(three.url) as third,
        LlamaClient(four.url) as fourth,
    ):
        yield Servers(first, second, third, fourth)


async def complete(
    client: LlamaClient, ids: tuple[int, ...], *, tokens: int, top: int, cached: bool = False
) -> Completion:
    request = completion_request(ids, tokens=tokens, top_logprobs=top, seed=1)
    request |= {"cache_prompt": cached}
    chunks = [parse_chunk(each) async for each in client.stream("/completion", request)]
    found = assemble(chunks, wall_seconds=0.0)
    assert found is not None
    return found


async def prompt_ids(client: LlamaClient) -> tuple[int, ...]:
    body = {"content": PROMPT, "add_special": True}
    return parse_tokens(await client.post("/tokenize", body, timeout_seconds=10))


async def next_token(
    client: LlamaClient, ids: tuple[int, ...], top: int = WHOLE_VOCABULARY, *, cached: bool = False
) -> tuple[TopToken, ...]:
    return (await complete(client, ids, tokens=1, top=top, cached=cached)).positions[0].top


async def prefixes(client: LlamaClient) -> list[tuple[int, ...]]:
    """The prompt, and the prompt with more and more of the model's own greedy text."""
    ids = await prompt_ids(client)
    text = (await complete(client, ids, tokens=POSITIONS - 1, top=0)).positions
    told = [position.id for position in text if position.id is not None]
    assert len(told) == POSITIONS - 1
    return [ids + tuple(told[:length]) for length in range(POSITIONS)]


async def pairs(one: LlamaClient, other: LlamaClient) -> list[Pair]:
    found = [
        Pair(await next_token(one, ids), await next_token(other, ids))
        for ids in await prefixes(one)
    ]
    assert all({e.id for e in pair.p} == {e.id for e in pair.q} for pair in found)
    return found


def allowed_shortfall(pair: Pair, k: int) -> float:
    """P's mass outside the shared top k, times how uneven the log-ratios are out there."""
    shared = {e.id for e in pair.p[:k]} & {e.id for e in pair.q[:k]}
    q = {e.id: e.logprob for e in pair.q}
    rest = [e for e in pair.p if e.id not in shared]
    mass_p = math.fsum(math.exp(e.logprob) for e in rest)
    mass_q = math.fsum(math.exp(q[e.id]) for e in rest)
    tails = math.log(mass_p / mass_q)
    uneven = mass_p * (max(e.logprob - q[e.id] for e in rest) - tails)
    rounding = mass_p * math.log1p(LEFTOVER_ROUNDING / mass_q) + LEFTOVER_ROUNDING * abs(tails)
    return uneven + rounding


@pytest.mark.parametrize("other", ["sibling", "stranger"])
async def test_top_k_bounds_against_whole_vocabularies(servers: Servers, other: str) -> None:
    """At each of 120 positions: never above the exact value, below it by what is left out."""
    found = await pairs(servers.target, getattr(servers, other))
    for k in (1, 5, 64):
        bounds = [divergence(pair.p[:k], pair.q[:k]) for pair in found]
        for pair, bound in zip(found, bounds, strict=True):
            shortfall = pair.exact_nats - bound.nats
            assert -FLOAT32 <= shortfall <= allowed_shortfall(pair, k) + FLOAT32


@pytest.mark.slow
async def test_the_bound_is_one_at_ten_thousand_positions(servers: Servers) -> None:
    """Three models, each against each, along what one wrote: never above the exact value.

    Float32's rounding apart: the listed probabilities are within 1e-6 of their sum, and so is
    what is compared with.
    """
    models = (servers.target, servers.sibling, servers.stranger)
    excess: list[float] = []
    for number, prompt in enumerate(islice(rotation(builtin_suite(), 1), TEXTS)):
        body = {"content": prompt.text, "add_special": True}
        ids = parse_tokens(await servers.target.post("/tokenize", body, timeout_seconds=10))
        request = completion_request(
            ids, tokens=TEXT_TOKENS - 1, top_logprobs=0, seed=number, temperature=0.8
        )
        chunks = [parse_chunk(c) async for c in servers.target.stream("/completion", request)]
        text = assemble(chunks, wall_seconds=0.0)
        assert text is not None
        told = known_prefix(text.positions)
        for length in range(len(told) + 1):
            prefix = (*ids, *told[:length])
            tops = await asyncio.gather(
                *(next_token(model, prefix, cached=True) for model in models)
            )
            for p, q in combinations(tops, 2):
                bound, exact = divergence(p[:64], q[:64]).nats, Pair(p, q).exact_nats
                excess.append(bound - exact)
    assert len(excess) >= 10_000
    assert max(excess) <= FLOAT32
    assert min(excess) < -1  # where two models agree on little, the tails hold much of it


async def test_whole_lists_give_the_exact_divergence(servers: Servers) -> None:
    """With nothing cut off the bound is the divergence, to float32's rounding."""
    for pair in await pairs(servers.target, servers.sibling):
        assert divergence(pair.p, pair.q).nats == pytest.approx(pair.exact_nats, abs=FLOAT32)
        assert math.fsum(math.exp(e.logprob) for e in pair.p) == pytest.approx(1.0, abs=2e-6)


async def test_a_short_list_is_the_head_of_the_whole_one(servers: Servers) -> None:
    """Asking for 64 entries changes which are sent, not what they say."""
    for ids in (await prefixes(servers.target))[::10]:
        assert (
            await next_token(servers.target, ids, 64)
            == (await next_token(servers.target, ids))[:64]
        )


async def test_a_drafting_server_has_the_targets_next_token_distribution(
    servers: Servers,
) -> None:
    """A request for one token never drafts, so its divergence from the target is 0."""
    for ids in (await prefixes(servers.target))[::10]:
        p, q = (
            await next_token(servers.target, ids, 64),
            await next_token(servers.drafting, ids, 64),
        )
        assert divergence(p, q).nats == 0.0


async def test_what_follows_speculation_is_the_targets_distribution(servers: Servers) -> None:
    """Last tokens decoded after verified drafts are compared, and differ by rounding only."""
    ids = await prompt_ids(servers.target)
    after = []
    for tokens in range(3, 60):
        ours = (await complete(servers.drafting, ids, tokens=tokens, top=64)).positions
        theirs = (await complete(servers.target, ids, tokens=tokens, top=64)).positions
        kinds, comparable = classify_positions(ours, theirs)
        assert compare(ours, theirs).exact
        assert kinds.comparable + kinds.missing == tokens
        assert set(comparable) <= {0, tokens - 1}
        after += [divergence(theirs[i].top, ours[i].top) for i in comparable if i >= 2]
    assert len(after) >= 20
    assert max(each.nats for each in after) < 1e-5
    assert all(each.top1_agrees for each in after)
