"""A fault that only speculation sees, planted in a simulator that real servers vouch for."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mtpmon.board import ServerBoard
from mtpmon.client import LlamaClient
from mtpmon.demo.server import LlamaServer
from mtpmon.forced import drawn_length
from mtpmon.model import ProbeOutcome, ProbeResult, Step
from mtpmon.probe import Arms, ProbeSettings
from mtpmon.rolling import ProbeFigures, rolling
from mtpmon.steps import accepted_by_position
from mtpmon.suite import builtin_suite, rotation
from mtpmon.watch import Timing, Watcher
from mtpmon.wire import assemble, completion_request, parse_chunk, parse_metrics, parse_tokens
from tests.simulator import Simulated
from tests.test_board import SETTINGS
from tests.test_watch import CLOCK

PROBES = 20
TOKENS = 48


# --- the contract: what the simulator is relied on for, asked of a real server too --------


@asynccontextmanager
async def served(kind: str, model: Path) -> AsyncIterator[LlamaClient]:
    """A client of a server that drafts three tokens a step."""
    async with AsyncExitStack() as stack:
        if kind == "real":
            server = await stack.enter_async_context(LlamaServer(None, model, draft_n_max=3))
            url = server.url
        else:
            url = await stack.enter_async_context(Simulated(draft_n_max=3).serving())
        yield await stack.enter_async_context(LlamaClient(url))


def shapes(value: Any) -> Any:
    """Types in place of values; numbers are alike, and so are all elements of a list."""
    if isinstance(value, dict):
        return {key: shapes(each) for key, each in value.items()}
    if isinstance(value, list):
        return [shapes(value[0])] if value else []
    return (
        "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value)
    )


def fits(ours: Any, theirs: Any) -> bool:
    """Whether all that is in one shape is in the other."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return all(key in theirs and fits(ours[key], theirs[key]) for key in ours)
    if isinstance(ours, list) and isinstance(theirs, list):
        return not ours or not theirs or fits(ours[0], theirs[0])
    return bool(ours == theirs)


async def answer(client: LlamaClient, tokens: int) -> list[bytes]:
    """The payloads of a greedy answer."""
    body = {"content": "Write a function that returns the sum", "add_special": True}
    ids = parse_tokens(await client.post("/tokenize", body, timeout_seconds=10))
    request = completion_request(ids, tokens=tokens, top_logprobs=8, seed=1)
    return [payload async for payload in client.stream("/completion", request)]


@pytest.mark.real
@pytest.mark.parametrize("kind", ["real", "simulated"])
async def test_the_contract(kind: str, model: Path) -> None:
    """Drafts are cut to the end, only undrafted tokens have distributions, all is counted."""
    steps: list[Step] = []
    async with served(kind, model) as client:
        for tokens in (1, 2, 3, 4, 5, 12, 40):
            found = assemble(map(parse_chunk, await answer(client, tokens)), wall_seconds=0.0)
            assert found is not None
            assert found.finished
            assert found.timings.generated_tokens == tokens == len(found.positions)
            assert (found.timings.draft_tokens is None) == (tokens <= 2)
            undrafted = {0} | {tokens - 1 for step in found.stream.steps[-1:] if not step.drafted}
            assert {i for i, p in enumerate(found.positions) if p.top} == undrafted
            left = tokens - 1
            for step in found.stream.steps:
                assert step.drafted <= min(3, left - 1)
                left -= 1 + step.kept
            assert left == 0
            steps += found.stream.steps
        counted = parse_metrics((await client.get("/metrics", timeout_seconds=10)).body)
    assert counted.drafts is not None
    assert counted.drafts.value == sum(step.drafted > 0 for step in steps)
    assert counted.accepted_by_position == accepted_by_position(steps)
    assert any(step.kept < step.drafted for step in steps)
    assert any(step.drafted and step.kept == step.drafted for step in steps)


