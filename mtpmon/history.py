"""The history: probes, changes and a row a minute of traffic, kept over restarts of mtpmon.

Whoever has something to record leaves it in a queue and goes on; one thread writes. The
history is worth nothing without the daemon, so nothing that happens to it stops the daemon:
it is said once, counted, and tried again.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

import structlog

from mtpmon.historyfile import HistoryFile, HistoryFileError
from mtpmon.historyrows import FoundProbes, Record, event_record, probe_record, rollup_record
from mtpmon.model import ProbeOutcome, ProbeResult
from mtpmon.record import Event, HistoryFigures, Operation, RecordKind, Rollup

QUEUE_RECORDS = 4096
QUEUE_BYTES = 16 * 1024**2
BATCH_RECORDS = 64  # written in one transaction
RETRY_SECONDS = 30.0
TRIM_SECONDS = 600.0
ROLLUP_SECONDS = 60.0

T = TypeVar("T")


class History:
    """A history on disk, with a queue before it.

    `open` it, run `write_forever` as a task, `close` it. None of its methods blocks the event
    loop or raises because of the file.

    Args:
        path: the file.
        retention_seconds: how long rows are kept.
        max_bytes: greatest size of the file.
        wall: the time, in Unix seconds.
        retry_seconds: how long to leave a file alone that could not be written to.
        queue_records: how many records may wait to be written.
        queue_bytes: how large they may be together.
    """

    def __init__(
        self,
        path: Path,
        *,
        retention_seconds: float,
        max_bytes: int,
        wall: Callable[[], float],
        retry_seconds: float = RETRY_SECONDS,
        queue_records: int = QUEUE_RECORDS,
        queue_bytes: int = QUEUE_BYTES,
    ) -> None:
        self._file = HistoryFile(path, retention_seconds=retention_seconds, max_bytes=max_bytes)
        self._max_bytes = max_bytes
        self._wall = wall
        self._retry_seconds = retry_seconds
        self._queue = _Queue(queue_records, queue_bytes)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="history")
        self._writing = asyncio.Lock()
        self._waiting = asyncio.Event()
        self._closing = asyncio.Event()
        self._closed = False
        self._size_bytes: int | None = None
        self._problem: str | None = None
        self._errors: Counter[Operation] = Counter()
        self._log = structlog.get_logger().bind(history=str(path))

    async def open(self) -> bool:
        """Open the file and delete what is too old; whether it can be used."""
        return await self._change(self._file.open) and await self._trim()

    # --- recording ----------------------------------------------------------------------

    def record_probe(self, result: ProbeResult) -> None:
        """Keep a probe."""
        self._record(probe_record(result))

    def record_event(self, event: Event) -> None:
        """Keep a change."""
        self._record(event_record(event))

    def record_rollup(self, rollup: Rollup) -> None:
        """Keep a minute of traffic."""
        self._record(rollup_record(rollup))

    def _record(self, record: Record) -> None:
        self._queue.put(record)
        self._waiting.set()

    async def flush(self) -> bool:
        """Write what waits, if the file lets us; whether all of it is on disk now."""
        async with self._writing:
            while batch := self._queue.take(BATCH_RECORDS):
                if not await self._change(partial(self._file.write, batch)):
                    self._queue.put_back(batch)
                    return False
                if self._size_bytes is not None and self._size_bytes > self._max_bytes:
                    await self._trim()
        return True

    async def write_forever(self) -> None:
        """Write what is recorded as it comes, until `close` is called."""
        loop = asyncio.get_running_loop()
        trim_at = loop.time() + TRIM_SECONDS
        while not self._closing.is_set():
            self._waiting.clear()
            if not await self.flush():
                await _within(self._retry_seconds, self._closing)
            elif loop.time() >= trim_at:
                await self._trim()
                trim_at = loop.time() + TRIM_SECONDS
            else:
                await _within(trim_at - loop.time(), self._waiting)

    async def close(self) -> None:
        """Write what waits, once more, and close the file. Safe to call again."""
        if self._closed:
            return
        self._closed = True
        self._closing.set()
        self._waiting.set()
        await self.flush()
        self._queue.drop_all()
        await self._in_thread(self._file.close)
        self._thread.shutdown(wait=False)

    # --- reading ------------------------------------------------------------------------

    async def recent_probes(
        self,
        server: str,
        limit: int,
        *,
        outcomes: Collection[ProbeOutcome] = (ProbeOutcome.COMPLETED,),
    ) -> tuple[ProbeResult, ...]:
        """The latest probes of a server, oldest first; none if the file cannot be read.

        Args:
            server: its name.
            limit: how many at most.
            outcomes: how they ended.
        """
        found = await self._read(
            partial(self._file.probes, server, outcomes, limit), FoundProbes((), 0)
        )
        if found.unreadable:
            self._errors[Operation.READ] += found.unreadable
            self._log.warning("history_records_skipped", server=server, records=found.unreadable)
        return found.results

    async def events(self, server: str, since_unix_seconds: float) -> tuple[Event, ...]:
        """A server's changes since then, oldest first; none if the file cannot be read."""
        return await self._read(partial(self._file.events, server, since_unix_seconds), ())

    async def rollups(self, server: str, since_unix_seconds: float) -> tuple[Rollup, ...]:
        """A server's rollups since then, oldest first; none if the file cannot be read."""
        return await self._read(partial(self._file.rollups, server, since_unix_seconds), ())

    def figures(self) -> HistoryFigures:
        """How the history does."""
        usable = self._problem is None
        return HistoryFigures(
            usable=usable,
            size_bytes=self._size_bytes if usable else None,
            errors=dict(self._errors),
            dropped=dict(self._queue.dropped),
        )

    # --- the thread ---------------------------------------------------------------------

    async def _trim(self) -> bool:
        return await self._change(partial(self._file.trim, self._wall(), self._closing.is_set))

    async def _change(self, work: Callable[[], int]) -> bool:
        """Whether ``work``, which gives the size of the file, could be done."""
        try:
            self._size_bytes = await self._in_thread(work)
        except HistoryFileError as error:
            self._failed(error)
            return False
        if self._problem is not None:
            self._problem = None
            self._log.info("history_recovered")
        return True

    async def _read(self, work: Callable[[], T], otherwise: T) -> T:
        """What ``work`` reads, records of a moment ago included."""
        await self.flush()
        if self._problem is not None:
            return otherwise  # each try may have to wait for a lock
        try:
            return await self._in_thread(work)
        except HistoryFileError as error:
            self._failed(error)
            return otherwise

    async def _in_thread(self, work: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        try:
            # Shielded: work that waits for its turn must not be lost with who waits for it.
            return await asyncio.shield(loop.run_in_executor(self._thread, work))
        finally:
            moved_to, self._file.moved_to = self._file.moved_to, None
            if moved_to is not None:
                self._log.error("history_corrupt", moved_to=str(moved_to))

    def _failed(self, error: HistoryFileError) -> None:
        """Count it; say it unless it was the last thing said."""
        self._errors[error.operation] += 1
        if error.problem != self._problem:
            self._log.warning(
                "history_unavailable",
                operation=error.operation.value,
                problem=error.problem,
                fix=error.fix,
            )
        self._problem = error.problem


class _Queue:
    """Records that wait to be written, not too many; rollups give way to the rest."""

    def __init__(self, most_records: int, most_bytes: int) -> None:
        self._most_records = most_records
        self._most_bytes = most_bytes
        self._records: deque[Record] = deque()
        self._bytes = 0
        self.dropped: Counter[RecordKind] = Counter()

    def put(self, record: Record) -> None:
        self._records.append(record)
        self._bytes += record.size_bytes
        self._make_room()

    def put_back(self, records: Sequence[Record]) -> None:
        self._records.extendleft(reversed(records))
        self._bytes += sum(record.size_bytes for record in records)
        self._make_room()

    def take(self, most: int) -> list[Record]:
        taken = [self._records.popleft() for _ in range(min(most, len(self._records)))]
        self._bytes -= sum(record.size_bytes for record in taken)
        return taken

    def drop_all(self) -> None:
        self.dropped.update(record.kind for record in self.take(len(self._records)))

    def _make_room(self) -> None:
        """Drop the oldest rollups, then the oldest of the rest."""
        while len(self._records) > self._most_records or self._bytes > self._most_bytes:
            rollups = (r for r in self._records if r.kind is RecordKind.ROLLUP)
            victim = next(rollups, self._records[0])
            self._records.remove(victim)
            self._bytes -= victim.size_bytes
            self.dropped[victim.kind] += 1


async def _within(seconds: float, event: asyncio.Event) -> None:
    """Wait for the event, but no longer."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
