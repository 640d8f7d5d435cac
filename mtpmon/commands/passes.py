"""One pass of prompts through a server, and the progress bar that goes with it."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from mtpmon.model import ProbeOutcome, ProbeResult
from mtpmon.suite import Case, Turns
from mtpmon.watch import Watcher

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


async def one_pass(
    watching: Watcher,
    cases: Sequence[Case],
    *,
    advance: Callable[[ProbeResult], None],
    awake: Callable[[], Awaitable[object]] | None = None,
) -> list[ProbeResult]:
    """One result for each case, or fewer where the server is given up.

    The first prompt is sent once more beforehand, to warm the servers up; if that fails, its
    result is the only one. Which arm comes first takes turns as A B B A, so that a drift of
    the machine cancels out.

    Args:
        watching: of the server; nothing is written on its board.
        cases: what to ask, at least one.
        advance: told of each result.
        awake: called after the warm-up, when the server is awake for sure.
    """
    warm_up = await watching.probe_once(cases[0].prompt, baseline_first=False)
    if warm_up.outcome is not ProbeOutcome.COMPLETED:
        return [warm_up]
    if awake is not None:
        await awake()
    results: list[ProbeResult] = []
    failures = 0
    turns = Turns()
    for case in cases:
        turn = turns.next(case)
        result = await watching.probe_once(
            case.prompt, variant=case.variant, baseline_first=turn % 2 == 1
        )
        results.append(result)
        advance(result)
        failures = 0 if result.outcome is ProbeOutcome.COMPLETED else failures + 1
        if failures == GIVE_UP_AFTER:
            break
    return results
