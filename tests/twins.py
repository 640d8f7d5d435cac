"""A drafting server and its target-only twin, asked alike: how far apart are they?"""

import math
import time
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from mtpmon.client import LlamaClient
from mtpmon.demo.server import LlamaServer
from mtpmon.evaluate import Pair
from mtpmon.model import Baseline, TopToken
from mtpmon.probe import Arms, Books, ProbeSettings, probe
from mtpmon.suite import Prompt, builtin_suite, rotation

TOKENS = 64
TOP = 64


class Apart(NamedTuple):
    """How far two distributions are from each other, at most, over so many positions."""

    positions: int
    probability: float
    nats: float


async def ask(arms: Arms, prompt: Prompt, *, forced: int, baseline_first: bool = False) -> Pair:
    """One prompt, as probes ask it."""
    return await probe(
        arms,
        prompt,
        ProbeSettings(tokens=TOKENS, top_logprobs=TOP, forced_positions=forced),
        baseline=Baseline.PAIR if arms.target_only is not None else Baseline.SINGLE,
        baseline_first=baseline_first,
        forced_seed=0,
        books=Books(began=lambda: None, ended=lambda _: None, clock=time.monotonic),
    )


def apart(pair: Pair) -> Apart:
    """The drafting server's distributions, asked token by token, against the twin's."""
    found = [_gap(each.target, each.speculating) for each in pair.forced]
    return _worst(found)


def _gap(ours: Sequence[TopToken], theirs: Sequence[TopToken]) -> Apart:
    """Of the tokens that one list has: one that the other lacks is as far as can be."""
    others = {entry.id: entry.logprob for entry in theirs}
    pairs = [(entry.logprob, others.get(entry.id, -math.inf)) for entry in ours]
    return Apart(
        1,
        max(abs(math.exp(a) - math.exp(b)) for a, b in pairs),
        max(abs(a - b) for a, b in pairs),
    )


def _worst(found: Iterable[Apart]) -> Apart:
    positions, probabilities, nats = zip(*found, strict=True)
    return Apart(sum(positions), max(probabilities), max(nats))


async def distributions(model: Path, prompts: int) -> Apart:
    """At every position of so many answers."""
    async with AsyncExitStack() as stack:
        drafting, twin = await clients(stack, model, (True, False))
        chosen = islice(rotation(builtin_suite(), 1), prompts)
        return _worst(
            [apart(await ask(Arms(drafting, twin), each, forced=TOKENS)) for each in chosen]
        )


async def clients(
    stack: AsyncExitStack, model: Path, drafting: Sequence[bool]
) -> list[LlamaClient]:
    """Of servers of one model, each drafting or not, for as long as the stack is open."""
    servers = [
        await stack.enter_async_context(LlamaServer(None, model, speculate=each))
        for each in drafting
    ]
    return [await stack.enter_async_context(LlamaClient(server.url)) for server in servers]
