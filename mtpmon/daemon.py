"""The daemon: every task, socket and signal of a running mtpmon.

One task group holds every task. A failure nobody expected in any of them ends the process
with its traceback: a monitor that limps on shows old figures with a straight face.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import structlog
from aiohttp import web

from mtpmon.board import FAILURES_KEPT, NOT_RUN, Board, ServerBoard, Snapshot
from mtpmon.compose import (
    SYSTEM_CLOCK,
    api_keys,
    board_settings,
    history,
    read_config,
    suite,
    watcher,
)
from mtpmon.config import (
    Config,
    ConfigError,
    Problem,
    Server,
    exposed_secret_files,
    to_public_dict,
)
from mtpmon.history import ROLLUP_SECONDS, History
from mtpmon.model import ProbeOutcome, ProbeResult
from mtpmon.record import Event
from mtpmon.watch import Clock, Watcher
from mtpmon.web import Web

SHUTDOWN_SECONDS = 0.5  # what an open response gets; SIGTERM must end us within 2 s


class _Watched:
    """A server that is being watched: its part of the board and its running tasks."""

    def __init__(
        self,
        server: Server,
        config: Config,
        clock: Clock,
        note: Callable[[ProbeResult | Event], None],
    ) -> None:
        self.server = server
        self.suite = suite(config)
        self.keys = api_keys(server)
        self.board = ServerBoard(
            server.name,
            board_settings(config),
            probed=config.probe.enabled and server.probe,
            paired=server.target_only_url is not None,
            note=note,
        )
        self.watcher: Watcher = watcher(config, server, self.board, clock)
        self.tasks: list[asyncio.Task[None]] = []

    def start(self, group: asyncio.TaskGroup, *, offset_seconds: float) -> None:
        self.tasks = [
            group.create_task(
                self.watcher.scrape_forever(offset_seconds=offset_seconds),
                name=f"scrape {self.server.name}",
            ),
            group.create_task(self.watcher.probe_forever(), name=f"probe {self.server.name}"),
        ]

    async def close(self) -> None:
        """End the tasks, then their connections, so that no request is left behind."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.watcher.arms.close()


