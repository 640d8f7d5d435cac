"""Change detection on a real server whose acceptance is known, for it is set."""

import asyncio
import time
from pathlib import Path

import numpy as np
import pytest

from mtpmon.config import Server
from mtpmon.daemon import Daemon
from mtpmon.demo.binary import ServerError, find_llama_server, options_of
from mtpmon.demo.server import LlamaServer
from mtpmon.record import EventKind
from mtpmon.shift.server import Change, Figure
from mtpmon.shift.settings import DAY
from mtpmon.shift.words import in_words
from mtpmon.snapshot import ServerSnapshot
from tests.fleet import bound, chance
from tests.rig import complete, configuration, fetch, running, samples
from tests.test_watch import until

pytestmark = [pytest.mark.real, pytest.mark.slow]

USUAL = 0.82
LOOK_SECONDS = 0.2
SWITCH = "--spec-synth-rates"


def settable() -> bool:
    """Whether acceptance can be set on the build at hand. Without a server that is not known."""
    try:
        return SWITCH in options_of(find_llama_server(None))
    except ServerError:
        return True


def rates(acceptance: float) -> tuple[str, str]:
    """The switch that makes a server keep three draft tokens at this rate, whatever they are."""
    c = chance(acceptance)
    return SWITCH, ",".join(f"{c**place:.4f}" for place in (1, 2, 3))


def seen(daemon: Daemon) -> ServerSnapshot:
    return daemon.board["a"].snapshot(monotonic_seconds=time.monotonic())


def drafts(daemon: Daemon) -> float:
    """Users' verification steps so far."""
    live = seen(daemon).live
    return live.drafts.value if live is not None and live.drafts is not None else 0.0


def kept(daemon: Daemon) -> float:
    """Draft tokens kept so far."""
    live = seen(daemon).live
    return float(sum(live.accepted_by_position or ())) if live is not None else 0.0


async def asked(daemon: Daemon, server: LlamaServer, requests: int, tokens: int) -> None:
    """Requests one after the other, each in a look of its own."""
    for place in range(requests):
        before = drafts(daemon)
        await complete(server, f"number {place}", tokens)
        await until(lambda before=before: drafts(daemon) > before, seconds=30)


async def fallen(daemon: Daemon, server: LlamaServer, tokens: int) -> tuple[Change, float, float]:
    """Ask until a change stands.

    Returns:
        The change, the steps until it was found, and how far its start is off the restart, as
        a share of that time.
    """
    began, before = time.time(), drafts(daemon)
    while not seen(daemon).shifts.standing:
        assert drafts(daemon) - before < 5000, "not found"
        await asked(daemon, server, 1, tokens)
    found = seen(daemon).shifts.standing[Figure.ACCEPTANCE]
    off = abs(found.began_unix_seconds - began) / (time.time() - began)
    return found, drafts(daemon) - before, off


async def watched(daemon: Daemon, server: LlamaServer) -> float:
    """Learn, idle, restart without a change: no alarm. Returns kept draft tokens per step."""
    await until(lambda: daemon.board["a"].last_scrape is not None)
    await asked(daemon, server, 80, 400)
    now = samples(await fetch(f"{daemon.url}/metrics"))
    for direction in ("fall", "rise"):
        labels = f'direction="{direction}",server="a"'
        assert now[f"mtpmon_acceptance_shift{{{labels}}}"] == 0
    await asyncio.sleep(20 * LOOK_SECONDS)
    await server.restart()
    await asked(daemon, server, 20, 400)
    assert seen(daemon).shifts.totals == {}
    return kept(daemon) / drafts(daemon)


async def test_learning_idling_and_restarting_raise_nothing(model: Path) -> None:
    """On any build, with a draft head as it is."""
    async with LlamaServer(None, model) as server:
        config = configuration(Server(name="a", url=server.url), interval=LOOK_SECONDS)
        async with running(config) as daemon:
            await watched(daemon, server)


if settable():  # a build without the switch cannot be made to fall

    @pytest.mark.parametrize(("after", "tokens", "falls"), [(0.50, 20, 5), (0.75, 100, 3)])
    async def test_falls_after_restarts_are_found_and_explained(
        model: Path, after: float, tokens: int, falls: int
    ) -> None:
        """Within twice as many steps as the information bound on average, and one request.

        Few falls scatter; simulations hold the average to 1.5. Printed beside it: the bound of the
        levels as the server counted them, which the end of a request lowers a little.
        """
        waits, offs, kept_after = [], [], 0.0
        async with LlamaServer(None, model, extra_args=rates(USUAL)) as server:
            config = configuration(Server(name="a", url=server.url), interval=LOOK_SECONDS)
            async with running(config) as daemon:
                watching = time.time()
                level = await watched(daemon, server)
                for _ in range(falls):
                    await server.restart(extra_args=rates(after))
                    before = kept(daemon)
                    found, steps, off = await fallen(daemon, server, tokens)
                    kept_after += kept(daemon) - before
                    waits.append(steps)
                    offs.append(off)
                    now = samples(await fetch(f"{daemon.url}/metrics"))
                    page = await fetch(daemon.url)
                    await server.restart(extra_args=rates(USUAL))
                    while seen(daemon).shifts.standing:
                        await asked(daemon, server, 1, 200)
                week = drafts(daemon) / (time.time() - watching) * 7 * DAY
        lower = kept_after / sum(waits)
        needed = bound(level / 3, lower / 3, week)
        print(
            f"{level / 3:.3f} to {lower / 3:.3f}: {np.mean(waits):.0f} steps {waits}, bound"
            f" {needed:.0f} at {week:.1e} steps a week; {in_words(found)}"
        )
        labels = 'direction="fall",server="a"'
        assert now[f"mtpmon_acceptance_shift{{{labels}}}"] == 1
        start = now[f"mtpmon_acceptance_shift_start_timestamp_seconds{{{labels}}}"]
        assert start == pytest.approx(found.began_unix_seconds, abs=1e-3)
        assert np.median(offs) <= 0.5
        assert found.before == pytest.approx(USUAL, abs=0.04)
        assert found.after < found.before
        assert found.causes[0].kind is EventKind.RESTART
        assert "the server restarted with build" in in_words(found)
        assert in_words(found) in page
        assert np.mean(waits) <= 2 * bound(USUAL, after, week) + tokens / (1 + lower)
