"""Two hundred probes and every request of others, against a real server's own counters."""

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import reduce
from pathlib import Path

import pytest

from mtpmon.client import LlamaClient
from mtpmon.demo.server import LlamaServer
from mtpmon.derive import nothing, total
from mtpmon.model import Baseline, Counters, Usage, Variant
from mtpmon.probe import Arms, Books, ProbeSettings, probe
from mtpmon.suite import builtin_suite, rotation
from mtpmon.wire import parse_metrics
from tests.rig import Counts, Users

pytestmark = [pytest.mark.real, pytest.mark.slow]

PROBES = 200
WAYS = (Variant(), Variant(temperature=0.8))
LENGTHS = (2, 3, 5, 17, 48)


async def counters(client: LlamaClient) -> Counters:
    reply = await client.get("/metrics", timeout_seconds=10)
    return parse_metrics(reply.body)


def counted(found: Counters) -> Counts:
    """What a server has counted since its start, all of it printed without rounding."""
    readings = (found.generated_tokens, found.drafts, found.draft_tokens, found.accepted_tokens)
    tokens, drafts, draft_tokens, accepted = (
        (int(reading.value), reading.quantum) if reading is not None else (0, 0.0)
        for reading in readings
    )
    assert max(tokens[1], drafts[1], draft_tokens[1], accepted[1]) <= 1
    kept = found.accepted_by_position or ()
    assert sum(kept) == accepted[0]
    return Counts(tokens[0], drafts[0], draft_tokens[0], kept)


def accounted(own: Usage) -> Counts:
    """What probes say that they cost; nothing of it may be in doubt."""
    amounts = (own.generated_tokens, own.drafts, own.draft_tokens, own.accepted_tokens)
    assert all(amount is not None and amount.half_width == 0 for amount in amounts)
    assert own.positions_error == 0
    tokens, drafts, draft_tokens, accepted = (int(a.value) if a is not None else 0 for a in amounts)
    kept = own.accepted_by_position or ()
    assert sum(kept) == accepted
    return Counts(tokens, drafts, draft_tokens, kept)


@asynccontextmanager
async def busy(users: Users, slots: int) -> AsyncIterator[None]:
    """So many users ask for one thing after another; the last answers are waited for."""
    stop = asyncio.Event()

    async def user(number: int) -> None:
        rng = random.Random(number)
        while not stop.is_set():
            await users.ask(
                f"{number} times {rng.randrange(1000)}: write a function that",
                rng.randint(1, 90),
                temperature=rng.choice((0, 0.8)),
                seed=rng.randrange(10**6),
            )

    tasks = [asyncio.create_task(user(number)) for number in range(slots)]
    try:
        yield
    finally:
        stop.set()
        await asyncio.gather(*tasks)


async def probes(client: LlamaClient) -> list[Usage]:
    """Probe after probe, greedy and sampled, long and short; what each request cost."""
    costs: list[Usage] = []
    books = Books(began=lambda: None, ended=costs.append, clock=time.monotonic)
    prompts = rotation(builtin_suite(), 1)
    ways = itertools.cycle(itertools.product(WAYS, LENGTHS))
    for number, (prompt, (way, tokens)) in enumerate(
        itertools.islice(zip(prompts, ways, strict=False), PROBES)
    ):
        await probe(
            Arms(client),
            prompt,
            ProbeSettings(tokens=tokens, top_logprobs=4, forced_positions=3, variant=way),
            baseline=Baseline.SWITCH if number % 10 == 0 else Baseline.SINGLE,
            baseline_first=False,
            forced_seed=number,
            books=books,
        )
    return costs


@pytest.mark.parametrize(("slots", "others"), [(1, 0), (4, 0), (4, 3), (1, 1)])
async def test_two_hundred_probes_leave_nothing_unaccounted(
    model: Path, slots: int, others: int
) -> None:
    """The counters, less other users' own timings, less ours, are 0 at every position."""
    async with (
        LlamaServer(None, model, slots=slots) as server,
        LlamaClient(server.url) as client,
    ):
        users = Users(server.url)
        async with busy(users, others):
            costs = await probes(client)
        found = counted(await counters(client))
    ours = accounted(reduce(total, costs, nothing()))
    assert len(costs) >= 2 * PROBES
    assert (found - users.total - ours).exact == Counts().exact
    assert len(users.requests) >= 20 * others
    assert ours.drafts > 1000
    assert len(ours.kept) == server.draft_n_max
