"""``mtpmon report``: what the history says, cut where the server changed."""

import argparse
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from mtpmon import __version__
from mtpmon.commands import EXIT_FINE, EXIT_NOT_FINE, exit_codes
from mtpmon.commands.options import add_config, usage
from mtpmon.commands.tables import UNKNOWN, bounded, definitions, number, rate, table, tables
from mtpmon.commands.terminal import printable, show, write
from mtpmon.compose import read_config
from mtpmon.config import Config
from mtpmon.duration import parse_duration
from mtpmon.eras import Change, Era, Figure, Record, record
from mtpmon.historyfile import HistoryFile, HistoryFileError
from mtpmon.model import Bounded, ProbeOutcome

SCHEMA: Final = "mtpmon.report/1"
MOST_PROBES: Final = 5000  # of each server; older ones are left out

SUMMARY: Final = "tables from the history: before and after each change of the server"
DESCRIPTION: Final = """\
Reads the history that `mtpmon run` keeps (history.path) and cuts it where the server's build
or model changed: users' traffic and probes before and since, and what changed between them,
with bounds. Users may have asked for other things since; probes ask the same prompts, so
they are compared prompt by prompt. Then the tables of `mtpmon probe` for the latest time."""
EPILOG: Final = """\
examples:
  mtpmon report --config mtpmon.yaml
  mtpmon report --config mtpmon.yaml --server coder --since 7d
  mtpmon report --history /var/lib/mtpmon/history.db --at-restarts
  mtpmon report --config mtpmon.yaml --json | jq '.servers[].record.changes'

""" + exit_codes(not_fine="there is nothing in the history to report")

_FIGURES: Mapping[Figure, tuple[str, bool]] = {
    "live_acceptance": ("users' acceptance", False),
    "live_decode_speed": ("users' decode tok/s", True),
    "probe_acceptance": ("probes' acceptance, by prompt", False),
    "probe_speedup": ("probes' speed-up, by prompt", True),
}


class ServerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One server of the JSON document."""

    name: str
    record: Record
    unreadable_probes: int


class ReportDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What ``--json`` prints. Numbers that are not known are null."""

    schema: str = SCHEMA
    mtpmon: str = __version__
    since_unix_seconds: float
    confidence: float
    servers: tuple[ServerRecord, ...]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_config(parser)
    parser.add_argument(
        "--history", metavar="FILE", type=Path, help="in place of history.path of a configuration"
    )
    parser.add_argument(
        "--server", metavar="NAME", action="append", help="only this one; may be repeated"
    )
    parser.add_argument(
        "--since",
        metavar="DURATION",
        default="30d",
        help="how far back, such as 7d; 30d by default",
    )
    parser.add_argument(
        "--at-restarts", action="store_true", help="cut at restarts as well: flags may have changed"
    )
    parser.add_argument("--json", action="store_true", help="print a JSON document, no tables")


def execute(args: argparse.Namespace) -> int:
    """Read, and print what there is.

    Raises:
        ConfigError: options, configuration or history cannot be used.
    """
    config = read_config(args.config)
    path = args.history or config.history.path
    if path is None:
        fix = "set history.path in it, or name a file with --history"
        raise usage("--config", "the configuration keeps no history", fix)
    seconds = parse_duration(args.since)
    if seconds is None or seconds <= 0:
        raise usage("--since", f"{args.since!r} is no length of time", "write it like 12h or 7d")
    since = time.time() - seconds
    try:
        document = _document(args, config, path, since)
    except HistoryFileError as error:
        raise usage("--history", f"{path} {error.problem}", error.fix) from error
    if args.json:
        write(msgspec.json.format(msgspec.json.encode(document), indent=1).decode() + "\n")
    else:
        show(*_rendered(document))
    found = any(server.record.eras for server in document.servers)
    return EXIT_FINE if found else EXIT_NOT_FINE


def _document(args: argparse.Namespace, config: Config, path: Path, since: float) -> ReportDocument:
    file = HistoryFile(path, read_only=True)
    try:
        names = file.servers()
        for name in args.server or ():
            if name not in names:
                listed = ", ".join(names) or "none"
                raise usage("--server", f"the history knows no {name!r}", f"it has {listed}")
        servers = []
        for name in args.server or names:
            probes = file.probes(name, ProbeOutcome, MOST_PROBES, since_unix_seconds=since)
            found = record(
                file.events(name, 0.0),
                file.rollups(name, since),
                probes.results,
                at_restarts=args.at_restarts,
                confidence=config.evidence.confidence,
            )
            servers.append(
                ServerRecord(name=name, record=found, unreadable_probes=probes.unreadable)
            )
    finally:
        file.close()
    return ReportDocument(
        since_unix_seconds=since,
        confidence=config.evidence.confidence,
        servers=tuple(servers),
    )


