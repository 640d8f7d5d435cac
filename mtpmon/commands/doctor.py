"""``mtpmon doctor``: what servers offer, and what will therefore be measured."""

import argparse
import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from mtpmon.board import ServerBoard
from mtpmon.capture import Capture, holds
from mtpmon.commands import EXIT_FINE, EXIT_NOT_FINE, exit_codes
from mtpmon.commands.options import add_servers, chosen
from mtpmon.commands.terminal import printable, show
from mtpmon.compose import SYSTEM_CLOCK, board_settings, suite, watcher
from mtpmon.config import Config, Server
from mtpmon.doctor import diagnose
from mtpmon.examine import examine
from mtpmon.facts import Facts, Finding, Level, Topic, answers
from mtpmon.historyfile import HistoryFile, HistoryFileError
from mtpmon.model import ProbeOutcome
from mtpmon.request import identity_of
from mtpmon.suite import Prompt
from mtpmon.watch import Watcher
from mtpmon.worth import Measured, measure

TEST_TOKENS: Final = 24

SUMMARY: Final = "say what servers offer and what will therefore be measured"
DESCRIPTION: Final = f"""\
Examines each chosen server, and its target-only twin if it has one: does it answer, does it
draft, which counters does it have and are they right, is the twin really one, do configured
captures fit the server as it runs now, and does drafting pay, by the history that `mtpmon run`
keeps if it keeps one. Then it says line by line what `mtpmon run` will and
will not measure, and what to change.

Each server is sent one prompt, for {TEST_TOKENS} tokens. A sleeping one is left alone."""
EPILOG: Final = """\
examples:
  mtpmon doctor --url http://10.0.0.5:8080
  mtpmon doctor --url http://10.0.0.5:8080 --target-only-url http://10.0.0.5:8081
  mtpmon doctor --config mtpmon.yaml --server big

""" + exit_codes(not_fine="at least one line says problem", interrupted="interrupted by Ctrl-C")

_STYLES: dict[Level, str] = {"ok": "green", "warning": "yellow", "problem": "bold red"}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_servers(parser)


def execute(args: argparse.Namespace) -> int:
    """Examine, and print what is found.

    Raises:
        ConfigError: options or configuration cannot be used.
    """
    config, servers = chosen(args)
    tokens = min(config.probe.tokens, TEST_TOKENS)
    config = msgspec.structs.replace(
        config, probe=msgspec.structs.replace(config.probe, tokens=tokens)
    )
    diagnoses = asyncio.run(_diagnoses(config, servers))
    show(*_rendered(servers, diagnoses))
    bad = any(finding.level == "problem" for found in diagnoses for finding in found)
    return EXIT_NOT_FINE if bad else EXIT_FINE


async def _diagnoses(config: Config, servers: Sequence[Server]) -> list[tuple[Finding, ...]]:
    return [diagnose(await _facts(config, server)) for server in servers]


async def _facts(config: Config, server: Server) -> Facts:
    board = ServerBoard(server.name, board_settings(config))
    watching = watcher(config, server, board, SYSTEM_CLOCK)
    prompt = _prompt(watching, suite(config).prompts)
    probed = config.probe.enabled and server.probe
    try:
        facts = await examine(watching, server, prompt, probed=probed)
    finally:
        await watching.arms.close()
    if config.history.path is None or not answers(facts.server):
        return facts
    try:
        measured = _measured(config, config.history.path, server.name, facts)
    except HistoryFileError as error:
        problem = f"the history {config.history.path} {error.problem}"
        return msgspec.structs.replace(facts, history_problem=problem)
    return msgspec.structs.replace(facts, measured=measured)


def _measured(config: Config, path: Path, name: str, facts: Facts) -> Measured:
    """What the history's probes say of the server as it runs now.

    Raises:
        HistoryFileError: it cannot be read.
    """
    file = HistoryFile(path, read_only=True)
    try:
        found = file.probes(name, [ProbeOutcome.COMPLETED], config.probe.rolling)
    finally:
        file.close()
    counters = facts.server.counters
    shallow = [result for result in found.results if not result.variant.depth_tokens]
    return measure(
        # Without a start token, nothing tells that they were of this very process.
        [result for result in shallow if result.identity.start_token is not None],
        identity=identity_of(
            facts.server.props, counters.start_token if counters is not None else None
        ),
        now=SYSTEM_CLOCK.wall(),
        previous=Measured(),
        rules=board_settings(config).worth,
    )


def _prompt(watching: Watcher, prompts: Sequence[Prompt]) -> Prompt:
    """The first one, or the first that is captured, so that the test shows whether it fits."""
    held = watching.captures.held.values() if watching.captures is not None else ()
    captures = [capture for capture in held if isinstance(capture, Capture)]
    return next((p for p in prompts if any(holds(c, p) for c in captures)), prompts[0])


def _rendered(
    servers: Sequence[Server], diagnoses: Sequence[tuple[Finding, ...]]
) -> Iterator[RenderableType]:
    for server, findings in zip(servers, diagnoses, strict=True):
        headings: dict[Topic, str] = {
            "server": f"{server.name}: {server.url}",
            "target_only": f"target-only server: {server.target_only_url or 'none'}",
            "captures": "captures",
            "paying": "is it paying? by the history",
            "measured": "what `mtpmon run` will measure",
        }
        for topic, heading in headings.items():
            mine = [finding for finding in findings if finding.topic == topic]
            if mine or topic not in ("captures", "paying"):
                yield Text(heading, style="bold")
                yield _grid(mine)
                yield ""


def _grid(findings: Sequence[Finding]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(min_width=max(map(len, _STYLES)))
    for finding in findings:
        text = Text(printable(finding.text))
        if finding.advice:
            text.append(f"\n→ {finding.advice}", style="dim")
        grid.add_row(Text(finding.level, style=_STYLES[finding.level]), text)
    return grid
