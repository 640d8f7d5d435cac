"""Asking a server, and its target-only twin, all that ``mtpmon.doctor`` judges."""

import asyncio
import dataclasses

from msgspec.structs import replace

from mtpmon.capture import Provenance, Use, holds
from mtpmon.client import LlamaClient, RequestFailed
from mtpmon.config import Server
from mtpmon.derive import difference
from mtpmon.facts import CaptureFacts, Facts, answers
from mtpmon.model import Baseline, ProbeOutcome, ProbeResult, Scrape, Usage
from mtpmon.probe import Arms
from mtpmon.scrape import scrape
from mtpmon.suite import Prompt
from mtpmon.watch import Watcher
from mtpmon.wire import WireError, parse_tokens

SETTLE_SECONDS = 2.0  # a request's tokens reach the counters when its slot is released
SETTLE_STEP_SECONDS = 0.05
SAMPLE = "Drafting 3 tokens: naïve façade, 你好, 🙂!"  # what tokenizers take apart differently


async def examine(watching: Watcher, server: Server, prompt: Prompt, *, probed: bool) -> Facts:
    """Look at both servers, and if they answer, send them one test probe.

    A server that sleeps is asked nothing that would wake it.

    Args:
        watching: the servers, how to probe them and how long to wait.
        server: their part of the configuration.
        prompt: of the test probe.
        probed: whether the configuration has them probed.
    """
    ours, theirs = watching.arms.speculating, watching.arms.target_only
    facts = Facts(
        target_only_url=server.target_only_url,
        key_given=bool(server.api_key_env or server.api_key_file),
        target_only_key_given=bool(
            server.target_only_api_key_env or server.target_only_api_key_file
        ),
        probed=probed,
        server=await _look(watching, ours),
        target_only=await _look(watching, theirs) if theirs is not None else None,
    )
    if not answers(facts.server):
        return replace(facts, captures=_captures(watching, prompt))
    await watching.check_captures(facts.server.props)
    facts = replace(facts, tokens=await _tokens(watching, ours))
    alone = dataclasses.replace(watching, arms=Arms(ours))
    if theirs is None or not answers(facts.target_only):
        return await _tested(alone, facts, prompt)
    facts = replace(facts, target_only_tokens=await _tokens(watching, theirs))
    tested = await _tested(watching, facts, prompt)
    if tested.probe is None or tested.probe.outcome is not ProbeOutcome.BASELINE_DRAFTED:
        return tested
    facts = replace(facts, target_only_drafted=True, server=await _look(watching, ours))
    return await _tested(alone, facts, prompt)


async def _tested(watching: Watcher, facts: Facts, prompt: Prompt) -> Facts:
    """Add a test probe, what it sent, and a look at what that did to the counters."""
    before = _sent(watching)
    result = await watching.probe_once(prompt, baseline_first=False)
    after = await _settled(watching, facts.server)
    return replace(
        facts,
        probe=result,
        sent=difference(_sent(watching), before),
        after=after,
        captures=_captures(watching, prompt, result),
    )


def _captures(
    watching: Watcher, prompt: Prompt, result: ProbeResult | None = None
) -> tuple[CaptureFacts, ...]:
    """What is known of the captures, and by the test probe whether its prompt was in them."""
    captures = watching.captures
    if captures is None:
        return ()
    completed = result is not None and result.outcome is ProbeOutcome.COMPLETED
    found = []
    for use, refused in captures.refused().items():
        held, judged = captures.held[use], use in captures.reasons
        if isinstance(held, str):
            found.append(CaptureFacts(use=use, refused=refused, judged=judged))
            continue
        told = None
        if result is not None and completed and not refused and holds(held, prompt):
            compared = {
                Use.BASELINE: result.baseline is Baseline.CAPTURE,
                Use.REFERENCE: result.reference_next_token is not None,
            }
            told = compared[use]
        found.append(
            CaptureFacts(
                use=use,
                refused=refused,
                judged=judged,
                prompts=sum(holds(held, each) for each in captures.prompts),
                asked=len(captures.prompts),
                told=told,
                origin=_origin(held.provenance),
            )
        )
    return tuple(found)


def _origin(made: Provenance) -> str:
    server = made.server
    parts = (server.model_file or server.model, server.quantization, server.build, made.date)
    return ", ".join(part for part in parts if part)


def _sent(watching: Watcher) -> Usage:
    """All that has been sent to the server so far, by what its replies said."""
    return watching.board.snapshot(monotonic_seconds=watching.clock.monotonic()).own


async def _settled(watching: Watcher, before: Scrape) -> Scrape:
    """The first look at which the counters have moved, or the last one there is time for."""
    deadline = watching.clock.monotonic() + SETTLE_SECONDS
    while True:
        look = await _look(watching, watching.arms.speculating)
        if _generated(look) != _generated(before) or look.monotonic_seconds >= deadline:
            return look
        await asyncio.sleep(SETTLE_STEP_SECONDS)


def _generated(look: Scrape) -> float | None:
    tokens = look.counters.generated_tokens if look.counters is not None else None
    return tokens.value if tokens is not None else None


async def _look(watching: Watcher, client: LlamaClient) -> Scrape:
    return await scrape(
        client,
        timeout_seconds=watching.timing.scrape_timeout_seconds,
        monotonic=watching.clock.monotonic,
        wall=watching.clock.wall,
        model=watching.model,
    )


async def _tokens(watching: Watcher, client: LlamaClient) -> tuple[int, ...] | None:
    """The sample in the server's tokenizer; ``None`` if it does not say."""
    request: dict[str, object] = {"content": SAMPLE, "add_special": True}
    if watching.model is not None:
        request["model"] = watching.model
    timeout = watching.timing.scrape_timeout_seconds
    try:
        return parse_tokens(await client.post("/tokenize", request, timeout_seconds=timeout))
    except (RequestFailed, WireError):
        return None