# --- saying -------------------------------------------------------------------------------


def _rendered(document: ReportDocument) -> Iterator[RenderableType]:
    any_probes = False
    for server in document.servers:
        yield Text(printable(server.name), style="bold")
        if server.unreadable_probes:
            yield Text(f"{server.unreadable_probes} probes could not be read and are left out")
        eras = server.record.eras
        if not eras:
            yield Text("nothing in this time")
            yield ""
            continue
        yield ""
        yield _times(eras)
        yield ""
        yield _traffic(eras)
        yield ""
        yield _probes(eras)
        for before, changes in zip(eras, server.record.changes, strict=False):
            if changes:
                yield ""
                yield _changes(before, changes)
        yield ""
        if eras[-1].probes.completed:
            any_probes = True
            yield Text(f"Probes since {_when(eras[-1].began_unix_seconds)}", style="bold")
            for each in tables(eras[-1].probes):
                yield ""
                yield each
            yield ""
    if not document.servers:
        yield Text("the history is empty")
    if any_probes:
        yield definitions()


def _times(eras: tuple[Era, ...]) -> Table:
    grid = table("The server", "from", "to", "build", "model", "restarts", left=4, wrapped=[3])
    for era in eras:
        grid.add_row(
            _when(era.began_unix_seconds),
            _when(era.ended_unix_seconds),
            printable(era.build or UNKNOWN),
            printable(era.model or UNKNOWN),
            str(era.restarts),
        )
    return grid


def _traffic(eras: tuple[Era, ...]) -> Table:
    grid = table(
        "Users' traffic", "from", "steps", "acceptance", "acceptance\nlength", "decode tok/s"
    )
    for era in eras:
        traffic = era.traffic
        grid.add_row(
            _when(era.began_unix_seconds),
            number(traffic.steps, ".0f"),
            _within(traffic.acceptance, percent=True),
            number(traffic.acceptance_length, ".2f"),
            _within(traffic.decode_tokens_per_second),
        )
    return grid


def _probes(eras: tuple[Era, ...]) -> Table:
    grid = table(
        "Probes",
        "from",
        "done",
        "failed",
        "accept-\nance",
        "tok/s",
        "speed-up",
        "exact",
        "KLD\nnats",
        "regret\nnats",
    )
    for era in eras:
        found = era.probes
        whole = found.tasks[-1] if found.tasks else None
        after = next((row for row in found.kld if row.at == "after_speculation"), None)
        exact = found.match.exact if found.match is not None else None
        grid.add_row(
            _when(era.began_unix_seconds),
            str(found.completed),
            str(sum(len(failure.prompt_ids) for failure in found.failures)),
            number(whole.acceptance.ratio if whole else None, ".1%"),
            rate(whole.tokens_per_second if whole else None),
            _within(whole.speedup if whole else None, unit="×"),
            f"{exact.part}/{exact.whole}" if exact is not None else UNKNOWN,
            number(after.mean_nats if after is not None else None, ".4g"),
            number(found.emitted.mean_regret_nats if found.emitted is not None else None, ".4g"),
        )
    return grid


def _changes(before: Era, changes: tuple[Change, ...]) -> Table:
    grid = table(
        f"What changed after {_when(before.ended_unix_seconds)}",
        "figure",
        "before",
        "after",
        "change",
        "over",
        "for certain",
    )
    for change in changes:
        words, relative = _FIGURES[change.figure]
        shares = change.figure.endswith("acceptance")
        sign = "no" if not change.certain else "better" if change.change.lower > 0 else "worse"
        low, value, high = (
            100 * x for x in (change.change.lower, change.change.value, change.change.upper)
        )
        unit = "%" if relative else " points"
        grid.add_row(
            words,
            number(change.before, ".1%" if shares else ".2f"),
            number(change.after, ".1%" if shares else ".2f"),
            f"{value:+.1f}{unit} [{low:+.1f}, {high:+.1f}]",
            f"{change.over} {'prompts' if 'prompt' in words else 'blocks'}",
            sign,
        )
    return grid


def _within(value: Bounded | None, *, percent: bool = False, unit: str = "") -> str:
    """``82.0% [80.1, 83.8]``, ``1.31× [1.28, 1.34]``."""
    if value is None:
        return UNKNOWN
    if percent:
        return f"{value.value:.1%} [{100 * value.lower:.1f}, {100 * value.upper:.1f}]"
    return bounded(value, unit)


def _when(unix_seconds: float) -> str:
    return datetime.fromtimestamp(unix_seconds, UTC).strftime("%Y-%m-%d %H:%M")
