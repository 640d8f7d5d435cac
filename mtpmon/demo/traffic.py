"""Requests as users would send them, so that a demo has something to show."""

import asyncio
import ipaddress
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final
from urllib.parse import urlsplit

import aiohttp

from mtpmon.suite import Suite, rotation

USERS: Final = 4
REQUEST_SECONDS: Final = 60.0
TEMPERATURE: Final = 0.7


@dataclass(frozen=True, slots=True)
class TrafficSummary:
    """What was sent.

    Attributes:
        requests: Answered or failed; those that were cut off at the end are not counted.
        failures: Of these, without a good answer.
        by_task: Requests by task.
    """

    requests: int
    failures: int
    by_task: Mapping[str, int]


async def run_traffic(
    url: str,
    suite: Suite,
    *,
    seed: int,
    requests_per_second: float,
    max_tokens: int,
    stop: asyncio.Event,
    api_key: str | None = None,
) -> TrafficSummary:
    """Sends chat requests at random moments until `stop` is set.

    Four users, who each wait for an answer before they ask again, bound what a slow server gets.
    Gaps are exponential, so that requests come in bursts and lulls; lengths vary from a quarter of
    `max_tokens` up. Whatever a server does wrong is counted and no reason to end.

    Args:
        url: Base URL of a server on this machine.
        suite: Prompts, taken evenly over tasks.
        seed: Equal seeds give equal prompts in equal order.
        requests_per_second: On average, as long as answers come fast.
        max_tokens: Longest answer, in tokens.
        stop: Ends the traffic; requests in flight are cut off.
        api_key: Sent when given.

    Raises:
        ValueError: The URL is not on this machine, or a number is not positive.
    """
    if not _is_loopback(url):
        raise ValueError(f"made-up traffic is for servers on this machine only, not for {url}")
    if requests_per_second <= 0 or max_tokens < 1:
        raise ValueError("requests_per_second and max_tokens must be positive")
    rng = random.Random(seed)
    prompts = rotation(suite, seed)
    outcomes: list[tuple[str, bool]] = []

    async def user(session: aiohttp.ClientSession) -> None:
        while True:
            await asyncio.sleep(rng.expovariate(requests_per_second / USERS))
            prompt = next(prompts)
            body = {
                "messages": [{"role": "user", "content": prompt.text}],
                "temperature": TEMPERATURE,
                "max_tokens": rng.randint(max(1, max_tokens // 4), max_tokens),
                "seed": rng.getrandbits(31),
            }
            outcomes.append((prompt.task, await _answered(session, body)))

    async with (
        aiohttp.ClientSession(
            url,
            headers={} if api_key is None else {"Authorization": f"Bearer {api_key}"},
            # llama-server drops idle connections at moments that a client cannot foresee.
            connector=aiohttp.TCPConnector(force_close=True),
            timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS),
        ) as session,
        asyncio.TaskGroup() as group,
    ):
        users = [group.create_task(user(session)) for _ in range(USERS)]
        await stop.wait()
        for task in users:
            task.cancel()
    return TrafficSummary(
        requests=len(outcomes),
        failures=sum(not good for _, good in outcomes),
        by_task=MappingProxyType(Counter(task for task, _ in outcomes)),
    )


async def _answered(session: aiohttp.ClientSession, body: Mapping[str, object]) -> bool:
    try:
        async with session.post("/v1/chat/completions", json=body) as response:
            await response.read()
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
