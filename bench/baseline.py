"""Is one server, asked the right way, as good a baseline as a second one without drafting?

Two depths of the demo model. For each there are a drafting server, its target-only twin, and a
target-only server that stands for the drafting one as it was captured earlier, all asked in
turns so that what the machine does falls on all alike:

    python -m bench.baseline [--rounds 6]

Distributions: what the drafting server says when it is asked for one token, which it never
drafts, against the twin's, at each position of the answers.

A plain decode step: the twin's, measured side by side, against that of a capture and that of
the undrafted steps of the drafting server.
"""

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import msgspec

from mtpmon.cost import AgainstPlain, PlainSource, plain_step, step_costs
from mtpmon.demo.model import DEEP, ModelSpec, cached_model
from mtpmon.model import Completion
from mtpmon.probe import Arms
from mtpmon.request import Arm, Request
from mtpmon.suite import Prompt, builtin_suite, rotation
from tests.twins import Apart, ask, clients, distributions

PROMPTS = 20  # of a round
CONFIDENCE = 0.95
MODELS = (("2 blocks, 2 MB", ModelSpec()), ("24 blocks, 10 MB", DEEP))


class Round(NamedTuple):
    """Seconds of a plain step, by where it is known from."""

    pair: float
    capture: float
    undrafted: float


async def steps(model: Path, rounds: int) -> list[Round]:
    """Plain steps as known in three ways, once for each round."""
    async with AsyncExitStack() as stack:
        drafting, twin, earlier = await clients(stack, model, (True, False, False))
        prompts = rotation(builtin_suite(), 1)
        pair, alone = Arms(drafting, twin), Arms(earlier)
        for arms in (pair, alone):  # warm
            await ask(arms, next(prompts), forced=0)
        return [await _round(pair, alone, list(islice(prompts, PROMPTS))) for _ in range(rounds)]


async def _round(pair: Arms, alone: Arms, prompts: Sequence[Prompt]) -> Round:
    paired: list[Request] = []
    captured: list[Request] = []
    for number, prompt in enumerate(prompts):
        first = number % 2 == 1
        if number // 2 % 2:
            captured.append(await _plain(alone, prompt))
        found = await ask(pair, prompt, forced=0, baseline_first=first)
        if found.target_only is None:
            raise ValueError("a pair lacks its second answer")
        paired.append(_request("speculating", prompt, found.speculating))
        paired.append(_request("target_only", prompt, found.target_only))
        if not number // 2 % 2:
            captured.append(await _plain(alone, prompt))
    ours = [request for request in paired if request.arm == "speculating"]
    once = plain_step(captured, confidence=CONFIDENCE)
    by_pair = _known(paired, PlainSource.PAIR)
    undrafted = _known([msgspec.structs.replace(r, pair=None) for r in ours], PlainSource.UNDRAFTED)
    if once is None:
        raise ValueError("too few steps to measure")
    return Round(by_pair.seconds.value, once.seconds.value, undrafted.seconds.value)


def _known(requests: Sequence[Request], source: PlainSource) -> AgainstPlain:
    costs = step_costs(requests, confidence=CONFIDENCE)
    if costs is None or costs.plain is None or costs.plain.source is not source:
        raise ValueError("too few steps to measure")
    return costs.plain


async def _plain(alone: Arms, prompt: Prompt) -> Request:
    return _request("target_only", prompt, (await ask(alone, prompt, forced=0)).speculating)


def _request(arm: Arm, prompt: Prompt, answer: Completion) -> Request:
    return Request(
        arm=arm,
        steps=answer.stream.steps,
        unix_seconds=time.time(),
        prompt=prompt.id,
        pair=prompt.id,
        whole=answer.stream.resolved,
    )


def lines(name: str, found: Apart, rounds: Sequence[Round]) -> Iterator[str]:
    """The rows of a Markdown table."""
    plain = statistics.median(each.pair for each in rounds)
    capture = [each.capture / each.pair for each in rounds]
    undrafted = [each.undrafted / each.pair for each in rounds]
    columns = ("positions", "distributions apart", "plain step, ms", "capture / pair")
    yield f"| model | {' | '.join(columns)} | undrafted / pair |"
    yield "|---|---|---|---|---|---|"
    yield (
        f"| {name} | {found.positions} | {found.probability:.1e} ({found.nats:.1e} nats)"
        f" | {1e3 * plain:.3f} | {_spread(capture)} | {_spread(undrafted)} |"
    )


def _spread(ratios: Sequence[float]) -> str:
    return f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"


def main() -> int:
    """Read the options and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6, help=f"of {PROMPTS} prompts each")
    parser.add_argument("--prompts", type=int, default=10, help="whose distributions are compared")
    options = parser.parse_args()
    tables = []
    for name, spec in MODELS:
        model = cached_model(spec)
        found = asyncio.run(distributions(model, options.prompts))
        rounds = asyncio.run(steps(model, options.rounds))
        tables.append(list(lines(name, found, rounds)))
    print("\n".join(chain(tables[0], *(table[2:] for table in tables[1:]))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
