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

from mtpmon.apikeys import exposed_secret_files
from mtpmon.board import Board, ServerBoard
from mtpmon.boardprobes import FAILURES_KEPT
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
    to_public_dict,
)
from mtpmon.discovery import Listed, ServerFiles, all_errors, with_listed
from mtpmon.history import ROLLUP_SECONDS, History
from mtpmon.model import NOT_RUN, ProbeOutcome, ProbeResult
from mtpmon.record import Event
from mtpmon.snapshot import Snapshot
from mtpmon.supervisor import alive_forever, notify
from mtpmon.watch import Clock, Watcher
from mtpmon.web import Web

LOOK_SECONDS = 2.0  # between looks at the files of `server_files`; a change shows after two
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
        self.capture_files = _versions(server)
        self.board = ServerBoard(
            server.name,
            board_settings(config),
            probed=config.probe.enabled and server.probe,
            paired=server.target_only_url is not None,
            note=note,
        )
        self.watcher: Watcher = watcher(config, server, self.board, clock)
        self.tasks: list[asyncio.Task[None]] = []

    @property
    def made_from(self) -> object:
        """What it need not be made anew for while it is the same."""
        return self.server, self.suite, self.keys, self.capture_files

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
        look_seconds: time between looks at the files of ``server_files``.
    """

    def __init__(
        self,
        config: Config,
        *,
        path: Path | None = None,
        clock: Clock = SYSTEM_CLOCK,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self._written = config  # without the servers that are listed in other files
        self._config = config
        self._path = path
        self._clock = clock
        self._look_seconds = look_seconds
        self._reload_successful = True
        self._files = ServerFiles(config.server_files)
        self._files_complaint = ""
        self._changing = asyncio.Lock()
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
            server_files_successful=not self._files_complaint if self._files else None,
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
            ConfigError: a key, certificate or file of servers cannot be read, or the address is
                taken.
            ExceptionGroup: a fault of this program, in any task.
        """
        watched: dict[str, _Watched] = {}
        try:
            await self._open_history()
            self._config = await self._discovered(self._written, self._files)
            watched = await self._prepared(self._config)
            async with self._serving(), self._group:
                recording = self._group.create_task(self._record_forever(), name="history")
                looking = self._group.create_task(self._look_forever(), name="server files")
                await self._replace(watched)
                self._log.info("started", url=self.url, servers=list(self._watched))
                started()
                await self._stop.wait()
                recording.cancel()
                async with self._changing:  # nobody is in the middle of a change then
                    looking.cancel()
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
                # Files may hold another key or capture now.
                wanted = server, asked, api_keys(server), _versions(server)
                if same and now is not None and now.made_from == wanted:
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
        async with self._changing:
            try:
                written = read_config(self._path)
                files = ServerFiles(written.server_files)
                config = await self._discovered(written, files)
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
            self._written, self._config = written, config
            self._files, self._files_complaint = files, ""
            await self._replace(prepared)
            self._reload_successful = True
        self._log.info("reloaded", servers=list(prepared), needs_restart=fixed)
        later = f"; restart mtpmon for the changes of {' and '.join(fixed)}" if fixed else ""
        return f"watching {', '.join(prepared) or 'no server'}{later}"

    async def _discovered(self, written: Config, files: ServerFiles) -> Config:
        """``written`` with the servers of its files, all of which must be fine."""
        listed = await asyncio.to_thread(files.read)
        error = all_errors(listed)
        if error is not None:
            raise error
        return with_listed(written, listed)

    async def _look_forever(self) -> None:
        """Watch what the files of ``server_files`` list, as it changes."""
        while True:
            await asyncio.sleep(self._look_seconds)
            async with self._changing:
                listed = await asyncio.to_thread(self._files.read_if_changed)
                if listed is not None:
                    await self._take_over(listed)

    async def _take_over(self, listed: Listed) -> None:
        """Watch the servers of ``listed``; those before go on where that cannot be."""
        errors = [str(error) for error in listed.errors]
        before = self._config
        try:
            config = with_listed(self._written, listed)
            if config.servers != before.servers:
                prepared = await self._prepared(config)
                self._config = config
                await self._replace(prepared)
        except ConfigError as error:
            self._files.unused()
            errors.append(str(error))
        complaint, known = "\n".join(errors), self._files_complaint
        self._files_complaint = complaint
        if complaint and complaint != known:
            self._log.error("server_files_failed", detail=complaint)
        elif known and not complaint:
            self._log.info("server_files_usable_again")
        if self._config is not before:
            gone, new = _difference(before, self._config)
            self._log.info("server_files_changed", gone=gone, new=new)

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


def _difference(before: Config, now: Config) -> tuple[list[str], list[str]]:
    """The names of servers that are no longer as they were, and of those that were not so."""
    old, new = set(before.servers), set(now.servers)
    return sorted(each.name for each in old - new), sorted(each.name for each in new - old)


def _shared_settings(config: Config) -> object:
    return (
        config.scrape,
        config.windows_seconds,
        config.probe,
        config.evidence,
        config.verdict,
        config.shift,
    )


def _versions(server: Server) -> tuple[tuple[int, int] | None, ...]:
    """What tells a file from the one that was there before, for each capture of ``server``."""
    found: list[tuple[int, int] | None] = []
    for path in (server.reference_capture, server.baseline_capture):
        try:
            status = path.stat() if path is not None else None
        except OSError:
            status = None  # reading it says what is wrong
        found.append((status.st_ino, status.st_mtime_ns) if status is not None else None)
    return tuple(found)


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

    def up() -> None:
        notify("READY=1")
        started()

    alive = asyncio.create_task(alive_forever(), name="watchdog")
    try:
        await daemon.run(started=up)
    finally:
        alive.cancel()
