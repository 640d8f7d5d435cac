"""What `mtpmon demo` shows while it runs: the main figures of one server."""

import time
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mtpmon.commands.tables import UNKNOWN, bounded, number, percent, positions, rate, table
from mtpmon.duration import format_duration
from mtpmon.kld import KldSummary
from mtpmon.model import NOT_RUN, Bounded, ProbeOutcome
from mtpmon.rolling import ProbeFigures
from mtpmon.snapshot import ServerSnapshot
from mtpmon.suite import DEFAULT_TASKS
from mtpmon.window import TrafficFigures

_TRAFFIC: Final = ("live", "probe")
_KLD: Final = {"next_token": "next token", "after_speculation": "after speculation"}


def screen(server: ServerSnapshot, header: str) -> RenderableType:
    """The tables, one below the other, in 24 lines of 100 columns."""
    tables = (_traffic(server), _tasks(server.probe_figures), _others(server))
    lines: list[RenderableType] = [Text(header)]
    for grid in tables:
        lines += ["", grid]
    return Group(*lines)


def line(server: ServerSnapshot) -> str:
    """The main figures in one line, for a log."""
    live, probe = (_shortest(server, traffic)[1] for traffic in _TRAFFIC)
    figures = server.probe_figures
    parts = [
        f"acceptance: live {_ratio(live.acceptance)}, probes {_ratio(probe.acceptance)}",
        f"length: live {number(_middle(live.acceptance_length), '.2f')}",
        f"{figures.probes} probes, {percent(figures.exact_sequences)} exact",
    ]
    parts += [
        f"{task} {found.speedup.value:.2f}×"
        for task, found in figures.tasks.items()
        if found.speedup is not None
    ]
    return f"{time.strftime('%H:%M:%S')} {'; '.join(parts)}"


def _shortest(server: ServerSnapshot, traffic: str) -> tuple[str, TrafficFigures]:
    windows = server.windows.get(traffic)
    if not windows:
        return "", TrafficFigures()
    seconds = min(windows)
    return f" {format_duration(seconds)}", windows[seconds]


def _traffic(server: ServerSnapshot) -> Table:
    grid = table(
        "Drafting",
        "traffic",
        "drafts",
        "acceptance",
        "acceptance\nlength",
        "acceptance by\ndraft position",
        "decode\ntok/s",
    )
    for traffic in _TRAFFIC:
        window, figures = _shortest(server, traffic)
        grid.add_row(
            traffic + window,
            number(figures.drafts, ".0f"),
            _ratio(figures.acceptance),
            bounded(figures.acceptance_length),
            positions(figures.positions, exact=True),
            rate(_middle(figures.decode_tokens_per_second)),
        )
    return grid


def _tasks(figures: ProbeFigures) -> Table:
    grid = table(
        "Probes by task",
        "task",
        "probes",
        "acceptance",
        "acceptance\nlength",
        "speculating\ntok/s",
        "target-only\ntok/s",
        "speed-up",
    )
    for name in DEFAULT_TASKS:
        task = figures.tasks.get(name)
        if task is None:
            continue
        grid.add_row(
            name,
            str(task.probes),
            percent(task.acceptance),
            number(task.acceptance_length, ".2f"),
            rate(task.tokens_per_second),
            rate(task.target_only_tokens_per_second),
            bounded(task.speedup, "×"),
        )
    return grid


def _others(server: ServerSnapshot) -> Table:
    figures = server.probe_figures
    grid = Table.grid(padding=(0, 2))
    grid.add_row(
        "same output",
        f"exact sequences {percent(figures.exact_sequences)},"
        f" token match {percent(figures.token_match)}",
    )
    grid.add_row(
        "KLD nats",
        "; ".join(f"{_KLD[at]} {_kld(figures.kld[at])}" for at in _KLD if at in figures.kld)
        or UNKNOWN,
    )
    outcomes = server.probe_totals.outcomes
    skipped = sum(outcomes.get(outcome, 0) for outcome in NOT_RUN)
    completed = outcomes.get(ProbeOutcome.COMPLETED, 0)
    failed = sum(outcomes.values()) - completed - skipped
    grid.add_row("probes", f"{completed} completed, {skipped} skipped, {failed} failed")
    grid.add_row("server", server.state.value if server.state is not None else UNKNOWN)
    return grid


def _kld(found: KldSummary) -> str:
    return f"mean {found.mean_nats:.3g}, max {found.max_nats:.3g}"


def _ratio(value: Bounded | None) -> str:
    if value is None:
        return percent(None)
    return f"{percent(value.value)} [{percent(value.lower)}, {percent(value.upper)}]"


def _middle(value: Bounded | None) -> float | None:
    return value.value if value is not None else None
