"""One pass of prompts through a server, and the progress bar that goes with it."""

from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import Final, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from mtpmon.client import LlamaClient
from mtpmon.compose import SYSTEM_CLOCK
from mtpmon.config import Config
from mtpmon.model import ProbeOutcome, ProbeResult, Scrape
from mtpmon.scrape import scrape
from mtpmon.suite import Case, Turns
from mtpmon.watch import Watcher

K = TypeVar("K", bound=Hashable)

GIVE_UP_AFTER: Final = 3  # failures in a row; a dead server would cost a time limit each


def progress_bar() -> Progress:
    """A bar on standard error, if that is a terminal; gone at the end.

    Each task of it needs a field ``note``.
    """
    stderr = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=stderr,
        transient=True,
        disable=not stderr.is_terminal,
    )


async def look(config: Config, client: LlamaClient, *, model: str | None = None) -> Scrape:
    """What a server says of itself now."""
    return await scrape(
        client,
        timeout_seconds=config.scrape.timeout_seconds,
        monotonic=SYSTEM_CLOCK.monotonic,
        wall=SYSTEM_CLOCK.wall,
        model=model,
    )


async def one_pass(
    watching: Watcher,
    cases: Sequence[Case],
    *,
    advance: Callable[[ProbeResult], None],
    awake: Callable[[], Awaitable[object]] | None = None,
) -> list[ProbeResult]:
    """One result for each case, or fewer where the server is given up: see ``side_by_side``."""
    found = await side_by_side({None: watching}, cases, advance=advance, awake=awake)
    return found[None]


async def side_by_side(
    watching: Mapping[K, Watcher],
    cases: Sequence[Case],
    *,
    advance: Callable[[ProbeResult], None],
    awake: Callable[[], Awaitable[object]] | None = None,
) -> dict[K, list[ProbeResult]]:
    """Ask several servers each case in turn; one result for each, in the order of the cases.

    The first prompt is sent once more beforehand, to warm the servers up; of one that fails
    then, this is the only result. One that fails three times in a row is given up. The order of
    servers, and which arm of each comes first, takes turns as A B B A, so that a drift of the
    machine cancels out.

    Args:
        watching: of each server; nothing is written on its board.
        cases: what to ask, at least one.
        advance: told of each result.
        awake: called after the warm-up, when the servers are awake for sure.
    """
    results: dict[K, list[ProbeResult]] = {}
    for name, each in watching.items():
        warm_up = await each.probe_once(cases[0].prompt, baseline_first=False)
        completed = warm_up.outcome is ProbeOutcome.COMPLETED
        results[name] = [] if completed else [warm_up]
    going = [name for name in watching if not results[name]]
    if awake is not None and going:
        await awake()
    failures: Counter[K] = Counter()
    turns = Turns()
    for case in cases:
        turn = turns.next(case)
        for name in going if turn // 2 % 2 == 0 else going[::-1]:
            result = await watching[name].probe_once(
                case.prompt, variant=case.variant, baseline_first=turn % 2 == 1
            )
            results[name].append(result)
            advance(result)
            failures[name] += 1
            if result.outcome is ProbeOutcome.COMPLETED:
                failures[name] = 0
        going = [name for name in going if failures[name] < GIVE_UP_AFTER]
    return results