class Daemon:
    """Everything that runs, for one configuration at a time.

    Args:
        config: the first one.
        path: where it came from; read again on reload.
        clock: the time.
    """

    def __init__(
        self, config: Config, *, path: Path | None = None, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._config = config
        self._path = path
        self._clock = clock
        self._reload_successful = True
        self._watched: dict[str, _Watched] = {}
        self._stop = asyncio.Event()
        self._group = asyncio.TaskGroup()
        self._log = structlog.get_logger()
        self._history: History | None = None
        self.url = ""

    def stop(self) -> None:
        """Ask it to end; ``run`` then returns."""
        self._stop.set()

    def snapshot(self) -> Snapshot:
        """The board as it is now."""
        return self.board.snapshot(
            monotonic_seconds=self._clock.monotonic(),
            unix_seconds=self._clock.wall(),
            config_reload_successful=self._reload_successful,
            history=self._history.figures() if self._history is not None else None,
        )

    @property
    def board(self) -> Board:
        """The servers watched now."""
        boards = [watched.board for watched in self._watched.values()]
        return Board(boards, self._config.windows_seconds)

    async def run(self, *, started: Callable[[], None] = lambda: None) -> None:
        """Run until ``stop`` is called.

        Args:
            started: called once the address listens and every server is watched.

        Raises:
            ConfigError: a key or certificate cannot be read, or the address is taken.
            ExceptionGroup: a fault of this program, in any task.
        """
        watched: dict[str, _Watched] = {}
        try:
            await self._open_history()
            watched = await self._prepared(self._config)
            async with self._serving(), self._group:
                recording = self._group.create_task(self._record_forever(), name="history")
                await self._replace(watched)
                self._log.info("started", url=self.url, servers=list(self._watched))
                started()
                await self._stop.wait()
                recording.cancel()
                self._roll_up()
                await self._replace({})
        finally:
            if self._history is not None:
                await self._history.close()
            left = {*watched.values(), *self._watched.values()}
            await asyncio.gather(*(w.watcher.arms.close() for w in left))
        self._log.info("stopped")

    # --- what is watched ----------------------------------------------------------------

    async def _prepared(self, config: Config) -> dict[str, _Watched]:
        """The servers of ``config``, those whose settings did not change as they are now."""
        same = _shared_settings(config) == _shared_settings(self._config)
        asked = suite(config)
        prepared: dict[str, _Watched] = {}
        async with AsyncExitStack() as undo:
            for server in config.servers:
                now = self._watched.get(server.name)
                wanted = server, asked, api_keys(server)  # a file may hold another key now
                if same and now is not None and (now.server, now.suite, now.keys) == wanted:
                    prepared[server.name] = now
                else:
                    new = _Watched(server, config, self._clock, self._note)
                    prepared[server.name] = new
                    undo.push_async_callback(new.close)
                    await self._restore(new, config)
            undo.pop_all()
        for problem in exposed_secret_files(config):
            self._log.warning("secret_exposed", field=problem.path, detail=problem.fix)
        return prepared

    async def _replace(self, watched: dict[str, _Watched]) -> None:
        before, self._watched = self._watched, watched
        for name, old in before.items():
            if watched.get(name) is not old:
                await old.close()
        interval = self._config.scrape.interval_seconds
        for place, (name, new) in enumerate(watched.items()):
            if before.get(name) is not new:
                new.start(self._group, offset_seconds=interval * place / len(watched))

    async def reload(self) -> str:
        """Read the configuration again; the one in use stays if the new one is bad.

        Returns:
            What changed, for the operator.

        Raises:
            ConfigError: why the new one cannot be used.
        """
        try:
            config = read_config(self._path)
            prepared = await self._prepared(config)
        except ConfigError as error:
            self._reload_successful = False
            self._log.error("reload_failed", detail=str(error))
            raise
        fixed = [
            name
            for name in ("history", "listen", "log")
            if getattr(config, name) != getattr(self._config, name)
        ]
        self._config = config
        await self._replace(prepared)
        self._reload_successful = True
        self._log.info("reloaded", servers=list(prepared), needs_restart=fixed)
        later = f"; restart mtpmon for the changes of {' and '.join(fixed)}" if fixed else ""
        return f"watching {', '.join(prepared)}{later}"

    # --- history ------------------------------------------------------------------------

    async def _open_history(self) -> None:
        self._history = history(self._config, self._clock)
        if self._history is not None:
            await self._history.open()

    def _note(self, record: ProbeResult | Event) -> None:
        if self._history is None:
            return
        if isinstance(record, Event):
            self._history.record_event(record)
        else:
            self._history.record_probe(record)

    async def _restore(self, watched: _Watched, config: Config) -> None:
        """Let a server's rolling figures go on where they were."""
        if self._history is None or watched.watcher.cases is None:
            return
        name = watched.server.name
        failures = set(ProbeOutcome) - {ProbeOutcome.COMPLETED, *NOT_RUN}
        found = [
            *await self._history.recent_probes(name, config.probe.rolling),
            *await self._history.recent_probes(name, FAILURES_KEPT, outcomes=failures),
        ]
        watched.board.restore(sorted(found, key=lambda result: result.unix_seconds))
        self._log.info("history_restored", server=name, probes=len(found))

    def _roll_up(self) -> None:
        if self._history is None:
            return
        for watched in self._watched.values():
            rollup = watched.board.roll_up()
            if rollup is not None:
                self._history.record_rollup(rollup)

    async def _record_forever(self) -> None:
        if self._history is None:
            return
        async with asyncio.TaskGroup() as group:
            group.create_task(self._history.write_forever())
            while True:
                await asyncio.sleep(ROLLUP_SECONDS)
                self._roll_up()

    # --- HTTP and signals ---------------------------------------------------------------

    @asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        async def reload_over_http() -> str:
            try:
                return await self.reload()
            except ConfigError as error:
                raise ValueError(str(error)) from error

        app = Web(
            snapshot=self.snapshot,
            board=lambda: self.board,
            public_config=lambda: to_public_dict(self._config),
            reload=reload_over_http if self._config.listen.reload else None,
        ).application()
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS)
        async with AsyncExitStack() as stack:
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            address = self._config.listen.address
            site = web.TCPSite(runner, address.host or None, address.port)
            try:
                await site.start()
            except OSError as error:
                problem = Problem(
                    path="listen.address",
                    problem=f"cannot listen on {address}: {error.strerror}",
                    fix="choose another address, or stop what uses it",
                )
                raise ConfigError("configuration", [problem]) from error
            host, port = runner.addresses[0][:2]
            self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
            yield

    async def reload_on_hangup(self) -> None:
        """What SIGHUP does; a bad configuration is logged and the daemon goes on."""
        try:
            await self.reload()
        except ConfigError:
            return


def _shared_settings(config: Config) -> object:
    return config.scrape, config.windows_seconds, config.probe, config.evidence, config.shift


async def run_until_signal(daemon: Daemon, *, started: Callable[[], None] = lambda: None) -> None:
    """Run ``daemon`` until SIGTERM or SIGINT; SIGHUP makes it read its configuration again."""
    loop = asyncio.get_running_loop()
    reloads: set[asyncio.Task[None]] = set()

    def hangup() -> None:
        task = loop.create_task(daemon.reload_on_hangup())
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    for name, action in (("SIGTERM", daemon.stop), ("SIGINT", daemon.stop), ("SIGHUP", hangup)):
        loop.add_signal_handler(getattr(signal, name), action)
    await daemon.run(started=started)
