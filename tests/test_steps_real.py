"""Decode steps seen in streams, against a real server's own speculative counters."""

from collections.abc import AsyncIterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from mtpmon.client import LlamaClient
from mtpmon.demo.model import ModelSpec, cached_model
from mtpmon.demo.server import LlamaServer
from mtpmon.model import Completion, Counters, Step
from mtpmon.steps import accepted_by_position
from mtpmon.wire import assemble, completion_request, parse_chunk, parse_metrics, parse_tokens

pytestmark = pytest.mark.real

DRAFT_N_MAX = 3
PROMPTS = (
    "Write a function that returns the sum",
    "The capital of the country is",
    "Compare the cost and the risk of",
    "Once there was a",
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cached_model(ModelSpec(), tmp_path_factory.mktemp("models"))


@pytest_asyncio.fixture
async def drafting(model: Path) -> AsyncIterator[LlamaClient]:
    """A server that drafts and has served nothing yet."""
    async with (
        LlamaServer(None, model, draft_n_max=DRAFT_N_MAX) as server,
        LlamaClient(server.url) as client,
    ):
        yield client


async def complete(client: LlamaClient, prompt: str, tokens: int, **changes: Any) -> Completion:
    body = await client.post(
        "/tokenize", {"content": prompt, "add_special": True}, timeout_seconds=10
    )
    request = completion_request(parse_tokens(body), tokens=tokens, top_logprobs=0, seed=1)
    chunks = [parse_chunk(each) async for each in client.stream("/completion", request | changes)]
    found = assemble(chunks, wall_seconds=0.0)
    assert found is not None
    assert found.finished
    return found


async def counters(client: LlamaClient) -> Counters:
    reply = await client.get("/metrics", timeout_seconds=10)
    return parse_metrics(reply.body)


def speculation(counted: Counters) -> tuple[float, float, float, tuple[int, ...]]:
    """Drafts, draft tokens, accepted tokens, and these by position, without trailing zeros."""
    assert counted.drafts is not None
    assert counted.draft_tokens is not None
    assert counted.accepted_tokens is not None
    return (
        counted.drafts.value,
        counted.draft_tokens.value,
        counted.accepted_tokens.value,
        stripped(counted.accepted_by_position or ()),
    )


def observed(steps: list[Step]) -> tuple[float, float, float, tuple[int, ...]]:
    """The same four from steps."""
    return (
        sum(step.drafted > 0 for step in steps),
        sum(step.drafted for step in steps),
        sum(step.kept for step in steps),
        stripped(accepted_by_position(steps)),
    )


def stripped(counts: tuple[int, ...]) -> tuple[int, ...]:
    while counts and counts[-1] == 0:
        counts = counts[:-1]
    return counts


async def test_streams_reproduce_the_servers_counters_at_each_position(
    drafting: LlamaClient,
) -> None:
    """Over dozens of requests, greedy and sampled, every counter is met to the last token."""
    found = [
        await complete(drafting, prompt, tokens, temperature=temperature)
        for prompt in PROMPTS
        for tokens in (1, 2, 3, 4, 5, 8, 21, 64, 160)
        for temperature in (-1, 0.8)
    ]
    steps = [step for each in found for step in each.stream.steps]
    counted = await counters(drafting)
    assert all(each.stream.resolved for each in found)
    assert observed(steps) == speculation(counted)
    assert max(step.kept for step in steps) == DRAFT_N_MAX
    assert counted.generated_tokens is not None
    assert counted.generated_tokens.value == sum(1 + step.kept for step in steps) + len(found)
    assert counted.generation_seconds is not None
    assert sum(step.seconds for step in steps) == pytest.approx(
        counted.generation_seconds.value, rel=1e-4, abs=5e-4 * len(found)
    )


async def test_a_token_limit_never_cuts_what_a_step_kept(drafting: LlamaClient) -> None:
    """Drafts are short enough for the limit: n tokens are 1 + Σ(1 + kept) for every n."""
    for limit in range(1, 40):
        found = await complete(drafting, PROMPTS[0], limit)
        assert found.timings.generated_tokens == limit
        assert limit == 1 + sum(1 + step.kept for step in found.stream.steps)


async def test_a_stop_word_cuts_tokens_but_not_their_count(drafting: LlamaClient) -> None:
    """Tokens kept but cut by a stop word are in the server's counters and in the last step."""
    whole = await complete(drafting, PROMPTS[0], 160)
    texts = [position.text for position in whole.positions]
    # The last step before the stop: one whose own first token was not in the text before.
    place = 1
    expected: list[Step] = []
    for step in whole.stream.steps:
        expected.append(step)
        if step.kept == DRAFT_N_MAX and texts[place] not in "".join(texts[:place]):
            break
        place += 1 + step.kept
    before = speculation(await counters(drafting))
    cut = await complete(drafting, PROMPTS[0], 160, stop=[texts[place]])
    after = speculation(await counters(drafting))
    assert cut.timings.generated_tokens == place + 1
    assert place + 1 == 1 + sum(1 + step.kept for step in expected) - DRAFT_N_MAX
    assert [(s.drafted, s.kept) for s in cut.stream.steps] == [
        (s.drafted, s.kept) for s in expected
    ]
    assert after[2] - before[2] == sum(step.kept for step in expected)


async def test_hidden_tokens_leave_the_totals_right(drafting: LlamaClient) -> None:
    """Tokens inside multi-byte characters are not sent, and nothing is lost or made up."""
    # The demo vocabulary starts with three special tokens, then the 256 bytes.
    lead = 3 + "é".encode()[0]
    found = [
        await complete(
            drafting,
            prompt,
            120,
            temperature=temperature,
            logit_bias=[[lead, bias]],
            grammar='root ::= ([ -~] | "é")+',
        )
        for prompt in PROMPTS
        for bias in (34.0, 38.0)
        for temperature in (-1, 0.8)
    ]
    steps = [step for each in found for step in each.stream.steps]
    counted = await counters(drafting)
    drafts, draft_tokens, accepted, by_position = speculation(counted)
    seen = observed(steps)
    lost_drafted = sum(each.stream.unresolved_draft_tokens for each in found)
    lost_accepted = sum(each.stream.unresolved_accepted_tokens for each in found)
    assert any(position.id is None for each in found for position in each.positions)
    assert any(not each.stream.resolved for each in found)
    assert seen[1] + lost_drafted == draft_tokens
    assert seen[2] + lost_accepted == accepted
    assert seen[0] <= drafts
    pairs = list(zip_longest(by_position, seen[3], fillvalue=0))
    assert all(mine <= theirs for theirs, mine in pairs)
    assert sum(theirs - mine for theirs, mine in pairs) == lost_accepted
    for each in found:
        spent = sum(step.seconds for step in each.stream.steps) + each.stream.unresolved_seconds
        assert spent == pytest.approx(each.timings.generation_seconds)


async def test_a_target_only_server_makes_plain_steps(model: Path) -> None:
    """Without drafting, n tokens are n - 1 steps that drafted nothing."""
    async with (
        LlamaServer(None, model, speculate=False) as server,
        LlamaClient(server.url) as client,
    ):
        found = await complete(client, PROMPTS[1], 50)
    assert found.timings.draft_tokens is None
    assert [(step.drafted, step.kept) for step in found.stream.steps] == [(0, 0)] * 49
    assert sum(step.seconds for step in found.stream.steps) == pytest.approx(
        found.timings.generation_seconds
    )