@pytest.mark.real
async def test_the_simulator_says_nothing_that_a_real_server_does_not(model: Path) -> None:
    """Every field of its chunks is in the real ones, with the same type."""
    async with served("real", model) as real, served("simulated", model) as simulated:
        theirs = [msgspec.json.decode(each) for each in await answer(real, 12)]
        ours = [msgspec.json.decode(each) for each in await answer(simulated, 12)]
    for place in (0, 5, -1):
        mine, real_one = shapes(ours[place]), shapes(theirs[place])
        if place == 5:  # either may have a distribution there or not
            mine.pop("completion_probabilities", None)
        assert fits(mine, real_one)


# --- the fault ----------------------------------------------------------------------------


async def probed(speculating: str, target_only: str | None = None) -> list[ProbeResult]:
    """Probes as `mtpmon run` makes them, every second one of a drawn length."""
    arms = Arms(LlamaClient(speculating), LlamaClient(target_only) if target_only else None)
    timing = Timing(
        scrape_interval_seconds=1,
        scrape_timeout_seconds=0.9,
        probe_interval_seconds=60,
        probe_timeout_seconds=60,
        idle_for_seconds=0,
    )
    watcher = Watcher(
        arms=arms,
        board=ServerBoard("a", SETTINGS),
        cases=None,
        settings=ProbeSettings(tokens=TOKENS, top_logprobs=64, forced_positions=8),
        timing=timing,
        clock=CLOCK,
    )
    try:
        results = [
            await watcher.probe_once(
                prompt,
                baseline_first=False,
                tokens=drawn_length(TOKENS, seed=number) if number % 2 else None,
            )
            for number, prompt in enumerate(islice(rotation(builtin_suite(), 1), PROBES))
        ]
    finally:
        await arms.close()
    assert {(r.outcome, r.detail) for r in results} == {(ProbeOutcome.COMPLETED, "")}
    return results


def figures(results: Sequence[ProbeResult]) -> ProbeFigures:
    return rolling(results, confidence=0.95)


@pytest.mark.parametrize("paired", [True, False])
async def test_without_a_fault_nothing_is_found(paired: bool) -> None:
    """All kinds of KLD are 0 and every emitted token is the target's best."""
    async with Simulated().serving() as url, Simulated(draft_n_max=0).serving() as twin:
        found = figures(await probed(url, twin if paired else None))
    assert found.kld["after_speculation"].positions >= PROBES / 4
    assert all(summary.max_nats < 1e-9 for summary in found.kld.values())
    assert found.emitted_best == 1
    assert found.exact_sequences == (1 if paired else None)


@pytest.mark.parametrize(
    ("leak", "nats", "best", "exact"),
    [(0.02, 5e-5, 0.99, 0.7), (0.2, 5e-3, 0.95, 0.4), (1.0, 0.3, 0.6, 0.2)],
)
async def test_a_planted_fault_shows_after_speculation_and_not_at_the_next_token(
    leak: float, nats: float, best: float, exact: float
) -> None:
    """State that rejected drafts leave behind: nothing at first tokens, plain at last ones.

    A fiftieth of it is enough, and no distribution that the server gives without drafting is
    touched.
    """
    async with Simulated(leak=leak).serving() as url, Simulated(draft_n_max=0).serving() as twin:
        found = figures(await probed(url, twin))
    assert found.kld["next_token"].positions == PROBES
    assert found.kld["next_token"].max_nats < 1e-12
    assert found.kld["after_speculation"].positions >= PROBES / 4
    assert found.kld["after_speculation"].mean_nats > nats
    assert found.emitted_best is not None
    assert found.emitted_best < best
    assert found.exact_sequences is not None
    assert found.exact_sequences < exact


async def test_the_fault_shows_on_one_server_alone() -> None:
    """Without a target-only server too: the server itself, undrafted, is the yardstick."""
    async with Simulated(leak=0.2).serving() as url:
        found = figures(await probed(url))
    assert "next_token" not in found.kld
    assert found.kld["after_speculation"].mean_nats > 5e-3
    assert found.emitted_best is not None
    assert found.emitted_best < 0.95
