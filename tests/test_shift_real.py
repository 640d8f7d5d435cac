"""Change detection on a real server whose acceptance is known, for it is set."""

import asyncio
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mtpmon.board import ServerSnapshot
from mtpmon.config import Server
from mtpmon.daemon import Daemon
from mtpmon.demo.binary import options_of
from mtpmon.demo.model import ModelSpec, write_model
from mtpmon.demo.server import LlamaServer
from mtpmon.record import EventKind
from mtpmon.shift.server import Change, Figure
from mtpmon.shift.settings import DAY
from mtpmon.shift.words import in_words
from tests.fleet import bound, chance
from tests.rig import complete, configuration, fetch, running, samples
from tests.test_watch import until

pytestmark = [pytest.mark.real, pytest.mark.slow]

USUAL = 0.82
LOOK_SECONDS = 0.2
SWITCH = "--spec-synth-rates"
HEADS = {USUAL: 0.5, 0.75: 2.0, 0.50: 3.0}  # noise of a draft head in its place


class Dial:
    """Makes a server keep a share of its draft tokens.

    By its switch for that; builds without it get other draft heads under the same name, which
    keep less at each step of the dial.
    """

    def __init__(self, server: LlamaServer, directory: Path) -> None:
        self.server = server
        self.exact = SWITCH in options_of(server.binary)
        self._directory = directory

    def at(self, acceptance: float) -> dict[str, Any]:
        """What to start the server with."""
        if self.exact:
            c = chance(acceptance)
            rates = ",".join(f"{c**place:.4f}" for place in (1, 2, 3))
            return {"extra_args": (SWITCH, rates)}
        path = self._directory / f"{acceptance}" / "model.gguf"
        if not path.exists():
            path.parent.mkdir()
            write_model(ModelSpec(head_noise=HEADS[acceptance]), path)
        return {"model": path}


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


@pytest.mark.parametrize(("after", "tokens", "falls"), [(0.50, 20, 5), (0.75, 60, 2)])
async def test_falls_after_restarts_are_found_and_explained(
    model: Path, tmp_path: Path, after: float, tokens: int, falls: int
) -> None:
    """Nothing while learning, while idle, or after a restart that changed nothing.

    Then falls: found, where acceptance is set exactly, within 1.5 times as many steps as the
    information bound on average, and one request: it is looked at when a request has ended.
    """
    server = LlamaServer(None, model)
    dial = Dial(server, tmp_path)
    usual = dial.at(USUAL)
    server.model = usual.get("model", server.model)
    server.extra_args = usual.get("extra_args", ())
    waits, began_off = [], []
    async with server:
        config = configuration(
            Server(name="a", url=server.url), interval=LOOK_SECONDS, windows=(60.0,)
        )
        async with running(config) as daemon:
            await until(lambda: daemon.board["a"].last_scrape is not None)
            watching = time.time()
            await asked(daemon, server, 60, 400)
            now = samples(await fetch(f"{daemon.url}/metrics"))
            for direction in ("fall", "rise"):
                labels = f'direction="{direction}",server="a"'
                assert now[f"mtpmon_acceptance_shift{{{labels}}}"] == 0
            await asyncio.sleep(20 * LOOK_SECONDS)
            await server.restart()
            await asked(daemon, server, 20, 200)
            assert seen(daemon).shifts.totals == {}
            level = kept(daemon) / drafts(daemon) / 3

            for _ in range(falls):
                await server.restart(**dial.at(after))
                found, steps, off = await fallen(daemon, server, tokens)
                waits.append(steps)
                began_off.append(off)
                now = samples(await fetch(f"{daemon.url}/metrics"))
                page = await fetch(daemon.url)
                await server.restart(**usual)
                while seen(daemon).shifts.standing:
                    await asked(daemon, server, 1, 200)
            week = drafts(daemon) / (time.time() - watching) * 7 * DAY
    needed = bound(USUAL, after, week)
    print(
        f"{USUAL} to {after}: {np.mean(waits):.0f} steps {waits}, bound {needed:.0f}"
        f" at {week:.1e} steps a week; {in_words(found)}"
    )
    labels = 'direction="fall",server="a"'
    assert now[f"mtpmon_acceptance_shift{{{labels}}}"] == 1
    start = now[f"mtpmon_acceptance_shift_start_timestamp_seconds{{{labels}}}"]
    assert start == pytest.approx(found.began_unix_seconds, abs=1e-3)
    assert np.median(began_off) <= 0.5
    assert found.before == pytest.approx(level, abs=0.03)
    assert found.after < found.before - 0.05
    assert found.causes[0].kind is EventKind.RESTART
    assert "the server restarted with build" in in_words(found)
    assert in_words(found) in page
    if dial.exact:
        assert level == pytest.approx(USUAL, abs=0.02)
        assert found.after == pytest.approx(after, abs=0.1)
        assert np.mean(waits) <= 1.5 * needed + tokens / (1 + 3 * after)
