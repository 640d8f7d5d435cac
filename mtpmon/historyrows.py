"""What a history holds as rows of its tables, and back.

Probes and events may come from another version: what this one cannot read is left out.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from mtpmon.model import Bounded, ProbeResult
from mtpmon.record import Event, EventKind, RecordKind, Rollup

_decoder = msgspec.json.Decoder(ProbeResult)


class Record(msgspec.Struct, frozen=True):
    """One row to be: what it is, its table and its values, ready to be written."""

    kind: RecordKind
    statement: str
    values: tuple[Any, ...]
    size_bytes: int


class FoundProbes(msgspec.Struct, frozen=True):
    """Probes read back, oldest first; ``unreadable`` rows were left out."""

    results: tuple[ProbeResult, ...]
    unreadable: int


_COUNTS = ("drafts", "draft_tokens", "accepted_tokens", "generated_tokens", "generation_seconds")
_BOUNDED = ("acceptance", "acceptance_length")
EVENT_COLUMNS = ("unix_seconds", "kind", "before", "after", "detail")
ROLLUP_COLUMNS = (
    "server",
    "unix_seconds",
    "seconds",
    *_COUNTS,
    "accepted_by_position",
    *(f"{name}{part}" for name in _BOUNDED for part in ("", "_lower", "_upper")),
)


def probe_record(result: ProbeResult) -> Record:
    """A probe as a row: JSON, and beside it what is searched for."""
    text = msgspec.json.encode(result).decode()
    return _record(
        RecordKind.PROBE,
        "probes",
        {
            "server": result.server,
            "unix_seconds": result.unix_seconds,
            "outcome": result.outcome.value,
            "task": result.task,
            "result": text,
        },
        size_bytes=len(text),
    )


def event_record(event: Event) -> Record:
    """A change as a row."""
    values = {**msgspec.structs.asdict(event), "kind": event.kind.value}
    return _record(RecordKind.EVENT, "events", values)


def rollup_record(rollup: Rollup) -> Record:
    """A minute of traffic as a row."""
    values: dict[str, Any] = {
        name: getattr(rollup, name) for name in ("server", "unix_seconds", "seconds", *_COUNTS)
    }
    if rollup.accepted_by_position is not None:
        values["accepted_by_position"] = json.dumps(rollup.accepted_by_position)
    for name in _BOUNDED:
        found: Bounded | None = getattr(rollup, name)
        if found is not None:
            values[name] = found.value
            values[f"{name}_lower"], values[f"{name}_upper"] = found.lower, found.upper
    return _record(RecordKind.ROLLUP, "rollups", values)


def _record(kind: RecordKind, table: str, values: dict[str, Any], *, size_bytes: int = 0) -> Record:
    names, marks = ", ".join(values), ", ".join("?" * len(values))
    statement = f"INSERT INTO {table} ({names}) VALUES ({marks})"  # noqa: S608
    return Record(kind, statement, tuple(values.values()), size_bytes + len(statement))


def probes_of(texts: Sequence[str]) -> FoundProbes:
    """Probes from the ``result`` of their rows."""
    results = []
    for text in texts:
        # A record of another version may lack what this one cannot do without.
        with suppress(msgspec.MsgspecError, TypeError):
            results.append(_decoder.decode(text))
    return FoundProbes(tuple(results), len(texts) - len(results))


def events_of(server: str, rows: Iterable[Sequence[Any]]) -> tuple[Event, ...]:
    """A server's changes from rows of `EVENT_COLUMNS`; unknown kinds are left out."""
    known = {kind.value: kind for kind in EventKind}
    return tuple(
        Event(
            server=server,
            unix_seconds=unix_seconds,
            kind=known[kind],
            before=before,
            after=after,
            detail=detail,
        )
        for unix_seconds, kind, before, after, detail in rows
        if kind in known
    )


def rollup_of(values: Sequence[Any]) -> Rollup:
    """A minute of traffic from a row of `ROLLUP_COLUMNS`."""
    row = dict(zip(ROLLUP_COLUMNS, values, strict=True))
    positions = row["accepted_by_position"]
    return Rollup(
        **{name: row[name] for name in ("server", "unix_seconds", "seconds", *_COUNTS)},
        acceptance=_bounded(row, "acceptance"),
        acceptance_length=_bounded(row, "acceptance_length"),
        accepted_by_position=None if positions is None else tuple(json.loads(positions)),
    )


def _bounded(row: Mapping[str, Any], name: str) -> Bounded | None:
    if row[name] is None:
        return None
    return Bounded(row[name], row[f"{name}_lower"], row[f"{name}_upper"])
