"""Probes to keep, and a process that keeps them: apart, so that it starts quickly."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from mtpmon.history import History
from mtpmon.model import (
    Comparison,
    Completion,
    Divergence,
    Position,
    PositionKinds,
    ProbeOutcome,
    ProbeResult,
    Step,
    StepStream,
    Timings,
    TopToken,
)

DAY = 86400.0
MIB = 1024**2
NOW = 1_795_965_727.0  # 2026-11-29 15:22:07 UTC


def completion(text: str = "größer\n") -> Completion:
    top = (TopToken(5, -0.1, text), TopToken(6, -2.5, "\N{SNOWMAN}"))
    return Completion(
        positions=(Position(5, text, top), Position(None, ""), Position(7, " b")),
        timings=Timings(
            prompt_tokens=5,
            prompt_seconds=0.1,
            cached_tokens=0,
            generated_tokens=3,
            generation_seconds=0.25,
            draft_tokens=3,
            accepted_tokens=2,
        ),
        stream=StepStream(steps=(Step(3, 2, 0.25),), unresolved_seconds=0.01),
        wall_seconds=0.4,
    )


def result(number: int = 0, **values: Any) -> ProbeResult:
    """A probe with everything, its number in its name."""
    divergence = Divergence(nats=1e-3, coverage=0.99, shared_tokens=8, top1_agrees=True)
    return ProbeResult(
        **{
            "server": "a",
            "prompt_id": f"p{number}",
            "task": "code",
            "unix_seconds": NOW + number,
            "duration_seconds": 1.5,
            "outcome": ProbeOutcome.COMPLETED,
            "speculating": completion(),
            "target_only": completion("x"),
            "comparison": Comparison(
                tokens=3,
                matches=2,
                matched_prefix=0,
                first_divergence=0,
                divergence_margin_nats=0.5,
            ),
            "next_token": divergence,
            "after_speculation": (divergence, divergence),
            "positions": PositionKinds(comparable=3, missing=0, diverged=0),
            **values,
        }
    )


def history(path: Path, **options: Any) -> History:
    settings: dict[str, Any] = {
        "retention_seconds": 30 * DAY,
        "max_bytes": 64 * MIB,
        "wall": lambda: NOW,
        "retry_seconds": 0.05,
    }
    return History(path, **{**settings, **options})


@asynccontextmanager
async def opened(path: Path, **options: Any) -> AsyncIterator[History]:
    """A history that writes, closed in the end."""
    found = history(path, **options)
    await found.open()
    task = asyncio.create_task(found.write_forever())
    try:
        yield found
    finally:
        await found.close()
        await task


def write_probes(path: Path, first: int, acknowledged: Connection) -> None:
    """Write probe after probe, telling the number of each that is said to be on disk."""

    async def work() -> None:
        async with opened(path) as kept:
            number = first
            while True:
                kept.record_probe(result(number))
                if await kept.flush():
                    acknowledged.send(number)
                number += 1

    asyncio.run(work())
